//! Where the keys of a scenario file stand.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::Mistake;

/// A file with the place of each of its keys.
pub(super) struct Positions<'t> {
    text: &'t str,
    file: Option<Spanned<DeTable<'t>>>,
}

/// A step on the way to a value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step<'s> {
    /// The value of a key.
    Key(&'s str),
    /// An entry of a list, counted from 0.
    Nth(usize),
}

/// The way to a table of the file. A mistake in it is told at one of its keys.
#[derive(Clone)]
pub(super) struct Position<'p, 't> {
    positions: &'p Positions<'t>,
    steps: Vec<Step<'p>>,
}

impl<'t> Positions<'t> {
    pub(super) fn of(text: &'t str) -> Self {
        Self { text, file: DeTable::parse(text).ok() }
    }

    /// The table at the top.
    pub(super) const fn top(&self) -> Position<'_, 't> {
        Position { positions: self, steps: Vec::new() }
    }

    /// Where the value at the end of `steps` stands; if it is not there, where the last table on the way stands.
    fn span(&self, steps: &[Step<'_>]) -> Range<usize> {
        let Some(file) = &self.file else { return 0..0 };
        let mut span = file.span();
        let mut table = Some(file.get_ref());
        let mut value: Option<&Spanned<DeValue<'_>>> = None;
        for step in steps {
            let next = match (step, table, value.map(Spanned::get_ref)) {
                (Step::Key(key), Some(table), _) => table.get(*key),
                (Step::Nth(index), None, Some(DeValue::Array(list))) => list.get(*index),
                _ => None,
            };
            let Some(next) = next else { break };
            span = next.span();
            value = Some(next);
            table = next.get_ref().as_table();
        }
        span
    }
}

impl<'p> Position<'p, '_> {
    /// The table under `key`.
    pub(super) fn table(&self, key: &'p str) -> Self {
        let mut position = self.clone();
        position.steps.push(Step::Key(key));
        position
    }

    /// The table with this number in the list under `key`.
    pub(super) fn nth(&self, key: &'p str, index: usize) -> Self {
        let mut position = self.table(key);
        position.steps.push(Step::Nth(index));
        position
    }

    /// A mistake in the value of `key`; at the table itself if it has no such key.
    pub(super) fn mistake(&self, key: &str, message: &str) -> Mistake {
        let mut steps: Vec<Step<'_>> = self.steps.clone();
        steps.push(Step::Key(key));
        Mistake::at(self.positions.text, &self.positions.span(&steps), format!("{key}: {message}"))
    }

    /// `Err` with a mistake in the value of `key` if something `is_wrong`.
    pub(super) fn refuse(&self, is_wrong: bool, key: &str, message: &str) -> Result<(), Mistake> {
        if is_wrong { Err(self.mistake(key, message)) } else { Ok(()) }
    }

    /// The line of the table.
    pub(super) fn line(&self) -> usize {
        Mistake::at(self.positions.text, &self.positions.span(&self.steps), "").line
    }
}

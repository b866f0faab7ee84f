//! Classes that hold a large part of all pages, found while the pages pass by.
//!
//! The rule is that of Misra and Gries ("Finding repeated elements", 1982): a table of k contents, each with a credit. A page whose content is
//! in the table raises its credit; a page whose content is not takes a free place, or else takes one credit from all. Each content that more
//! than 1/(k + 1) of the pages have is in the table at the end, with a count that is at most that much too low.

use std::collections::HashMap;

use crate::select::Content;

/// Places in the table.
const PLACES: usize = 1 << 16;
/// A class is large if it has this many times the members that a count can be too low by.
const LARGE: u64 = 16;
/// The fewest members of a large class.
const FEWEST: u64 = 32;
/// The most members that are kept to be looked at again.
const KEPT: usize = 256;

/// A member of a class: the process's number in the audit, and the page's address.
pub type Member = (usize, u64);

/// A class that was counted one by one.
#[derive(Clone, Debug)]
pub struct Counted {
    /// The members of each process, by its number.
    pub members: Vec<(usize, u64)>,
    /// Some of the members: one of `step`, spread over all of them.
    pub kept: Vec<Member>,
    all: u64,
    step: u64,
}

impl Counted {
    fn of(first: Member) -> Self {
        Self { members: vec![(first.0, 1)], kept: vec![first], all: 1, step: 1 }
    }

    fn count(&mut self, member: Member) {
        match self.members.iter_mut().find(|(process, _)| *process == member.0) {
            Some((_, members)) => *members += 1,
            None => self.members.push((member.0, 1)),
        }
        if self.all.is_multiple_of(self.step) {
            if self.kept.len() == KEPT {
                let mut nth = 0_usize;
                self.kept.retain(|_| {
                    nth += 1;
                    nth % 2 == 1
                });
                self.step *= 2;
            }
            self.kept.push(member);
        }
        self.all += 1;
    }
}

/// A place in the table. Most contents are met once: they need no count of their own.
#[derive(Debug)]
struct Place {
    credit: u32,
    first: Member,
    counted: Option<Box<Counted>>,
}

/// The table.
#[derive(Debug, Default)]
pub struct Frequent {
    places: HashMap<Content, Place>,
    noted: u64,
}

impl Frequent {
    /// Notes a page.
    pub fn note(&mut self, content: Content, member: Member) {
        self.noted += 1;
        if let Some(place) = self.places.get_mut(&content) {
            place.credit = place.credit.saturating_add(1);
            let first = place.first;
            place.counted.get_or_insert_with(|| Box::new(Counted::of(first))).count(member);
        } else if self.places.len() < PLACES {
            self.places.insert(content, Place { credit: 1, first: member, counted: None });
        } else {
            self.places.retain(|_, place| {
                place.credit -= 1;
                place.credit > 0
            });
        }
    }

    /// The large classes.
    pub fn large(self) -> HashMap<Content, Counted> {
        let least = (self.noted / PLACES as u64 * LARGE).max(FEWEST);
        let counted = self.places.into_iter().filter_map(|(content, place)| Some((content, *place.counted?)));
        counted.filter(|(_, counted)| counted.all >= least).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_class_is_found_among_many_small_ones() {
        let mut frequent = Frequent::default();
        for nth in 0..200_000_u64 {
            // Each tenth page has the same content.
            let content = if nth % 10 == 0 { 1 } else { 1_000 + u128::from(nth) };
            frequent.note(content, (usize::from(nth / 10 % 2 == 1), nth));
        }
        let large = frequent.large();
        assert_eq!(large.len(), 1, "{large:?}");
        assert_eq!(large[&1].members, [(0, 10_000), (1, 10_000)]);
        let kept = &large[&1].kept;
        assert!((KEPT / 2..=KEPT).contains(&kept.len()));
        assert!(kept.iter().any(|(_, at)| *at > 150_000), "spread over all of them");
    }

    #[test]
    fn a_small_class_is_not_large() {
        let mut frequent = Frequent::default();
        (0..31).for_each(|nth| frequent.note(1, (0, nth)));
        assert!(frequent.large().is_empty());
    }
}

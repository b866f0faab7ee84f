//! Tables of a configuration file: known keys only, and values of the right type.
//!
//! For a value of another type, the message gives the full path of its key, what was found, and what to write.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use memtide_host::Accounts;
use memtide_model::{Users, pattern_given};
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use crate::mistake::{Mistake, Quoted, key, meant, short};
use crate::users;

/// The longest text that is read as a size or a share.
const LONGEST_AMOUNT: usize = 40;

/// A kind of tables.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    /// Its keys.
    pub keys: &'static [&'static str],
    /// Keys that are unknown here but known elsewhere, and the place to write them.
    pub elsewhere: &'static [(&'static [&'static str], &'static str)],
}

/// A table with known keys only.
pub(crate) struct Table<'t> {
    /// The prefix of its keys, with a dot at the end; empty for the top.
    path: String,
    /// Its first byte.
    begins: usize,
    entries: &'t DeTable<'t>,
}

/// A key with its value.
pub(crate) struct Entry<'t> {
    path: String,
    key_begins: usize,
    value: &'t Spanned<DeValue<'t>>,
}

impl<'t> Table<'t> {
    /// The table at the top of the file.
    pub(crate) fn top(entries: &'t DeTable<'t>, kind: Kind) -> Result<Self, Mistake> {
        Self { path: String::new(), begins: 0, entries }.of_kind(kind)
    }

    /// The table `name` of a file whose other tables are not read here.
    pub(crate) fn below(
        name: &str,
        begins: usize,
        entries: &'t DeTable<'t>,
        kind: Kind,
    ) -> Result<Self, Mistake> {
        Self { path: format!("{}.", key(name)), begins, entries }.of_kind(kind)
    }

    /// This table, if all its keys are of its kind.
    fn of_kind(self, Kind { keys, elsewhere }: Kind) -> Result<Self, Mistake> {
        let is_known = |name: &&str| keys.contains(name);
        let mut names = self.entries.keys();
        let Some(name) = names.find(|name| !is_known(&name.get_ref().as_ref())) else { return Ok(self) };
        let written = name.get_ref().as_ref();
        let other = elsewhere.iter().find(|(keys, _)| keys.contains(&written)).map(|(_, place)| *place);
        let fix = match (other, meant(written, keys)) {
            // In a small table, one of its own keys may be meant.
            (Some(place), _) if keys.len() < 4 => {
                format!("known here: {}; or write it {place}", keys.join(", "))
            }
            (Some(place), _) => format!("write it {place}"),
            (None, Some(near)) => format!("did you mean `{near}`?"),
            (None, None) => format!("known here: {}", keys.join(", ")),
        };
        let message = format!("unknown key `{}{}`: {fix}", self.path, key(written));
        Err(Mistake::new(name.span().start, message))
    }

    fn entry(&self, name: &'t Spanned<DeString<'t>>, value: &'t Spanned<DeValue<'t>>) -> Entry<'t> {
        let path = format!("{}{}", self.path, key(name.get_ref()));
        Entry { path, key_begins: name.span().start, value }
    }

    /// The key `name`, if it is set.
    pub(crate) fn get(&self, name: &str) -> Option<Entry<'t>> {
        self.entries.get_key_value(name).map(|(name, value)| self.entry(name, value))
    }

    /// The result of `read` for the key `name`, or `default`.
    pub(crate) fn read<T>(
        &self,
        name: &str,
        default: T,
        read: impl FnOnce(&Entry<'t>) -> Result<T, Mistake>,
    ) -> Result<T, Mistake> {
        self.get(name).map_or(Ok(default), |entry| read(&entry))
    }

    /// Like `read` for a required key; `wanted` says what to write.
    pub(crate) fn need<T>(
        &self,
        name: &str,
        wanted: &str,
        read: impl FnOnce(&Entry<'t>) -> Result<T, Mistake>,
    ) -> Result<T, Mistake> {
        let missing = || Mistake::new(self.begins, format!("{}{name} is missing: write {wanted}", self.path));
        self.get(name).ok_or_else(missing).and_then(|entry| read(&entry))
    }
}

impl<'t> Entry<'t> {
    /// A mistake in its value.
    pub(crate) fn wrong(&self, message: impl Display) -> Mistake {
        Mistake::new(self.place_of(self.value), format!("{}: {message}", self.path))
    }

    /// Its value does not have the wanted type.
    fn found(&self, value: &Spanned<DeValue<'_>>, wanted: &str) -> Mistake {
        let found = match value.get_ref() {
            DeValue::String(text) => format!("the text {}", Quoted(text)),
            DeValue::Integer(number) => format!("the number {}", short(&number.to_string())),
            DeValue::Float(number) => format!("the number {}", short(number.as_str())),
            DeValue::Boolean(word) => word.to_string(),
            DeValue::Datetime(_) => "a date or a time".to_owned(),
            DeValue::Array(_) => "a list".to_owned(),
            DeValue::Table(_) => "a table".to_owned(),
        };
        let message = format!("{}: found {found}: write {wanted}", self.path);
        Mistake::new(self.place_of(value), message)
    }

    /// The first byte of `value`; for a whole table, the first byte of its name.
    fn place_of(&self, value: &Spanned<DeValue<'_>>) -> usize {
        let is_own = std::ptr::eq(value, self.value);
        if is_own && value.get_ref().is_table() { self.key_begins } else { value.span().start }
    }

    /// `true` or `false`.
    pub(crate) fn switch(&self) -> Result<bool, Mistake> {
        self.switch_about("")
    }

    /// The same, for a key whose mistakes need a word `about` it.
    pub(crate) fn switch_about(&self, about: &str) -> Result<bool, Mistake> {
        let example = format!("true or false without quotes, as in {} = true{about}", self.name());
        let wanted = || self.found(self.value, &example);
        self.value.get_ref().as_bool().ok_or_else(wanted)
    }

    /// A whole number that is not below zero.
    pub(crate) fn count(&self, example: &str) -> Result<u32, Mistake> {
        let number = self.value.get_ref().as_integer();
        let number = number.and_then(|number| u32::from_str_radix(number.as_str(), number.radix()).ok());
        let wanted = || format!("a whole number up to {} without quotes, as in {example}", u32::MAX);
        number.ok_or_else(|| self.found(self.value, &wanted()))
    }

    /// Whether its value is a text.
    pub(crate) fn is_text(&self) -> bool {
        self.value.get_ref().is_str()
    }

    /// A text.
    pub(crate) fn text(&self, wanted: &str) -> Result<&'t str, Mistake> {
        self.value.get_ref().as_str().ok_or_else(|| self.found(self.value, wanted))
    }

    /// The result of `parse` for a short text.
    pub(crate) fn amount<T>(
        &self,
        wanted: &str,
        parse: impl FnOnce(&str) -> Option<Result<T, String>>,
    ) -> Result<T, Mistake> {
        let text = self.text(wanted)?;
        let is_short = text.chars().count() <= LONGEST_AMOUNT;
        match is_short.then(|| parse(text)).flatten() {
            Some(Ok(amount)) => Ok(amount),
            Some(Err(error)) => Err(self.wrong(error)),
            None => Err(self.found(self.value, wanted)),
        }
    }

    /// A text that is a value of type `T` in all its forms.
    pub(crate) fn parsed<T>(&self, wanted: &str) -> Result<T, Mistake>
    where
        T: FromStr,
        T::Err: Display,
    {
        self.amount(wanted, |text| Some(text.parse().map_err(|error: T::Err| error.to_string())))
    }

    /// One of a few words.
    pub(crate) fn one_of<T: Copy>(&self, words: &[(&str, T)]) -> Result<T, Mistake> {
        let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        let quoted: Vec<String> = known.iter().map(|word| format!("\"{word}\"")).collect();
        let wanted = quoted.join(" or ");
        let text = self.text(&wanted)?;
        let value = words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
        value.ok_or_else(|| match meant(text, &known) {
            Some(near) => self.wrong(format!("unknown value {}: did you mean \"{near}\"?", Quoted(text))),
            None => self.found(self.value, &wanted),
        })
    }

    /// A list of patterns of names.
    pub(crate) fn patterns(&self, wanted: &str) -> Result<Vec<String>, Mistake> {
        let list = self.value.get_ref().as_array().ok_or_else(|| self.found(self.value, wanted))?;
        let pattern = |value: &Spanned<DeValue<'_>>| {
            let text = value.get_ref().as_str().ok_or_else(|| self.found(value, wanted))?;
            match no_pattern(text) {
                Some(why) => Err(Mistake::new(value.span().start, format!("{}: {why}", self.path))),
                None => Ok(pattern_given(text)),
            }
        };
        list.iter().map(pattern).collect()
    }

    /// A list of users: see [`crate::users`].
    pub(crate) fn users(&self, accounts: &Accounts) -> Result<Users, Mistake> {
        let wanted = format!("a list of users in quotes, as in {} = [\"system\", \"alice\"]", self.name());
        let list = self.value.get_ref().as_array().ok_or_else(|| self.found(self.value, &wanted))?;
        if list.is_empty() {
            return Err(self.wrong("no guest has one of these users: write some, as in [\"system\"]"));
        }
        let (mut words, mut ranges) = (Vec::new(), Vec::new());
        for value in list.iter() {
            let word = value.get_ref().as_str().ok_or_else(|| self.found(value, &wanted))?;
            let meant = users::of_word(word, accounts);
            ranges.extend(
                meant.map_err(|why| Mistake::new(value.span().start, format!("{}: {why}", self.path)))?,
            );
            words.push(word.to_owned());
        }
        Ok(Users::new(words, ranges))
    }

    /// The absolute path of a file.
    pub(crate) fn path(&self, example: &str) -> Result<PathBuf, Mistake> {
        let wanted =
            format!("a path in quotes that begins with \"/\", as in {} = \"{example}\"", self.name());
        let written = self.text(&wanted)?;
        let path = Path::new(written);
        if path.is_absolute() {
            return Ok(path.to_owned());
        }
        let why = "is not an absolute path, and the daemon may run in any directory";
        Err(self.wrong(format!("{} {why}: write {wanted}", Quoted(written))))
    }

    /// A table of kind `kind`.
    pub(crate) fn table(&self, wanted: &str, kind: Kind) -> Result<Table<'t>, Mistake> {
        let entries = self.value.get_ref().as_table().ok_or_else(|| self.found(self.value, wanted))?;
        let path = format!("{}.", self.path);
        Table { path, begins: self.key_begins, entries }.of_kind(kind)
    }

    /// The entries of a table whose keys are names.
    pub(crate) fn named(&self, wanted: &str) -> Result<Vec<(&'t str, Entry<'t>)>, Mistake> {
        let entries = self.value.get_ref().as_table().ok_or_else(|| self.found(self.value, wanted))?;
        let table = Table { path: format!("{}.", self.path), begins: self.key_begins, entries };
        let entry = |(name, value)| {
            let name: &'t Spanned<DeString<'t>> = name;
            (name.get_ref().as_ref(), table.entry(name, value))
        };
        Ok(entries.iter().map(entry).collect())
    }

    /// A list of tables of kind `kind`.
    pub(crate) fn tables(&self, wanted: &str, kind: Kind) -> Result<Vec<Table<'t>>, Mistake> {
        let list = self.value.get_ref().as_array().ok_or_else(|| self.found(self.value, wanted))?;
        let table = |value: &'t Spanned<DeValue<'t>>| {
            let entries = value.get_ref().as_table().ok_or_else(|| self.found(value, wanted))?;
            let table = Table { path: format!("{}.", self.path), begins: value.span().start, entries };
            table.of_kind(kind)
        };
        list.iter().map(table).collect()
    }

    /// The last part of its path.
    fn name(&self) -> &str {
        self.path.rsplit('.').next().unwrap_or_default()
    }
}

/// The problem with a name pattern.
fn no_pattern(text: &str) -> Option<String> {
    if text.is_empty() {
        return Some("no guest has an empty name: write a name, or \"*\" for all".to_owned());
    }
    let (_, inside) = text.split_once('[')?;
    inside.contains(']').then(|| {
        let text = Quoted(text);
        format!("{text}: brackets are not supported: write ? for any one character, * for any text")
    })
}

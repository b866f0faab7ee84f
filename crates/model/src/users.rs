//! The users whose guests count as guests.
//!
//! **Terms.** A *user* is a number: the real user of a guest's process, as the kernel says. Nobody chooses it by a command line. The
//! configuration names users in *words*; the words are resolved to ranges of numbers when it is read.
//!
//! **Rule.** A guest without a known user is nobody's, and no list has it.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Bytes, printable};

/// A list of users.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Users {
    /// The list as the operator wrote it.
    words: Vec<String>,
    /// The first and the last number of each range.
    ranges: Vec<(u32, u32)>,
}

impl Users {
    /// The word for root, the system's own users, the daemon's user and the members of the group `memtide`.
    pub const SYSTEM: &'static str = "system";
    /// The group whose members the word [`SYSTEM`](Self::SYSTEM) includes.
    pub const GROUP: &'static str = "memtide";
    /// The users below this number are the system's own.
    pub const FIRST_PERSON: u32 = 1000;
    /// root and the system's own users.
    pub const SYSTEM_RANGE: (u32, u32) = (0, Self::FIRST_PERSON - 1);

    /// The list with these words, and their meaning as ranges of numbers.
    #[must_use]
    pub const fn new(words: Vec<String>, ranges: Vec<(u32, u32)>) -> Self {
        Self { words, ranges }
    }

    /// The list as the operator wrote it.
    #[must_use]
    pub fn words(&self) -> &[String] {
        &self.words
    }

    /// Whether the list has this user.
    #[must_use]
    pub fn have(&self, user: Option<u32>) -> bool {
        user.is_some_and(|user| self.ranges.iter().any(|(first, last)| (*first..=*last).contains(&user)))
    }

    /// The line of the configuration that adds `word` to this list.
    #[must_use]
    pub fn line_with(&self, word: &str) -> String {
        let words = self.words.iter().map(String::as_str).chain([word]);
        let quoted: Vec<String> = words.map(|word| format!("\"{}\"", printable(word))).collect();
        format!("users = [{}]", quoted.join(", "))
    }
}

/// The list without a configuration, on a host of which nothing else is known.
impl Default for Users {
    fn default() -> Self {
        Self::new(vec![Self::SYSTEM.to_owned()], vec![Self::SYSTEM_RANGE])
    }
}

/// As in the configuration, for people.
impl fmt::Display for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> = self.words.iter().map(|word| printable(word)).collect();
        f.write_str(&words.join(" "))
    }
}

/// The guests whose users the list of the configuration does not have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outsiders {
    /// Some of them, in order of their processes.
    pub listed: Vec<Outsider>,
    /// The number of all of them.
    pub count: usize,
}

/// A guest of a user whom the list of the configuration does not have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outsider {
    /// The name that it gives itself. It may hold anything that a guest's name may hold.
    pub name: String,
    /// Its process.
    pub pid: u32,
    /// The number of its user; `None` if the kernel did not tell.
    pub user: Option<u32>,
    /// The name of this user, if the host has one.
    #[serde(default)]
    pub user_name: Option<String>,
    /// The resident memory of its process, if it could be read.
    #[serde(default)]
    pub footprint: Option<Bytes>,
    /// The line of the configuration that admits the guests of its user; `None` if the user is not known.
    #[serde(default)]
    pub line: Option<String>,
}

impl Outsider {
    /// A guest of which nothing else is known.
    #[must_use]
    pub fn new(name: &str, pid: u32, user: Option<u32>) -> Self {
        Self { name: name.to_owned(), pid, user, user_name: None, footprint: None, line: None }
    }

    /// Tells the name of its user, if the host has one, and the line that admits this user beside those in `users`.
    pub fn tell(&mut self, user_name: Option<&str>, users: &Users) {
        let Some(user) = self.user else { return };
        self.user_name = user_name.map(str::to_owned);
        self.line = Some(users.line_with(&user_name.map_or_else(|| user.to_string(), str::to_owned)));
    }
}

impl Outsiders {
    /// The most of them that are listed: any user may start many.
    pub const MOST_LISTED: usize = 8;

    /// These guests, as many of them as are listed. One of each user comes before the second one of any: who starts many hides nobody.
    #[must_use]
    pub fn of(mut all: Vec<Outsider>) -> Self {
        let count = all.len();
        all.sort_by_key(|outsider| outsider.pid);
        let mut of_user: BTreeMap<Option<u32>, usize> = BTreeMap::new();
        let mut turns: Vec<(usize, Outsider)> = Vec::with_capacity(count);
        for outsider in all {
            let turn = of_user.entry(outsider.user).or_default();
            *turn += 1;
            turns.push((*turn, outsider));
        }
        turns.sort_by_key(|(turn, _)| *turn);
        turns.truncate(Self::MOST_LISTED);
        let mut listed: Vec<Outsider> = turns.into_iter().map(|(_, outsider)| outsider).collect();
        listed.sort_by_key(|outsider| outsider.pid);
        Self { listed, count }
    }

    /// The number of those that are not listed.
    #[must_use]
    pub const fn more(&self) -> usize {
        self.count.saturating_sub(self.listed.len())
    }
}

/// For people, as in `web1 (process 42 of alice)`.
impl fmt::Display for Outsider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (process {} of ", printable(&self.name), self.pid)?;
        match (&self.user_name, self.user) {
            (Some(name), _) => write!(f, "{})", printable(name)),
            (None, Some(user)) => write!(f, "user {user})"),
            (None, None) => f.write_str("an unknown user)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_the_users_in_its_ranges_and_nobody_unknown() {
        let users = Users::new(Vec::new(), vec![(0, 999), (100_000, 165_535)]);
        for (user, expected) in [(0, true), (999, true), (1000, false), (99_999, false), (165_535, true)] {
            assert_eq!(users.have(Some(user)), expected, "{user}");
        }
        assert!(!users.have(None));
        assert!(!Users::new(Vec::new(), Vec::new()).have(Some(0)));
    }

    #[test]
    fn few_of_many_outsiders_are_listed_and_nobody_hides_another_user() {
        let mut all: Vec<Outsider> = (1..=100).map(|pid| Outsider::new("many", pid, Some(1001))).collect();
        all.push(Outsider::new("last", 200, Some(1002)));
        let outsiders = Outsiders::of(all);
        assert_eq!((outsiders.listed.len(), outsiders.count, outsiders.more()), (8, 101, 93));
        let pids: Vec<u32> = outsiders.listed.iter().map(|outsider| outsider.pid).collect();
        assert_eq!(pids, [1, 2, 3, 4, 5, 6, 7, 200]);
    }

    #[test]
    fn the_line_that_admits_a_user_keeps_the_others() {
        assert_eq!(Users::default().line_with("alice"), "users = [\"system\", \"alice\"]");
    }

    #[test]
    fn an_outsider_is_told_without_anything_that_a_terminal_obeys() {
        let mut outsider = Outsider::new("a\u{1b}[2J", 42, Some(1001));
        outsider.tell(Some("alice"), &Users::default());
        assert_eq!(outsider.to_string(), "a\\u{1b}[2J (process 42 of alice)");
        assert_eq!(outsider.line.as_deref(), Some("users = [\"system\", \"alice\"]"));
        outsider.tell(None, &Users::default());
        assert_eq!(outsider.line.as_deref(), Some("users = [\"system\", \"1001\"]"));
        assert!(outsider.to_string().ends_with("(process 42 of user 1001)"));
    }
}

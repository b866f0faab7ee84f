//! The guests that a fleet shows, and those of other users.
//!
//! **Rule.** A guest is shown if its name matches a pattern and its user is on the list, or if the configuration names it. The others are never
//! connected to. A guest that only its user keeps out is an *outsider*: an operator may look for it, so it is listed.

use memtide_host::{Accounts, Root};
use memtide_model::{Outsider, Outsiders, Users, name_matches};

use crate::backend::Found;

/// The guests that a fleet shows, besides those that the configuration names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admitted {
    /// Patterns of their names.
    pub names: Vec<String>,
    /// Their users; `None`: all.
    pub users: Option<Users>,
}

/// What becomes of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// It is shown.
    Shown,
    /// Only its user keeps it out.
    Outside,
    /// Nobody wants to see it.
    Ignored,
}

impl Admitted {
    /// Guests with these names, of all users.
    #[must_use]
    pub fn named(names: &[&str]) -> Self {
        Self { names: names.iter().map(|&name| name.to_owned()).collect(), users: None }
    }

    pub(crate) fn place_of(&self, found: &Found) -> Place {
        if found.is_configured {
            return Place::Shown;
        }
        if !self.names.iter().any(|pattern| name_matches(pattern, found.id.name())) {
            return Place::Ignored;
        }
        match self.users.as_ref().is_none_or(|users| users.have(found.process.user)) {
            true => Place::Shown,
            false => Place::Outside,
        }
    }

    /// The list of these outsiders, with the names of their users and the lines that admit them. Reads files.
    pub(crate) fn list(&self, outside: Vec<Outsider>) -> Outsiders {
        let mut outsiders = Outsiders::of(outside);
        if let (Some(users), false) = (&self.users, outsiders.listed.is_empty()) {
            Accounts::read(&Root::system()).tell(&mut outsiders, users);
        }
        outsiders
    }
}

#[cfg(test)]
mod tests {
    use memtide_model::{Backend, Bytes, Capabilities, GuestId};

    use super::*;
    use crate::backend::Process;

    fn found(name: &str, pid: u32, user: Option<u32>) -> Found {
        Found {
            id: GuestId::new(name, u64::from(pid), "boot"),
            vmm: Backend::new("test"),
            capabilities: Capabilities::BALLOON,
            full: Bytes::from_mib(64),
            withheld: None,
            process: Process { pid, user, ..Process::default() },
            facts: Vec::new(),
            is_configured: false,
        }
    }

    #[test]
    fn a_guest_needs_a_name_and_a_user_unless_the_configuration_names_it() {
        let users = Some(Users::default());
        let admitted = Admitted { users, ..Admitted::named(&["web-*"]) };
        let place = |name: &str, user| admitted.place_of(&found(name, 1, user));
        assert_eq!(place("web-1", Some(0)), Place::Shown);
        assert_eq!(place("web-1", Some(1001)), Place::Outside);
        assert_eq!(place("web-1", None), Place::Outside, "nobody knows whose it is");
        assert_eq!(place("db-1", Some(1001)), Place::Ignored);
        let configured = Found { is_configured: true, ..found("db-1", 1, Some(1001)) };
        assert_eq!(admitted.place_of(&configured), Place::Shown);
        assert_eq!(Admitted::named(&["*"]).place_of(&found("a", 1, None)), Place::Shown);
    }
}

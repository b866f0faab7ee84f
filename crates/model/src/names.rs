//! The names of guests, as people see them.

use crate::{GuestId, Subject};

/// The guests among which a name must be clear.
///
/// Everything that shows guests to people uses this one rule: the name alone, or `name@start` if another guest has the same name.
#[derive(Clone, Debug, Default)]
pub struct Names<'a> {
    /// Ordered, each once.
    guests: Vec<&'a GuestId>,
}

impl<'a> Names<'a> {
    /// The names of these guests.
    #[must_use]
    pub fn of(guests: impl IntoIterator<Item = &'a GuestId>) -> Self {
        let mut guests: Vec<&GuestId> = guests.into_iter().collect();
        guests.sort_unstable();
        guests.dedup();
        Self { guests }
    }

    /// The name of a guest, which need not be one of these guests: it may be gone.
    #[must_use]
    pub fn name(&self, guest: &GuestId) -> String {
        // Guests with the same name stand side by side.
        let at = self.guests.partition_point(|other| *other < guest);
        let mut beside = self.guests.iter().skip(at.saturating_sub(1)).take(3);
        if beside.any(|other| *other != guest && other.name() == guest.name()) {
            format!("{}@{}", guest.name(), guest.start())
        } else {
            guest.name().to_owned()
        }
    }

    /// The name of a request's subject.
    #[must_use]
    pub fn subject(&self, subject: &Subject) -> String {
        subject.guest().map_or_else(|| Subject::HOST.to_owned(), |guest| self.name(guest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_apart_if_several_guests_have_the_same() {
        let ids = [("c", 1), ("b", 2), ("b", 1), ("a", 1), ("c", 2)]
            .map(|(name, start)| GuestId::new(name, start, "boot"));
        // The last guest is gone, and one guest is there twice.
        let names = Names::of(ids[..4].iter().chain(&ids[..1]));
        assert_eq!(ids.each_ref().map(|id| names.name(id)), ["c", "b@2", "b@1", "a", "c@2"]);
    }
}

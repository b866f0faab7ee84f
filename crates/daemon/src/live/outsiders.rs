//! The guests that only their users keep out, for the operator: whose they are, what they cost, and the line that admits them.
//!
//! The fleet names few of them, however many there are. Their users' names are read when the list changes, and their footprints every
//! [`WEIGHED_EVERY`].

use memtide_host::{Accounts, Root, statm};
use memtide_model::{Moment, Outsiders, Span, Users};

/// How often the footprints are read.
const WEIGHED_EVERY: Span = Span::from_secs(2);

/// The list as it is shown.
#[derive(Debug, Default)]
pub(super) struct Shown {
    /// As the fleet told it, with the list of users at that moment.
    told: Option<(Outsiders, Users)>,
    shown: Outsiders,
    weighed_at: Moment,
}

impl Shown {
    /// The list.
    pub(super) const fn list(&self) -> &Outsiders {
        &self.shown
    }

    /// Takes over what the fleet tells; `users` is the list of the configuration.
    pub(super) fn follow(&mut self, root: &Root, told: &Outsiders, users: &Users, now: Moment) {
        let is_new = self.told.as_ref().is_none_or(|(before, had)| before != told || had != users);
        if is_new {
            self.told = Some((told.clone(), users.clone()));
            self.shown = told.clone();
            if !self.shown.listed.is_empty() {
                let accounts = Accounts::read(root);
                for outsider in &mut self.shown.listed {
                    let name = outsider.user.and_then(|user| accounts.name_of(user));
                    outsider.tell(name, users);
                }
            }
        }
        if is_new || now.since(self.weighed_at) >= WEIGHED_EVERY {
            self.weighed_at = now;
            for outsider in &mut self.shown.listed {
                outsider.footprint = statm(root, outsider.pid).ok().map(|statm| statm.resident);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use memtide_model::Outsider;

    use super::*;

    #[test]
    fn outsiders_have_the_names_of_their_users_and_the_lines_that_admit_them() {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in
            [("etc/passwd", "alice:x:1001:1001::/:\n"), ("proc/42/statm", "900 256 100 1 0 200 0\n")]
        {
            std::fs::create_dir_all(dir.path().join(path).parent().unwrap()).unwrap();
            std::fs::write(dir.path().join(path), text).unwrap();
        }
        let outsider = |pid, user| Outsider::new("web1", pid, user);
        let listed = vec![outsider(42, Some(1001)), outsider(43, Some(100_000)), outsider(44, None)];
        let told = Outsiders { listed, count: 9 };
        let mut shown = Shown::default();
        shown.follow(&Root::at(dir.path()), &told, &Users::default(), Moment::default());
        let lines: Vec<_> = shown.list().listed.iter().map(|one| one.line.as_deref()).collect();
        let expected =
            [Some("users = [\"system\", \"alice\"]"), Some("users = [\"system\", \"100000\"]"), None];
        assert_eq!(lines, expected);
        let first = &shown.list().listed[0];
        assert_eq!(first.user_name.as_deref(), Some("alice"));
        assert!(first.footprint.is_some_and(|footprint| !footprint.is_zero()));
        assert_eq!(shown.list().listed[1].footprint, None, "there is no such process");
        assert_eq!(shown.list().more(), 6);
        // The operator takes over one of them.
        let told = Outsiders { listed: vec![outsider(44, None)], count: 1 };
        shown.follow(&Root::at(dir.path()), &told, &Users::default(), Moment::default());
        assert_eq!(shown.list(), &told);
    }
}

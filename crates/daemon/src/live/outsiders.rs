//! What the guests cost that only their users keep out. The look at all processes has named them, and lists few of them, however many there are.

use memtide_host::{Root, statm};
use memtide_model::{Moment, Outsiders, Span};

/// How often the footprints are read.
const WEIGHED_EVERY: Span = Span::from_secs(2);

/// The list as it is shown.
#[derive(Debug, Default)]
pub(super) struct Shown {
    /// As the fleet told it.
    told: Outsiders,
    shown: Outsiders,
    weighed_at: Moment,
}

impl Shown {
    /// The list.
    pub(super) const fn list(&self) -> &Outsiders {
        &self.shown
    }

    /// Takes over what the fleet tells.
    pub(super) fn follow(&mut self, root: &Root, told: &Outsiders, now: Moment) {
        let is_new = self.told != *told;
        if is_new {
            (self.told, self.shown) = (told.clone(), told.clone());
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
    fn outsiders_are_weighed_and_forgotten_with_the_list() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("proc/42")).unwrap();
        std::fs::write(dir.path().join("proc/42/statm"), "900 256 100 1 0 200 0\n").unwrap();
        let outsider = |pid, user| Outsider::new("web1", pid, user);
        let listed = vec![outsider(42, Some(1001)), outsider(43, Some(100_000)), outsider(44, None)];
        let told = Outsiders { listed, count: 9 };
        let mut shown = Shown::default();
        shown.follow(&Root::at(dir.path()), &told, Moment::default());
        assert!(shown.list().listed[0].footprint.is_some_and(|footprint| !footprint.is_zero()));
        assert_eq!(shown.list().listed[1].footprint, None, "there is no such process");
        assert_eq!(shown.list().more(), 6);
        // The operator takes over one of them.
        let told = Outsiders { listed: vec![outsider(44, None)], count: 1 };
        shown.follow(&Root::at(dir.path()), &told, Moment::default());
        assert_eq!(shown.list(), &told);
    }
}

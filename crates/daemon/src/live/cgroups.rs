//! The memory cgroups of the guests: limits that they can run into, and guests that were killed in one.
//!
//! The limits and the kernel's counters of a guest's cgroup, and of those above it, are read when the guest is found. After that they are
//! read as often as its mappings: every 30 s, or every two seconds for each guest. A limit that all guests share plays the host: memtide guards it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

use memtide_engine::Killed;
use memtide_host::{Cgroup, HostError, Kills, Limited, Root};
use memtide_model::{Bytes, GuestId, GuestSeen, Moment, Names, Span, counted, printable};
use tracing::{debug, warn};

const READ_EVERY: Span = Span::from_secs(30);
const READ_EACH: Span = Span::from_secs(2);
/// A guest that was killed stays in the status for this long, beside at most this many others.
const TOLD_FOR: Span = Span::from_secs(3600);
const TOLD: usize = 10;
/// The most guests that a warning names.
const NAMED: usize = 3;

/// The cgroups of all guests.
pub(super) struct Cgroups {
    root: Root,
    /// A limit of this much or more limits nothing.
    memory: Bytes,
    guests: BTreeMap<GuestId, Inside>,
    /// Limits that are too low, one line each.
    low: Vec<String>,
    /// The cgroups of these limits.
    said: BTreeSet<PathBuf>,
    /// Guests that were killed, the newest last.
    killed: VecDeque<(Moment, String)>,
}

/// One guest in its cgroup.
struct Inside {
    read_at: Moment,
    limits: Vec<(Cgroup, Bytes)>,
    kills: Kills,
    /// What it can cost, as far as that is known.
    needs: Bytes,
}

impl Cgroups {
    pub(super) fn new(root: &Root, memory: Bytes) -> Self {
        Self {
            root: root.clone(),
            memory,
            guests: BTreeMap::new(),
            low: Vec::new(),
            said: BTreeSet::new(),
            killed: VecDeque::new(),
        }
    }

    /// Looks at the cgroups of the guests that are due; `guarded` plays the host. Returns the guests of the last call that have ended since
    /// then, in whose cgroups a process was killed.
    pub(super) fn look(&mut self, seen: &[GuestSeen], guarded: Option<&Cgroup>, now: Moment) -> Vec<Killed> {
        let before = self.guests.len();
        let killed = self.ended(seen, now);
        let every = READ_EVERY.max(Span::from_millis(READ_EACH.as_millis() * seen.len() as u64));
        let mut is_new = self.guests.len() < before;
        for guest in seen {
            let known = self.guests.get_mut(&guest.id);
            let needs = needs(guest);
            match known {
                Some(inside) if now.since(inside.read_at) < every => {
                    is_new |= std::mem::replace(&mut inside.needs, needs) != needs;
                }
                _ => {
                    let inside = Inside::read(&self.root, guest, needs, now);
                    self.guests.insert(guest.id.clone(), inside);
                    is_new = true;
                }
            }
        }
        if is_new {
            self.compare(seen, guarded);
        }
        while self.killed.front().is_some_and(|(at, _)| now.since(*at) > TOLD_FOR) {
            self.killed.pop_front();
        }
        killed
    }

    /// Warnings for the status, one line each.
    pub(super) fn warnings(&self) -> Vec<String> {
        self.low.iter().chain(self.killed.iter().map(|(_, line)| line)).cloned().collect()
    }

    /// Takes out the guests that are not among those `seen`.
    fn ended(&mut self, seen: &[GuestSeen], now: Moment) -> Vec<Killed> {
        let is_gone = |id: &GuestId| seen.binary_search_by(|guest| guest.id.cmp(id)).is_err();
        let gone: Vec<(GuestId, Inside)> = self.guests.extract_if(.., |id, _| is_gone(id)).collect();
        let mut killed = Vec::new();
        let mut counted = Vec::new();
        for (guest, inside) in gone {
            let later = inside.kills.again();
            if let Some(kill) = inside.kills.kill_until(&later) {
                self.killed.push_back((now, format!("{} has ended: {kill}", guest.name())));
                killed.push(Killed { guest, how: kill.to_string() });
                counted.push(later);
            }
        }
        let surplus = self.killed.len().saturating_sub(TOLD);
        self.killed.drain(..surplus);
        // Guests that end later were not killed by this.
        for inside in self.guests.values_mut() {
            counted.iter().for_each(|later| inside.kills.learn(later));
        }
        killed
    }

    /// Compares the limits with what the guests can cost.
    fn compare(&mut self, seen: &[GuestSeen], guarded: Option<&Cgroup>) {
        let inside: Vec<(&GuestSeen, &Inside)> =
            seen.iter().filter_map(|guest| Some((guest, self.guests.get(&guest.id)?))).collect();
        let mut all = Limited::gather(inside.iter().map(|(_, inside)| inside.limits.as_slice()));
        let is_guarded = |dir: &Path| guarded.is_some_and(|host| host.dir().starts_with(dir));
        all.retain(|limited| limited.limit < self.memory && !is_guarded(&limited.dir));
        let names = Names::of(seen.iter().map(|guest| &guest.id));
        let low = Limited::too_low(&all, |index| inside[index].1.needs);
        let line = |(limited, needs): &(&Limited, Bytes)| {
            let guests = limited.guests.iter().map(|index| names.name(&inside[*index].0.id));
            in_words(limited, *needs, &guests.collect::<Vec<_>>())
        };
        self.low = low.iter().map(line).collect();
        for ((limited, _), line) in low.iter().zip(&self.low) {
            if !self.said.contains(&limited.dir) {
                warn!("{line}");
            }
        }
        self.said = low.iter().map(|(limited, _)| limited.dir.clone()).collect();
    }
}

impl Inside {
    fn read(root: &Root, guest: &GuestSeen, needs: Bytes, now: Moment) -> Self {
        let read = || -> Result<_, HostError> {
            let Some(cgroup) = Cgroup::of(root, guest.pid)? else { return Ok(Default::default()) };
            Ok((cgroup.limits()?, Kills::read(&cgroup)))
        };
        let (limits, kills) = read().unwrap_or_else(|error| {
            debug!(guest = %guest.id, "cannot read the limits of its cgroup: {error}");
            Default::default()
        });
        Self { read_at: now, limits, kills, needs }
    }
}

/// What a guest can cost its cgroup. The memory of its VMM counts once its mappings were read; swap is read with them.
fn needs(guest: &GuestSeen) -> Bytes {
    let cost = &guest.cost;
    let besides = cost.swapped.latest().map_or(Bytes::ZERO, |_| cost.overhead_bound);
    // A pool of huge pages is charged to no cgroup's memory.
    guest.told.full.saturating_add(besides).saturating_sub(cost.in_pool)
}

/// As in `web1 may be killed: cgroup /sys/fs/cgroup/vm is limited to 1 GiB, and its guest may need 1.12 GiB, with its VMM's own memory`.
fn in_words(limited: &Limited, needs: Bytes, guests: &[String]) -> String {
    let mut who = guests.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    let others = guests.len().saturating_sub(NAMED);
    if others > 0 {
        who.push_str(&format!(" and {}", counted(others as u64, "other")));
    }
    let (whose, vmm) = if guests.len() == 1 { ("guest", "its VMM's") } else { ("guests", "their VMMs'") };
    let dir = printable(&limited.dir.display().to_string());
    format!(
        "{who} may be killed: cgroup {dir} is limited to {}, and its {whose} may need {needs}, with {vmm} own memory; \
         `memtide doctor` shows how to fix it",
        limited.limit
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use memtide_model::{Absence, Backend, Capabilities, Cost, Reading, Told};
    use std::fs;

    const MOUNTS: &str = "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
    const MEMORY: Bytes = Bytes::from_mib(8192);

    /// A tree of files that replaces the system's.
    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new() -> Self {
            let tree = Self(tempfile::tempdir().unwrap());
            tree.file("proc/self/mountinfo", MOUNTS);
            tree
        }

        fn file(&self, path: &str, content: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }

        /// A cgroup with a limit in MiB, in which `kills` processes were killed by it.
        fn cgroup(&self, path: &str, limit: u64, kills: u64) {
            let dir = format!("sys/fs/cgroup{path}");
            self.file(&format!("{dir}/memory.current"), "1\n");
            self.file(&format!("{dir}/memory.max"), &format!("{}\n", limit << 20));
            let events = format!("max 1\noom {kills}\noom_kill {kills}\n");
            self.file(&format!("{dir}/memory.events"), &events);
            self.file(&format!("{dir}/memory.events.local"), &events);
        }

        /// A guest in a cgroup, of 256 MiB and 20 MiB of its VMM.
        fn guest(&self, name: &str, pid: u32, cgroup: &str) -> GuestSeen {
            self.file(&format!("proc/{pid}/cgroup"), &format!("0::{cgroup}\n"));
            let (footprint, besides) = (Reading::now(Bytes::from_mib(90)), Bytes::from_mib(20));
            let cost = Cost::of(footprint, besides, besides, &Absence::NotYet);
            GuestSeen {
                id: GuestId::new(name, u64::from(pid), "boot"),
                pid,
                user: None,
                backend: Backend::new("toy"),
                capabilities: Capabilities::BALLOON,
                cost: Cost { swapped: Reading::now(Bytes::ZERO), ..cost },
                tmpfs: None,
                withheld: None,
                told: Told::nothing(Bytes::from_mib(256), Absence::NotYet),
            }
        }

        fn cgroups(&self) -> Cgroups {
            Cgroups::new(&Root::at(self.0.path()), MEMORY)
        }

        /// A line with the paths of the running system.
        fn line(&self, line: &str) -> String {
            line.replace(&self.0.path().display().to_string(), "")
        }
    }

    fn at(secs: u64) -> Moment {
        Moment::from_millis(secs * 1_000)
    }

    #[test]
    fn a_limit_that_equals_the_guest_is_told_until_it_is_raised() {
        let tree = Tree::new();
        tree.cgroup("/nomad", 256, 0);
        let seen = [tree.guest("a", 41, "/nomad"), tree.guest("b", 42, "/elsewhere")];
        let mut cgroups = tree.cgroups();
        assert_eq!(cgroups.look(&seen, None, at(0)), []);
        let lines = cgroups.warnings();
        let line = "a may be killed: cgroup /sys/fs/cgroup/nomad is limited to 256 MiB, and its guest may need 276 MiB, \
                    with its VMM's own memory; `memtide doctor` shows how to fix it";
        assert_eq!(lines.iter().map(|line| tree.line(line)).collect::<Vec<_>>(), [line]);
        // Files are read again after 30 s.
        tree.cgroup("/nomad", 276, 0);
        cgroups.look(&seen, None, at(29));
        assert_eq!(cgroups.warnings(), lines);
        cgroups.look(&seen, None, at(30));
        assert_eq!(cgroups.warnings(), Vec::<String>::new());
        // A guest that grows is noticed at once.
        let mut seen = seen;
        seen[0].told.full = Bytes::from_mib(512);
        cgroups.look(&seen, None, at(31));
        assert!(cgroups.warnings()[0].contains("may need 532 MiB"), "{:?}", cgroups.warnings());
        cgroups.look(&seen[1..], None, at(32));
        assert_eq!(cgroups.warnings(), Vec::<String>::new(), "the guest has ended");
    }

    #[test]
    fn memory_of_a_vmm_that_was_not_read_yet_is_not_guessed() {
        let tree = Tree::new();
        tree.cgroup("/nomad", 256, 0);
        let mut guest = tree.guest("a", 41, "/nomad");
        guest.cost.swapped = Reading::absent(Absence::NotYet);
        let mut cgroups = tree.cgroups();
        cgroups.look(&[guest], None, at(0));
        assert_eq!(cgroups.warnings(), Vec::<String>::new());
    }

    #[test]
    fn a_limit_that_plays_the_host_is_guarded() {
        let tree = Tree::new();
        tree.cgroup("/vms", 400, 0);
        let seen = ["a", "b", "c", "d", "e"]
            .map(|name| tree.guest(name, 40 + u32::from(name.as_bytes()[0]), "/vms"));
        let mut cgroups = tree.cgroups();
        cgroups.look(&seen, None, at(0));
        let line = tree.line(&cgroups.warnings()[0]);
        assert!(
            line.starts_with("a, b, c and 2 others may be killed: cgroup /sys/fs/cgroup/vms is"),
            "{line}"
        );
        let guarded = Cgroup::of(&Root::at(tree.0.path()), seen[0].pid).unwrap();
        cgroups.look(&seen, guarded.as_ref(), at(100));
        assert_eq!(cgroups.warnings(), Vec::<String>::new());
    }

    #[test]
    fn a_guest_that_a_cgroup_killed_is_told_for_an_hour_and_its_neighbour_is_not() {
        let tree = Tree::new();
        tree.cgroup("/vms", 8000, 0);
        tree.cgroup("/vms/a", 8000, 0);
        tree.cgroup("/vms/b", 8000, 0);
        let seen = [tree.guest("a", 41, "/vms/a"), tree.guest("b", 42, "/vms/b"), tree.guest("c", 43, "/")];
        let mut cgroups = tree.cgroups();
        assert_eq!(cgroups.look(&seen, None, at(0)), []);
        // "a" is killed, and its cgroup stays.
        tree.cgroup("/vms", 8000, 1);
        tree.cgroup("/vms/a", 8000, 1);
        let killed = cgroups.look(&seen[1..], None, at(1));
        assert_eq!(killed.len(), 1);
        assert_eq!(killed[0].guest, seen[0].id);
        let how = "the kernel killed a process in cgroup /sys/fs/cgroup/vms/a at the cgroup's memory limit";
        assert_eq!(tree.line(&killed[0].how), how);
        // "b" ends by itself, and its cgroup is removed: the kill in the cgroup above was that of "a".
        fs::remove_dir_all(tree.0.path().join("sys/fs/cgroup/vms/b")).unwrap();
        assert_eq!(cgroups.look(&seen[2..], None, at(2)), []);
        assert_eq!(cgroups.warnings().len(), 1);
        cgroups.look(&seen[2..], None, at(3601));
        assert_eq!(tree.line(&cgroups.warnings()[0]), format!("a has ended: {how}"));
        cgroups.look(&seen[2..], None, at(3602));
        assert_eq!(cgroups.warnings(), Vec::<String>::new());
    }
}

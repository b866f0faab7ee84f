//! What each guest's process costs the host.
//!
//! The footprint is read when a guest is due: the kernel tells it at once. Everything that takes long is read by another thread
//! ([`Survey`]): the process's mappings, which give the bound of the VMM's memory beyond guest RAM, its shared files and its cgroup. That happens at
//! discovery, then less and less often if more or less is mapped, and in any case every `MAPPINGS_EVERY`, or every two seconds for each guest. Only
//! for the first reading of a new guest an observation waits a little.
//!
//! If a process has mapped at least [`LEAST_PLUGGED`] more, memory may have been plugged, so its VMM is asked for the sizes first. Otherwise it would
//! count as memory of the VMM that the guest can fill.
//!
//! A file that several guests of one user have (ivshmem, a template and its clones) counts for the first of them, by their identities. A guest of
//! another user could take a file for its own only to burden others.
//!
//! A guest's torn huge pages are read together with its mappings, and each second while the host has many (less often with many guests).

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use memtide_api::history::History;
use memtide_host::{
    Cgroup, FileId, FilePart, Footprint, HostError, KsmPages, KsmReader, ProcessReader, Root, Scratch,
    name_of_tmpfs,
};
use memtide_model::{
    Absence, Bytes, Cost, GuestId, GuestSeen, Moment, Reading, Space, Span, Tmpfs, TmpfsId, Withheld,
};
use memtide_vmm::{Found, Seen};
use tracing::{debug, warn};

use super::facts;
use super::survey::{self, Findings, Order, Part, Survey, Surveyed};

/// How often the mappings of a guest's process are read. A VMM that just starts maps more and more: the first readings come
/// sooner, each after twice the time, if the mapped memory has changed by more than [`REMAPPED`].
const MAPPINGS_EVERY: Span = Span::from_secs(30);
const FIRST_MAPPINGS_AFTER: Span = Span::from_millis(250);
const REMAPPED: Bytes = Bytes::from_mib(1);
/// How long the VMM is asked for its sizes before the mappings are read without them: memtide lets another client of its monitor go first for a second.
const ASKS_FOR: Span = Span::from_secs(2);
/// Growth of the mapped memory by less than this is no plugged memory.
const LEAST_PLUGGED: Bytes = Bytes::from_mib(32);
/// While the host has this much torn memory, the torn memory of each guest is read more often.
pub(super) const TORN: Bytes = Bytes::from_mib(8);
const TORN_EVERY: Span = Span::from_secs(1);
/// With many guests, one of them at a time, but each before the policy judges the result of a split.
const TORN_EACH: Span = Span::from_millis(20);
const TORN_SELDOM: Span = Span::from_secs(4);
/// The longest that an observation waits for the first readings of new guests.
const FIRST_READINGS_WITHIN: Duration = Duration::from_millis(400);
/// The assumed cost of a VMM beyond guest RAM and TCG's code buffer, if its mappings cannot be read.
const UNREAD_OVERHEAD: Bytes = Bytes::from_mib(256);

/// The readers of all guests' processes.
pub(super) struct Costs {
    root: Root,
    ksm: KsmReader,
    survey: Survey,
    processes: BTreeMap<GuestId, Process>,
    /// The tmpfs that hold guests' memory.
    tmpfs: BTreeMap<TmpfsId, Known>,
    scratch: Scratch,
}

/// How a guest's cost is read this time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weighing {
    /// Its footprint is read now.
    pub(super) weighs: bool,
    /// The host has much torn memory: the guest's is read more often.
    pub(super) is_torn: bool,
    /// The pages that KSM has merged on the host.
    pub(super) ksm: KsmPages,
}

/// A tmpfs, and its space when that was last read.
#[derive(Debug)]
struct Known {
    at: String,
    /// The process that it was named through.
    named_by: u32,
    space: Reading<Space>,
    read_at: Moment,
}

/// What is kept of one guest's process.
#[derive(Debug)]
struct Process {
    reader: ProcessReader,
    overhead: Bytes,
    overhead_bound: Bytes,
    /// Its memory in a pool of huge pages.
    in_pool: Bytes,
    /// What the kernel shows of its memory that cannot be the host's.
    withheld: Option<Withheld>,
    /// What it has mapped that can be the guest's RAM; `None` if its mappings were never read.
    ram_mapped: Option<Bytes>,
    /// The RAM that the guest must have mapped, as told last.
    told_ram: Bytes,
    /// The files that it has memory of, each with what is resident of it here.
    files: BTreeMap<FileId, FilePart>,
    /// Its user.
    user: Option<u32>,
    /// Its footprint is to be read at the next look: other files count for it now.
    is_divided_anew: bool,
    /// What it cost when that was read last.
    weighed: Reading<Footprint>,
    weighed_at: Moment,
    /// The guest's resident memory as its mappings showed, and when they were ordered.
    ram_resident: Reading<Bytes>,
    ram_read_at: Moment,
    /// The guest's memory in swap, and the leftovers of torn huge pages, read with the mappings.
    swapped: Reading<Bytes>,
    torn: Reading<Bytes>,
    torn_at: Moment,
    /// Its cgroup, if it has one of its own.
    cgroup: Result<Arc<Cgroup>, Absence>,
    /// What it had mapped then.
    mapped: Bytes,
    /// What it had mapped when its mappings were ordered; `None` while it was not weighed since.
    mapped_before: Option<Bytes>,
    /// When its mappings were ordered last.
    read_at: Moment,
    /// An order of it has not come yet.
    is_read: bool,
    /// Its mappings are to be read as soon as they can be.
    mappings_changed: bool,
    /// Before that, its VMM is asked for its sizes, since then.
    asks_sizes: Option<Moment>,
    read_again_after: Span,
    /// Nothing of it was read yet.
    is_new: bool,
}

impl Costs {
    pub(super) fn open(root: &Root) -> Result<Self, HostError> {
        let ksm = KsmReader::open(root)?;
        Ok(Self {
            root: root.clone(),
            ksm,
            survey: Survey::start(root),
            processes: BTreeMap::new(),
            tmpfs: BTreeMap::new(),
            scratch: Scratch::default(),
        })
    }

    /// Whether these are the guests whose processes are known.
    pub(super) fn are_of(&self, guests: &[Seen]) -> bool {
        guests.len() == self.processes.len()
            && guests.iter().all(|guest| self.processes.contains_key(&guest.found.id))
    }

    /// Forgets guests that are gone.
    pub(super) fn keep_only(&mut self, alive: impl Fn(&GuestId) -> bool) {
        self.processes.retain(|id, _| alive(id));
        self.divide_files();
    }

    /// Notes which files count for another guest.
    fn divide_files(&mut self) {
        let of = for_others(self.processes.values().map(|process| (process.user, &process.files)));
        for (process, files) in self.processes.values_mut().zip(of) {
            process.is_divided_anew |= process.reader.set_for_others(files);
        }
    }

    /// Whether the VMM of a guest is to be asked for the sizes of its memory now.
    pub(super) fn asks_sizes(&self, id: &GuestId) -> bool {
        self.processes.get(id).is_some_and(|process| process.asks_sizes.is_some())
    }

    /// The memory that the process has mapped and that can be the guest's RAM; `None` if its mappings were never read.
    pub(super) fn ram_mapped(&self, id: &GuestId) -> Option<Bytes> {
        self.processes.get(id)?.ram_mapped
    }

    /// Why memory that the guest gives is not the host's, as far as the kernel shows.
    pub(super) fn withheld(&self, id: &GuestId) -> Option<Withheld> {
        self.processes.get(id)?.withheld.clone()
    }

    /// The tmpfs that holds the memory of a guest that has `full` at most.
    pub(super) fn tmpfs_of(&self, id: &GuestId, full: Bytes) -> Option<TmpfsId> {
        self.processes.get(id)?.reader.shared_ram().tmpfs(full)
    }

    /// The tmpfs that hold the memory of these guests and have a limit. Each is looked at once, through the first guest that tells.
    pub(super) fn tmpfs(&mut self, seen: &[GuestSeen], now: Moment) -> Vec<Tmpfs> {
        let mut guests: BTreeMap<TmpfsId, Vec<&Process>> = BTreeMap::new();
        for guest in seen {
            if let (Some(id), Some(process)) = (guest.tmpfs, self.processes.get(&guest.id)) {
                guests.entry(id).or_default().push(process);
            }
        }
        self.tmpfs.retain(|id, _| guests.contains_key(id));
        let all = guests.into_iter().filter_map(|(id, guests)| {
            let pids: Vec<u32> = guests.iter().map(|process| process.reader.pid()).collect();
            let known = match self.tmpfs.entry(id) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(place) => place.insert(Known::new(&self.root, id, *pids.first()?, now)),
            };
            known.name_again(&self.root, id, &pids);
            known.look(&guests, now).then(|| Tmpfs { id, at: known.at.clone(), space: known.space(now) })
        });
        all.collect()
    }

    /// The pages that KSM has merged on the host.
    pub(super) fn ksm(&mut self) -> KsmPages {
        self.ksm.read(&mut self.scratch).unwrap_or_else(|error| {
            debug!("cannot read KSM: {error}");
            KsmPages::default()
        })
    }

    /// Begins to read new guests, and waits a little for them. Takes over everything that was read since the last call, and tells `history` the
    /// facts in it.
    pub(super) fn survey(&mut self, guests: &[Seen], history: &History, now: Moment) {
        let mut new = 0;
        for Seen { found, .. } in guests {
            if let Entry::Vacant(place) = self.processes.entry(found.id.clone())
                && let Ok(process) = Process::open(&self.root, found, now)
            {
                let process = place.insert(process);
                self.survey.order(process.order(found, MAPPINGS_EVERY, now));
                new += 1;
            }
        }
        let begun = Instant::now();
        let until = |new: usize| if new > 0 { begun + FIRST_READINGS_WITHIN } else { begun };
        let mut are_read = false;
        while let Some(Surveyed { guest, findings }) = self.survey.next_by(until(new)) {
            let Some(process) = self.processes.get_mut(&guest) else { continue };
            new = new.saturating_sub(usize::from(process.is_new));
            let found = guests.iter().find(|seen| seen.found.id == guest).map(|seen| &*seen.found);
            if let (Findings::All(read), Some(found)) = (&findings, found) {
                are_read = true;
                let of_kernel =
                    match read.as_ref().map_err(Clone::clone).and_then(|read| read.facts(process.told_ram)) {
                        Ok(facts) => facts,
                        Err(why) => facts::unread(&why),
                    };
                history.set_facts(&guest, facts::together(&found.facts, of_kernel));
            }
            process.take(findings, found, now);
        }
        if are_read {
            self.divide_files();
        }
    }

    /// What a guest costs that keeps `actual`, and must have mapped `told_ram`.
    pub(super) fn of(
        &mut self,
        found: &Arc<Found>,
        told_ram: Bytes,
        actual: Bytes,
        how: Weighing,
        now: Moment,
    ) -> Cost {
        let Weighing { weighs, is_torn, ksm } = how;
        let count = self.processes.len() as u64;
        let torn_every = Span::from_millis(TORN_EACH.as_millis() * count).clamp(TORN_EVERY, TORN_SELDOM);
        let seldom = MAPPINGS_EVERY.max(Span::from_secs(2 * count));
        let Some(process) = self.processes.get_mut(&found.id) else {
            let bound = unread_overhead(found);
            let why = ProcessReader::open(&self.root, found.process.pid)
                .map_or_else(|error| error.absence(), |_| Absence::NotYet);
            return Cost::of(Reading::absent(why.clone()), bound, bound, &why);
        };
        if weighs || process.is_divided_anew || process.weighed.fresh().is_none() {
            process.is_divided_anew = false;
            process.weigh(ksm, now, &mut self.scratch);
        }
        // What was plugged is mapped by now.
        let is_plugged = std::mem::replace(&mut process.told_ram, told_ram) != told_ram;
        process.mappings_changed |= is_plugged || process.exceeds(actual, now);
        let are_due = process.mappings_changed || process.mappings_are_due(seldom, now);
        process.asks_sizes = process.asks_sizes.filter(|_| are_due);
        if process.is_read {
            // One order at a time.
        } else if are_due && !is_plugged && process.asks_sizes_first(now) {
            // Once its VMM has told them, its mappings are read.
        } else if are_due {
            self.survey.order(process.order(found, seldom, now));
        } else if is_torn
            && now.since(process.torn_at) >= torn_every
            && let Ok(cgroup) = &process.cgroup
        {
            let part = Part::Torn(Arc::clone(cgroup));
            process.is_read = true;
            self.survey.order(Order { guest: found.id.clone(), part });
        }
        process.cost(now)
    }
}

impl Known {
    fn new(root: &Root, id: TmpfsId, pid: u32, now: Moment) -> Self {
        let space = Reading::absent(Absence::NotYet);
        Self { at: name_of_tmpfs(root, pid, id), named_by: pid, space, read_at: now }
    }

    /// Names it through another guest if that with the number in its name has ended.
    fn name_again(&mut self, root: &Root, id: TmpfsId, pids: &[u32]) {
        if let Some(first) = pids.first().filter(|_| !pids.contains(&self.named_by)) {
            (self.at, self.named_by) = (name_of_tmpfs(root, *first, id), *first);
        }
    }

    /// Reads the space through one of the guests in it; `false` if there is no limit.
    fn look(&mut self, guests: &[&Process], now: Moment) -> bool {
        let mut why = None;
        for process in guests {
            match process.reader.shared_ram().space(process.reader.pid()) {
                Ok(Some(space)) => {
                    (self.space, self.read_at) = (Reading::now(space), now);
                    return true;
                }
                Ok(None) => return false,
                Err(error) => why = why.or(Some(error)),
            }
        }
        let why = why.map_or(Absence::Gone, |error| error.absence());
        if self.space.latest().is_none() {
            self.space = Reading::absent(why);
        }
        true
    }

    /// The space as it was last read, with its age.
    fn space(&self, now: Moment) -> Reading<Space> {
        self.space.clone().later(now.since(self.read_at))
    }
}

impl Process {
    fn open(root: &Root, found: &Found, now: Moment) -> Result<Self, HostError> {
        let unread = unread_overhead(found);
        Ok(Self {
            reader: ProcessReader::open(root, found.process.pid)?,
            overhead: unread,
            overhead_bound: unread,
            in_pool: Bytes::ZERO,
            withheld: None,
            ram_mapped: None,
            told_ram: mapped_at_start(found),
            files: BTreeMap::new(),
            user: found.process.user,
            is_divided_anew: false,
            weighed: Reading::absent(Absence::NotYet),
            weighed_at: now,
            ram_resident: Reading::absent(Absence::NotYet),
            ram_read_at: now,
            swapped: Reading::absent(Absence::NotYet),
            torn: Reading::absent(Absence::NotYet),
            torn_at: now,
            cgroup: Err(Absence::NotYet),
            mapped: Bytes::ZERO,
            mapped_before: None,
            read_at: now,
            is_read: false,
            mappings_changed: false,
            asks_sizes: None,
            read_again_after: Span::ZERO,
            is_new: true,
        })
    }

    /// Reads what it costs.
    fn weigh(&mut self, ksm: KsmPages, now: Moment, scratch: &mut Scratch) {
        self.weighed_at = now;
        self.weighed = match self.reader.footprint(ksm, scratch) {
            Ok(footprint) => {
                self.mapped = footprint.statm.mapped;
                self.mapped_before.get_or_insert(self.mapped);
                Reading::now(footprint)
            }
            Err(error) => Reading::absent(error.absence()),
        };
    }

    /// The cost as it was last read, with the ages of the readings.
    fn cost(&self, now: Moment) -> Cost {
        let footprint = self.weighed.latest().copied().unwrap_or_default();
        let weighed = self.weighed.clone().later(now.since(self.weighed_at));
        let since = now.since(self.read_at);
        Cost {
            footprint: weighed.clone().map(|footprint| footprint.total()),
            merged: weighed.clone().map(|footprint| footprint.merged),
            cpu_time: cpu_time(weighed),
            swapped: self.swapped.clone().later(since),
            torn: self.torn.clone().later(now.since(self.torn_at)),
            ram: self.ram_resident.clone().later(now.since(self.ram_read_at)),
            overhead: self.overhead.saturating_sub(footprint.for_others.beside_ram),
            overhead_bound: self.overhead_bound.saturating_sub(footprint.for_others.beside_ram),
            in_pool: self.in_pool,
            in_pool_resident: footprint.in_pool,
            for_others: footprint.for_others.ram,
            tier: Reading::unsupported(),
        }
    }

    /// Whether more of the guest's memory seems to be resident than it keeps: only its mappings tell.
    fn exceeds(&self, actual: Bytes, now: Moment) -> bool {
        let Some(footprint) = self.weighed.fresh() else { return false };
        let most = actual.saturating_add(self.overhead).saturating_add(self.told_ram.mul_div(1, 128));
        let swapped = self.swapped.latest().copied().unwrap_or_default();
        let all = Bytes::sum([footprint.total(), footprint.merged, footprint.for_others.all(), swapped]);
        all > most && now.since(self.read_at) >= FIRST_MAPPINGS_AFTER
    }

    /// Whether its mappings are to be read anew.
    fn mappings_are_due(&self, seldom: Span, now: Moment) -> bool {
        let age = now.since(self.read_at);
        let has_changed = self.mapped_before.is_some_and(|before| before.abs_diff(self.mapped) > REMAPPED);
        (has_changed && age >= self.read_again_after) || age >= seldom
    }

    /// Whether its VMM is asked for its sizes before its mappings are read: memory may have been plugged, and the VMM has not been asked for long.
    fn asks_sizes_first(&mut self, now: Moment) -> bool {
        let grown = self.mapped_before.map_or(Bytes::ZERO, |before| self.mapped.saturating_sub(before));
        grown >= LEAST_PLUGGED && now.since(*self.asks_sizes.get_or_insert(now)) < ASKS_FOR
    }

    /// Orders its mappings, and notes that.
    fn order(&mut self, found: &Arc<Found>, seldom: Span, now: Moment) -> Order {
        self.note_order(seldom, now);
        // QEMU tells another size than its options: more was plugged since.
        let all = (self.told_ram != mapped_at_start(found)).then_some(self.told_ram);
        let part = Part::All { found: Arc::clone(found), all };
        Order { guest: found.id.clone(), part }
    }

    fn note_order(&mut self, seldom: Span, now: Moment) {
        (self.read_at, self.is_read, self.mappings_changed) = (now, true, false);
        self.asks_sizes = None;
        self.mapped_before = self.weighed.fresh().map(|_| self.mapped);
        self.read_again_after = self.read_again_after.doubled().clamp(FIRST_MAPPINGS_AFTER, seldom);
    }

    /// Takes over what was read of it; `found` unless it is gone by now.
    fn take(&mut self, findings: Findings, found: Option<&Found>, now: Moment) {
        self.is_read = false;
        let read = match findings {
            Findings::Torn(torn) => {
                (self.torn, self.torn_at) = (torn, now);
                return;
            }
            Findings::All(read) => read,
        };
        self.is_new = false;
        let read = read.and_then(|process| {
            let survey::Process { shared, mappings, locked, cgroup, torn } = *process;
            self.reader.set_shared_ram(shared);
            (self.cgroup, self.torn, self.torn_at) = (cgroup, torn, now);
            Ok((mappings?, locked))
        });
        let Some(found) = found else { return };
        match read {
            Ok((mappings, locked)) => {
                self.overhead = mappings.other_resident;
                self.overhead_bound = mappings.other_bound(found.process.least_growth);
                self.swapped = Reading::now(mappings.ram_swapped);
                self.ram_read_at = self.read_at;
                // Other processes may hold more of a shared file than this one has mapped.
                self.ram_resident = match mappings.ram_is_shared {
                    true => Reading::unsupported(),
                    false => Reading::now(mappings.ram_resident),
                };
                self.files = mappings.files;
                for file in self.reader.shared_ram().files() {
                    self.files.entry(file).or_default();
                }
                self.in_pool = mappings.ram_huge;
                self.reader.set_huge(mappings.ram_huge_private);
                self.ram_mapped = Some(mappings.ram_mapped);
                let ram = self.told_ram.max(mappings.ram_like);
                self.withheld = mappings.withheld.or_else(|| locked.withheld(ram));
                self.reader.set_program(mappings.program_resident);
            }
            Err(why) => {
                if why == Absence::Overran {
                    warn!(guest = %found.id, pid = found.process.pid, "the mappings take too long to read");
                } else {
                    debug!(guest = %found.id, "cannot read the mappings: {why}");
                }
                // It may be a file that QEMU created for this guest alone: only the mappings would tell.
                let file = || found.process.private_file.as_ref();
                self.withheld = self
                    .withheld
                    .take()
                    .or_else(|| Some(Withheld::PrivateFile(file()?.display().to_string())));
                (self.swapped, self.ram_resident) = (Reading::absent(why.clone()), Reading::absent(why));
            }
        }
    }
}

/// For each guest with its user, the files among its own that another guest of this user, before it, has, too.
fn for_others<'a>(
    guests: impl Iterator<Item = (Option<u32>, &'a BTreeMap<FileId, FilePart>)>,
) -> Vec<BTreeMap<FileId, FilePart>> {
    let mut before = BTreeSet::new();
    let of = |(user, files): (Option<u32>, &BTreeMap<FileId, FilePart>)| {
        let is_for_another = |(file, _): &(&FileId, &FilePart)| !before.insert((user, **file));
        files.iter().filter(is_for_another).map(|(file, part)| (*file, *part)).collect()
    };
    guests.map(of).collect()
}

/// The RAM that the options of a guest name: all that its virtio-mem devices can plug is mapped.
fn mapped_at_start(found: &Found) -> Bytes {
    found.full.saturating_add(found.process.virtio_mem)
}

/// The CPU time in a footprint.
fn cpu_time(weighed: Reading<Footprint>) -> Reading<Span> {
    match weighed {
        Reading::Fresh { value: Footprint { cpu_time: Some(value), .. }, age } => {
            Reading::Fresh { value, age }
        }
        _ => Reading::unsupported(),
    }
}

fn unread_overhead(found: &Found) -> Bytes {
    UNREAD_OVERHEAD.saturating_add(found.process.code_buffer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use memtide_model::{Backend, Capabilities, Told};

    /// Guests whose processes never answer: their cgroup is a pipe that nobody writes.
    fn silent(root: &std::path::Path, pids: std::ops::Range<u32>) -> Vec<Seen> {
        let one = |pid: u32| {
            let of = root.join(format!("proc/{pid}"));
            std::fs::create_dir_all(&of).unwrap();
            for file in ["stat", "statm"] {
                std::fs::copy(format!("/proc/self/{file}"), of.join(file)).unwrap();
            }
            let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR);
            rustix::fs::mknodat(rustix::fs::CWD, of.join("cgroup"), kind, mode, 0).unwrap();
            let full = Bytes::from_mib(64);
            let found = Found {
                id: GuestId::new(&format!("silent-{pid}"), 1, "boot"),
                vmm: Backend::new("test"),
                capabilities: Capabilities::BALLOON,
                full,
                withheld: None,
                process: memtide_vmm::Process { pid, ..memtide_vmm::Process::default() },
                facts: Vec::new(),
                is_configured: false,
            };
            Seen { found: Arc::new(found), told: Told::nothing(full, Absence::NotYet) }
        };
        pids.map(one).collect()
    }

    #[test]
    fn many_new_guests_are_waited_for_once() {
        let root = tempfile::tempdir().unwrap();
        let (history, now) = (History::default(), Moment::from_millis(0));
        let survey = |costs: &mut Costs, guests: &[Seen]| {
            let begun = Instant::now();
            costs.survey(guests, &history, now);
            begun.elapsed()
        };
        // Numbers that no process has, so that no other test reads them.
        let (one, many) =
            (silent(root.path(), 900_000_001..900_000_002), silent(root.path(), 900_000_002..900_000_022));
        let open = || Costs::open(&Root::at(root.path())).unwrap();
        let (mut of_one, mut of_many) = (open(), open());
        let (first, all) = (survey(&mut of_one, &one), survey(&mut of_many, &many));
        assert!(all < 4 * first, "one: {first:?}, twenty: {all:?}");
        let again = survey(&mut of_many, &many);
        assert!(4 * again < all, "no longer new: {again:?} after {all:?}");
        let how = Weighing { weighs: true, is_torn: false, ksm: KsmPages::default() };
        let cost = of_many.of(&many[0].found, Bytes::ZERO, Bytes::ZERO, how, now);
        assert_eq!(cost.overhead_bound, UNREAD_OVERHEAD, "{cost:?}");
    }

    #[test]
    fn a_tmpfs_is_named_anew_when_the_guest_in_its_name_has_ended() {
        // No process has this tmpfs mounted: the name says whose it is.
        let (root, id) = (Root::system(), TmpfsId(u64::MAX));
        let mut known = Known::new(&root, id, 7, Moment::from_millis(0));
        assert_eq!(known.at, "a tmpfs of process 7");
        known.name_again(&root, id, &[5, 7]);
        assert_eq!(known.at, "a tmpfs of process 7");
        known.name_again(&root, id, &[5, 8]);
        assert_eq!((known.at.as_str(), known.named_by), ("a tmpfs of process 5", 5));
    }

    #[test]
    fn a_file_of_several_guests_counts_for_the_first() {
        let file = |inode| FileId { device: 1, inode };
        let part = |mib| FilePart { ram: Bytes::from_mib(mib), beside_ram: Bytes::ZERO };
        let first = BTreeMap::from([(file(1), part(500)), (file(2), part(7))]);
        let clone = BTreeMap::from([(file(1), part(300)), (file(3), part(9))]);
        let guests = [(Some(1), &first), (Some(1), &clone), (Some(1), &clone), (Some(2), &clone)];
        let all = for_others(guests.into_iter());
        let theirs = BTreeMap::from([(file(1), part(300))]);
        assert_eq!(all[..2], [BTreeMap::new(), theirs]);
        assert_eq!(all[2], clone, "it has nothing alone");
        assert_eq!(all[3], BTreeMap::new(), "another user's guest burdens nobody");
    }

    #[test]
    fn mappings_are_read_anew_where_they_changed_and_now_and_then() {
        let at = |secs: u64| Moment::from_millis(secs * 1_000);
        let mut process = Process {
            reader: ProcessReader::open(&Root::system(), std::process::id()).unwrap(),
            overhead: Bytes::ZERO,
            overhead_bound: Bytes::ZERO,
            in_pool: Bytes::ZERO,
            withheld: None,
            ram_mapped: None,
            told_ram: Bytes::ZERO,
            files: BTreeMap::new(),
            user: None,
            is_divided_anew: false,
            weighed: Reading::absent(Absence::NotYet),
            weighed_at: at(0),
            ram_resident: Reading::absent(Absence::NotYet),
            ram_read_at: at(0),
            swapped: Reading::absent(Absence::NotYet),
            torn: Reading::absent(Absence::NotYet),
            torn_at: at(0),
            cgroup: Err(Absence::NotYet),
            mapped: Bytes::ZERO,
            mapped_before: None,
            read_at: at(0),
            is_read: false,
            mappings_changed: false,
            asks_sizes: None,
            read_again_after: Span::from_secs(4),
            is_new: false,
        };
        let seldom = Span::from_secs(30);
        let mut due = |mib: u64, secs: u64| {
            process.mapped = Bytes::from_mib(mib);
            process.weighed = Reading::now(Footprint::default());
            process.mapped_before.get_or_insert(process.mapped);
            let due = process.mappings_are_due(seldom, at(secs));
            if due {
                process.note_order(seldom, at(secs));
            }
            due
        };
        assert!(!due(100, 1), "it was just read");
        assert!(!due(100, 29) && !due(101, 29), "nothing to speak of has changed");
        assert!(due(102, 29));
        assert!(!due(200, 36) && due(200, 37), "eight seconds after the last time");
        assert!(!due(200, 66) && due(200, 67), "nothing has changed for long");
        // So much can be plugged memory: its VMM is asked for two seconds.
        process.mapped = Bytes::from_mib(231);
        assert!(!process.asks_sizes_first(at(90)));
        process.mapped = Bytes::from_mib(232);
        assert!(process.asks_sizes_first(at(91)) && process.asks_sizes.is_some());
        assert!(process.asks_sizes_first(at(92)) && !process.asks_sizes_first(at(93)));
        process.note_order(seldom, at(100));
        process.mapped_before.get_or_insert(process.mapped);
        assert!(!process.asks_sizes_first(at(101)), "that was read");
    }
}

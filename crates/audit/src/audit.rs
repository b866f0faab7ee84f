//! The two looks at the memory of all groups.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::time::Duration;

use memtide_host::{HostError, Root, page_size};
use memtide_model::Bytes;
use rustix::time::{ClockId, clock_gettime};

use crate::estimate::{Class, Estimate, Pages, Seen, estimate};
use crate::frequent::{Counted, Frequent, Member};
use crate::memory::Memory;
use crate::merging::Merging;
use crate::pages::{Page, PageTable};
use crate::select::{Content, Select, ZERO};

/// Pages that the sample should hold: 512 MiB of 4 KiB.
const SAMPLED: u64 = 1 << 17;
/// At most this part of the classes is in the sample, unless everything is: a smaller host would be read twice.
const MOST_PART: f64 = 0.5;
/// Pages full of zeros that are looked at again.
const ZEROS_SAMPLED: u64 = 1 << 14;

/// Processes whose saving is told together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// Its processes.
    pub pids: Vec<u32>,
}

/// How an audit is made.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The time between the two looks. Pages that change within it are not counted.
    pub wait: Duration,
    /// Whether all pages belong to the sample.
    pub exact: bool,
    /// Decides which pages belong to the sample.
    pub seed: u64,
    /// The part of one processor that the audit may take, from 0.01 to 1.
    pub cpu: f64,
    /// How the kernel would merge.
    pub merging: Merging,
}

/// A process whose memory could not be read, or not all of it.
#[derive(Debug)]
pub struct Unread {
    /// The group's name.
    pub group: String,
    /// The process.
    pub pid: u32,
    /// The reason.
    pub why: String,
}

/// The outcome of an audit.
#[derive(Debug)]
pub struct Audit {
    /// The estimate.
    pub estimate: Estimate,
    /// Memory of each group that KSM is allowed to scan today.
    pub mergeable: Vec<Bytes>,
    /// The part of all classes that the sample holds.
    pub part: f64,
    /// Pages read at the first look.
    pub read: u64,
    /// Processes that are missing in the estimate.
    pub unread: Vec<Unread>,
}

/// Why there is no estimate.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// No memory of any process could be read.
    #[error("no memory could be read: {0}")]
    NothingRead(String),
}

/// A process that is read.
struct Process {
    group: usize,
    pid: u32,
    table: PageTable,
    memory: Memory,
}

/// A page of the sample at the first look.
struct Sampled {
    content: Content,
    member: Member,
}

/// What the first look has found.
struct First {
    select: Select,
    sample: Vec<Sampled>,
    frequent: Frequent,
    /// Some of the pages full of zeros: one of `zeros_part`.
    zeros: Vec<Member>,
    zeros_part: u64,
    zeros_seen: u64,
    /// The pages of each process.
    pages: Vec<Pages>,
    read: u64,
}

/// Processes that could not be read to the end, by their number, and why. Nothing of them counts.
type Failed = BTreeMap<usize, String>;

/// Estimates what KSM would save for `groups`. `opened` is called once everything is open that is read: from then on, no file is opened.
///
/// # Errors
/// If no memory of any process can be read.
pub fn run(
    root: &Root,
    groups: &[Group],
    options: Options,
    opened: impl FnOnce(),
) -> Result<Audit, AuditError> {
    run_with(root, groups, options, opened, || std::thread::sleep(options.wait))
}

/// The same with something else than a pause `between` the two looks, for tests.
///
/// # Errors
/// As [`run`].
pub fn run_with(
    root: &Root,
    groups: &[Group],
    options: Options,
    opened: impl FnOnce(),
    between: impl FnOnce(),
) -> Result<Audit, AuditError> {
    let mut unread = Vec::new();
    let mut processes = open(root, groups, &mut unread);
    opened();
    let all: u64 = processes.iter().map(|process| process.table.pages()).sum();
    let part = match options.exact {
        true => 1.0,
        false => (SAMPLED as f64 / all.max(1) as f64).min(MOST_PART),
    };
    let mut pace = Pace::new(options.cpu);
    let mut first = First {
        select: Select::new(part, options.seed),
        sample: Vec::new(),
        frequent: Frequent::default(),
        zeros: Vec::new(),
        zeros_part: all.div_ceil(ZEROS_SAMPLED).max(1),
        zeros_seen: 0,
        pages: vec![Pages::default(); processes.len()],
        read: 0,
    };
    let mut failed = Failed::new();
    for (number, process) in processes.iter_mut().enumerate() {
        if let Err(error) = first.look(number, process, &mut pace) {
            failed.insert(number, failure(&error));
        }
    }
    let read = first.read;
    let seen = if failed.len() < processes.len() && read > 0 {
        between();
        Some(second_look(first, (&mut processes, groups.len()), options, (&mut pace, &mut failed)))
    } else {
        None
    };
    unread.extend(failed.iter().map(|(number, why)| {
        let Process { group, pid, .. } = &processes[*number];
        Unread { group: groups[*group].name.clone(), pid: *pid, why: why.clone() }
    }));
    let Some(seen) = seen.filter(|_| failed.len() < processes.len()) else {
        let why = unread.first().map_or_else(|| "there is none".to_owned(), |first| first.why.clone());
        return Err(AuditError::NothingRead(why));
    };
    let mut mergeable = vec![Bytes::ZERO; groups.len()];
    for (_, process) in processes.iter().enumerate().filter(|(number, _)| !failed.contains_key(number)) {
        let sum = &mut mergeable[process.group];
        *sum = sum.saturating_add(process.table.mergeable());
    }
    Ok(Audit { estimate: estimate(&seen), mergeable, part, read, unread })
}

/// Why the memory of a process could not be read to its end.
fn failure(error: &io::Error) -> String {
    let has_ended = error.kind() == io::ErrorKind::UnexpectedEof
        || error.raw_os_error() == Some(nix::errno::Errno::ESRCH as i32);
    if has_ended { "it ended during the audit".to_owned() } else { error.to_string() }
}

/// The processes that can be opened. The others are noted.
fn open(root: &Root, groups: &[Group], unread: &mut Vec<Unread>) -> Vec<Process> {
    let page = usize::try_from(page_size().bytes().get()).unwrap_or(4096);
    let mut processes = Vec::new();
    for (group, Group { name, pids }) in groups.iter().enumerate() {
        for &pid in pids {
            match PageTable::open(root, pid) {
                Ok(table) => processes.push(Process { group, pid, table, memory: Memory::of(pid, page) }),
                Err(error) => unread.push(Unread { group: name.clone(), pid, why: why(&error) }),
            }
        }
    }
    processes
}

/// An error with its cause.
fn why(error: &HostError) -> String {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
    format!("{error}{}", cause.unwrap_or_default())
}

impl First {
    fn look(&mut self, number: usize, process: &mut Process, pace: &mut Pace) -> io::Result<()> {
        let Process { table, memory, .. } = process;
        table.visit(|pages| {
            memory.read(pages, |page, content| self.see((number, page), content))?;
            pace.rest();
            Ok(())
        })
    }

    fn see(&mut self, (process, page): (usize, Page), bytes: &[u8]) {
        let Some(counts) = self.pages.get_mut(process) else { return };
        self.read += 1;
        let member = (process, page.address);
        let content = self.select.content(bytes);
        if content == ZERO {
            // Others have it, too: it is the kernel's page of zeros, or already merged.
            if page.exclusive {
                counts.present += 1;
                counts.zeros += 1;
                self.zeros_seen += 1;
                if self.zeros_seen.is_multiple_of(self.zeros_part) {
                    self.zeros.push(member);
                }
            }
            return;
        }
        counts.present += 1;
        self.frequent.note(content, member);
        if self.select.takes(content) {
            self.sample.push(Sampled { content, member });
        }
    }
}

/// Looks at the sample again, and puts its pages that have not changed into classes.
fn second_look(
    first: First,
    (processes, groups): (&mut [Process], usize),
    options: Options,
    (pace, failed): (&mut Pace, &mut Failed),
) -> Seen {
    let First { select, mut sample, frequent, mut zeros, pages: of_processes, .. } = first;
    let mut large = frequent.large();
    // Of a class that is in the sample, all members are known.
    let sampled_large: HashSet<Content> =
        large.keys().copied().filter(|content| select.takes(*content)).collect();
    large.retain(|content, _| !sampled_large.contains(content));
    let mut again: Vec<HashMap<u64, Content>> = vec![HashMap::new(); processes.len()];
    let mut note = |(process, address): Member, content: Content| {
        again[process].insert(address, content);
    };
    sample.iter().for_each(|page| note(page.member, page.content));
    large.iter().for_each(|(content, class)| class.kept.iter().for_each(|member| note(*member, *content)));
    zeros.iter().for_each(|member| note(*member, ZERO));
    let stable = stable(&select, &again, processes, (pace, failed));
    // What is known of a process that has ended is no part of any saving.
    let counts = |process: &usize| !failed.contains_key(process);
    sample.retain(|page| counts(&page.member.0));
    zeros.retain(|member| counts(&member.0));
    for class in large.values_mut() {
        class.members.retain(|(process, _)| counts(process));
        class.kept.retain(|(process, _)| counts(process));
    }
    let mut pages = vec![Pages::default(); groups];
    for (process, counted) in of_processes.iter().enumerate().filter(|(process, _)| counts(process)) {
        let sum = &mut pages[processes[process].group];
        sum.present += counted.present;
        sum.zeros += counted.zeros;
    }
    let is_stable = |(process, address): &Member| stable[*process].contains(address);
    parts(&mut pages, processes, &sample, &zeros, is_stable);
    let mut classes = of_sample(sample, processes, &sampled_large, is_stable);
    classes.extend(large.values().map(|class| counted(class, processes, is_stable)));
    Seen { groups: pages, classes, part: select.part, merging: options.merging, page: page_size() }
}

/// The addresses of the pages that are present and have still the same content, for each process.
fn stable(
    select: &Select,
    again: &[HashMap<u64, Content>],
    processes: &mut [Process],
    (pace, failed): (&mut Pace, &mut Failed),
) -> Vec<HashSet<u64>> {
    let mut stable = Vec::new();
    for (number, (wanted, Process { table, memory, .. })) in again.iter().zip(processes).enumerate() {
        let mut same = HashSet::new();
        if failed.contains_key(&number) {
            stable.push(same);
            continue;
        }
        let looked: io::Result<()> = table.visit(|present| {
            let is_wanted = |page: &&Page| wanted.contains_key(&page.address);
            let some: Vec<Page> = present.iter().filter(is_wanted).copied().collect();
            memory.read(&some, |page, bytes| {
                if wanted.get(&page.address) == Some(&select.content(bytes)) {
                    same.insert(page.address);
                }
            })?;
            pace.rest();
            Ok(())
        });
        if let Err(error) = looked {
            failed.insert(number, failure(&error));
        }
        stable.push(same);
    }
    stable
}

/// Notes which part of each group's pages has not changed.
fn parts(
    pages: &mut [Pages],
    processes: &[Process],
    sample: &[Sampled],
    zeros: &[Member],
    is_stable: impl Fn(&Member) -> bool,
) {
    let mut seen = vec![[Twice::default(); 2]; pages.len()];
    let all = sample.iter().map(|page| (0, page.member)).chain(zeros.iter().map(|member| (1, *member)));
    for (kind, member) in all {
        let counts = &mut seen[processes[member.0].group][kind];
        counts.all += 1;
        counts.same += u32::from(is_stable(&member));
    }
    for (pages, [sampled, zeros]) in pages.iter_mut().zip(seen) {
        (pages.stable, pages.stable_zeros) = (sampled.part(), zeros.part());
    }
}

/// Pages that were looked at twice.
#[derive(Clone, Copy, Default)]
struct Twice {
    all: u32,
    same: u32,
}

impl Twice {
    /// The part that has not changed.
    fn part(self) -> f64 {
        if self.all == 0 { 1.0 } else { f64::from(self.same) / f64::from(self.all) }
    }
}

/// The classes of the sample, without pages that have changed.
fn of_sample(
    mut sample: Vec<Sampled>,
    processes: &[Process],
    large: &HashSet<Content>,
    is_stable: impl Fn(&Member) -> bool,
) -> Vec<Class> {
    sample.sort_unstable_by_key(|page| page.content);
    let same = sample.chunk_by(|a, b| a.content == b.content);
    same.map(|pages| {
        let stays = pages.iter().filter(|page| is_stable(&page.member));
        let members = by_group(stays.map(|page| (processes[page.member.0].group, 1)));
        let is_counted = pages.first().is_some_and(|page| large.contains(&page.content));
        Class { members, is_counted }
    })
    .collect()
}

/// A class that was counted, as far as its members do not change.
fn counted(class: &Counted, processes: &[Process], is_stable: impl Fn(&Member) -> bool) -> Class {
    let same = class.kept.iter().filter(|member| is_stable(member)).count() as u64;
    let all = (class.kept.len() as u64).max(1);
    let members =
        class.members.iter().map(|(process, members)| (processes[*process].group, members * same / all));
    Class { members: by_group(members), is_counted: true }
}

/// Members by group, in the order of the groups.
fn by_group(members: impl Iterator<Item = (usize, u64)>) -> Vec<(usize, u64)> {
    let mut sums: BTreeMap<usize, u64> = BTreeMap::new();
    for (group, members) in members {
        *sums.entry(group).or_default() += members;
    }
    sums.into_iter().filter(|(_, members)| *members > 0).collect()
}

/// Rests between pieces of work, so that they take no more than their part of a processor.
struct Pace {
    cpu: f64,
    /// The processor time of this thread at the end of the last rest.
    since: Duration,
}

/// Work is done in pieces of at least this length.
const PIECE: Duration = Duration::from_millis(10);

impl Pace {
    fn new(cpu: f64) -> Self {
        Self { cpu: cpu.clamp(0.01, 1.0), since: worked() }
    }

    fn rest(&mut self) {
        if let Some(rest) = self.after(worked().saturating_sub(self.since)) {
            std::thread::sleep(rest);
            self.since = worked();
        }
    }

    /// The rest after so much work; `None` if it is too little.
    fn after(&self, worked: Duration) -> Option<Duration> {
        (worked >= PIECE && self.cpu < 1.0).then(|| worked.mul_f64(1.0 / self.cpu - 1.0))
    }
}

/// The processor time of this thread: what it waits for others is no work.
fn worked() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let nanos = u32::try_from(time.tv_nsec).unwrap_or_default();
    Duration::new(u64::try_from(time.tv_sec).unwrap_or_default(), nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_followed_by_as_much_rest_as_its_part_of_a_processor_asks_for() {
        let after = |cpu: f64, millis: u64| Pace::new(cpu).after(Duration::from_millis(millis));
        let rest = |millis: u64| Some(Duration::from_millis(millis));
        assert_eq!(
            [after(0.5, 9), after(0.5, 10), after(0.25, 20), after(1.0, 500)],
            [None, rest(10), rest(60), None]
        );
    }
}

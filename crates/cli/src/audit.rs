//! `memtide audit`: what KSM would save, estimated before it is switched on. See [`memtide_audit`].

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use memtide_audit::{Group, GroupEstimate, Interval, Merging, Options, Unread};
use memtide_daemon::confine::Confinement;
use memtide_host::Root;
use memtide_host::ksm::settings;
use memtide_model::{Bytes, KsmRun, Names, printable};
use memtide_vmm::qemu::{Discovery, QemuProcess};
use serde_json::{Value, json};

use crate::style::Style;

/// Pairs of guests that are shown.
const PAIRS: usize = 5;
/// The schema of the JSON output.
const SCHEMA: u32 = 1;

/// The options of `memtide audit`.
#[derive(clap::Args)]
#[command(
    after_help = "The memory of QEMU guests is read once, and a sample of it again: pages that change within --wait are not counted, since KSM \
    does not merge them. Only present pages of private anonymous memory are read; nothing becomes resident. It needs the right to read the \
    processes' memory: root, or CAP_SYS_PTRACE."
)]
pub struct Audit {
    /// Look at this process instead of at the QEMU guests of this host. Give it several times to look at several.
    #[arg(long, value_name = "PID")]
    pid: Vec<u32>,
    /// Pages that change within this time are not counted, as in `5s`.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = humantime::parse_duration)]
    wait: Duration,
    /// The part of one processor that it may take, in percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u8).range(1..=100))]
    cpu: u8,
    /// Compare all pages, and not only a sample: exact, and it takes twice as long.
    #[arg(long)]
    exact: bool,
    /// Decides which pages belong to the sample [default: another one each time]
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    /// Print everything as JSON, with sizes in bytes.
    #[arg(long)]
    json: bool,
    /// Look at a tree with `proc` and `sys` instead of at this system: for tests.
    #[arg(long, value_name = "DIR", hide = true)]
    root: Option<PathBuf>,
}

/// An audit with everything that is told about it.
struct Told {
    groups: Vec<Group>,
    audit: memtide_audit::Audit,
    merging: Merging,
    /// The state of KSM; `None` without KSM.
    run: Option<KsmRun>,
    took: Duration,
}

impl Audit {
    /// Estimates, and prints the estimate.
    pub fn execute(self) -> Result<ExitCode> {
        let directory = self.root.unwrap_or_else(|| PathBuf::from("/"));
        let root = Root::at(&directory);
        let groups = if self.pid.is_empty() { guests(&directory)? } else { processes(&root, &self.pid) };
        if groups.is_empty() {
            bail!("no QEMU guest runs here; --pid looks at any process");
        }
        let merging = Merging::of_host(&root);
        let options = Options {
            wait: self.wait,
            exact: self.exact,
            seed: self.seed.unwrap_or_else(seed),
            cpu: f64::from(self.cpu) / 100.0,
            merging,
        };
        let run = settings::read(&root).ok().map(|settings| settings.run);
        let begun = Instant::now();
        let audit = memtide_audit::run(&root, &groups, options, confine);
        let audit = if rustix::process::geteuid().is_root() {
            audit?
        } else {
            audit.context("root may read the memory of all processes: sudo memtide audit")?
        };
        let told = Told { groups, audit, merging, run, took: begun.elapsed() };
        let mut out = std::io::stdout().lock();
        match self.json {
            true => writeln!(out, "{}", serde_json::to_string_pretty(&told.json())?)?,
            false => out.write_all(told.text(Style::detect()).as_bytes())?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Gives up all rights but that to read memory.
fn confine() {
    for phrase in Confinement::On.auditor().iter().filter(|phrase| phrase.contains(" not ")) {
        eprintln!("memtide: audit: {phrase}");
    }
}

/// The QEMU guests of this host, in the order of their names.
fn guests(directory: &Path) -> Result<Vec<Group>> {
    let mut discovery = Discovery::new(&directory.join("proc"));
    discovery.scan()?;
    let names = Names::of(discovery.processes().map(|guest| &guest.id));
    let group = |guest: &QemuProcess| Group { name: names.name(&guest.id), pids: vec![guest.pid] };
    let mut groups: Vec<Group> = discovery.processes().map(group).collect();
    groups.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(groups)
}

/// Named processes, each a group of its own.
fn processes(root: &Root, pids: &[u32]) -> Vec<Group> {
    let name = |pid: u32| {
        let comm = std::fs::read_to_string(root.process(pid, "comm")).unwrap_or_default();
        match printable(comm.trim()) {
            comm if comm.is_empty() => pid.to_string(),
            comm => format!("{comm}-{pid}"),
        }
    };
    let once: BTreeSet<u32> = pids.iter().copied().collect();
    once.into_iter().map(|pid| Group { name: name(pid), pids: vec![pid] }).collect()
}

/// A seed that nobody can guess.
fn seed() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(std::process::id())
}

impl Told {
    fn json(&self) -> Value {
        let estimate = &self.audit.estimate;
        let name = |group: usize| self.groups.get(group).map(|group| group.name.as_str());
        let groups: Vec<Value> = self.rows().map(|(group, found, mergeable)| json!({
            "name": group.name, "pids": group.pids, "memory_bytes": found.memory, "mergeable_bytes": mergeable,
            "saving_bytes": found.saving.value, "low": found.saving.low, "high": found.saving.high,
            "zero_bytes": found.zeros, "within_bytes": found.within, "changes_fraction": found.changes,
        }))
        .collect();
        let pairs: Vec<Value> = estimate
            .pairs
            .iter()
            .map(|pair| {
                json!({
                    "groups": [name(pair.groups.0), name(pair.groups.1)], "saving_bytes": pair.saving,
                })
            })
            .collect();
        let unread: Vec<Value> = self
            .audit
            .unread
            .iter()
            .map(|Unread { group, pid, why }| {
                json!({
                    "name": group, "pid": pid, "why": why,
                })
            })
            .collect();
        json!({
            "schema": SCHEMA,
            "ksm": {
                "saving_bytes": estimate.saving.value, "low": estimate.saving.low, "high": estimate.saving.high,
                "zero_bytes": estimate.zeros, "within_bytes": estimate.within, "across_bytes": estimate.across,
                "run": self.run.map(KsmRun::number), "max_page_sharing": self.merging.most_sharing,
                "use_zero_pages": self.merging.use_zero_pages, "separate_nodes": self.merging.nodes,
            },
            "groups": groups,
            "pairs": pairs,
            "unread": unread,
            "sampled_fraction": self.audit.part,
            "pages_read": self.audit.read,
            "took_seconds": self.took.as_secs_f64(),
        })
    }

    fn text(&self, style: Style) -> String {
        let estimate = &self.audit.estimate;
        let mut text = String::new();
        let sample = match self.audit.part >= 1.0 {
            true => "all pages compared".to_owned(),
            false => format!("from {:.1} % of the pages; in brackets: 95 % sure", self.audit.part * 100.0),
        };
        let _ =
            writeln!(text, "{}  {}", style.bold("what KSM would save"), style.dim(&format!("({sample})")));
        let width = self.groups.iter().map(|group| group.name.len()).max().unwrap_or(0).max("in total".len());
        let _ = writeln!(
            text,
            "{:width$}  {:>9}  {:>9}  {:<21}  {:>9}  {:>9}  {:>7}",
            "", "memory", "saving", "", "zeros", "within", "changes"
        );
        for (group, found, _) in self.rows() {
            text.push_str(&row(&group.name, width, found));
        }
        let memory = Bytes::sum(estimate.groups.iter().map(|group| group.memory));
        let all = GroupEstimate {
            memory,
            saving: estimate.saving,
            zeros: estimate.zeros,
            within: estimate.within,
            changes: 0.0,
        };
        text.push_str(&row("in total", width, &all));
        if self.groups.len() > 1 {
            let _ = writeln!(text, "{} of it only by merging across them", estimate.across);
        }
        if self.groups.len() > 2 && !estimate.pairs.is_empty() {
            let _ = writeln!(text, "\n{}", style.bold("which share most"));
            for pair in estimate.pairs.iter().take(PAIRS) {
                let names = [pair.groups.0, pair.groups.1].map(|group| self.groups[group].name.as_str());
                let _ = writeln!(text, "{} and {}: {}", names[0], names[1], pair.saving);
            }
        }
        for Unread { group, pid, why } in &self.audit.unread {
            let _ = writeln!(text, "{}", style.warn(&format!("{group} (process {pid}) is missing: {why}")));
        }
        for line in self.obstacles() {
            let _ = writeln!(text, "{}", style.dim(&line));
        }
        text
    }

    fn rows(&self) -> impl Iterator<Item = (&Group, &GroupEstimate, Bytes)> {
        let found = self.audit.estimate.groups.iter().zip(&self.audit.mergeable);
        self.groups.iter().zip(found).map(|(group, (found, mergeable))| (group, found, *mergeable))
    }

    /// What stands between the estimate and the saving.
    fn obstacles(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let closed: Vec<&str> = self
            .rows()
            .filter(|(_, found, mergeable)| mergeable.mul_div(2, 1) < found.memory)
            .map(|(group, ..)| group.name.as_str())
            .collect();
        if !closed.is_empty() {
            lines.push(format!(
                "KSM may not scan most of the memory of {}: it was not marked for merging (QEMU: mem-merge=on, private memory)",
                closed.join(", ")
            ));
        }
        if self.merging.nodes > 1 {
            lines.push(format!(
                "KSM does not merge across the {} NUMA nodes (merge_across_nodes: 0): only the lower bounds allow for that",
                self.merging.nodes
            ));
        }
        match self.run {
            None => lines.push("this kernel has no KSM".to_owned()),
            Some(KsmRun::Stopped) => lines.push("KSM is off".to_owned()),
            Some(KsmRun::Scanning) => {
                lines.push("KSM is on: what it has merged already is a part of the estimate".to_owned())
            }
            Some(KsmRun::Unmerged) => lines.push("KSM was told to unmerge all pages (run: 2)".to_owned()),
        }
        lines
    }
}

fn row(name: &str, width: usize, found: &GroupEstimate) -> String {
    let Interval { value, low, high } = found.saving;
    let bounds = if low == high { String::new() } else { format!("({low} to {high})") };
    let changes = if found.changes > 0.0 { format!("{:.1} %", found.changes * 100.0) } else { String::new() };
    let line = format!(
        "{name:width$}  {:>9}  {:>9}  {bounds:<21}  {:>9}  {:>9}  {changes:>7}",
        found.memory.to_string(),
        value.to_string(),
        found.zeros.to_string(),
        found.within.to_string(),
    );
    format!("{}\n", line.trim_end())
}

//! The host's KSM, for experiments that set it. It serves the whole machine: it is only taken if nobody uses it, and is as found afterwards.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use memtide_model::Bytes;

use crate::error::LabError;
use crate::machine::process::{self, Held, cpu_seconds};

const DIRECTORY: &str = "/sys/kernel/mm/ksm";
/// The settings that are put back, in this order. `run` comes last, after the advisor, which sets the pace.
const SETTINGS: [&str; 6] =
    ["pages_to_scan", "sleep_millisecs", "smart_scan", "use_zero_pages", "advisor_mode", "run"];

/// KSM, taken for an experiment.
#[derive(Debug)]
pub struct Ksm {
    /// The settings as they were found.
    found: Vec<(&'static str, String)>,
    ksmd: u32,
}

/// Memory of processes that KSM may merge.
#[derive(Clone, Copy, Debug)]
pub struct Alike {
    /// What each holds, in MiB.
    pub size_mib: u64,
    /// The percentage of it that is the same in all of them.
    pub identical: u64,
    /// What each writes a second, in MiB; 0: nothing changes.
    pub writes_mib: u64,
    /// The seed of the content.
    pub seed: u64,
}

impl Alike {
    /// Starts a process of `memtide` and `load` that holds such memory for two hours at most.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn hold(self, memtide: &Path, load: &Path, instance: u64) -> Result<Held, LabError> {
        let mut command = process::mortal(&memtide.to_string_lossy());
        command.args(["ksm", "run", "--"]).arg(load);
        command.args(["--size", &format!("{}M", self.size_mib), "--duration", "2h"]);
        command.args(["--rate", &format!("{}M", self.writes_mib), "--writes", "100%"]);
        command.args(["--identical", &format!("{}%", self.identical), "--seed", &self.seed.to_string()]);
        command.args(["--instance", &instance.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        process::spawn(command).map(Held)
    }
}

/// What KSM counts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counters {
    /// Memory saved: `pages_sharing` and `ksm_zero_pages`.
    pub saved: Bytes,
    /// Complete passes over all mergeable memory.
    pub full_scans: u64,
    /// Processor time of ksmd, in seconds.
    pub cpu_seconds: f64,
}

impl Ksm {
    /// The command that stops KSM and unmerges everything.
    pub const UNDO: &str = "echo 2 > /sys/kernel/mm/ksm/run; echo 0 > /sys/kernel/mm/ksm/run";

    /// Takes KSM over.
    ///
    /// # Errors
    /// [`LabError::Missing`] if this kernel has none, if this process may not set it, or if somebody else uses it.
    pub fn take() -> Result<Self, LabError> {
        let missing = |why: String| LabError::Missing(format!("no KSM for this experiment: {why}"));
        if read("run").map_err(|error| missing(error.with_cause()))? != "0" || number("pages_sharing") > 0 {
            return Err(missing("somebody else uses it (run, pages_sharing)".to_owned()));
        }
        let ksmd = ksmd().ok_or_else(|| missing("there is no ksmd".to_owned()))?;
        let found = SETTINGS.iter().filter_map(|name| Some((*name, read(name).ok()?)));
        let ksm = Self { found: found.collect(), ksmd };
        ksm.set("run", "0").map_err(|error| missing(error.with_cause()))?;
        Ok(ksm)
    }

    /// Writes a setting.
    ///
    /// # Errors
    /// If the kernel refuses it.
    pub fn set(&self, name: &str, value: &str) -> Result<(), LabError> {
        let path = file(name);
        fs::write(&path, value).map_err(LabError::file(&path))
    }

    /// Unmerges all pages and stops, with the settings as they were found.
    ///
    /// # Errors
    /// If the kernel refuses one of them. All are tried.
    pub fn reset(&self) -> Result<(), LabError> {
        // The kernel answers when all pages are unmerged. While its advisor is on, the pace cannot be set.
        let first = self.set("run", "2").and_then(|()| self.set("run", "0"));
        let advisor = self.set("advisor_mode", "none").or(Ok(()));
        let settings = self.found.iter().map(|(name, value)| self.set(name, value));
        [first, advisor].into_iter().chain(settings.collect::<Vec<_>>()).collect()
    }

    /// What it counts now.
    ///
    /// # Errors
    /// If ksmd is gone.
    pub fn counters(&self) -> Result<Counters, LabError> {
        let pages = number("pages_sharing") + number("ksm_zero_pages");
        let page = rustix::param::page_size() as u64;
        Ok(Counters {
            saved: Bytes::new(pages.saturating_mul(page)),
            full_scans: number("full_scans"),
            cpu_seconds: cpu_seconds(self.ksmd)?,
        })
    }
}

impl Drop for Ksm {
    fn drop(&mut self) {
        if let Err(error) = self.reset() {
            eprintln!("KSM is not as it was found: {}", error.with_cause());
        }
    }
}

fn file(name: &str) -> PathBuf {
    Path::new(DIRECTORY).join(name)
}

/// A setting as it can be written again. Of a choice, the chosen word.
fn read(name: &str) -> Result<String, LabError> {
    let path = file(name);
    let text = fs::read_to_string(&path).map_err(LabError::file(&path))?;
    let chosen = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    Ok(chosen.map_or(text.trim(), |(word, _)| word).to_owned())
}

/// A counter; zero if this kernel does not have it.
fn number(name: &str) -> u64 {
    fs::read_to_string(file(name)).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// The kernel's thread that scans.
fn ksmd() -> Option<u32> {
    fs::read_dir("/proc").ok()?.find_map(|entry| {
        let path = entry.ok()?.path();
        let pid = path.file_name()?.to_str()?.parse().ok()?;
        (fs::read_to_string(path.join("comm")).ok()?.trim() == "ksmd").then_some(pid)
    })
}

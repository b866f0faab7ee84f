//! A real guest: a `qemu` process, or a `uml` instance. Both boot the same first file system, and have the same helper and exerciser
//! at the end of a channel.

pub mod agent;
pub mod channel;
pub mod cpio;
pub mod disk;
pub mod image;
mod libvirt;
mod life;
pub mod probe;
mod qemu;
pub mod qmp;
pub mod swap;
mod uml;

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use memtide_host::zram::{NotedTier, TierReader, noted};
use memtide_host::{Root, Scratch};
use memtide_load::exerciser::report::Second;
use memtide_load::helper::meminfo::Meminfo;
use memtide_load::helper::wire::{Ask, Hello};
use memtide_model::Bytes;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::error::LabError;
use crate::guest::channel::{Channel, Job, Standing};
use crate::guest::disk::Disk;
use crate::guest::life::Life;
use crate::guest::qemu::Qemu;
use crate::guest::swap::Swap;
use crate::guest::uml::Uml;
use crate::machine::accel::Accel;
use crate::machine::lab::Run;
use crate::machine::process;
use crate::machine::small_host::SmallHost;
use crate::machine::uml_kernel::UmlKernel;
use crate::wait::until;

/// The balloon device's path in QEMU's object tree.
pub const BALLOON: &str = "/machine/peripheral/balloon0";

/// The time for the helper to answer, before the lab asks again whether it is there.
const HELLO: Duration = Duration::from_secs(2);

/// The longest time for a guest to boot.
pub const BOOT: Duration = Duration::from_secs(120);

/// Starts all guests at once, in `host` if there is one, and waits until they are up.
///
/// # Errors
/// If a guest does not start or come up.
pub fn start_all(
    builders: impl IntoIterator<Item = GuestBuilder>,
    run: &Run,
    host: Option<&SmallHost>,
) -> Result<Vec<Guest>, LabError> {
    let guests: Result<Vec<Guest>, LabError> =
        builders.into_iter().map(|builder| builder.start(run, host)).collect();
    let guests = guests?;
    for guest in &guests {
        guest.wait_up(BOOT)?;
    }
    Ok(guests)
}

/// The properties of a guest to start.
#[derive(Clone, Debug)]
pub struct GuestBuilder {
    name: String,
    memory: Bytes,
    deflate_on_oom: bool,
    free_page_reporting: bool,
    disk: Option<Disk>,
    accel: Option<Accel>,
    agent: bool,
    hotplug: bool,
    vmm: Vmm,
    uml_kernel: UmlKernel,
    memory_dir: Option<PathBuf>,
    more: Vec<String>,
}

/// What runs a guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Vmm {
    /// QEMU.
    #[default]
    Qemu,
    /// User Mode Linux. It has no balloon and no free page reporting, so that these options mean nothing to it.
    Uml,
}

impl GuestBuilder {
    /// What runs it; QEMU by default.
    #[must_use]
    pub const fn vmm(mut self, vmm: Vmm) -> Self {
        self.vmm = vmm;
        self
    }

    /// The kernel of a UML instance; the installed one by default.
    #[must_use]
    pub const fn uml_kernel(mut self, kernel: UmlKernel) -> Self {
        self.uml_kernel = kernel;
        self
    }

    /// Where a UML instance keeps its memory file; `/dev/shm` by default.
    #[must_use]
    pub fn memory_dir(mut self, dir: &Path) -> Self {
        self.memory_dir = Some(dir.to_owned());
        self
    }

    /// The memory that it boots with; 1 GiB by default.
    #[must_use]
    pub const fn memory(mut self, memory: Bytes) -> Self {
        self.memory = memory;
        self
    }

    /// Whether its balloon deflates by itself before the guest's OOM killer acts; off by default.
    #[must_use]
    pub const fn deflate_on_oom(mut self, on: bool) -> Self {
        self.deflate_on_oom = on;
        self
    }

    /// Whether it reports freed pages; off by default.
    #[must_use]
    pub const fn free_page_reporting(mut self, on: bool) -> Self {
        self.free_page_reporting = on;
        self
    }

    /// A read-only disk: `/dev/vda` in the guest.
    #[must_use]
    pub fn disk(mut self, disk: &Disk) -> Self {
        self.disk = Some(disk.clone());
        self
    }

    /// Whether it runs memtide's agent; off by default.
    #[must_use]
    pub const fn agent(mut self, on: bool) -> Self {
        self.agent = on;
        self
    }

    /// Whether a device can be plugged into it while it runs; off by default. (QEMU's q35 has no free port.)
    #[must_use]
    pub const fn hotplug(mut self, on: bool) -> Self {
        self.hotplug = on;
        self
    }

    /// Its own swap device; the guest does not swap to it before [`Swap::on`].
    #[must_use]
    pub fn swap(mut self, swap: &Swap) -> Self {
        self.more.extend(swap.arguments());
        self
    }

    /// An accelerator other than the lab's.
    #[must_use]
    pub const fn accel(mut self, accel: Accel) -> Self {
        self.accel = Some(accel);
        self
    }

    /// More arguments for QEMU, such as another device.
    #[must_use]
    pub fn arguments(mut self, more: &[&str]) -> Self {
        self.more.extend(more.iter().map(|&argument| argument.to_owned()));
        self
    }

    /// Starts it, in `host` if there is one, and connects the lab's monitor and channel. The guest boots meanwhile: see
    /// [`Guest::wait_up`].
    ///
    /// # Errors
    /// If it does not start. The error contains the end of its log.
    pub fn start(self, run: &Run, host: Option<&SmallHost>) -> Result<Guest, LabError> {
        if self.name.is_empty()
            || !self.name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        {
            return Err(LabError::Missing(format!("`{}` is no name for a guest", self.name)));
        }
        let kind = match self.vmm {
            Vmm::Qemu => "qemu",
            Vmm::Uml => "uml",
        };
        let log_path = run.path().join(format!("{}.{kind}.log", self.name));
        let log = File::create(&log_path).map_err(LabError::file(&log_path))?;
        let err = log.try_clone().map_err(LabError::file(&log_path))?;
        let mut command = contained(host);
        command.stdin(Stdio::null()).stdout(log).stderr(err).process_group(0);
        let (life, vm, channel, console_log) = match self.vmm {
            Vmm::Qemu => {
                let files = qemu::Files::of(run.path(), &self.name)?;
                let mut life = match run.lab().libvirtd() {
                    None => {
                        self.add_qemu(&mut command, run, &files)?;
                        Life::Child(process::spawn(command)?)
                    }
                    Some(libvirtd) => {
                        let xml = self.domain(run, &files, libvirtd.emulator())?;
                        let procs = host.map(SmallHost::procs);
                        let pid = libvirtd.create(&self.name, &xml, procs.as_deref())?;
                        Life::of_other(pid).map_err(LabError::file(&log_path))?
                    }
                };
                match qemu::connect(&self.name, files, &mut life, &log_path) {
                    Ok((qemu, channel)) => {
                        (life, Vm::Qemu(qemu), channel, qemu::console_log(run.path(), &self.name))
                    }
                    Err(error) => {
                        let _ = life.end();
                        return Err(error);
                    }
                }
            }
            Vmm::Uml => {
                let (uml, channel, its_end) = self.add_uml(&mut command, run)?;
                let child = process::spawn(command)?;
                drop(its_end);
                (Life::Child(child), Vm::Uml(uml), channel, log_path)
            }
        };
        Ok(Guest {
            name: self.name,
            memory: self.memory,
            console_log,
            pid: life.pid(),
            life: Mutex::new(life),
            vm,
            channel: Mutex::new(channel),
        })
    }
}

/// The command that starts another command in `host`, and makes it end with the lab.
#[must_use]
pub fn contained(host: Option<&SmallHost>) -> Command {
    let Some(host) = host else {
        return process::mortal("env");
    };
    let mut command = process::mortal("sh");
    command.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(host.procs());
    command
}

/// A running guest; dropping it kills it.
#[derive(Debug)]
pub struct Guest {
    name: String,
    memory: Bytes,
    console_log: PathBuf,
    pid: u32,
    life: Mutex<Life>,
    vm: Vm,
    channel: Mutex<Channel>,
}

/// What runs it.
#[derive(Debug)]
enum Vm {
    Qemu(Qemu),
    Uml(Uml),
}

/// What the tiers that memtide has made for `guests` take of the host's memory, as the kernel counts it.
#[must_use]
pub fn in_tiers(guests: &[Guest]) -> Bytes {
    let root = Root::system();
    let mut scratch = Scratch::default();
    let is_theirs = |noted: &NotedTier| guests.iter().any(|guest| guest.pid == noted.pid);
    let held = |noted: NotedTier| {
        let tier = TierReader::open(&root, noted.device).ok()?.read(&mut scratch).ok()?;
        Some(tier.held)
    };
    Bytes::sum(noted(&root).into_iter().filter(is_theirs).filter_map(held))
}

impl Guest {
    /// A guest with this name (letters, digits, `-`, `_`, `.`) and 1 GiB, and nothing else.
    #[must_use]
    pub fn builder(name: &str) -> GuestBuilder {
        GuestBuilder {
            name: name.to_owned(),
            memory: Bytes::from_mib(1024),
            deflate_on_oom: false,
            free_page_reporting: false,
            disk: None,
            accel: None,
            agent: false,
            hotplug: false,
            vmm: Vmm::Qemu,
            uml_kernel: UmlKernel::Usual,
            memory_dir: None,
            more: Vec::new(),
        }
    }

    /// Its name: QEMU's `-name`, UML's `umid`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The memory that it boots with.
    #[must_use]
    pub const fn memory(&self) -> Bytes {
        self.memory
    }

    /// The process id of its QEMU, or of its UML kernel.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// The monitor that memtide finds (the lab leaves it alone), or the console of an instance.
    #[must_use]
    pub fn monitor(&self) -> &Path {
        match &self.vm {
            Vm::Qemu(qemu) => &qemu.files.qmp,
            Vm::Uml(uml) => uml.console(),
        }
    }

    /// The host's end of the agent's port; `None` for an instance.
    #[must_use]
    pub fn agent_path(&self) -> Option<&Path> {
        match &self.vm {
            Vm::Qemu(qemu) => Some(&qemu.files.agent),
            Vm::Uml(_) => None,
        }
    }

    /// The guest's console output so far.
    ///
    /// # Errors
    /// If the log cannot be read.
    pub fn console(&self) -> Result<String, LabError> {
        let bytes = fs::read(&self.console_log).map_err(LabError::file(&self.console_log))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Waits until the helper in the guest answers, after a start or a reset.
    ///
    /// # Errors
    /// If the guest ends, or the deadline passes: then the error has the end of its console's output.
    pub fn wait_up(&self, deadline: Duration) -> Result<Hello, LabError> {
        let mut boot = Boot::default();
        let up = until(&format!("the boot of the guest {}", self.name), deadline, || boot.look(self));
        up.map_err(|error| match error {
            LabError::Deadline { .. } => self.not_up(error),
            error => error,
        })
    }

    /// A boot that took too long, with the last lines of the guest's console, if it has any.
    fn not_up(&self, error: LabError) -> LabError {
        const LINES: usize = 15;
        let console = self.console().unwrap_or_default();
        let lines: Vec<&str> = console.lines().collect();
        if lines.is_empty() {
            return error;
        }
        let end = lines[lines.len().saturating_sub(LINES)..].join("\n");
        LabError::NotUp { guest: self.name.clone(), why: error.to_string(), console: end }
    }

    /// Waits until `look` sees something in this guest. Stops early if the guest ends.
    ///
    /// # Errors
    /// Errors of `look`, the guest's end, or the deadline.
    pub fn until<T>(
        &self,
        what: &str,
        deadline: Duration,
        mut look: impl FnMut(&Self) -> Result<Option<T>, LabError>,
    ) -> Result<T, LabError> {
        until(&format!("{what} ({})", self.name), deadline, || {
            self.check_alive()?;
            look(self)
        })
    }

    /// Starts a job in the guest.
    ///
    /// # Errors
    /// If the channel is broken.
    pub fn begin(&self, ask: Ask) -> Result<Job, LabError> {
        lock(&self.channel).begin(ask)
    }

    /// The state of a job.
    #[must_use]
    pub fn standing(&self, job: Job) -> Standing {
        lock(&self.channel).standing(job)
    }

    /// Runs a job in the guest until it finishes. `T` is the type that [`Ask`] names for the job.
    ///
    /// # Errors
    /// If the job fails, the guest ends, or the deadline passes.
    pub fn ask<T: DeserializeOwned>(&self, ask: Ask, deadline: Duration) -> Result<T, LabError> {
        let what = format!("{ask:?}");
        let job = self.begin(ask)?;
        self.finish(job, &what, deadline)
    }

    /// Runs a job in the guest until it finishes, and returns it for later requests.
    ///
    /// # Errors
    /// As [`Guest::ask`].
    pub fn run(&self, ask: Ask, deadline: Duration) -> Result<Job, LabError> {
        let what = format!("{ask:?}");
        let job = self.begin(ask)?;
        self.finish::<Value>(job, &what, deadline).map(|_| job)
    }

    /// Waits for a job to finish. `what` describes it in an error.
    ///
    /// # Errors
    /// As [`Guest::ask`].
    pub fn finish<T: DeserializeOwned>(
        &self,
        job: Job,
        what: &str,
        deadline: Duration,
    ) -> Result<T, LabError> {
        self.until(what, deadline, |guest| guest.outcome(job))
    }

    /// The outcome of a job, as the type that [`Ask`] names for it; `None` while it runs.
    ///
    /// # Errors
    /// If the job has failed, or its outcome has another type.
    pub fn outcome<T: DeserializeOwned>(&self, job: Job) -> Result<Option<T>, LabError> {
        match self.standing(job) {
            Standing::Running { .. } => Ok(None),
            Standing::Done(value) => serde_json::from_value(value)
                .map(Some)
                .map_err(|e| self.load_error(format!("an unexpected answer: {e}"))),
            Standing::Failed(why) => Err(self.load_error(self.and_kills(why))),
        }
    }

    /// The reason, and what the guest's kernel says about its last kill, if there was one.
    fn and_kills(&self, why: String) -> String {
        let console = self.console().unwrap_or_default();
        match console.lines().rfind(|line| line.contains("Out of memory")) {
            Some(kill) => format!("{why}; its console: {}", kill.trim()),
            None => why,
        }
    }

    /// The touches of a load in the last second that it reported; `None` before the first.
    ///
    /// # Errors
    /// If the load has ended.
    pub fn second(&self, load: Job) -> Result<Option<Second>, LabError> {
        match self.standing(load) {
            Standing::Running { second, .. } => Ok(second.map(|second| *second)),
            Standing::Done(_) => Err(self.load_error("it ended by itself".to_owned())),
            Standing::Failed(why) => Err(self.load_error(why)),
        }
    }

    /// The guest's own view of its memory.
    ///
    /// # Errors
    /// As [`Guest::ask`].
    pub fn meminfo(&self) -> Result<Meminfo, LabError> {
        self.ask(Ask::Meminfo, Duration::from_secs(20))
    }

    /// Loads that were lost although nobody ended them (the guest's OOM killer did): one line each.
    #[must_use]
    pub fn lost(&self) -> Vec<String> {
        lock(&self.channel).lost()
    }

    /// Runs any command on the lab's monitor.
    ///
    /// # Errors
    /// If the monitor is gone or answers with an error, or if this is an instance of UML.
    pub fn qmp(&self, command: &str, arguments: &Value) -> Result<Value, LabError> {
        match &self.vm {
            Vm::Qemu(qemu) => lock(&qemu.qmp).execute(command, arguments),
            Vm::Uml(_) => Err(self.load_error("an instance of UML has no QMP monitor".to_owned())),
        }
    }

    /// The memory that the guest keeps, as the balloon device reports it, or as the instance's kernel tells.
    ///
    /// # Errors
    /// If the monitor is gone, or the balloon has no driver yet.
    pub fn actual(&self) -> Result<Bytes, LabError> {
        match &self.vm {
            Vm::Qemu(qemu) => lock(&qemu.qmp).actual(),
            Vm::Uml(uml) => uml.actual(),
        }
    }

    /// How far its size can be off: an instance of UML is read from its kernel's own account.
    #[must_use]
    pub const fn size_error(&self) -> Bytes {
        match &self.vm {
            Vm::Qemu(_) => Bytes::ZERO,
            Vm::Uml(_) => Bytes::from_mib(4),
        }
    }

    /// Asks the guest to keep `target`. An instance of UML moves there at once, in one step, as far as it can.
    ///
    /// # Errors
    /// If the monitor is gone, or the balloon has no driver yet.
    pub fn set_target(&self, target: Bytes) -> Result<(), LabError> {
        match &self.vm {
            Vm::Qemu(qemu) => lock(&qemu.qmp).set_target(target),
            Vm::Uml(uml) => uml.set_target(target),
        }
    }

    /// Gives its monitor the QMP command, or its console the other one.
    fn order(&self, qmp: &str, console: &str) -> Result<(), LabError> {
        match &self.vm {
            Vm::Qemu(_) => self.qmp(qmp, &json!({})).map(drop),
            Vm::Uml(uml) => uml.ask(console).map(drop),
        }
    }

    /// Presses the reset button.
    ///
    /// # Errors
    /// If the monitor is gone.
    pub fn reset(&self) -> Result<(), LabError> {
        self.order("system_reset", "reboot")
    }

    /// Ends it through its monitor.
    ///
    /// # Errors
    /// If the monitor is gone.
    pub fn halt(&self) -> Result<(), LabError> {
        self.order("quit", "halt")
    }

    /// Stops its CPUs.
    ///
    /// # Errors
    /// If the monitor is gone.
    pub fn pause(&self) -> Result<(), LabError> {
        self.order("stop", "stop")
    }

    /// Lets its CPUs continue.
    ///
    /// # Errors
    /// If the monitor is gone.
    pub fn resume(&self) -> Result<(), LabError> {
        self.order("cont", "go")
    }

    /// Its present cost to the host: the resident memory of its process from statm, or the memory file of an instance and what its kernel's
    /// process has besides; zero once it has ended.
    #[must_use]
    pub fn footprint(&self) -> Bytes {
        match &self.vm {
            Vm::Qemu(_) => process::statm(self.pid).resident,
            Vm::Uml(_) => self.private(),
        }
    }

    /// Its own part of its footprint: without pages of files (the VMM's program and libraries), which all guests share. A
    /// guest's memory here is anonymous, or an instance's own memory file, so this part includes all of it.
    #[must_use]
    pub fn private(&self) -> Bytes {
        let statm = process::statm(self.pid);
        let own = statm.resident.saturating_sub(statm.shared);
        match &self.vm {
            Vm::Qemu(_) => own,
            Vm::Uml(uml) => own.saturating_add(uml.blocks(self.pid, self.memory)),
        }
    }

    /// How its process ended; `None` while it runs.
    ///
    /// # Errors
    /// If the kernel does not say.
    pub fn ended(&self) -> Result<Option<String>, LabError> {
        lock(&self.life).ended().map_err(|e: io::Error| self.load_error(e.to_string()))
    }

    /// Whether its process runs.
    #[must_use]
    pub fn alive(&self) -> bool {
        matches!(self.ended(), Ok(None))
    }

    /// Kills it, as an OOM killer would, and waits until it has ended.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn kill(&self) -> Result<(), LabError> {
        lock(&self.life).end().map_err(|e| self.load_error(e.to_string()))
    }

    fn check_alive(&self) -> Result<(), LabError> {
        match self.ended()? {
            Some(how) => Err(LabError::Gone { guest: self.name.clone(), how }),
            None => Ok(()),
        }
    }

    fn load_error(&self, why: String) -> LabError {
        LabError::Load { guest: self.name.clone(), why }
    }
}

/// The wait for a boot.
#[derive(Debug, Default)]
pub struct Boot {
    /// The last question to the helper, and its time.
    asked: Option<(Job, Instant)>,
}

impl Boot {
    /// Asks the helper of `guest` whether it is there; `None` while it does not answer.
    ///
    /// # Errors
    /// If the guest has ended.
    pub fn look(&mut self, guest: &Guest) -> Result<Option<Hello>, LabError> {
        guest.check_alive()?;
        let job = match self.asked {
            Some((job, at)) if at.elapsed() < HELLO => job,
            // A request sent while the guest came up can be lost in a reset.
            _ => {
                let job = guest.begin(Ask::Hello)?;
                self.asked = Some((job, Instant::now()));
                job
            }
        };
        guest.outcome(job)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // It may have ended by itself. Either way, wait for it, so that its memory is back.
        let _ = self.life.get_mut().unwrap_or_else(PoisonError::into_inner).end();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

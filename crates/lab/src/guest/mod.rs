//! A real guest: a QEMU process with a stock kernel, a balloon, a command channel and two monitors.
//!
//! The first monitor (`NAME.qmp`) is for memtide to discover; nothing in the lab connects to it. The second one
//! (`NAME.lab.qmp`) belongs to the lab, which holds it from start to end.

pub mod agent;
pub mod channel;
pub mod cpio;
pub mod disk;
pub mod image;
pub mod probe;
pub mod qmp;

use std::fs::{self, File};
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use memtide_load::exerciser::report::Second;
use memtide_load::helper::meminfo::Meminfo;
use memtide_load::helper::wire::{Ask, Hello, PORT};
use memtide_model::Bytes;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::error::LabError;
use crate::guest::channel::{Channel, Job, Standing};
use crate::guest::disk::Disk;
use crate::guest::qmp::Qmp;
use crate::machine::accel::Accel;
use crate::machine::lab::Run;
use crate::machine::places::SocketDir;
use crate::machine::process;
use crate::machine::small_host::SmallHost;
use crate::wait::until;

/// The balloon device's path in QEMU's object tree.
pub const BALLOON: &str = "/machine/peripheral/balloon0";

/// The longest time for QEMU to open its sockets.
const SOCKETS: Duration = Duration::from_secs(20);
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
    more: Vec<String>,
}

impl GuestBuilder {
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

    /// Starts QEMU, in `host` if there is one, and connects the lab's monitor and channel. The guest boots meanwhile: see
    /// [`Guest::wait_up`].
    ///
    /// # Errors
    /// If QEMU does not start. The error contains the end of QEMU's log.
    pub fn start(self, run: &Run, host: Option<&SmallHost>) -> Result<Guest, LabError> {
        if self.name.is_empty()
            || !self.name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        {
            return Err(LabError::Missing(format!("`{}` is no name for a guest", self.name)));
        }
        let files = Files::of(run.path(), &self.name)?;
        let log = File::create(&files.log).map_err(LabError::file(&files.log))?;
        let mut command = contained(host);
        self.qemu(&mut command, run, &files);
        let err = log.try_clone().map_err(LabError::file(&files.log))?;
        command.stdin(Stdio::null()).stdout(log).stderr(err).process_group(0);
        let mut child = process::spawn(command)?;
        match connect(&self.name, &files, &mut child) {
            Ok((qmp, channel)) => Ok(Guest {
                name: self.name,
                memory: self.memory,
                files,
                pid: child.id(),
                child: Mutex::new(child),
                qmp: Mutex::new(qmp),
                channel: Mutex::new(channel),
            }),
            Err(e) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(e)
            }
        }
    }

    fn qemu(&self, command: &mut Command, run: &Run, files: &Files) {
        let lab = run.lab();
        let on = |yes| if yes { "on" } else { "off" };
        let accel = self.accel.unwrap_or(lab.accel());
        let cpu = if accel == Accel::Kvm { "host" } else { "max" };
        let mib = self.memory.whole_mib().to_string();
        command.arg(&lab.tools().qemu).args(["-name", &self.name, "-accel", accel.argument(), "-cpu", cpu]);
        command.args([
            "-M",
            "q35",
            "-smp",
            "1",
            "-m",
            &mib,
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
        ]);
        command.arg("-kernel").arg(lab.vmlinuz()).arg("-initrd").arg(lab.initrd());
        command.args(["-append", "console=ttyS0 quiet panic=-1 psi=1"]);
        for monitor in [&files.qmp, &files.lab_qmp] {
            command.arg("-qmp").arg(format!("unix:{},server=on,wait=off", escaped(monitor)));
        }
        let (console, console_log) = (escaped(&files.console), escaped(&files.console_log));
        let console = format!("socket,id=console,path={console},server=on,wait=off,logfile={console_log}");
        command.args(["-chardev", &console, "-serial", "chardev:console"]);
        let balloon = format!(
            "virtio-balloon-pci,id=balloon0,deflate-on-oom={},free-page-reporting={}",
            on(self.deflate_on_oom),
            on(self.free_page_reporting)
        );
        command.args(["-device", &balloon, "-device", "virtio-serial-pci"]);
        let port = format!("socket,id=lab,path={},server=on,wait=off", escaped(&files.port));
        command.args(["-chardev", &port, "-device", &format!("virtserialport,chardev=lab,name={PORT}")]);
        if self.agent {
            let port = format!("socket,id=agent,path={},server=on,wait=off", escaped(&files.agent));
            let device = format!("virtserialport,chardev=agent,name={}", memtide_agent::wire::PORT);
            command.args(["-chardev", &port, "-device", &device]);
        }
        if let Some(disk) = &self.disk {
            let direct = on(disk.direct());
            let file = escaped(&disk.path);
            let drive = format!(
                "if=none,id=disk0,format=raw,readonly=on,file={file},cache.direct={direct},aio=threads"
            );
            command.args(["-drive", &drive, "-device", "virtio-blk-pci,drive=disk0"]);
        }
        command.args(&self.more);
    }
}

/// The command that starts another command in `host`, and makes it end with the lab.
fn contained(host: Option<&SmallHost>) -> Command {
    let Some(host) = host else {
        return process::mortal("env");
    };
    let mut command = process::mortal("sh");
    command.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(host.procs());
    command
}

/// A path inside one of QEMU's comma-separated options.
fn escaped(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

/// The files of one guest in its run's directory.
#[derive(Debug)]
struct Files {
    qmp: PathBuf,
    lab_qmp: PathBuf,
    port: PathBuf,
    agent: PathBuf,
    console: PathBuf,
    console_log: PathBuf,
    log: PathBuf,
    /// The directory of the sockets; kept as long as they are.
    _sockets: SocketDir,
}

impl Files {
    fn of(dir: &Path, name: &str) -> Result<Self, LabError> {
        let sockets = SocketDir::within(dir, &format!("{name}.lab.qmp"))?;
        let socket = |kind: &str| sockets.join(&format!("{name}.{kind}"));
        Ok(Self {
            qmp: socket("qmp"),
            lab_qmp: socket("lab.qmp"),
            port: socket("port"),
            agent: socket("agent"),
            console: socket("console"),
            console_log: dir.join(format!("{name}.console.log")),
            log: dir.join(format!("{name}.qemu.log")),
            _sockets: sockets,
        })
    }
}

fn connect(name: &str, files: &Files, child: &mut Child) -> Result<(Qmp, Channel), LabError> {
    let what = format!("the start of the guest {name}");
    until(&what, SOCKETS, || {
        if let Some(status) = child.try_wait().map_err(LabError::file(&files.log))? {
            let log = fs::read_to_string(&files.log).unwrap_or_default();
            let how = format!("{}: {}", described(status), log.trim());
            return Err(LabError::Gone { guest: name.to_owned(), how });
        }
        // If a socket breaks right away, QEMU is just giving up, and its log says why.
        let sockets = Channel::connect(name, &files.port)
            .and_then(|channel| Ok((Qmp::connect(name, &files.lab_qmp)?, channel)));
        Ok(sockets.ok())
    })
}

fn described(status: ExitStatus) -> String {
    match status.signal() {
        Some(9) => "killed (signal 9)".to_owned(),
        _ => status.to_string(),
    }
}

/// A running guest; dropping it kills it.
#[derive(Debug)]
pub struct Guest {
    name: String,
    memory: Bytes,
    files: Files,
    pid: u32,
    child: Mutex<Child>,
    qmp: Mutex<Qmp>,
    channel: Mutex<Channel>,
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
            more: Vec::new(),
        }
    }

    /// Its name: QEMU's `-name`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The memory that it boots with.
    #[must_use]
    pub const fn memory(&self) -> Bytes {
        self.memory
    }

    /// QEMU's process id.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// The monitor that memtide finds; the lab leaves it alone.
    #[must_use]
    pub fn qmp_path(&self) -> &Path {
        &self.files.qmp
    }

    /// The host's end of the agent's port; only for a guest with an agent.
    #[must_use]
    pub fn agent_path(&self) -> &Path {
        &self.files.agent
    }

    /// The guest's console output so far.
    ///
    /// # Errors
    /// If the log cannot be read.
    pub fn console(&self) -> Result<String, LabError> {
        let bytes = fs::read(&self.files.console_log).map_err(LabError::file(&self.files.console_log))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Waits until the helper in the guest answers, after a start or a reset.
    ///
    /// # Errors
    /// If the guest ends, or the deadline passes.
    pub fn wait_up(&self, deadline: Duration) -> Result<Hello, LabError> {
        let mut boot = Boot::default();
        until(&format!("the boot of the guest {}", self.name), deadline, || boot.look(self))
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
            Standing::Failed(why) => Err(self.load_error(why)),
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
    /// If the monitor is gone or answers with an error.
    pub fn qmp(&self, command: &str, arguments: &Value) -> Result<Value, LabError> {
        lock(&self.qmp).execute(command, arguments)
    }

    /// The memory that the guest keeps, as the balloon device reports it.
    ///
    /// # Errors
    /// If the monitor is gone, or the balloon has no driver yet.
    pub fn actual(&self) -> Result<Bytes, LabError> {
        lock(&self.qmp).actual()
    }

    /// Asks the guest to keep `target`.
    ///
    /// # Errors
    /// If the monitor is gone, or the balloon has no driver yet.
    pub fn set_target(&self, target: Bytes) -> Result<(), LabError> {
        lock(&self.qmp).set_target(target)
    }

    /// Presses the reset button.
    ///
    /// # Errors
    /// If the monitor is gone.
    pub fn reset(&self) -> Result<(), LabError> {
        self.qmp("system_reset", &json!({})).map(|_| ())
    }

    /// Stops its CPUs.
    ///
    /// # Errors
    /// If the monitor is gone.
    pub fn pause(&self) -> Result<(), LabError> {
        self.qmp("stop", &json!({})).map(|_| ())
    }

    /// Lets its CPUs continue.
    ///
    /// # Errors
    /// If the monitor is gone.
    pub fn resume(&self) -> Result<(), LabError> {
        self.qmp("cont", &json!({})).map(|_| ())
    }

    /// Its present cost to the host: the resident memory of its process from statm; zero once it has ended.
    #[must_use]
    pub fn footprint(&self) -> Bytes {
        self.statm(1)
    }

    /// Its own part of its footprint: without pages of files (QEMU's program and libraries), which all guests share. A
    /// guest's memory here is anonymous, so this part includes all of it.
    #[must_use]
    pub fn private(&self) -> Bytes {
        self.statm(1).saturating_sub(self.statm(2))
    }

    /// A field of statm, counted from zero.
    fn statm(&self, field: usize) -> Bytes {
        let statm = fs::read_to_string(format!("/proc/{}/statm", self.pid)).unwrap_or_default();
        let pages: Option<u64> = statm.split(' ').nth(field).and_then(|field| field.parse().ok());
        Bytes::new(pages.unwrap_or(0).saturating_mul(rustix::param::page_size() as u64))
    }

    /// How its process ended; `None` while it runs.
    ///
    /// # Errors
    /// If the kernel does not say.
    pub fn ended(&self) -> Result<Option<ExitStatus>, LabError> {
        lock(&self.child).try_wait().map_err(|e: io::Error| self.load_error(e.to_string()))
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
        let mut child = lock(&self.child);
        child.kill().and_then(|()| child.wait()).map_err(|e| self.load_error(e.to_string()))?;
        Ok(())
    }

    fn check_alive(&self) -> Result<(), LabError> {
        match self.ended()? {
            Some(status) => Err(LabError::Gone { guest: self.name.clone(), how: described(status) }),
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
        let child = self.child.get_mut().unwrap_or_else(PoisonError::into_inner);
        // It may have ended by itself. Either way, wait for it, so that its memory is back.
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

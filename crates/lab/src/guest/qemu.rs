//! A guest in a QEMU process, with a stock kernel, a balloon, a command channel and two monitors.
//!
//! The first monitor (`NAME.qmp`) is for memtide to discover; nothing in the lab connects to it. The second one
//! (`NAME.lab.qmp`) belongs to the lab, which holds it from start to end.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use memtide_load::helper::wire::PORT;
use serde_json::json;

use super::GuestBuilder;
use super::life::Life;
use crate::error::LabError;
use crate::guest::channel::Channel;
use crate::guest::qmp::Qmp;
use crate::machine::accel::Accel;
use crate::machine::lab::Run;
use crate::machine::places::SocketDir;
use crate::wait::until;

/// The longest time for QEMU to open its sockets.
const SOCKETS: Duration = Duration::from_secs(20);

/// What its kernel is told.
pub(super) const APPEND: &str = "console=ttyS0 quiet panic=-1 psi=1";

/// The QEMU of one guest.
#[derive(Debug)]
pub(super) struct Qemu {
    pub(super) files: Files,
    pub(super) qmp: Mutex<Qmp>,
}

impl GuestBuilder {
    /// Adds QEMU and its arguments.
    ///
    /// # Errors
    /// If the lab was prepared without QEMU.
    pub(super) fn add_qemu(&self, command: &mut Command, run: &Run, files: &Files) -> Result<(), LabError> {
        let lab = run.lab().qemu()?;
        let on = |yes| if yes { "on" } else { "off" };
        let accel = self.accel.unwrap_or(lab.accel);
        let cpu = if accel == Accel::Kvm { "host" } else { "max" };
        let mib = self.memory.whole_mib().to_string();
        command.arg(&lab.program.path).args(["-name", &self.name, "-accel", accel.argument(), "-cpu", cpu]);
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
        command.arg("-kernel").arg(lab.kernel.vmlinuz(run.lab().cache())).arg("-initrd").arg(&lab.initrd);
        command.args(["-append", APPEND]);
        command.arg("-qmp").arg(format!("unix:{},server=on,wait=off", escaped(&files.qmp)));
        let balloon = format!(
            "virtio-balloon-pci,id=balloon0,deflate-on-oom={},free-page-reporting={}",
            on(self.deflate_on_oom),
            on(self.free_page_reporting)
        );
        command.args(["-device", &balloon, "-device", "virtio-serial-pci"]);
        if self.agent {
            let port = format!("socket,id=agent,path={},server=on,wait=off", escaped(&files.agent));
            let device = format!("virtserialport,chardev=agent,name={}", memtide_agent::wire::PORT);
            command.args(["-chardev", &port, "-device", &device]);
        }
        if self.hotplug {
            command.args(["-device", "pcie-root-port,id=hotplug0,chassis=1"]);
        }
        if let Some(disk) = &self.disk {
            let direct = on(disk.direct());
            let file = escaped(&disk.path);
            let drive = format!(
                "if=none,id=disk0,format=raw,readonly=on,file={file},cache.direct={direct},aio=threads"
            );
            command.args(["-drive", &drive, "-device", "virtio-blk-pci,drive=disk0"]);
        }
        command.args(self.of_the_lab(files));
        Ok(())
    }

    /// The arguments of what the lab alone uses, with or without libvirt: its monitor, the console, the command channel and what else was asked for.
    pub(super) fn of_the_lab(&self, files: &Files) -> Vec<String> {
        let (console, console_log) = (escaped(&files.console), escaped(&files.console_log));
        let mut arguments = vec![
            "-qmp".to_owned(),
            format!("unix:{},server=on,wait=off", escaped(&files.lab_qmp)),
            "-chardev".to_owned(),
            format!("socket,id=console,path={console},server=on,wait=off,logfile={console_log}"),
            "-serial".to_owned(),
            "chardev:console".to_owned(),
            "-chardev".to_owned(),
            format!("socket,id=lab,path={},server=on,wait=off", escaped(&files.port)),
            "-device".to_owned(),
            // In JSON, as libvirt names its devices: QEMU makes those after all others, and this one needs a bus among them.
            json!({ "driver": "virtserialport", "chardev": "lab", "name": PORT }).to_string(),
        ];
        arguments.extend(self.more.iter().cloned());
        arguments
    }
}

/// A path inside one of QEMU's comma-separated options.
fn escaped(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

/// The files of one guest in its run's directory.
#[derive(Debug)]
pub(super) struct Files {
    pub(super) qmp: PathBuf,
    lab_qmp: PathBuf,
    port: PathBuf,
    pub(super) agent: PathBuf,
    console: PathBuf,
    console_log: PathBuf,
    /// The directory of the sockets; kept as long as they are.
    _sockets: SocketDir,
}

impl Files {
    pub(super) fn of(dir: &Path, name: &str) -> Result<Self, LabError> {
        let sockets = SocketDir::within(dir, &format!("{name}.lab.qmp"))?;
        let socket = |kind: &str| sockets.join(&format!("{name}.{kind}"));
        Ok(Self {
            qmp: socket("qmp"),
            lab_qmp: socket("lab.qmp"),
            port: socket("port"),
            agent: socket("agent"),
            console: socket("console"),
            console_log: console_log(dir, name),
            _sockets: sockets,
        })
    }
}

/// The log of a guest's console.
pub(super) fn console_log(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.console.log"))
}

/// Connects to a QEMU that was just started, whose output is in `log`.
///
/// # Errors
/// If it ends, or does not open its sockets. The error contains the end of its log.
pub(super) fn connect(
    name: &str,
    files: Files,
    life: &mut Life,
    log: &Path,
) -> Result<(Qemu, Channel), LabError> {
    let what = format!("the start of the guest {name}");
    let (qmp, channel) = until(&what, SOCKETS, || {
        if let Some(how) = life.ended().map_err(LabError::file(log))? {
            let log = fs::read_to_string(log).unwrap_or_default();
            let how = format!("{how}: {}", log.trim());
            return Err(LabError::Gone { guest: name.to_owned(), how });
        }
        // If a socket breaks right away, QEMU is just giving up, and its log says why.
        let sockets = Channel::connect(name, &files.port)
            .and_then(|channel| Ok((Qmp::connect(name, &files.lab_qmp)?, channel)));
        Ok(sockets.ok())
    })?;
    Ok((Qemu { files, qmp: Mutex::new(qmp) }, channel))
}

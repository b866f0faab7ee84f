//! The program that started a guest, and what it calls the guest.

use std::path::{Path, PathBuf};

use memtide_vmm::qemu::{CommandLine, Launcher};

/// The program that started a guest, and what it calls the guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Launch {
    /// The program.
    pub by: Launcher,
    /// Its name for the guest. Proxmox's is a number, Lima's lacks the prefix that Lima puts before it.
    pub name: String,
    /// The project of Incus and LXD if it is not the default one, and the namespace of `KubeVirt`.
    pub project: Option<String>,
    /// The directory that Incus and LXD make for the guest's sockets, if its path is plain. Their profiles let QEMU write there alone.
    pub directory: Option<PathBuf>,
    /// The architecture of the guest, as in the name of QEMU's program.
    pub architecture: Option<String>,
}

impl Launch {
    /// Reads the NUL-separated arguments of /proc/PID/cmdline that the program `by` wrote. `guest` is the guest's name if they have none.
    #[must_use]
    pub fn of(by: Launcher, cmdline: &[u8], guest: &str) -> Self {
        let text = String::from_utf8_lossy(cmdline);
        let words: Vec<&str> = text.split('\0').collect();
        let after = |option: &str| {
            let at = words.iter().position(|word| *word == option)?;
            words.get(at + 1).copied()
        };
        let given = CommandLine::parse(cmdline).name.unwrap_or_else(|| guest.to_owned());
        let program = words.first().and_then(|word| word.rsplit('/').next()).unwrap_or_default();
        let mut launch = Self {
            by,
            name: given.clone(),
            architecture: program.strip_prefix("qemu-system-").map(str::to_owned),
            ..Self::default()
        };
        match launch.by {
            Launcher::Proxmox => launch.name = after("-id").unwrap_or(&given).to_owned(),
            Launcher::AndroidEmulator => launch.name = after("-avd").unwrap_or(&given).to_owned(),
            Launcher::Lima => launch.name = given.strip_prefix("lima-").unwrap_or(&given).to_owned(),
            Launcher::KubeVirt => {
                if let Some((namespace, name)) = given.split_once('_') {
                    (launch.project, launch.name) = (Some(namespace.to_owned()), name.to_owned());
                }
            }
            Launcher::Incus | Launcher::Lxd => {
                launch.directory = after("-pidfile").and_then(directory);
                launch.project = launch.directory.as_deref().and_then(|directory| project(directory, &given));
            }
            _ => {}
        }
        launch
    }
}

/// The directory of a file, if nothing in its path means more to a shell than itself.
fn directory(file: &str) -> Option<PathBuf> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    let directory = Path::new(file).parent()?;
    (directory.is_absolute() && file.chars().all(is_plain)).then(|| directory.to_owned())
}

/// The directory of a guest in a project is `PROJECT_NAME`; that of a guest in the default project is `NAME` (`project.Instance` in Incus).
fn project(directory: &Path, name: &str) -> Option<String> {
    let project = directory.file_name()?.to_str()?.strip_suffix(name)?.strip_suffix('_')?;
    (!project.is_empty()).then(|| project.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &[&str]) -> Launch {
        let cmdline = words.join("\0");
        Launch::of(Launcher::of(cmdline.as_bytes()), cmdline.as_bytes(), "qemu-7")
    }

    #[test]
    fn each_launcher_has_its_own_name_for_a_guest() {
        let monitor = "socket,id=qmp,path=/var/run/qemu-server/101.qmp,server=on,wait=off";
        let proxmox =
            of(&["/usr/bin/kvm", "-id", "101", "-name", "web,debug-threads=on", "-chardev", monitor]);
        assert_eq!((proxmox.by, proxmox.name.as_str()), (Launcher::Proxmox, "101"));
        let incus = of(&[
            "qemu-system-x86_64",
            "-name",
            "web",
            "-readconfig",
            "/run/incus/shop_web/qemu.conf",
            "-pidfile",
            "/run/incus/shop_web/qemu.pid",
        ]);
        assert_eq!((incus.by, incus.project.as_deref()), (Launcher::Incus, Some("shop")));
        assert_eq!(incus.directory.as_deref(), Some(Path::new("/run/incus/shop_web")));
        let emulator = of(&["/sdk/emulator/qemu/linux-x86_64/qemu-system-x86_64", "-avd", "Pixel_8"]);
        assert_eq!((emulator.by, emulator.name.as_str()), (Launcher::AndroidEmulator, "Pixel_8"));
        let plain = of(&["/usr/bin/qemu-system-aarch64", "-m", "1G"]);
        assert_eq!((plain.by, plain.name.as_str()), (Launcher::Unknown, "qemu-7"));
        assert_eq!(plain.architecture.as_deref(), Some("aarch64"));
    }

    #[test]
    fn a_path_that_a_shell_would_read_is_not_used() {
        assert_eq!(directory("/run/incus/a$(id)/qemu.pid"), None);
        assert_eq!(directory("qemu.pid"), None);
        assert_eq!(project(Path::new("/run/incus/web"), "web"), None);
        assert_eq!(project(Path::new("/run/incus/_web"), "web"), None);
    }
}

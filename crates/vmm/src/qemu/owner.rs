//! Who has a say over a guest's memory besides memtide.
//!
//! **Problem.** Two programs that set one balloon work against each other. And a monitor serves one client at a time: Incus takes a guest whose
//! monitor somebody else holds for dead.
//!
//! **Rule.** The [`Launcher`] tells. Anybody can write a command line of a launcher: memtide then leaves that guest alone.

use std::path::Path;

use memtide_model::Absence;

use super::launcher::Launcher;

/// The name of the socket that Incus and LXD hold as long as a guest runs (`monitorPath` of `driver_qemu.go` in lxc/incus).
const MONITOR_OF_INCUS: &str = "qemu.monitor";

/// The owner of a guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// The program that started it.
    pub launcher: Launcher,
}

/// Whether the owner of a guest sets its balloon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetsBalloon {
    /// It leaves the balloon alone.
    No,
    /// If the guest's configuration says so (Proxmox: `balloon` and `shares`).
    Perhaps,
    /// It does, or the library that owns the guest's monitor. memtide writes no balloon there.
    Yes,
}

impl Owner {
    /// Whether it sets the guest's balloon. Incus and LXD do so by `limits.memory`.
    #[must_use]
    pub const fn sets_balloon(self) -> SetsBalloon {
        match self.launcher {
            Launcher::Libvirt
            | Launcher::KubeVirt
            | Launcher::OpenStack
            | Launcher::Ovirt
            | Launcher::Incus
            | Launcher::Lxd => SetsBalloon::Yes,
            Launcher::Proxmox | Launcher::Ganeti => SetsBalloon::Perhaps,
            Launcher::Kata
            | Launcher::NixosMicrovm
            | Launcher::AndroidEmulator
            | Launcher::Quickemu
            | Launcher::Lima
            | Launcher::Podman
            | Launcher::Multipass
            | Launcher::Unknown => SetsBalloon::No,
        }
    }

    /// Whether it is libvirt, or a program that uses libvirt. It keeps all of the guest's monitors for itself.
    #[must_use]
    pub const fn is_libvirt(self) -> bool {
        matches!(
            self.launcher,
            Launcher::Libvirt | Launcher::KubeVirt | Launcher::OpenStack | Launcher::Ovirt
        )
    }

    /// Whether it keeps a monitor for itself as long as the guest runs. memtide may use others of the guest, unless libvirt owns it.
    #[must_use]
    pub const fn keeps_monitor(self) -> bool {
        self.is_libvirt() || matches!(self.launcher, Launcher::Incus | Launcher::Lxd)
    }

    /// Whether it keeps the monitor at `path` for itself.
    #[must_use]
    pub fn keeps(self, path: &Path) -> bool {
        self.is_libvirt() || (self.keeps_monitor() && path.ends_with(MONITOR_OF_INCUS))
    }

    /// Why memtide has no monitor of its guest.
    #[must_use]
    pub fn why_no_monitor(self) -> Absence {
        match self.launcher {
            _ if self.is_libvirt() => Absence::OwnedBy(Launcher::Libvirt.name().to_owned()),
            launcher if self.keeps_monitor() => Absence::OwnedBy(launcher.name().to_owned()),
            _ => Absence::NoControl,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incus_keeps_its_monitor_and_libvirt_all() {
        let keeps = |launcher, path: &str| Owner { launcher }.keeps(Path::new(path));
        for incus in ["/run/incus/c1/qemu.monitor", "/proc/self/fd/3/qemu.monitor"] {
            assert!(keeps(Launcher::Incus, incus) && keeps(Launcher::Lxd, incus), "{incus}");
            assert!(!keeps(Launcher::Unknown, incus), "{incus}");
        }
        let ours = "/run/incus/c1/c1-memtide.qmp";
        assert!(!keeps(Launcher::Incus, ours) && keeps(Launcher::OpenStack, ours));
        let why = |launcher| Owner { launcher }.why_no_monitor();
        assert_eq!(why(Launcher::Lxd), Absence::OwnedBy("LXD".to_owned()));
        assert_eq!(why(Launcher::KubeVirt), Absence::OwnedBy("libvirt".to_owned()));
        assert_eq!(why(Launcher::Proxmox), Absence::NoControl);
    }
}

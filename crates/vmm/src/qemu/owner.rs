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

/// Whether the owner of a guest sets its balloon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetsBalloon {
    /// It leaves the balloon alone.
    No,
    /// If the guest's configuration says so (Proxmox: `balloon` and `shares`).
    Perhaps,
    /// It does. memtide writes no balloon there.
    Yes,
}

impl Launcher {
    /// Whether it sets the guest's balloon. Incus and LXD do so by `limits.memory`, oVirt by the MOM beside its VDSM. libvirt sets one when somebody asks it to.
    #[must_use]
    pub const fn sets_balloon(self) -> SetsBalloon {
        match self {
            Self::Ovirt | Self::Incus | Self::Lxd => SetsBalloon::Yes,
            Self::Proxmox | Self::Ganeti => SetsBalloon::Perhaps,
            Self::Libvirt
            | Self::KubeVirt
            | Self::OpenStack
            | Self::Kata
            | Self::NixosMicrovm
            | Self::AndroidEmulator
            | Self::Quickemu
            | Self::Lima
            | Self::Podman
            | Self::Multipass
            | Self::Unknown => SetsBalloon::No,
        }
    }

    /// Whether it is libvirt, or a program that uses libvirt. It keeps all of the guest's monitors for itself.
    #[must_use]
    pub const fn is_libvirt(self) -> bool {
        matches!(self, Self::Libvirt | Self::KubeVirt | Self::OpenStack | Self::Ovirt)
    }

    /// Whether it keeps a monitor for itself as long as the guest runs. memtide may use others of the guest, unless libvirt owns it.
    #[must_use]
    pub const fn keeps_monitor(self) -> bool {
        self.is_libvirt() || matches!(self, Self::Incus | Self::Lxd)
    }

    /// Whether it keeps the monitor at `path` for itself.
    #[must_use]
    pub fn keeps(self, path: &Path) -> bool {
        self.is_libvirt() || (self.keeps_monitor() && path.ends_with(MONITOR_OF_INCUS))
    }

    /// Why memtide has no monitor of its guest.
    #[must_use]
    pub fn why_no_monitor(self) -> Absence {
        match self {
            _ if self.is_libvirt() => Absence::OwnedBy(Self::Libvirt.name().to_owned()),
            _ if self.keeps_monitor() => Absence::OwnedBy(self.name().to_owned()),
            _ => Absence::NoControl,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incus_keeps_its_monitor_and_libvirt_all() {
        let keeps = |launcher: Launcher, path: &str| launcher.keeps(Path::new(path));
        for incus in ["/run/incus/c1/qemu.monitor", "/proc/self/fd/3/qemu.monitor"] {
            assert!(keeps(Launcher::Incus, incus) && keeps(Launcher::Lxd, incus), "{incus}");
            assert!(!keeps(Launcher::Unknown, incus), "{incus}");
        }
        let ours = "/run/incus/c1/c1-memtide.qmp";
        assert!(!keeps(Launcher::Incus, ours) && keeps(Launcher::OpenStack, ours));
        assert_eq!(Launcher::Lxd.why_no_monitor(), Absence::OwnedBy("LXD".to_owned()));
        assert_eq!(Launcher::KubeVirt.why_no_monitor(), Absence::OwnedBy("libvirt".to_owned()));
        assert_eq!(Launcher::Proxmox.why_no_monitor(), Absence::NoControl);
    }
}

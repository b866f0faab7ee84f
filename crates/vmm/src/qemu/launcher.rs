//! The program that started a guest.
//!
//! **Problem.** Most people never write QEMU's options themselves: advice about them does not help. And some launchers set balloons
//! ([`Launcher::sets_balloon`]).
//!
//! **Rule.** A launcher is recognised by the sockets and files that it gives QEMU, and by names that it alone writes. Anybody can
//! write such a command line: memtide then leaves the guest alone or gives other advice, and nothing else depends on it.

use std::path::{Path, PathBuf};

use super::arguments::Arguments;

/// The program that started a guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Launcher {
    /// libvirt, for virt-manager, Cockpit, GNOME Boxes, Vagrant, `CloudStack`, `OpenNebula`, `TrueNAS` and others.
    Libvirt,
    /// `KubeVirt`, through a libvirt in the guest's pod.
    KubeVirt,
    /// `OpenStack` nova, through libvirt.
    OpenStack,
    /// oVirt (VDSM), through libvirt.
    Ovirt,
    /// Proxmox VE.
    Proxmox,
    /// Incus.
    Incus,
    /// LXD.
    Lxd,
    /// Kata Containers.
    Kata,
    /// Ganeti.
    Ganeti,
    /// microvm.nix.
    NixosMicrovm,
    /// The emulator of Android's SDK.
    AndroidEmulator,
    /// quickemu.
    Quickemu,
    /// Lima, also in Colima and Rancher Desktop.
    Lima,
    /// `podman machine`.
    Podman,
    /// Multipass.
    Multipass,
    /// No known launcher: a person or a script.
    #[default]
    Unknown,
}

impl Launcher {
    /// The launcher of a QEMU with these NUL-separated arguments, as in /proc/PID/cmdline.
    #[must_use]
    pub fn of(cmdline: &[u8]) -> Self {
        Self::of_arguments(&Arguments::parse(cmdline))
    }

    /// The launcher of a QEMU with these options.
    #[must_use]
    pub fn of_arguments(arguments: &Arguments) -> Self {
        let seen = Evidence::of(arguments);
        let known: [(Self, bool); 15] = [
            (Self::KubeVirt, seen.is_of_libvirt() && (seen.made_by("KubeVirt") || seen.is_at("/kubevirt"))),
            (Self::OpenStack, seen.is_of_libvirt() && seen.made_by("OpenStack")),
            (Self::Ovirt, seen.is_of_libvirt() && (seen.made_by("oVirt") || seen.made_by("RHEV"))),
            (Self::Libvirt, seen.is_of_libvirt()),
            (Self::Proxmox, arguments.has("id") && seen.is_at("/run/qemu-server/")),
            (Self::Incus, seen.made_by("Incus") || seen.is_at("/run/incus/") || seen.is_at("/log/incus/")),
            (Self::Lxd, seen.made_by("LXD") || seen.is_at("/lxd/logs/") || seen.is_at("/log/lxd/")),
            (Self::Kata, seen.is_at("/run/vc/vm/") || seen.is_at("/run/kata")),
            (Self::Ganeti, seen.is_at("/ganeti/kvm-hypervisor/")),
            (Self::NixosMicrovm, seen.program.starts_with("microvm@")),
            (Self::AndroidEmulator, seen.is_of_android()),
            (Self::Quickemu, seen.is_at("-monitor.socket") && seen.is_at("-serial.socket")),
            (Self::Lima, seen.is_at("/.lima/") || (seen.is_named("lima-") && seen.has_id("char-qmp"))),
            (Self::Podman, seen.is_at("/podman/")),
            (Self::Multipass, seen.program.contains("/multipass/")),
        ];
        known.into_iter().find(|(_, is_it)| *is_it).map_or(Self::Unknown, |(launcher, _)| launcher)
    }

    /// Its name, for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Libvirt => "libvirt",
            Self::KubeVirt => "KubeVirt",
            Self::OpenStack => "OpenStack",
            Self::Ovirt => "oVirt",
            Self::Proxmox => "Proxmox VE",
            Self::Incus => "Incus",
            Self::Lxd => "LXD",
            Self::Kata => "Kata Containers",
            Self::Ganeti => "Ganeti",
            Self::NixosMicrovm => "microvm.nix",
            Self::AndroidEmulator => "the Android emulator",
            Self::Quickemu => "quickemu",
            Self::Lima => "Lima",
            Self::Podman => "podman machine",
            Self::Multipass => "Multipass",
            Self::Unknown => "an unknown launcher",
        }
    }
}

/// What tells launchers apart.
struct Evidence<'a> {
    arguments: &'a Arguments,
    program: &'a str,
    places: Vec<PathBuf>,
}

impl<'a> Evidence<'a> {
    fn of(arguments: &'a Arguments) -> Self {
        let mut places = arguments.places();
        places.extend(arguments.files.iter().cloned());
        Self { arguments, program: &arguments.program, places }
    }

    /// libvirt's sockets and secrets have such paths. Without any, its habits tell: it starts a guest stopped, with a named guest and
    /// a monitor of this name.
    fn is_of_libvirt(&self) -> bool {
        let habit = || {
            let guest = |name: &str| name.starts_with("guest=");
            let is_named = self.arguments.named("name").any(|name| guest(name.word()));
            self.arguments.has("S") && is_named && self.has_id("charmonitor")
        };
        self.is_at("/libvirt/qemu/") || habit()
    }

    /// Its own options come instead of QEMU's.
    fn is_of_android(&self) -> bool {
        let is_in_sdk = Path::new(self.program).ancestors().any(|path| path.ends_with("emulator/qemu"));
        is_in_sdk || self.arguments.has("avd") || self.arguments.has("android-hw")
    }

    /// Whether a socket or a file has this part in its path.
    fn is_at(&self, part: &str) -> bool {
        self.places.iter().any(|place| place.to_string_lossy().contains(part))
    }

    /// Whether the guest's firmware names this maker or product.
    fn made_by(&self, maker: &str) -> bool {
        self.arguments.named("smbios").any(|smbios| {
            let properties = smbios.properties("");
            ["manufacturer", "product"]
                .iter()
                .any(|key| properties.get(key).is_some_and(|value| value.contains(maker)))
        })
    }

    fn is_named(&self, start: &str) -> bool {
        self.arguments.named("name").any(|name| name.word().starts_with(start))
    }

    /// Whether a character device has this name.
    fn has_id(&self, id: &str) -> bool {
        self.arguments
            .named("chardev")
            .any(|chardev| chardev.properties("backend").get("id").as_deref() == Some(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(args: &[&str]) -> Launcher {
        Launcher::of(format!("qemu-system-x86_64\0{}\0", args.join("\0")).as_bytes())
    }

    #[test]
    fn a_guest_of_libvirt_is_known_by_its_paths_or_its_habits() {
        let secret = r#"{"qom-type":"secret","id":"masterKey0","format":"raw","file":"/var/lib/libvirt/qemu/domain-1-g/master-key.aes"}"#;
        for args in [
            &["-object", secret][..],
            &[
                "-object",
                "secret,id=masterKey0,format=raw,file=/var/lib/libvirt/qemu/domain-1-g/master-key.aes",
            ],
            &[
                "-chardev",
                "socket,id=charmonitor,path=/var/lib/libvirt/qemu/domain-1-g/monitor.sock,server,nowait",
            ],
            &["-qmp", "unix:/root/.config/libvirt/qemu/lib/qmp-x/qmp.monitor,server=on"],
            &[
                "-name",
                "guest=g,debug-threads=on",
                "-S",
                "-chardev",
                "socket,id=charmonitor,fd=22,server=on,wait=off",
            ],
        ] {
            assert_eq!(of(args), Launcher::Libvirt, "{args:?}");
        }
        for args in [
            &["-name", "guest=g", "-chardev", "socket,id=charmonitor,fd=22,server=on,wait=off"][..],
            &["-drive", "file=/var/lib/libvirt/qemu/disk.img", "-qmp", "unix:/run/q,server=on"],
        ] {
            assert_eq!(of(args), Launcher::Unknown, "{args:?}");
        }
    }

    #[test]
    fn the_maker_in_the_firmware_tells_who_uses_libvirt() {
        let monitor = "socket,id=charmonitor,path=/var/lib/libvirt/qemu/domain-1-g/monitor.sock,server=on";
        for (maker, launcher) in [
            ("type=1,manufacturer=OpenStack Foundation,product=OpenStack Nova", Launcher::OpenStack),
            ("type=1,manufacturer=oVirt,product=RHEL", Launcher::Ovirt),
            ("type=1,manufacturer=KubeVirt,product=None", Launcher::KubeVirt),
            ("type=1,manufacturer=Somebody", Launcher::Libvirt),
        ] {
            assert_eq!(of(&["-chardev", monitor, "-smbios", maker]), launcher, "{maker}");
        }
        assert_eq!(of(&["-smbios", "type=1,manufacturer=OpenStack Foundation"]), Launcher::Unknown);
    }
}

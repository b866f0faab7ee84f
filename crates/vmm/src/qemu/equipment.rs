//! The devices and the memory settings on a QEMU's command line: they show whether a balloon can bring memory back to the host.
//!
//! [`CommandLine`](super::CommandLine) has the facts that memtide always needs about every guest. This module has the facts for an
//! operator who asks why a guest cannot be ballooned. It distrusts the text in the same way: an unreadable part counts as not given.
//!
//! **Terms.** A device *pins* memory if it may write to guest RAM without the processor (VFIO, vhost-vdpa). QEMU then keeps every
//! page of guest RAM, and ignores pages that the balloon gives back. A *confidential* guest's memory is encrypted, and QEMU keeps it
//! in the same way.

use std::path::PathBuf;

use memtide_model::Withheld;

use super::command_line::is_for_ram;
use super::options::{Options, Properties};

/// A QEMU's devices and memory settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Equipment {
    /// The balloon device, if the command line has one.
    pub balloon: Option<BalloonArgument>,
    /// Devices that pin guest memory, as `DRIVER` or `DRIVER HOST`.
    pub pinning: Vec<String>,
    /// The object that keeps the guest's memory secret from the host (`sev-guest`, `tdx-guest`, …).
    pub confidential: Option<String>,
    /// All memory is locked: `-overcommit mem-lock=on`, `-realtime mlock=on`.
    pub mem_lock: bool,
    /// KSM may merge the guest's memory, unless `-machine mem-merge=off` forbids it.
    pub mem_merge: bool,
    /// All memory is touched at the start: `-mem-prealloc`.
    pub prealloc: bool,
    /// Memory backends in their order. Empty: QEMU's own private anonymous memory.
    pub memory: Vec<MemoryArgument>,
}

/// A balloon device on the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BalloonArgument {
    /// `virtio-balloon-pci`, `virtio-balloon-ccw`, …
    pub driver: String,
    /// Its `id=`, which monitors also use.
    pub id: Option<String>,
    /// Whether the guest may deflate its own balloon.
    pub deflate_on_oom: bool,
    /// Whether QEMU offers free page reporting to the guest.
    pub free_page_reporting: bool,
}

/// A memory backend on the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryArgument {
    /// Its file or directory, if it has one.
    pub path: Option<PathBuf>,
    /// It is a memfd of huge pages.
    pub hugetlb: bool,
    /// All of it is touched at the start.
    pub prealloc: bool,
    /// Whether it is mapped shared.
    pub shared: bool,
}

impl Equipment {
    /// Reads the NUL-separated arguments of /proc/PID/cmdline, the program's name first.
    #[must_use]
    pub fn parse(cmdline: &[u8]) -> Self {
        let args: Vec<String> =
            cmdline.split(|&b| b == 0).map(|arg| String::from_utf8_lossy(arg).into_owned()).collect();
        let mut found = Self { mem_merge: true, ..Self::default() };
        // Memory backends by name, and those of devices whose memory is no RAM.
        let (mut named, mut no_ram): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
        let mut rest = args.iter().skip(1).map(String::as_str);
        while let Some(arg) = rest.next() {
            let Some(option) = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-')) else { continue };
            match option {
                "mem-prealloc" => found.prealloc = true,
                "device" | "object" | "netdev" | "mem-path" | "machine" | "M" | "overcommit" | "realtime"
                // Free text that may look like an option.
                | "append" | "name" => {
                    let value = rest.next().unwrap_or_default();
                    found.option(option, value);
                    no_ram.extend(memory_of_device(value).filter(|_| option == "device"));
                    let id = || Properties::parse(value, "qom-type").get("id");
                    named.resize_with(found.memory.len(), || id().unwrap_or_default());
                }
                _ => {}
            }
        }
        let mut named = named.iter();
        found.memory.retain(|_| named.next().is_none_or(|id| !no_ram.contains(id)));
        found
    }

    fn option(&mut self, option: &str, value: &str) {
        match option {
            "device" => self.device(value),
            "object" => self.object(value),
            "netdev" => self.netdev(value),
            "mem-path" => self.memory.push(MemoryArgument { path: Some(value.into()), ..Default::default() }),
            "machine" | "M" => {
                let forbidden =
                    Options::parse(value, "type").get("mem-merge").is_some_and(|word| !is_on(word));
                self.mem_merge &= !forbidden;
            }
            "overcommit" => {
                // QEMU 10.0 and later also accept `on-fault`.
                let lock = Options::parse(value, "")
                    .get("mem-lock")
                    .map(|word| word.starts_with("on") || is_on(word));
                self.mem_lock |= lock == Some(true);
            }
            "realtime" => self.mem_lock |= Options::parse(value, "").is_on("mlock"),
            _ => {}
        }
    }

    fn netdev(&mut self, value: &str) {
        let properties = Properties::parse(value, "type");
        if properties.get("type").as_deref() == Some("vhost-vdpa") {
            self.pinning.push("vhost-vdpa".to_owned());
        }
    }

    fn device(&mut self, value: &str) {
        let properties = Properties::parse(value, "driver");
        let Some(driver) = properties.get("driver") else { return };
        let on = |key: &str| properties.get(key).is_some_and(|word| is_on(&word));
        if driver.starts_with("virtio-balloon") {
            self.balloon = Some(BalloonArgument {
                deflate_on_oom: on("deflate-on-oom"),
                free_page_reporting: on("free-page-reporting"),
                id: properties.get("id"),
                driver,
            });
        } else if pins(&driver) && !on("x-balloon-allowed") {
            let host = properties.get("host").or_else(|| properties.get("sysfsdev"));
            self.pinning.push(host.map_or(driver.clone(), |host| format!("{driver} {host}")));
        }
    }

    fn object(&mut self, value: &str) {
        let properties = Properties::parse(value, "qom-type");
        let kind = properties.get("qom-type").unwrap_or_default();
        let on = |key: &str| properties.get(key).map(|word| is_on(&word));
        match kind.as_str() {
            "sev-guest" | "sev-snp-guest" | "tdx-guest" | "s390-pv-guest" | "pef-guest" => {
                self.confidential = Some(kind);
            }
            "memory-backend-ram" | "memory-backend-memfd" | "memory-backend-file" => {
                self.memory.push(MemoryArgument {
                    path: properties.get("mem-path").map(PathBuf::from),
                    hugetlb: on("hugetlb") == Some(true),
                    prealloc: on("prealloc") == Some(true),
                    shared: on("share").unwrap_or(kind == "memory-backend-memfd"),
                });
            }
            _ => {}
        }
    }

    /// Why memory that the guest gives is not the host's, as far as the command line tells. (A private file shows in the process's mappings: a
    /// directory, in which QEMU makes a file of its own, looks the same here.)
    #[must_use]
    pub fn withheld(&self) -> Option<Withheld> {
        if let Some(device) = self.pinning.first() {
            return Some(Withheld::Pinned(device.clone()));
        }
        if let Some(kind) = &self.confidential {
            return Some(Withheld::Confidential(kind.clone()));
        }
        if self.mem_lock {
            return Some(Withheld::Locked);
        }
        self.memory.iter().any(|memory| memory.hugetlb).then_some(Withheld::HugePages)
    }

    /// Whether the guest costs its full size from the start.
    #[must_use]
    pub fn is_filled_at_start(&self) -> bool {
        self.prealloc || self.memory.iter().any(|memory| memory.prealloc)
    }
}

/// The memory backend of a device whose memory is no RAM.
fn memory_of_device(value: &str) -> Option<String> {
    let properties = Properties::parse(value, "driver");
    properties.get("memdev").filter(|_| !properties.get("driver").is_some_and(|driver| is_for_ram(&driver)))
}

/// QEMU knows that some mediated devices (`vfio-ccw`, `vfio-ap`) pin only the pages in use. These do not inhibit the balloon.
fn pins(driver: &str) -> bool {
    let vfio = driver.starts_with("vfio-") && driver != "vfio-ccw" && driver != "vfio-ap";
    vfio || driver.starts_with("vhost-vdpa-")
}

fn is_on(word: &str) -> bool {
    matches!(word, "on" | "yes" | "true" | "y")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(args: &[&str]) -> Equipment {
        Equipment::parse(format!("qemu-system-x86_64\0{}\0", args.join("\0")).as_bytes())
    }

    #[test]
    fn a_balloon_is_read_from_options_and_from_json() {
        let full = BalloonArgument {
            driver: "virtio-balloon-pci".to_owned(),
            id: Some("balloon0".to_owned()),
            deflate_on_oom: true,
            free_page_reporting: true,
        };
        for text in [
            "virtio-balloon-pci,id=balloon0,deflate-on-oom=on,free-page-reporting=on",
            r#"{"driver":"virtio-balloon-pci","id":"balloon0","deflate-on-oom":true,"free-page-reporting":true,"bus":"pci.1"}"#,
        ] {
            assert_eq!(parse(&["-device", text]).balloon.as_ref(), Some(&full), "{text}");
        }
        let bare = BalloonArgument { driver: "virtio-balloon-ccw".to_owned(), ..Default::default() };
        assert_eq!(parse(&["-device", "virtio-balloon-ccw"]).balloon, Some(bare));
        assert_eq!(parse(&["-append", "-device", "-device", "virtio-net-pci"]).balloon, None);
        assert_eq!(parse(&["-device"]).balloon, None);
    }

    #[test]
    fn devices_that_pin_memory_are_named() {
        for (args, pinning) in [
            (&["-device", "vfio-pci,host=0000:65:00.0,id=gpu"][..], &["vfio-pci 0000:65:00.0"][..]),
            (&["-device", r#"{"driver":"vfio-pci","host":"0000:01:00.0"}"#], &["vfio-pci 0000:01:00.0"]),
            (&["-device", "vfio-pci,sysfsdev=/sys/m,x-balloon-allowed=on"], &[]),
            (&["-device", "vfio-ap,sysfsdev=/sys/m"], &[]),
            (&["-netdev", "vhost-vdpa,vhostdev=/dev/vhost-vdpa-0,id=n"], &["vhost-vdpa"]),
            (&["-netdev", "type=vhost-vdpa,vhostdev=/dev/vhost-vdpa-0,id=n"], &["vhost-vdpa"]),
            (
                &["-netdev", r#"{"type":"vhost-vdpa","vhostdev":"/dev/vhost-vdpa-0","id":"n"}"#],
                &["vhost-vdpa"],
            ),
            (&["-netdev", "user,id=n"], &[]),
            (&["-device", "vhost-user-fs-pci,chardev=c,tag=t"], &[]),
        ] {
            assert_eq!(parse(args).pinning, pinning, "{args:?}");
        }
        assert_eq!(parse(&["-object", "sev-guest,id=sev0"]).confidential.as_deref(), Some("sev-guest"));
    }

    #[test]
    fn locked_memory_in_all_its_forms() {
        for (args, locked) in [
            (&["-overcommit", "mem-lock=on"][..], true),
            (&["-overcommit", "mem-lock=on-fault"], true),
            (&["-realtime", "mlock=on"], true),
            (&["-overcommit", "mem-lock=off"], false),
            (&["-overcommit", "cpu-pm=on"], false),
        ] {
            assert_eq!(parse(args).mem_lock, locked, "{args:?}");
        }
        assert!(!parse(&["-machine", "q35,mem-merge=off"]).mem_merge);
        assert!(parse(&["-M", "q35"]).mem_merge);
    }

    #[test]
    fn what_brings_the_host_nothing_is_withheld() {
        let device = Withheld::Pinned("vfio-pci 0000:65:00.0".to_owned());
        for (args, why) in [
            (&["-device", "vfio-pci,host=0000:65:00.0"][..], Some(device)),
            (&["-object", "tdx-guest,id=t"], Some(Withheld::Confidential("tdx-guest".to_owned()))),
            (&["-overcommit", "mem-lock=on"], Some(Withheld::Locked)),
            (&["-object", "memory-backend-memfd,id=m,hugetlb=on,size=1G"], Some(Withheld::HugePages)),
            (&["-object", "memory-backend-memfd,id=m,size=1G", "-mem-prealloc"], None),
            // The memory of another device is not the guest's.
            (
                &[
                    "-device",
                    "ivshmem-plain,memdev=i",
                    "-object",
                    "memory-backend-memfd,id=i,hugetlb=on,size=1G",
                ],
                None,
            ),
            (&["-m", "512"], None),
        ] {
            assert_eq!(parse(args).withheld(), why, "{args:?}");
        }
    }

    #[test]
    fn memory_backends_say_how_they_are_held() {
        let seen = parse(&[
            "-object",
            "memory-backend-file,id=m,mem-path=/dev/hugepages,size=1G,share=on,prealloc=yes",
            "-object",
            r#"{"qom-type":"memory-backend-memfd","id":"n","hugetlb":true,"size":1073741824}"#,
            "-mem-path",
            "/mnt/huge",
            "-object",
            "rng-random,id=r",
        ]);
        let memory = |path: Option<&str>, hugetlb, prealloc, shared| MemoryArgument {
            path: path.map(PathBuf::from),
            hugetlb,
            prealloc,
            shared,
        };
        assert_eq!(
            seen.memory,
            [
                memory(Some("/dev/hugepages"), false, true, true),
                memory(None, true, false, true),
                memory(Some("/mnt/huge"), false, false, false),
            ]
        );
        assert!(seen.is_filled_at_start());
        assert!(parse(&["-mem-prealloc"]).is_filled_at_start());
        assert!(!parse(&["-m", "512"]).is_filled_at_start());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Equipment::parse(&bytes);
        }

        #[test]
        fn any_options_are_read(args in proptest::collection::vec("-?(device|object|machine|overcommit)?[,={}:a-z0-9\"-]{0,16}", 0..8)) {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            let _ = parse(&args);
        }
    }
}

//! The devices and the memory settings among a QEMU's options: they show whether a balloon can bring memory back to the host.
//!
//! [`CommandLine`](super::CommandLine) has the facts that memtide always needs about every guest. This module has the facts for an
//! operator who asks why a guest cannot be ballooned. It distrusts the text in the same way: an unreadable part counts as not given.
//!
//! **Terms.** A device *pins* memory if it may write to guest RAM without the processor (VFIO, vhost-vdpa, QEMU's own NVMe driver). QEMU then keeps every
//! page of guest RAM, and ignores pages that the balloon gives back. A *confidential* guest's memory is encrypted, and QEMU keeps it
//! in the same way.

use std::path::PathBuf;

use memtide_model::Withheld;

use super::arguments::{Argument, Arguments, Source};
use super::machine;
use super::options::is_on;
use super::ram::{GuestMemory, MemoryBlock};

/// A QEMU's devices and memory settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Equipment {
    /// The balloon device, if the command line has one.
    pub balloon: Option<BalloonArgument>,
    /// Its machine takes devices at run time only at a root port of PCI Express, and it was started without one.
    pub lacks_port: bool,
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
    /// The pieces of RAM in their order.
    pub memory: Vec<MemoryArgument>,
    /// The settings that are in files of `-readconfig`.
    pub in_file: InFile,
    /// Root ports of PCI Express.
    root_ports: usize,
}

/// The settings that are in files of `-readconfig`: there, they must be changed in the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InFile {
    /// `[device]` or `[netdev]`: there are devices.
    pub devices: bool,
    /// `[object]`: there are memory backends.
    pub memory: bool,
    /// `[accel]`: the accelerator.
    pub accel: bool,
    /// `accel` of `[machine]`, which QEMU does not take beside `-accel`.
    pub accel_of_machine: bool,
    /// `mem-merge` of `[machine]`.
    pub mem_merge: bool,
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
    /// The place that tells it.
    pub source: Source,
}

/// How a piece of RAM is held.
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
    /// Reads the NUL-separated arguments of /proc/PID/cmdline, the program's name first. Files of options count as not readable.
    #[must_use]
    pub fn parse(cmdline: &[u8]) -> Self {
        Self::of(&Arguments::parse(cmdline))
    }

    /// Reads the options that a QEMU was started with.
    #[must_use]
    pub fn of(arguments: &Arguments) -> Self {
        let memory = GuestMemory::of(arguments).ram.iter().map(MemoryArgument::of).collect();
        let mut found = Self { mem_merge: true, memory, ..Self::default() };
        for argument in &arguments.all {
            found.option(arguments, argument);
        }
        let is_express = machine::kind(arguments).is_some_and(|kind| kind.contains("q35"));
        found.lacks_port = is_express && found.root_ports == 0;
        found
    }

    fn option(&mut self, all: &Arguments, argument: &Argument) {
        if argument.source == Source::ConfigFile {
            self.in_file.option(argument);
        }
        match argument.name.as_str() {
            "mem-prealloc" => self.prealloc = true,
            "device" => self.device(all, argument),
            "object" => {
                let kind = argument.properties("qom-type").get("qom-type").unwrap_or_default();
                if is_confidential(&kind) {
                    self.confidential = Some(kind);
                }
            }
            // The old way to a balloon.
            "balloon" if argument.word().starts_with("virtio") => {
                let driver = "virtio-balloon".to_owned();
                self.balloon = Some(BalloonArgument { driver, ..BalloonArgument::default() });
            }
            "netdev" => self.user_driver(argument, &["type"]),
            // A filter or a format comes before the driver itself.
            "blockdev" => self.user_driver(argument, &["driver", "file.driver", "file.file.driver"]),
            "machine" => {
                self.mem_merge &= argument.properties("type").on("mem-merge") != Some(false);
            }
            "overcommit" => {
                // QEMU 10.0 and later also accept `on-fault`.
                let lock = argument.properties("").get("mem-lock");
                self.mem_lock |= lock.is_some_and(|word| word.starts_with("on") || is_on(&word));
            }
            "realtime" => self.mem_lock |= argument.properties("").on("mlock") == Some(true),
            _ => {}
        }
    }

    /// Drivers within QEMU that let a device write to guest RAM.
    fn user_driver(&mut self, argument: &Argument, keys: &[&str]) {
        let properties = argument.properties(keys.first().copied().unwrap_or_default());
        let drivers = keys.iter().filter_map(|key| properties.get(key));
        let is_one =
            |driver: &String| matches!(driver.as_str(), "vhost-vdpa" | "virtio-blk-vhost-vdpa" | "nvme");
        self.pinning.extend(drivers.filter(is_one));
    }

    fn device(&mut self, all: &Arguments, argument: &Argument) {
        let properties = argument.properties("driver");
        let Some(driver) = properties.get("driver") else { return };
        self.root_ports += usize::from(matches!(driver.as_str(), "pcie-root-port" | "ioh3420"));
        let on = |key: &str| {
            let value = properties.get(key).or_else(|| all.global(&driver, key));
            value.is_some_and(|word| is_on(&word))
        };
        if driver.starts_with("virtio-balloon") {
            self.balloon = Some(BalloonArgument {
                deflate_on_oom: on("deflate-on-oom"),
                free_page_reporting: on("free-page-reporting"),
                id: properties.get("id"),
                source: argument.source,
                driver,
            });
        } else if pins(&driver) && !on("x-balloon-allowed") {
            let host = properties.get("host").or_else(|| properties.get("sysfsdev"));
            self.pinning.push(host.map_or(driver.clone(), |host| format!("{driver} {host}")));
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

impl InFile {
    fn option(&mut self, argument: &Argument) {
        let has = |implied, key| argument.properties(implied).get(key).is_some();
        match argument.name.as_str() {
            "device" | "netdev" => self.devices = true,
            "object" => {
                let kind = argument.properties("qom-type").get("qom-type").unwrap_or_default();
                self.memory |= kind.starts_with("memory-backend-");
            }
            "accel" => self.accel = true,
            "machine" => {
                self.accel_of_machine |= has("type", "accel");
                self.mem_merge |= has("type", "mem-merge");
            }
            _ => {}
        }
    }
}

impl MemoryArgument {
    fn of(block: &MemoryBlock) -> Self {
        Self {
            path: block.path().cloned(),
            hugetlb: block.huge,
            prealloc: block.prealloc,
            shared: block.shared,
        }
    }
}

/// Objects that keep a guest's memory from the host.
fn is_confidential(kind: &str) -> bool {
    const KINDS: [&str; 6] =
        ["sev-guest", "sev-snp-guest", "tdx-guest", "s390-pv-guest", "pef-guest", "rme-guest"];
    KINDS.contains(&kind)
}

/// QEMU knows that some mediated devices (`vfio-ccw`, `vfio-ap`) pin only the pages in use. These do not inhibit the balloon.
fn pins(driver: &str) -> bool {
    let vfio = driver.starts_with("vfio-") && driver != "vfio-ccw" && driver != "vfio-ap";
    vfio || driver.starts_with("vhost-vdpa-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(args: &[&str]) -> Equipment {
        Equipment::parse(format!("qemu-system-x86_64\0{}\0", args.join("\0")).as_bytes())
    }

    #[test]
    fn what_a_file_sets_is_told_apart() {
        let file =
            b"[machine]\naccel = \"tcg\"\n[object \"m\"]\nqom-type = \"memory-backend-ram\"\nsize = \"1G\"\n\
            [device \"b\"]\ndriver = \"virtio-balloon-pci\"\n";
        let line = b"qemu\0-readconfig\0a.conf\0-machine\0mem-merge=off\0";
        let found = Equipment::of(&Arguments::read(line, |_| Some(file.to_vec())));
        let in_file = InFile { devices: true, memory: true, accel_of_machine: true, ..InFile::default() };
        assert_eq!((found.in_file, found.balloon.unwrap().source), (in_file, Source::ConfigFile));
        let typed = Equipment::parse(b"qemu\0-device\0virtio-balloon-pci\0");
        assert_eq!((typed.in_file, typed.balloon.unwrap().source), (InFile::default(), Source::CommandLine));
    }

    #[test]
    fn a_balloon_is_read_from_options_and_from_json() {
        let full = BalloonArgument {
            driver: "virtio-balloon-pci".to_owned(),
            id: Some("balloon0".to_owned()),
            deflate_on_oom: true,
            free_page_reporting: true,
            source: Source::CommandLine,
        };
        for text in [
            "virtio-balloon-pci,id=balloon0,deflate-on-oom=on,free-page-reporting=on",
            r#"{"driver":"virtio-balloon-pci","id":"balloon0","deflate-on-oom":true,"free-page-reporting":true,"bus":"pci.1"}"#,
        ] {
            assert_eq!(parse(&["-device", text]).balloon.as_ref(), Some(&full), "{text}");
        }
        let bare = BalloonArgument { driver: "virtio-balloon-ccw".to_owned(), ..Default::default() };
        assert_eq!(parse(&["-device", "virtio-balloon-ccw"]).balloon, Some(bare));
        let old = BalloonArgument { driver: "virtio-balloon".to_owned(), ..Default::default() };
        assert_eq!(parse(&["-balloon", "virtio"]).balloon, Some(old));
        let by_global =
            parse(&["-device", "virtio-balloon", "-global", "virtio-balloon-pci.free-page-reporting=on"]);
        assert!(by_global.balloon.is_some_and(|balloon| balloon.free_page_reporting));
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
            (&["-device", "vfio-pci,host=01:00.0", "-global", "vfio-pci.x-balloon-allowed=on"], &[]),
            (
                &[
                    "-blockdev",
                    r#"{"driver":"virtio-blk-vhost-vdpa","path":"/dev/vhost-vdpa-0","node-name":"d"}"#,
                ],
                &["virtio-blk-vhost-vdpa"],
            ),
            (&["-blockdev", "nvme,node-name=d,device=0000:01:00.0,namespace=1"], &["nvme"]),
            (&["-blockdev", "driver=file,node-name=d,filename=x"], &[]),
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
        // The machine's own memory comes first.
        assert_eq!(
            seen.memory,
            [
                memory(Some("/mnt/huge"), false, false, false),
                memory(Some("/dev/hugepages"), false, true, true),
                memory(None, true, false, true),
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

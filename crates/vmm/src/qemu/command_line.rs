//! A QEMU's command line, from /proc/PID/cmdline.
//!
//! Only the parts that memtide needs are read. Anybody can start guests, so any part of the text can be missing, doubled or
//! nonsense. An unreadable part counts as not given.

use std::path::{Path, PathBuf};

use memtide_agent::wire;
use memtide_model::Bytes;
use serde_json::Value;

use super::options::{Options, Properties, size};

/// The part of a QEMU's command line that memtide needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandLine {
    /// `-name`.
    pub name: Option<String>,
    /// `-uuid`.
    pub uuid: Option<String>,
    /// `-m`: memory at start.
    pub memory: Option<Bytes>,
    /// Paths of QMP sockets that this QEMU listens on, as given, perhaps relative to its working directory.
    pub monitors: Vec<PathBuf>,
    /// The Unix socket of the port for the guest's agent.
    pub agent: Option<PathBuf>,
    /// Addresses of QMP monitors on TCP, as given. memtide never connects to them.
    pub tcp_monitors: Vec<String>,
    /// The guest's RAM in its order: the memory of the machine, then what is plugged. Empty: QEMU's own private anonymous memory. Memory of other
    /// devices (ivshmem, NVDIMM, virtio-pmem) is no RAM.
    pub ram: Vec<RamBackend>,
    /// Further settings are in files that memtide does not read (`-readconfig`): an option that is absent here may still be set.
    pub reads_files: bool,
    /// Whether it is the device model of a Xen domain, whose memory is not in this process.
    pub of_xen: bool,
    /// Accelerators in the order in which QEMU tries them; empty if none is named.
    pub accels: Vec<String>,
    /// The limit of TCG's code buffer.
    pub tb_size: Option<Bytes>,
    /// Whether it was started to receive a migration.
    pub incoming: bool,
    /// Whether QEMU goes to the background. The first process is then not the one that stays.
    pub daemonize: bool,
    /// Whether it has no machine (`-machine none`). Such a QEMU only answers questions about its abilities; it is not a guest.
    pub no_machine: bool,
    /// Whether libvirt started it.
    pub of_libvirt: bool,
}

/// The source of a part of the guest's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RamBackend {
    /// Its kind.
    pub kind: RamKind,
    /// Its size, if given.
    pub size: Option<Bytes>,
    /// Whether it is mapped shared. Then the blocks of the file are its cost, and KSM does not apply.
    pub shared: bool,
}

/// The kind of a part of the guest's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RamKind {
    /// Anonymous memory.
    Anonymous,
    /// A memfd without a path.
    Memfd,
    /// A file at this path, or an unnamed file in the directory at this path.
    File(PathBuf),
}

/// A character device with a socket.
struct Chardev {
    id: String,
    at: Address,
}

/// The address of a socket.
enum Address {
    Unix(PathBuf),
    Tcp(String),
}

/// The collected arguments, interpreted at the end.
#[derive(Default)]
struct Collected {
    line: CommandLine,
    /// Memory backends, with their names.
    backends: Vec<(String, RamBackend)>,
    /// The backends of the machine's own memory: `memory-backend=`, `-numa node,memdev=`.
    base: Vec<String>,
    /// The backends of DIMMs and virtio-mem.
    plugged: Vec<String>,
    /// The backends of devices whose memory is no RAM.
    no_ram: Vec<String>,
    mem_path: Option<PathBuf>,
    chardevs: Vec<Chardev>,
    control: Vec<String>,
    /// The chardev of the agent's port.
    agent: Option<String>,
    stopped_at_start: bool,
    named_by_guest: bool,
    charmonitor: bool,
    libvirt_path: bool,
}

impl CommandLine {
    /// Reads the NUL-separated arguments of /proc/PID/cmdline, the program's name first.
    #[must_use]
    pub fn parse(cmdline: &[u8]) -> Self {
        let args: Vec<String> = cmdline
            .strip_suffix(b"\0")
            .unwrap_or(cmdline)
            .split(|&b| b == 0)
            .map(|arg| String::from_utf8_lossy(arg).into_owned())
            .collect();
        let mut found = Collected::default();
        let mut rest = args.iter().skip(1).map(String::as_str);
        while let Some(arg) = rest.next() {
            // QEMU accepts one dash or two.
            let Some(option) = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-')) else { continue };
            match option {
                "S" => found.stopped_at_start = true,
                "daemonize" => found.line.daemonize = true,
                "enable-kvm" => found.line.accels.push("kvm".to_owned()),
                "xen-attach" => found.line.of_xen = true,
                "name" | "uuid" | "m" | "qmp" | "qmp-pretty" | "mon" | "chardev" | "device" | "object"
                | "mem-path" | "accel" | "machine" | "M" | "incoming" | "numa" | "readconfig"
                | "xen-domid" | "append" => {
                    found.option(option, rest.next().unwrap_or_default());
                }
                _ => {}
            }
        }
        let program = args.first().map(Path::new).and_then(Path::file_name).unwrap_or_default();
        if found.line.accels.is_empty() && program.to_string_lossy().ends_with("kvm") {
            found.line.accels = vec!["kvm".to_owned(), "tcg".to_owned()];
        }
        found.finish()
    }

    /// Whether it has none of the settings that a machine needs.
    #[must_use]
    pub fn says_nothing(&self) -> bool {
        let has_any = self.memory.is_some() || self.reads_files || !self.monitors.is_empty();
        !has_any && self.ram.is_empty() && self.name.is_none()
    }

    /// Whether any part of the guest's memory is mapped shared.
    #[must_use]
    pub fn shares_ram(&self) -> bool {
        self.ram.iter().any(|backend| backend.shared)
    }
}

impl Collected {
    fn option(&mut self, option: &str, value: &str) {
        match option {
            "name" => {
                let options = Options::parse(value, "guest");
                self.named_by_guest |= value.starts_with("guest=");
                self.line.name = options.get("guest").filter(|name| !name.is_empty()).map(str::to_owned);
            }
            "uuid" => self.line.uuid = Some(value.to_owned()).filter(|uuid| !uuid.is_empty()),
            "m" => self.line.memory = Options::parse(value, "size").get("size").and_then(|s| size(s, 20)),
            "qmp" | "qmp-pretty" => self.qmp(value),
            "mon" => self.mon(value),
            "chardev" => self.chardev(value),
            "device" => self.device(value),
            "object" => self.object(value),
            "mem-path" => self.mem_path = Some(value.into()),
            "accel" => self.accel(value, "accel"),
            "machine" | "M" => self.machine(value),
            "numa" => self.base.extend(named(value, "type", "memdev")),
            "incoming" => self.line.incoming = true,
            "readconfig" => self.line.reads_files = true,
            "xen-domid" => self.line.of_xen = true,
            // The kernel's command line is free text, which may begin with a dash.
            _ => {}
        }
    }

    fn qmp(&mut self, value: &str) {
        if let Some(id) = value.strip_prefix("chardev:") {
            self.control.push(id.to_owned());
            return;
        }
        let options = Options::parse(value, "addr");
        let addr = options.get("addr").unwrap_or_default();
        if ["tcp:", "telnet:", "websocket:"].iter().any(|kind| addr.starts_with(kind)) {
            self.line.tcp_monitors.push(addr.to_owned());
        }
        if let Some(path) = addr.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            self.libvirt_path |= is_of_libvirt(path);
            if options.is_on("server") && !options.is_on("abstract") {
                self.line.monitors.push(path.into());
            }
        }
    }

    fn machine(&mut self, value: &str) {
        let kind = named(value, "type", "type").unwrap_or_default();
        self.line.no_machine |= kind == "none";
        self.line.of_xen |= ["xenfv", "xenpv", "xenpvh"].iter().any(|xen| kind.starts_with(xen));
        self.base.extend(named(value, "type", "memory-backend"));
        self.accel(value, "type");
    }

    fn mon(&mut self, value: &str) {
        if named(value, "chardev", "mode").as_deref() == Some("control") {
            self.control.extend(named(value, "chardev", "chardev"));
        }
    }

    fn chardev(&mut self, value: &str) {
        if value.starts_with('{') {
            return self.json_chardev(value);
        }
        let options = Options::parse(value, "backend");
        let id = options.get("id").unwrap_or_default();
        self.charmonitor |= id == "charmonitor";
        if options.get("backend") != Some("socket") {
            return;
        }
        if let Some(path) = options.get("path") {
            self.libvirt_path |= is_of_libvirt(path);
            if options.is_on("server") && !options.is_on("abstract") {
                self.chardevs.push(Chardev { id: id.to_owned(), at: Address::Unix(path.into()) });
            }
        } else if let Some(port) = options.get("port") {
            let at = Address::Tcp(format!("tcp:{}:{port}", options.get("host").unwrap_or_default()));
            self.chardevs.push(Chardev { id: id.to_owned(), at });
        }
    }

    /// As QMP's `chardev-add` takes it.
    fn json_chardev(&mut self, value: &str) {
        let Ok(json) = serde_json::from_str::<Value>(value) else { return };
        let text = |at: &str| json.pointer(at).and_then(Value::as_str).unwrap_or_default().to_owned();
        let id = text("/id");
        self.charmonitor |= id == "charmonitor";
        if text("/backend/type") != "socket" {
            return;
        }
        // A socket listens unless it is told not to.
        let listens = json.pointer("/backend/data/server").and_then(Value::as_bool).unwrap_or(true);
        let path = text("/backend/data/addr/data/path");
        self.libvirt_path |= is_of_libvirt(&path);
        match text("/backend/data/addr/type").as_str() {
            "unix" if listens && !path.is_empty() => {
                self.chardevs.push(Chardev { id, at: Address::Unix(path.into()) });
            }
            "inet" => {
                let (host, port) =
                    (text("/backend/data/addr/data/host"), text("/backend/data/addr/data/port"));
                self.chardevs.push(Chardev { id, at: Address::Tcp(format!("tcp:{host}:{port}")) });
            }
            _ => {}
        }
    }

    /// A port for the agent, on virtio-serial; or a device with memory.
    fn device(&mut self, value: &str) {
        let properties = Properties::parse(value, "driver");
        let driver = properties.get("driver").unwrap_or_default();
        if let Some(memory) = properties.get("memdev") {
            if is_for_ram(&driver) { self.plugged.push(memory) } else { self.no_ram.push(memory) }
        }
        self.plugged.extend(properties.get("volatile-memdev"));
        self.no_ram.extend(["persistent-memdev", "lsa"].into_iter().filter_map(|key| properties.get(key)));
        let is_port = driver == "virtserialport";
        if is_port && properties.get("name").as_deref() == Some(wire::PORT) {
            self.agent = properties.get("chardev");
        }
    }

    fn object(&mut self, value: &str) {
        let properties = Properties::parse(value, "qom-type");
        let kind = match properties.get("qom-type").as_deref() {
            Some("memory-backend-ram") => RamKind::Anonymous,
            Some("memory-backend-memfd") => RamKind::Memfd,
            Some("memory-backend-file") => {
                RamKind::File(properties.get("mem-path").unwrap_or_default().into())
            }
            Some("secret") => {
                self.libvirt_path |= properties.get("file").is_some_and(|file| is_of_libvirt(&file));
                return;
            }
            _ => return,
        };
        let shared = match properties.get("share") {
            Some(share) => matches!(share.as_str(), "on" | "yes" | "true" | "y"),
            None => kind == RamKind::Memfd,
        };
        let size = properties.get("size").and_then(|s| size(&s, 0));
        let id = properties.get("id").unwrap_or_default();
        self.backends.push((id, RamBackend { kind, size, shared }));
    }

    fn accel(&mut self, value: &str, implied: &str) {
        let names = named(value, implied, "accel").unwrap_or_default();
        let names = names.split(':').filter(|name| !name.is_empty());
        self.line.of_xen |= names.clone().any(|name| name == "xen");
        self.line.accels.extend(names.map(str::to_owned));
        if let Some(tb_size) = named(value, implied, "tb-size").and_then(|s| size(&s, 20)) {
            self.line.tb_size = Some(tb_size);
        }
    }

    /// The backends that are RAM: the machine's own, then those that nothing names, then what is plugged. A machine that names no backend has memory
    /// of its own, unless a file may name one.
    fn ram(&mut self) -> Vec<RamBackend> {
        let (mut own, mut unnamed, mut plugged) = (Vec::new(), Vec::new(), Vec::new());
        for (id, backend) in std::mem::take(&mut self.backends) {
            if self.base.contains(&id) {
                own.push(backend);
            } else if self.plugged.contains(&id) {
                plugged.push(backend);
            } else if !self.no_ram.contains(&id) {
                unnamed.push(backend);
            }
        }
        let rest = [unnamed, plugged].concat();
        let file = self.mem_path.take().map(RamKind::File);
        if own.is_empty() && !self.line.reads_files && (file.is_some() || !rest.is_empty()) {
            let kind = file.unwrap_or(RamKind::Anonymous);
            own.push(RamBackend { kind, size: self.line.memory, shared: false });
        }
        own.extend(rest);
        own
    }

    fn finish(mut self) -> CommandLine {
        for id in &self.control {
            for chardev in self.chardevs.iter().filter(|chardev| chardev.id == *id) {
                match &chardev.at {
                    Address::Unix(path) => self.line.monitors.push(path.clone()),
                    Address::Tcp(address) => self.line.tcp_monitors.push(address.clone()),
                }
            }
        }
        let of_agent = |chardev: &&Chardev| self.agent.as_ref() == Some(&chardev.id);
        if let Some(Chardev { at: Address::Unix(path), .. }) = self.chardevs.iter().find(of_agent) {
            self.line.agent = Some(path.clone());
        }
        self.line.ram = self.ram();
        // Needed if no path is libvirt's: libvirt starts a guest stopped, with a named guest and a monitor of this name.
        let habit = self.stopped_at_start && self.named_by_guest && self.charmonitor;
        self.line.of_libvirt = self.libvirt_path || habit;
        self.line
    }
}

/// Whether the memory of a device is RAM that a balloon reaches.
pub(super) fn is_for_ram(driver: &str) -> bool {
    driver.starts_with("pc-dimm") || driver.starts_with("virtio-mem")
}

/// The value of `key` in an option's argument, given as JSON or as options.
fn named(value: &str, implied: &str, key: &str) -> Option<String> {
    Properties::parse(value, implied).get(key)
}

fn is_of_libvirt(path: &str) -> bool {
    path.contains("/libvirt/qemu/")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(args: &[&str]) -> CommandLine {
        let mut line = b"qemu-system-x86_64\0".to_vec();
        for arg in args {
            line.extend_from_slice(arg.as_bytes());
            line.push(0);
        }
        CommandLine::parse(&line)
    }

    #[test]
    fn names_in_all_their_forms() {
        for (args, name) in [
            (&["-name", "web1"][..], Some("web1")),
            (&["-name", "guest=web1,debug-threads=on"], Some("web1")),
            (&["-name", "web1,debug-threads=on"], Some("web1")),
            (&["--name", "a,,b"], Some("a,b")),
            (&["-name", "debug-threads=on"], None),
            (&["-name"], None),
            (&["-append", "-name", "-uuid", "x"], None),
        ] {
            assert_eq!(parse(args).name.as_deref(), name, "{args:?}");
        }
    }

    #[test]
    fn memory_in_all_its_forms() {
        for (text, mib) in [
            ("512", 512),
            ("1G", 1024),
            ("1.5G", 1536),
            ("size=256M,maxmem=2G,slots=2", 256),
            ("256,maxmem=2G", 256),
            ("1048576k", 1024),
        ] {
            assert_eq!(parse(&["-m", text]).memory, Some(Bytes::from_mib(mib)), "{text}");
        }
        for text in ["", "x", "-5", "99999999999999999999", "maxmem=2G"] {
            assert_eq!(parse(&["-m", text]).memory, None, "{text}");
        }
    }

    #[test]
    fn monitors_are_sockets_that_qemu_listens_on() {
        for (args, paths) in [
            (&["-qmp", "unix:/run/a,server=on,wait=off"][..], &["/run/a"][..]),
            (
                &["-qmp", "unix:a.sock,server,nowait", "-qmp-pretty", "unix:/b,,c,server=on"],
                &["a.sock", "/b,c"],
            ),
            (&["-qmp", "unix:/run/client"], &[]),
            (&["-qmp", "tcp:localhost:4444,server=on"], &[]),
            (&["-qmp", "unix:/a,server=on,abstract=on"], &[]),
            (
                &["-chardev", "socket,id=c,path=/run/c,server=on,wait=off", "-mon", "chardev=c,mode=control"],
                &["/run/c"],
            ),
            (
                &["-mon", "c,mode=control,pretty=on", "-chardev", "socket,id=c,path=/run/c,server"],
                &["/run/c"],
            ),
            (&["-chardev", "socket,id=c,path=/run/c,server=on", "-mon", "chardev=c,mode=readline"], &[]),
            (&["-chardev", "socket,id=c,path=/run/c,server=on", "-mon", "chardev=c"], &[]),
            (&["-chardev", "socket,id=c,path=/run/c,server=on", "-qmp", "chardev:c"], &["/run/c"]),
        ] {
            let expected: Vec<PathBuf> = paths.iter().map(PathBuf::from).collect();
            assert_eq!(parse(args).monitors, expected, "{args:?}");
        }
    }

    #[test]
    fn monitors_on_tcp_are_told_apart() {
        for (args, addresses) in [
            (&["-qmp", "tcp:localhost:4444,server=on,wait=off"][..], &["tcp:localhost:4444"][..]),
            (&["-qmp-pretty", "telnet::4444,server"], &["telnet::4444"]),
            (
                &["-mon", "c,mode=control", "-chardev", "socket,id=c,host=localhost,port=4444,server=on"],
                &["tcp:localhost:4444"],
            ),
            (&["-chardev", "socket,id=c,port=4444,server=on", "-qmp", "chardev:c"], &["tcp::4444"]),
            (&["-chardev", "socket,id=c,port=4444,server=on", "-mon", "chardev=c,mode=readline"], &[]),
            (&["-chardev", "udp,id=c,port=4444", "-qmp", "chardev:c"], &[]),
            (&["-qmp", "unix:/run/a,server=on"], &[]),
        ] {
            assert_eq!(parse(args).tcp_monitors, addresses, "{args:?}");
        }
    }

    #[test]
    fn memory_backends_say_whether_they_are_shared() {
        let line = parse(&[
            "-object",
            "memory-backend-file,id=m,mem-path=/dev/shm/g,size=512M,share=on",
            "-object",
            "memory-backend-memfd,id=n,size=1G",
            "-object",
            "memory-backend-ram,id=o,size=1G",
            "-object",
            r#"{"qom-type":"memory-backend-memfd","id":"pc.ram","share":false,"size":268435456}"#,
            "-object",
            "rng-random,id=r",
            "-numa",
            "node,memdev=m",
        ]);
        let backend =
            |kind, size: Option<u64>, shared| RamBackend { kind, size: size.map(Bytes::from_mib), shared };
        let of_machine = parse(&["-m", "512", "-mem-path", "/dev/hugepages"]).ram;
        assert_eq!(of_machine, [backend(RamKind::File("/dev/hugepages".into()), Some(512), false)]);
        assert_eq!(
            line.ram,
            [
                backend(RamKind::File("/dev/shm/g".into()), Some(512), true),
                backend(RamKind::Memfd, Some(1024), true),
                backend(RamKind::Anonymous, Some(1024), false),
                backend(RamKind::Memfd, Some(256), false),
            ]
        );
        assert!(line.shares_ram());
    }

    #[test]
    fn only_the_machines_memory_and_what_is_plugged_is_ram() {
        const IVSHMEM: [&str; 4] = [
            "-object",
            "memory-backend-file,id=ivshmem,share=on,mem-path=/dev/shm/looking-glass,size=32M",
            "-device",
            "ivshmem-plain,memdev=ivshmem",
        ];
        let anonymous =
            |mib| RamBackend { kind: RamKind::Anonymous, size: Some(Bytes::from_mib(mib)), shared: false };
        let of = |args: &[&str]| parse(&[&["-m", "512"], args].concat()).ram;
        assert_eq!(of(&IVSHMEM), []);
        let dimm = ["-object", "memory-backend-ram,id=d,size=256M", "-device", "pc-dimm,memdev=d"];
        assert_eq!(of(&dimm), [anonymous(512), anonymous(256)]);
        let json = [
            "-object",
            r#"{"qom-type":"memory-backend-ram","id":"pc.ram","size":536870912}"#,
            "-machine",
            "pc-q35-9.0,memory-backend=pc.ram",
            "-device",
            r#"{"driver":"virtio-mem-pci","memdev":"v"}"#,
            "-object",
            "memory-backend-ram,id=v,size=1G",
        ];
        assert_eq!(of(&[&json[..], &IVSHMEM].concat()), [anonymous(512), anonymous(1024)]);
        let numa = ["-object", "memory-backend-ram,id=n,size=512M", "-numa", "node,memdev=n"];
        assert_eq!(of(&numa), [anonymous(512)]);
        let spare = ["-object", "memory-backend-ram,id=spare,size=256M"];
        assert_eq!(of(&spare), [anonymous(512), anonymous(256)]);
        assert_eq!(of(&[&spare[..], &["-readconfig", "c"]].concat()), [anonymous(256)]);
        for device in ["nvdimm,memdev=p", "virtio-pmem-pci,memdev=p", r#"{"driver":"nvdimm","memdev":"p"}"#] {
            let object = "memory-backend-file,id=p,mem-path=/images/root,size=128M";
            assert_eq!(of(&["-object", object, "-device", device]), [], "{device}");
        }
    }

    #[test]
    fn json_is_read_for_each_option_that_takes_it() {
        let chardev = r#"{"id":"m","backend":{"type":"socket","data":{"addr":{"type":"unix","data":{"path":"/run/q"}},"server":true,"wait":false}}}"#;
        let mon = r#"{"chardev":"m","mode":"control"}"#;
        let line = parse(&["-chardev", chardev, "-mon", mon, "-machine", r#"{"type":"q35","accel":"kvm"}"#]);
        assert_eq!((line.monitors, line.accels), (vec![PathBuf::from("/run/q")], vec!["kvm".to_owned()]));
        let client = chardev.replace("\"server\":true", "\"server\":false");
        assert_eq!(parse(&["-chardev", &client, "-mon", mon]).monitors, Vec::<PathBuf>::new());
        assert!(parse(&["-machine", r#"{"type":"none"}"#]).no_machine);
    }

    #[test]
    fn a_device_model_of_xen_and_settings_in_files_are_known() {
        for args in [
            &["-xen-domid", "7"][..],
            &["-xen-attach"],
            &["-machine", "xenfv,suppress-vmdesc=on"],
            &["-M", "xenpv"],
            &["-accel", "xen"],
            &["-machine", "q35,accel=xen"],
        ] {
            assert!(parse(args).of_xen, "{args:?}");
        }
        assert!(!parse(&["-name", "xenpv", "-machine", "q35"]).of_xen);
        assert!(parse(&["-readconfig", "/run/q.conf"]).reads_files && !parse(&["-m", "512"]).reads_files);
    }

    #[test]
    fn accelerators_and_their_code_buffer() {
        for (args, accels, tb_size) in [
            (&["-accel", "tcg,thread=multi,tb-size=32"][..], &["tcg"][..], Some(32)),
            (&["-enable-kvm"], &["kvm"], None),
            (&["-machine", "q35,accel=kvm:tcg"], &["kvm", "tcg"], None),
            (&["-M", "q35", "-accel", "kvm", "-accel", "tcg"], &["kvm", "tcg"], None),
            (&["-M", "q35"], &[], None),
        ] {
            let line = parse(args);
            assert_eq!(
                (line.accels, line.tb_size),
                (accels.iter().map(|&a| a.to_owned()).collect(), tb_size.map(Bytes::from_mib))
            );
        }
        assert_eq!(CommandLine::parse(b"/usr/bin/kvm\0-m\x00512\0").accels, ["kvm", "tcg"]);
    }

    #[test]
    fn probes_and_incoming_guests_are_told_apart() {
        assert!(parse(&["-machine", "none,accel=kvm:tcg", "-daemonize"]).no_machine);
        let incoming = parse(&["-incoming", "defer", "-daemonize"]);
        assert!(incoming.incoming && incoming.daemonize && !incoming.no_machine);
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
            assert!(parse(args).of_libvirt, "{args:?}");
        }
        for args in [
            &["-name", "guest=g", "-chardev", "socket,id=charmonitor,fd=22,server=on,wait=off"][..],
            &["-drive", "file=/var/lib/libvirt/qemu/disk.img", "-qmp", "unix:/run/q,server=on"],
        ] {
            assert!(!parse(args).of_libvirt, "{args:?}");
        }
    }

    #[test]
    fn the_port_of_an_agent_is_found_by_its_name() {
        let chardev = ["-chardev", "socket,id=a,path=/run/a,server=on,wait=off"];
        let port = |device: &str| parse(&[&chardev[..], &["-device", device]].concat()).agent;
        let found = Some(PathBuf::from("/run/a"));
        assert_eq!(port("virtserialport,chardev=a,name=org.memtide.agent.0"), found);
        let json =
            r#"{"driver":"virtserialport","bus":"s.0","nr":1,"chardev":"a","name":"org.memtide.agent.0"}"#;
        assert_eq!(port(json), found);
        assert_eq!(port("virtserialport,chardev=a,name=org.qemu.guest_agent.0"), None);
        assert_eq!(port("virtserialport,chardev=b,name=org.memtide.agent.0"), None);
        assert_eq!(port("virtconsole,chardev=a,name=org.memtide.agent.0"), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = CommandLine::parse(&bytes);
        }

        #[test]
        fn any_options_are_read(args in proptest::collection::vec("-?(qmp|m|name|object|chardev|mon|accel)?[,={}:a-z0-9]{0,12}", 0..8)) {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            let _ = parse(&args);
        }
    }
}

//! A QEMU's options, as far as memtide always needs them.
//!
//! Only the parts that memtide needs are read. Anybody can start guests, so any part of the text can be missing, doubled or
//! nonsense. An unreadable part counts as not given.

use std::path::{Path, PathBuf};

use memtide_agent::wire;
use memtide_model::Bytes;

use super::arguments::{Argument, Arguments, Source};
use super::launcher::Launcher;
use super::machine;
use super::options::{Options, size};
use super::ram::{GuestMemory, MemoryBlock};

/// The part of a QEMU's options that memtide needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandLine {
    /// `-name`.
    pub name: Option<String>,
    /// `-uuid`.
    pub uuid: Option<String>,
    /// The RAM that the guest starts with: base memory, DIMMs, and what virtio-mem plugs at once. QEMU's default if nothing is said; `None`
    /// if nobody knows.
    pub memory: Option<Bytes>,
    /// The place that tells it.
    pub memory_source: Source,
    /// Paths of QMP sockets that this QEMU listens on, as given, perhaps relative to its working directory.
    pub monitors: Vec<PathBuf>,
    /// Those of them that a file of `-readconfig` names.
    pub monitors_in_file: Vec<PathBuf>,
    /// Those of them whose QEMU writes an answer over several lines (`-qmp-pretty`, `pretty=on`), which memtide does not read.
    pub pretty_monitors: Vec<PathBuf>,
    /// The descriptors that QEMU was given as QMP sockets to listen on.
    pub passed_monitors: Vec<u32>,
    /// The Unix socket of the port for the guest's agent.
    pub agent: Option<PathBuf>,
    /// Addresses of QMP monitors on TCP, as given. memtide never connects to them.
    pub tcp_monitors: Vec<String>,
    /// The guest's RAM in its order: the memory of the machine, then what is plugged.
    pub ram: Vec<MemoryBlock>,
    /// Memory of other devices (ivshmem, NVDIMM, virtio-pmem), which is no RAM.
    pub device_memory: Vec<MemoryBlock>,
    /// Further settings are in files that memtide could not read (`-readconfig`): an option that is absent here may still be set.
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
    /// The program that started it.
    pub launcher: Launcher,
}

/// A character device with a socket.
struct Chardev {
    id: String,
    at: Address,
    source: Source,
}

/// A QMP monitor on a character device.
struct Control {
    /// The name of the device.
    chardev: String,
    /// Whether it writes an answer over several lines.
    pretty: bool,
}

/// The address of a socket.
enum Address {
    Unix(PathBuf),
    /// A descriptor that was passed to the process.
    Passed(u32),
    Tcp(String),
}

/// The collected arguments, interpreted at the end.
#[derive(Default)]
struct Collected {
    line: CommandLine,
    chardevs: Vec<Chardev>,
    control: Vec<Control>,
    /// The chardev of the agent's port.
    agent: Option<String>,
}

impl CommandLine {
    /// Reads the NUL-separated arguments of /proc/PID/cmdline, the program's name first. Files of options count as not readable.
    #[must_use]
    pub fn parse(cmdline: &[u8]) -> Self {
        Self::of(&Arguments::parse(cmdline))
    }

    /// Reads the options that a QEMU was started with.
    #[must_use]
    pub fn of(arguments: &Arguments) -> Self {
        let mut found = Collected::default();
        for argument in &arguments.all {
            found.option(argument);
        }
        let program = Path::new(&arguments.program).file_name().unwrap_or_default();
        if found.line.accels.is_empty() && program.to_string_lossy().ends_with("kvm") {
            found.line.accels = vec!["kvm".to_owned(), "tcg".to_owned()];
        }
        let memory = GuestMemory::of(arguments);
        let kind = machine::kind(arguments).unwrap_or_default();
        let mut line = found.finish();
        line.no_machine = kind == "none";
        line.of_xen |= ["xenfv", "xenpv", "xenpvh"].iter().any(|xen| kind.starts_with(xen));
        line.launcher = Launcher::of_arguments(arguments);
        if line.launcher == Launcher::AndroidEmulator {
            line.name = line.name.or_else(|| android_device(arguments));
        }
        line.reads_files = arguments.has_unread_file;
        (line.memory, line.memory_source) = (memory.size, memory.source);
        (line.ram, line.device_memory) = (memory.ram, memory.devices);
        line
    }

    /// Whether any part of the guest's memory is mapped shared.
    #[must_use]
    pub fn shares_ram(&self) -> bool {
        self.ram.iter().any(|block| block.shared)
    }
}

impl Collected {
    fn option(&mut self, argument: &Argument) {
        let word = argument.word();
        match argument.name.as_str() {
            "name" => {
                let name = argument.properties("guest").get("guest");
                self.line.name = name.filter(|name| !name.is_empty()).or(self.line.name.take());
            }
            "uuid" => self.line.uuid = Some(word.to_owned()).filter(|uuid| !uuid.is_empty()),
            "qmp" => self.qmp(word, false),
            "qmp-pretty" => self.qmp(word, true),
            "mon" => {
                let properties = argument.properties("chardev");
                if properties.get("mode").as_deref() == Some("control") {
                    let pretty = properties.on("pretty") == Some(true);
                    let chardev = properties.get("chardev");
                    self.control.extend(chardev.map(|chardev| Control { chardev, pretty }));
                }
            }
            "chardev" => self.chardev(argument),
            "device" => self.device(argument),
            "accel" => self.accel(argument, "accel"),
            "machine" => self.accel(argument, "type"),
            "enable-kvm" => self.line.accels.push("kvm".to_owned()),
            "daemonize" => self.line.daemonize = true,
            "incoming" => self.line.incoming = true,
            "xen-domid" | "xen-attach" => self.line.of_xen = true,
            _ => {}
        }
    }

    fn qmp(&mut self, value: &str, pretty: bool) {
        if let Some(id) = value.strip_prefix("chardev:") {
            self.control.push(Control { chardev: id.to_owned(), pretty });
            return;
        }
        let Some(rest) = value.strip_prefix("unix:") else {
            let options = Options::parse(value, "addr");
            let addr = options.get("addr").unwrap_or_default();
            if ["tcp:", "telnet:", "websocket:"].iter().any(|kind| addr.starts_with(kind)) {
                self.line.tcp_monitors.push(addr.to_owned());
            }
            return;
        };
        let options = Options::parse(rest, "path");
        if !options.is_on("server") || options.is_on("abstract") {
            return;
        }
        if let Some(path) = options.get("path").filter(|path| !path.is_empty()) {
            self.line.monitors.push(path.into());
            if pretty {
                self.line.pretty_monitors.push(path.into());
            }
        }
        self.line.passed_monitors.extend(options.get("fd").and_then(|number| number.parse::<u32>().ok()));
    }

    /// A socket that QEMU listens on. JSON has the shape of QMP's `chardev-add`; there a socket listens unless it is told not to.
    fn chardev(&mut self, argument: &Argument) {
        let given = argument.properties("backend");
        let get = |key: &str, json: &str| given.get(key).or_else(|| given.get(json));
        let kind = get("backend", "backend.type");
        let id = given.get("id").unwrap_or_default();
        let source = argument.source;
        if kind.as_deref() != Some("socket") {
            return;
        }
        let listens = given.on("server").or_else(|| given.on("backend.data.server"));
        let listens = listens.unwrap_or(given.get("backend.type").is_some());
        let is_abstract = given.on("abstract").or_else(|| given.on("backend.data.addr.data.abstract"));
        if let Some(path) = get("path", "backend.data.addr.data.path").filter(|path| !path.is_empty()) {
            if listens && is_abstract != Some(true) {
                self.chardevs.push(Chardev { id, at: Address::Unix(path.into()), source });
            }
        } else if let Some(number) = get("fd", "backend.data.addr.data.str") {
            let number = number.parse().ok().filter(|_| listens);
            self.chardevs.extend(number.map(|number| Chardev { id, at: Address::Passed(number), source }));
        } else if let Some(port) = get("port", "backend.data.addr.data.port") {
            let host = get("host", "backend.data.addr.data.host").unwrap_or_default();
            self.chardevs.push(Chardev { id, at: Address::Tcp(format!("tcp:{host}:{port}")), source });
        }
    }

    /// A port for the agent, on virtio-serial.
    fn device(&mut self, argument: &Argument) {
        let properties = argument.properties("driver");
        let is_port = properties.get("driver").as_deref() == Some("virtserialport");
        if is_port && properties.get("name").as_deref() == Some(wire::PORT) {
            self.agent = properties.get("chardev");
        }
    }

    fn accel(&mut self, argument: &Argument, implied: &str) {
        let properties = argument.properties(implied);
        let names = properties.get("accel").unwrap_or_default();
        let names = names.split(':').filter(|name| !name.is_empty());
        self.line.of_xen |= names.clone().any(|name| name == "xen");
        self.line.accels.extend(names.map(str::to_owned));
        if let Some(tb_size) = properties.get("tb-size").and_then(|s| size(&s, 20)) {
            self.line.tb_size = Some(tb_size);
        }
    }

    fn finish(mut self) -> CommandLine {
        for control in &self.control {
            for chardev in self.chardevs.iter().filter(|chardev| chardev.id == control.chardev) {
                match &chardev.at {
                    Address::Unix(path) if self.line.monitors.contains(path) => {}
                    Address::Unix(path) => {
                        self.line.monitors.push(path.clone());
                        if chardev.source == Source::ConfigFile {
                            self.line.monitors_in_file.push(path.clone());
                        }
                        if control.pretty {
                            self.line.pretty_monitors.push(path.clone());
                        }
                    }
                    Address::Passed(number) => self.line.passed_monitors.push(*number),
                    Address::Tcp(address) => self.line.tcp_monitors.push(address.clone()),
                }
            }
        }
        let of_agent = |chardev: &&Chardev| self.agent.as_ref() == Some(&chardev.id);
        if let Some(Chardev { at: Address::Unix(path), .. }) = self.chardevs.iter().find(of_agent) {
            self.line.agent = Some(path.clone());
        }
        self.line
    }
}

/// The device that Android's emulator plays: `-avd NAME`, `@NAME`.
fn android_device(arguments: &Arguments) -> Option<String> {
    let avd = arguments.named("avd").last().map(|avd| avd.word().to_owned());
    avd.or_else(|| arguments.words.iter().find_map(|word| word.strip_prefix('@').map(str::to_owned)))
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
            // Only some options take JSON.
            (&["-name", "{x}"], Some("{x}")),
            (&["-name", r#"{"guest":"x"}"#], Some(r#"{"guest":"x"}"#)),
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
        for text in ["", "x", "-5", "99999999999999999999"] {
            assert_eq!(parse(&["-m", text]).memory, None, "{text}");
        }
        let default = parse(&["-m", "maxmem=2G"]);
        assert_eq!((default.memory, default.memory_source), (Some(Bytes::from_mib(128)), Source::Default));
        assert_eq!(parse(&["-m", "1G", "-readconfig", "c"]).memory, Some(Bytes::from_mib(1024)));
        assert_eq!(parse(&["-readconfig", "c"]).memory, None, "the file may tell it");
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
            // Incus names its monitor twice.
            (
                &[
                    "-qmp",
                    "chardev:c",
                    "-mon",
                    "c,mode=control",
                    "-chardev",
                    "socket,id=c,path=/run/c,server=on",
                ],
                &["/run/c"],
            ),
        ] {
            let expected: Vec<PathBuf> = paths.iter().map(PathBuf::from).collect();
            assert_eq!(parse(args).monitors, expected, "{args:?}");
        }
    }

    #[test]
    fn monitors_that_write_over_several_lines_are_told_apart() {
        let chardev = ["-chardev", "socket,id=c,path=/run/c,server=on"];
        for (args, pretty) in [
            (&["-qmp-pretty", "unix:/run/a,server=on"][..], &["/run/a"][..]),
            (&["-qmp", "unix:/run/a,server=on", "-qmp-pretty", "unix:/run/b,server=on"], &["/run/b"]),
            (&["-mon", "c,mode=control,pretty=on"], &["/run/c"]),
            (&["-mon", "c,mode=control"], &[]),
            (&["-qmp-pretty", "chardev:c"], &["/run/c"]),
            (&["-qmp", "chardev:c"], &[]),
        ] {
            let line = parse(&[&chardev[..], args].concat());
            let expected: Vec<PathBuf> = pretty.iter().map(PathBuf::from).collect();
            assert_eq!(line.pretty_monitors, expected, "{args:?}");
            assert!(!line.monitors.is_empty(), "{args:?}");
        }
    }

    #[test]
    fn monitors_on_passed_descriptors_are_numbers() {
        let json =
            r#"{"id":"m","backend":{"type":"socket","data":{"addr":{"type":"fd","data":{"str":"7"}}}}}"#;
        for (args, numbers) in [
            (&["-qmp", "unix:fd=3,server=on,wait=off"][..], &[3][..]),
            (&["-chardev", "socket,id=m,fd=22,server=on", "-mon", "chardev=m,mode=control"], &[22]),
            (&["-chardev", json, "-mon", "m,mode=control"], &[7]),
            (&["-qmp", "unix:fd=3"], &[]),
            (&["-chardev", "socket,id=m,fd=22", "-mon", "m,mode=control"], &[]),
        ] {
            let line = parse(args);
            assert_eq!((line.passed_monitors.as_slice(), line.monitors.len()), (numbers, 0), "{args:?}");
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
    fn json_is_read_for_each_option_that_takes_it() {
        let chardev = r#"{"id":"m","backend":{"type":"socket","data":{"addr":{"type":"unix","data":{"path":"/run/q"}},"server":true,"wait":false}}}"#;
        let mon = "m,mode=control";
        let line = parse(&["-chardev", chardev, "-mon", mon]);
        assert_eq!(line.monitors, [PathBuf::from("/run/q")]);
        let client = chardev.replace("\"server\":true", "\"server\":false");
        assert_eq!(parse(&["-chardev", &client, "-mon", mon]).monitors, Vec::<PathBuf>::new());
        let memory = r#"{"qom-type":"memory-backend-memfd","id":"m","size":1048576}"#;
        assert!(parse(&["-object", memory]).shares_ram());
        // QEMU refuses JSON for these.
        let (machine, mon) = (r#"{"type":"none"}"#, r#"{"chardev":"m","mode":"control"}"#);
        assert!(!parse(&["-machine", machine]).no_machine);
        assert_eq!(parse(&["-chardev", chardev, "-mon", mon]).monitors, Vec::<PathBuf>::new());
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

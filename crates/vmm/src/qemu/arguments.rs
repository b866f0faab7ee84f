//! Everything that a QEMU was started with: its command line, and the files of options that it names (`-readconfig`).
//!
//! Anybody can start guests, so any part of the text can be missing, doubled or nonsense. An unreadable part counts as not given.
//!
//! **Files.** A file has sections, `[group "id"]` or `[group]`, with lines `key = "value"`. QEMU reads a section like the option
//! of that name. A file that cannot be read leaves everything unknown that it may set.

use std::path::{Path, PathBuf};

use super::options::{Options, Properties};

/// The longest file of options that is read, in bytes. Incus writes some ten KiB.
pub(super) const LONGEST_FILE: u64 = 256 << 10;
/// The most files that are read.
const MOST_FILES: usize = 8;
/// Options with an argument that may begin with a dash.
const WITH_TEXT: [&str; 5] = ["append", "name", "fw_cfg", "smbios", "initrd"];
/// Options that take JSON as well (QEMU 6.2 and later; tried with QEMU 10.0). libvirt knows a `-chardev` of JSON, which QEMU 10.0 does not take yet.
const WITH_JSON: [&str; 5] = ["object", "device", "blockdev", "netdev", "chardev"];
/// Options without an argument. Any other option takes the next word, unless that begins with a dash.
const FLAGS: [&str; 17] = [
    "S",
    "daemonize",
    "enable-kvm",
    "mem-prealloc",
    "nodefaults",
    "nographic",
    "no-reboot",
    "no-shutdown",
    "no-user-config",
    "no-acpi",
    "no-hpet",
    "only-migratable",
    "snapshot",
    "usb",
    "xen-attach",
    "s",
    "full-screen",
];

/// The place that tells a fact about a guest's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// The command line.
    #[default]
    CommandLine,
    /// A file that the command line names with `-readconfig`.
    ConfigFile,
    /// QEMU's default: nothing is said about it.
    Default,
}

impl Source {
    /// In a few words, for people.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::CommandLine => "the command line",
            Self::ConfigFile => "the file of -readconfig",
            Self::Default => "QEMU's default",
        }
    }
}

/// One option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Argument {
    /// Its name without dashes: `m`, `device`.
    pub(super) name: String,
    value: Text,
    /// The place that tells it.
    pub(super) source: Source,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Text {
    Word(String),
    Section(Options),
}

impl Argument {
    /// Its argument as it stands; empty if there is none, and for a section of a file.
    pub(super) fn word(&self) -> &str {
        match &self.value {
            Text::Word(word) => word,
            Text::Section(_) => "",
        }
    }

    /// Whether its argument is JSON. Of most options, an argument that begins with a brace is text like any other.
    fn is_json(&self) -> bool {
        WITH_JSON.contains(&self.name.as_str()) && self.word().starts_with('{')
    }

    /// Its properties. In options, a first part without `=` is the value of `implied`.
    pub(super) fn properties(&self, implied: &str) -> Properties {
        match &self.value {
            Text::Word(word) if self.is_json() => Properties::json(word),
            Text::Word(word) => Properties::Options(Options::parse(word, implied)),
            Text::Section(options) => Properties::Options(options.clone()),
        }
    }

    /// Sets a property as `-set` does. QEMU does not set properties in JSON this way.
    fn set(&mut self, key: &str, value: &str) {
        let is_json = self.is_json();
        match &mut self.value {
            Text::Word(_) if is_json => {}
            Text::Word(word) => *word = format!("{word},{key}={}", value.replace(',', ",,")),
            Text::Section(options) => options.push(key, value),
        }
    }
}

/// The options that a QEMU was started with, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arguments {
    /// The program as it was called.
    pub(super) program: String,
    pub(super) all: Vec<Argument>,
    /// Words that are no options.
    pub(super) words: Vec<String>,
    /// The files of options that it names.
    pub(super) files: Vec<PathBuf>,
    /// One of them could not be read.
    pub(super) has_unread_file: bool,
}

impl Arguments {
    /// Reads the NUL-separated arguments of /proc/PID/cmdline, the program's name first. Files count as not readable.
    #[must_use]
    pub fn parse(cmdline: &[u8]) -> Self {
        Self::read(cmdline, |_| None)
    }

    /// Reads the arguments and the files that they name. `file` reads a file at a path of that process.
    pub fn read(cmdline: &[u8], mut file: impl FnMut(&Path) -> Option<Vec<u8>>) -> Self {
        let given = cmdline.strip_suffix(b"\0").unwrap_or(cmdline).split(|&byte| byte == 0);
        let mut given = given.map(|arg| String::from_utf8_lossy(arg).into_owned()).peekable();
        let mut found = Self { program: given.next().unwrap_or_default(), ..Self::default() };
        while let Some(arg) = given.next() {
            // QEMU accepts one dash or two.
            let Some(name) = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-')) else {
                found.words.push(arg);
                continue;
            };
            let is_flag = FLAGS.contains(&name);
            let takes = |next: &String| !is_flag && (WITH_TEXT.contains(&name) || !is_option(next));
            let word = given.next_if(takes).unwrap_or_default();
            match name {
                "readconfig" => {
                    let is_read = found.files.len() < MOST_FILES;
                    found.add_file(if is_read { file(Path::new(&word)) } else { None });
                    found.files.push(word.into());
                }
                "set" => found.set(&word),
                _ => found.all.push(Argument {
                    name: option(name).to_owned(),
                    value: Text::Word(word),
                    source: Source::CommandLine,
                }),
            }
        }
        found
    }

    /// All options of this name.
    pub(super) fn named(&self, name: &'static str) -> impl Iterator<Item = &Argument> {
        self.all.iter().filter(move |argument| argument.name == name)
    }

    /// Whether there is an option of this name.
    pub(super) fn has(&self, name: &'static str) -> bool {
        self.named(name).next().is_some()
    }

    /// The property of a device that has none of its own, by `-global`.
    pub(super) fn global(&self, driver: &str, key: &str) -> Option<String> {
        // `virtio-balloon` is another name of `virtio-balloon-pci`.
        let bare = |name: &str| name.trim_end_matches("-pci").trim_end_matches("-device").to_owned();
        self.named("global")
            .filter_map(|global| {
                let properties = global.properties("");
                let (of, set, value) = match (properties.get("driver"), properties.get("property")) {
                    (Some(driver), Some(property)) => (driver, property, properties.get("value")?),
                    _ => {
                        let (name, value) = global.word().split_once('=')?;
                        let (driver, property) = name.split_once('.')?;
                        (driver.to_owned(), property.to_owned(), value.to_owned())
                    }
                };
                (bare(&of) == bare(driver) && set == key).then_some(value)
            })
            .last()
    }

    /// Paths of sockets and files that launchers choose: monitors, other character devices, files beside the guest.
    pub(super) fn places(&self) -> Vec<PathBuf> {
        let found = self.all.iter().filter_map(|argument| {
            let properties = |implied| argument.properties(implied);
            match argument.name.as_str() {
                "chardev" => {
                    let properties = properties("backend");
                    properties.get("path").or_else(|| properties.get("backend.data.addr.data.path"))
                }
                "qmp" | "qmp-pretty" | "monitor" | "serial" => {
                    Options::parse(argument.word().strip_prefix("unix:")?, "path")
                        .get("path")
                        .map(str::to_owned)
                }
                "object" => {
                    let properties = properties("qom-type");
                    properties.get("qom-type").filter(|kind| kind == "secret")?;
                    properties.get("file")
                }
                "pidfile" | "D" => Some(argument.word().to_owned()),
                _ => None,
            }
        });
        found.filter(|place| !place.is_empty()).map(PathBuf::from).collect()
    }

    fn add_file(&mut self, text: Option<Vec<u8>>) {
        match text.and_then(|text| sections(&String::from_utf8_lossy(&text))) {
            Some(sections) => self.all.extend(sections),
            None => self.has_unread_file = true,
        }
    }

    /// `-set GROUP.ID.KEY=VALUE`.
    fn set(&mut self, word: &str) {
        let Some((name, value)) = word.split_once('=') else { return };
        let mut parts = name.splitn(3, '.');
        let (Some(group), Some(id), Some(key)) = (parts.next(), parts.next(), parts.next()) else { return };
        let group = option(group);
        let is_it = |argument: &&mut Argument| {
            argument.name == group && argument.properties("").get("id").as_deref() == Some(id)
        };
        if let Some(argument) = self.all.iter_mut().find(is_it) {
            argument.set(key, value);
        }
    }
}

/// Whether a word begins an option. A dash alone is a value: standard input.
fn is_option(word: &str) -> bool {
    word.len() > 1 && word.starts_with('-')
}

/// The name of an option or of a section, one for each meaning.
fn option(name: &str) -> &str {
    match name {
        "M" => "machine",
        "memory" => "m",
        other => other,
    }
}

/// The sections of a file; `None` if it is no such file, or not all of it was read.
fn sections(text: &str) -> Option<Vec<Argument>> {
    if u64::try_from(text.len()).ok()? >= LONGEST_FILE {
        return None;
    }
    let mut found: Vec<Argument> = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(head) = line.strip_prefix('[') {
            let head = head.strip_suffix(']')?;
            let (group, id) = head.split_once(' ').unwrap_or((head, ""));
            let mut options = Options::default();
            let id = id.trim().trim_matches('"');
            if !id.is_empty() {
                options.push("id", id);
            }
            let (name, value) = (option(group).to_owned(), Text::Section(options));
            found.push(Argument { name, value, source: Source::ConfigFile });
        } else {
            let (key, value) = line.split_once('=')?;
            let value = value.trim().strip_prefix('"')?.strip_suffix('"')?;
            found.last_mut()?.set(key.trim(), value);
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cmdline(args: &[&str]) -> Vec<u8> {
        format!("qemu\0{}\0", args.join("\0")).into_bytes()
    }

    #[test]
    fn options_take_the_next_word_unless_it_is_an_option() {
        let found = Arguments::parse(&cmdline(&[
            "--append",
            "-m 5",
            "-nographic",
            "disk.img",
            "-unknown",
            "-M",
            "q35",
            "-serial",
            "-",
            "-S",
        ]));
        let seen: Vec<_> =
            found.all.iter().map(|argument| (argument.name.as_str(), argument.word())).collect();
        assert_eq!(
            seen,
            [
                ("append", "-m 5"),
                ("nographic", ""),
                ("unknown", ""),
                ("machine", "q35"),
                ("serial", "-"),
                ("S", "")
            ]
        );
        assert_eq!(found.words, ["disk.img"]);
    }

    #[test]
    fn sections_of_a_file_are_options() {
        let text =
            b"# comment\n[memory]\n  size = \"1G\"\n\n[device \"b\"]\ndriver = \"virtio-balloon-pci\"\n";
        let mut asked = Vec::new();
        let line = cmdline(&["-readconfig", "a.conf", "-name", "x"]);
        let found = Arguments::read(&line, |path| {
            asked.push(path.to_owned());
            Some(text.to_vec())
        });
        assert_eq!(asked, [Path::new("a.conf")]);
        let memory = found.named("m").next().unwrap();
        assert_eq!(
            (memory.properties("size").get("size").as_deref(), memory.source),
            (Some("1G"), Source::ConfigFile)
        );
        let device = found.named("device").next().unwrap().properties("driver");
        assert_eq!(
            (device.get("id").as_deref(), device.get("driver").as_deref()),
            (Some("b"), Some("virtio-balloon-pci"))
        );
        assert!(!found.has_unread_file);
        assert_eq!(found.named("name").next().unwrap().source, Source::CommandLine);
    }

    #[test]
    fn a_file_that_is_none_is_unread() {
        for text in ["[memory", "size = \"1G\"", "[memory]\nsize = 1G", "[memory]\nnonsense"] {
            let found = Arguments::read(&cmdline(&["-readconfig", "a"]), |_| Some(text.into()));
            assert!(found.has_unread_file && found.all.is_empty(), "{text}");
        }
        let long = vec![b'\n'; usize::try_from(LONGEST_FILE).unwrap()];
        let line = cmdline(&["-readconfig", "a"]);
        assert!(Arguments::read(&line, |_| Some(long.clone())).has_unread_file);
        assert!(
            Arguments::parse(&line).has_unread_file && !Arguments::parse(&cmdline(&["-S"])).has_unread_file
        );
        let many = cmdline(&["-readconfig", "a"].repeat(9));
        assert!(Arguments::read(&many, |_| Some(Vec::new())).has_unread_file, "a bounded number of files");
    }

    #[test]
    fn set_and_global_change_properties() {
        let found = Arguments::parse(&cmdline(&[
            "-device",
            "virtio-balloon-pci,id=b",
            "-set",
            "device.b.free-page-reporting=on",
            "-global",
            "virtio-balloon-pci.deflate-on-oom=on",
            "-global",
            "driver=vfio-pci,property=x,value=1",
        ]));
        let device = found.named("device").next().unwrap().properties("driver");
        assert_eq!(device.on("free-page-reporting"), Some(true));
        assert_eq!(found.global("virtio-balloon", "deflate-on-oom").as_deref(), Some("on"));
        assert_eq!(found.global("vfio-pci", "x").as_deref(), Some("1"));
        assert_eq!(found.global("vfio-pci", "y"), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(line in proptest::collection::vec(any::<u8>(), 0..200), file in "(\\[[a-z \"]{0,9}\\]?|[a-z]{0,3} ?=? ?\"?[a-z]{0,3}\"?|\n){0,9}") {
            let _ = Arguments::read(&line, |_| Some(file.clone().into_bytes()));
        }
    }
}

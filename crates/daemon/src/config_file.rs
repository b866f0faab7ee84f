//! The configuration file: TOML, every key optional.
//!
//! Nothing is guessed: an unknown key is refused together with a near one or all that there are, a value of the wrong type or
//! form with what was found and what to write, a path that is not whole with why; each with file, line and column.

mod keys;
mod mistake;
mod read;
mod table;
mod words;

use std::path::{Path, PathBuf};

use memtide_host::{HostError, Meminfo, Root};
use memtide_model::{Amount, Budget, Bytes, Config, Mode};
use toml::de::DeTable;

use self::mistake::Mistake;
pub(crate) use self::words::changes;

/// Where the configuration is looked for when none is named.
pub const DEFAULT_PATH: &str = "/etc/memtide/memtide.toml";
/// The socket of the local API unless the configuration names another.
pub const DEFAULT_SOCKET: &str = "/run/memtide/memtide.sock";
const DEFAULT_JOURNAL: &str = "/var/lib/memtide/journal";
/// The smallest journal: segments are an eighth of it and no smaller than 1 MiB.
const LEAST_JOURNAL: Bytes = Bytes::from_mib(8);

/// All that the daemon is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// What decisions depend on.
    pub config: Config,
    /// The socket of the local API.
    pub socket: PathBuf,
    /// Where decisions are written down; `None` for nowhere.
    pub journal: JournalSettings,
    /// Whether the daemon gives up what it does not need after its start.
    pub confine: bool,
    /// Patterns of the names of guests that are this daemon's; others are not seen at all.
    pub discover: Vec<String>,
    /// Guests whose monitor is ours alone.
    pub guests: Vec<GuestSettings>,
}

/// What the command line says over the configuration file, at the start and at each reload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// `--observe` or `--manage`.
    pub mode: Option<Mode>,
    /// `--budget`.
    pub budget: Option<Budget>,
}

impl Overrides {
    /// The configuration of the file `path` with these overrides, on this host.
    ///
    /// # Errors
    /// Where the two together leave nothing for guests, or the host's memory cannot be read.
    pub fn apply(self, path: Option<&Path>, mut config: Config) -> Result<Config, ConfigError> {
        config.mode = self.mode.unwrap_or(config.mode);
        config.budget = self.budget.unwrap_or(config.budget);
        let host = Meminfo::read(&Root::system())?.total;
        match nothing_left(&config, host) {
            None => Ok(config),
            Some(why) => {
                Err(ConfigError::NothingLeft { path: path.unwrap_or(Path::new(DEFAULT_PATH)).into(), why })
            }
        }
    }
}

/// Why the reserve leaves nothing for guests on a host with so much memory; `None` where it leaves something.
fn nothing_left(config: &Config, host: Bytes) -> Option<String> {
    let Amount::Bytes(reserve) = config.reserve else { return None };
    let (room, what) = match config.budget {
        Budget::Size(budget) if budget <= host => (budget, format!("the budget is {budget}")),
        Budget::Size(_) | Budget::Host => (host, format!("the host has {host}")),
    };
    (reserve >= room).then(|| format!("{reserve} leaves nothing for guests, since {what}"))
}

/// Where decisions are written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalSettings {
    /// The directory of the segments.
    pub dir: PathBuf,
    /// The most that all segments may take.
    pub max: Bytes,
}

/// A guest whose monitor is ours alone: held open, gives events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestSettings {
    /// The name under which it is shown.
    pub name: String,
    /// The QMP socket.
    pub qmp: PathBuf,
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{path}: cannot be read")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// Something else than a file, or a file of the wrong length.
    #[error("{path} {why}")]
    Unfit {
        /// The file.
        path: PathBuf,
        /// What it is, and what to do.
        why: &'static str,
    },
    /// The reserve leaves nothing for guests.
    #[error("{path}: reserve: {why}: write less, as in reserve = \"5%\"")]
    NothingLeft {
        /// The file.
        path: PathBuf,
        /// What it is, and what there is.
        why: String,
    },
    /// How much memory the host has is not known.
    #[error("the host's memory cannot be read")]
    Host(#[from] HostError),
    /// The file says something that is not understood.
    #[error("{path}:{line}:{column}: {message}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// Counted from 1.
        column: usize,
        /// What is wrong, and what to do.
        message: String,
    },
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            config: Config::default(),
            socket: PathBuf::from(DEFAULT_SOCKET),
            journal: JournalSettings { dir: PathBuf::from(DEFAULT_JOURNAL), max: Bytes::from_mib(256) },
            confine: true,
            discover: vec!["*".to_owned()],
            guests: Vec::new(),
        }
    }
}

impl Settings {
    /// The keys that differ in `new` and are read only when the daemon starts.
    #[must_use]
    pub fn fixed_keys_changed(&self, new: &Self) -> Vec<&'static str> {
        let differs = [
            ("socket", self.socket != new.socket),
            ("journal", self.journal != new.journal),
            ("confine", self.confine != new.confine),
            ("discover", self.discover != new.discover),
            ("guest", self.guests != new.guests),
        ];
        differs.into_iter().filter(|(_, differs)| *differs).map(|(key, _)| key).collect()
    }

    /// The settings of the file `path`; of the default file where it is `None`, and the defaults where that is absent.
    ///
    /// # Errors
    /// Where the file cannot be read or is not understood.
    pub fn load(path: Option<&Path>) -> Result<Self, ConfigError> {
        let named = path.is_some();
        let path = path.unwrap_or(Path::new(DEFAULT_PATH));
        match read::bytes(path) {
            Ok(bytes) => Self::parse(path, &bytes),
            Err(ConfigError::Read { source, .. })
                if source.kind() == std::io::ErrorKind::NotFound && !named =>
            {
                Ok(Self::default())
            }
            Err(error) => Err(error),
        }
    }

    /// The socket that the file names, and what else in it is refused: a daemon that keeps its old configuration still answers there.
    ///
    /// # Errors
    /// Where the file cannot be read.
    pub fn load_socket(path: Option<&Path>) -> Result<(PathBuf, Option<ConfigError>), ConfigError> {
        let refused = match Self::load(path) {
            Ok(settings) => return Ok((settings.socket, None)),
            Err(error @ ConfigError::Parse { .. }) => error,
            Err(error) => return Err(error),
        };
        let bytes = read::bytes(path.unwrap_or(Path::new(DEFAULT_PATH)))?;
        let text = String::from_utf8_lossy(&bytes);
        let (file, _) = DeTable::parse_recoverable(&text);
        let named = file.get_ref().get("socket").and_then(|value| value.get_ref().as_str());
        Ok((named.unwrap_or(DEFAULT_SOCKET).into(), Some(refused)))
    }

    /// The settings in `bytes`; `path` is named in errors.
    ///
    /// # Errors
    /// Where the bytes are not understood.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self, ConfigError> {
        let parse_error =
            |(line, column, message)| ConfigError::Parse { path: path.to_owned(), line, column, message };
        let text = read::text(bytes).map_err(parse_error)?;
        let file = DeTable::parse(text).map_err(|error| Mistake::of_toml(text, &error));
        let settings = file.and_then(|file| keys::settings(file.get_ref()));
        settings.map_err(|mistake| parse_error(mistake.explain(text)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Settings, String> {
        Settings::parse(Path::new("m.toml"), text.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn an_empty_file_gives_the_defaults() {
        assert_eq!(parse("").unwrap(), Settings::default());
    }

    /// The configuration that packages install, and its page.
    const INSTALLED: &str = include_str!("../../../packaging/memtide.toml");
    const PAGE: &str = include_str!("../../../packaging/man/memtide.toml.5");

    /// The lines of the installed configuration that show defaults, as an operator would take them over.
    fn documented_defaults() -> String {
        let lines = INSTALLED.lines().filter_map(|line| line.strip_prefix('#'));
        lines
            .filter(|line| !line.is_empty() && !line.starts_with(' '))
            .map(|line| format!("{line}\n"))
            .collect()
    }

    #[test]
    fn the_documented_defaults_are_the_defaults() {
        assert_eq!(parse(INSTALLED).unwrap(), Settings::default());
        assert_eq!(parse(&documented_defaults()).unwrap(), Settings::default());
    }

    #[test]
    fn every_key_is_documented() {
        for key in keys::TOP.keys.iter().chain(keys::CLASS.keys) {
            let in_page = [format!(".It Cm {key}"), format!("[{key}"), format!("[[{key}]]")];
            assert!(in_page.iter().any(|text| PAGE.contains(text)), "{key} is not in the page");
            let in_file = [format!("#{key} = "), format!("#     {key} = "), format!("[{key}")];
            let is_in_file = INSTALLED.lines().any(|line| in_file.iter().any(|text| line.contains(text)));
            assert!(is_in_file, "{key} is not in the installed file");
        }
    }

    #[test]
    fn the_example_classes_and_guests_of_the_installed_file_are_understood() {
        let example: String = INSTALLED
            .lines()
            .filter_map(|line| line.strip_prefix("#     "))
            .map(|line| format!("{line}\n"))
            .collect();
        let settings = parse(&example).unwrap();
        assert_eq!(settings.config.class_of("db-1").0.as_ref(), "database");
        assert_eq!(settings.guests[0].name, "web1");
    }

    #[test]
    fn classes_and_guests_are_read() {
        let text = r#"
            mode = "manage"
            budget = "2 GiB"
            [class.database]
            match = ["db-*"]
            shares = 4000
            reservation = "2 GiB"
            [[guest]]
            name = "web1"
            qmp = "/run/vm/web1.qmp"
        "#;
        let settings = parse(text).unwrap();
        assert_eq!(settings.config.budget, Budget::Size(Bytes::from_mib(2048)));
        assert_eq!(settings.config.class_of("db-1").1.shares, 4000);
        assert_eq!(settings.guests[0].qmp, Path::new("/run/vm/web1.qmp"));
    }

    #[test]
    fn a_guest_belongs_to_the_class_that_stands_first_in_the_file() {
        let text = "[class.web]\nmatch = [\"*-1\"]\n[class.all]\nmatch = [\"*\"]";
        let settings = parse(text).unwrap();
        assert_eq!(settings.config.class_of("db-1").0.as_ref(), "web");
        assert_eq!(settings.config.class_of("db-2").0.as_ref(), "all");
    }

    #[test]
    fn a_single_bracket_is_a_character_like_others() {
        let settings = parse("discover = [\"a]\", \"b[\", \"]c[\"]").unwrap();
        assert_eq!(settings.discover, ["a]", "b[", "]c["]);
    }

    #[test]
    fn the_command_line_stays_over_the_file_and_fixed_keys_are_named() {
        let old = parse("budget = \"1 GiB\"").unwrap();
        let new = parse("budget = \"2 GiB\"\ndiscover = [\"a\"]").unwrap();
        let overrides =
            Overrides { mode: Some(Mode::Manage), budget: Some(Budget::Size(Bytes::from_mib(3))) };
        let config = overrides.apply(None, new.config.clone()).unwrap();
        assert_eq!((config.mode, config.budget), (Mode::Manage, Budget::Size(Bytes::from_mib(3))));
        assert_eq!(old.fixed_keys_changed(&new), ["discover"]);
    }

    #[test]
    fn a_reserve_is_less_than_the_budget_and_less_than_the_host_has() {
        let gib = |count: u64| Bytes::from_mib(count * 1024);
        let why = |reserve, budget| {
            let config = Config { reserve: Amount::Bytes(gib(reserve)), budget, ..Config::default() };
            nothing_left(&config, gib(24))
        };
        let of_host = "24 GiB leaves nothing for guests, since the host has 24 GiB";
        assert_eq!(why(24, Budget::Host).unwrap(), of_host);
        assert_eq!(why(24, Budget::Size(gib(48))).unwrap(), of_host);
        let of_budget = "2 GiB leaves nothing for guests, since the budget is 1 GiB";
        assert_eq!(why(2, Budget::Size(gib(1))).unwrap(), of_budget);
        for (reserve, budget) in [(23, Budget::Host), (2, Budget::Size(gib(3))), (23, Budget::Size(gib(48)))]
        {
            assert_eq!(why(reserve, budget), None);
        }
        assert_eq!(nothing_left(&Config::default(), gib(24)), None);
    }

    #[test]
    fn a_message_is_one_short_line_whatever_it_quotes() {
        let guest = "[[guest]]\nname = \"a\\u001b[31m\\u202e\\n\"\nqmp = \"/a\"\n";
        let error = parse(&guest.repeat(2)).unwrap_err();
        assert_eq!(
            error,
            "m.toml:5:8: guest.name: two guests are named \"a\\u{1b}[31m\\u{202e}\\u{a}\": write another name"
        );
        let long = "x".repeat(8192);
        for text in [
            format!("mode = \"{long}\""),
            format!("reserve = \"{long}%\""),
            format!("budget = \"{}\"", "9".repeat(8192)),
            format!("confine = {}", "9".repeat(8192)),
            format!("{long} = 1"),
            format!("[class.{long}]\nshares = \"{long}\""),
            format!("{long} = 1\n{long} = 2"),
            format!("mode = {long}"),
        ] {
            let error = parse(&text).unwrap_err();
            assert!(error.chars().count() < 300 && error.contains('…') && !error.ends_with('…'), "{error}");
        }
    }

    fn refused(mistakes: &[(&str, &str)]) {
        for (text, message) in mistakes {
            let error = parse(text).unwrap_err();
            assert!(error.strip_prefix("m.toml:").unwrap().starts_with(message), "{text}: {error}");
        }
    }

    #[test]
    fn a_value_of_the_wrong_type_is_told_with_its_key_what_was_found_and_what_to_write() {
        refused(&[
            (
                "budget = 5",
                "1:10: budget: found the number 5: write \"host\" or a size in quotes, as in budget = \"48 GiB\"",
            ),
            (
                "reserve = true",
                "1:11: reserve: found true: write a share or a size in quotes, as in reserve = \"5%\"",
            ),
            ("reserve = \"much\"", "1:11: reserve: found the text \"much\": write a share or a size"),
            (
                "[class.x]\nshares = \"many\"",
                "2:10: class.x.shares: found the text \"many\": write a whole number up to 4294967295 without quotes, \
                 as in shares = 1000",
            ),
            ("[class.\"a.b\"]\nshares = 1.5", "2:10: class.\"a.b\".shares: found the number 1.5: write"),
            (
                "[class.x]\nsqueeze = \"yes\"",
                "2:11: class.x.squeeze: found the text \"yes\": write true or false",
            ),
            (
                "[class.x]\nidle_tax = 0.75",
                "2:12: class.x.idle_tax: found the number 0.75: write a share in quotes",
            ),
            (
                "[class.x]\nlimit = \"50%\"",
                "2:9: class.x.limit: found the text \"50%\": write \"max\" or a size",
            ),
            (
                "discover = \"x\"",
                "1:12: discover: found the text \"x\": write a list of names in quotes, as in",
            ),
            ("discover = [\"a\", { b = 1 }]", "1:18: discover: found a table: write a list"),
            ("self_deflations = -1", "1:19: self_deflations: found the number -1: write a whole number"),
            ("socket = 1979-05-27", "1:10: socket: found a date or a time: write a path in quotes"),
            ("mode = [\"manage\"]", "1:8: mode: found a list: write \"observe\" or \"manage\""),
            ("journal = \"/x\"", "1:11: journal: found the text \"/x\": write a table, as in journal = {"),
            (
                "states = { soft = 5 }",
                "1:19: states.soft: found the number 5: write a share in quotes, as in soft = \"6%\"",
            ),
            (
                "[class]\nshares = 5",
                "2:10: class.shares: found the number 5: write [class.NAME] with one bracket",
            ),
            ("[[class.x]]", "1:1: class.x: found a list: write [class.NAME] with one bracket"),
            ("[guest]\nname = \"a\"", "1:2: guest: found a table: write [[guest]] with two brackets"),
            ("[[guest]]\nname = \"a\"", "1:1: guest.qmp is missing: write a path in quotes"),
        ]);
    }

    #[test]
    fn what_stands_twice_is_told_with_both_lines_and_what_to_do() {
        refused(&[
            (
                "mode = \"manage\"\n\nmode = \"manage\"",
                "3:1: `mode` is written a second time, first in line 1: keep one",
            ),
            (
                "[class.a]\nshares = 1\n[class.b]\nshares = 2\n\nshares = 3",
                "6:1: `shares` is written a second time, first in line 4: keep one",
            ),
            (
                "[class.a]\n[class.b]\n[class.a]",
                "3:8: [class.a] is written a second time, first in line 1: put the keys of both below one, or write \
                 another name",
            ),
            (
                "[class.'a b']\n[class.\"a b\"]",
                "2:8: [class.\"a b\"] is written a second time, first in line 1: put",
            ),
            (
                "journal.dir = \"/a\"\njournal.dir = \"/b\"",
                "2:9: `dir` is written a second time, first in line 1: keep",
            ),
            (
                "journal = { dir = \"/a\",\n dir = \"/b\" }",
                "2:2: `dir` is written a second time, first in line 1: keep one of the two",
            ),
            (
                "[states]\n[states]",
                "2:2: [states] is written a second time, first in line 1: put the keys of both below one",
            ),
            (
                "[guest]\n[guest]",
                "2:2: [guest] is written a second time, first in line 1: write [[guest]] with two",
            ),
            (
                "[[guest]]\nname = \"a\"\nqmp = \"/a\"\n[[guest]]\nname = \"b\"\nqmp = \"/a\"",
                "6:7: guest.qmp: it is the socket of the guest \"a\", too",
            ),
        ]);
    }

    #[test]
    fn only_a_near_key_is_suggested_and_else_all_that_there_are() {
        refused(&[
            ("mdoe = \"manage\"", "1:1: unknown key `mdoe`: did you mean `mode`?"),
            ("self-deflations = 2", "1:1: unknown key `self-deflations`: did you mean `self_deflations`?"),
            ("MODE = \"manage\"", "1:1: unknown key `MODE`: did you mean `mode`?"),
            ("memory = \"2G\"", "1:1: unknown key `memory`: known here: mode, commitment, budget, reserve, "),
            ("x = 1", "1:1: unknown key `x`: known here: mode, "),
            ("\n[class.db]\nshare = 5", "3:1: unknown key `class.db.share`: did you mean `shares`?"),
            (
                "[class.db]\nmax = \"5G\"",
                "2:1: unknown key `class.db.max`: known here: match, shares, reservation, ",
            ),
            ("journal = { path = \"/a\" }", "1:13: unknown key `journal.path`: known here: dir, max"),
            ("shares = 5", "1:1: unknown key `shares`: write it below a class, as [class.default]"),
            (
                "[class.db]\nbudget = \"5G\"",
                "2:1: unknown key `class.db.budget`: write it above the first line that begins with \"[\"",
            ),
            (
                "[[guest]]\nname = \"a\"\nsocket = \"/a\"",
                "3:1: unknown key `guest.socket`: known here: name, qmp; or write it above the first line",
            ),
            ("mode = \"mangae\"", "1:8: mode: unknown value \"mangae\": did you mean \"manage\"?"),
            ("mode = \"on\"", "1:8: mode: found the text \"on\": write \"observe\" or \"manage\""),
        ]);
    }

    #[test]
    fn a_path_must_be_whole() {
        for path in ["memtide.sock", "./memtide", "~/memtide", ""] {
            for (text, place) in [
                (format!("socket = \"{path}\""), "1:10: socket"),
                (format!("journal = {{ dir = \"{path}\" }}"), "1:19: journal.dir"),
                (format!("[[guest]]\nname = \"a\"\nqmp = \"{path}\""), "3:7: guest.qmp"),
            ] {
                let why = "is no whole path, and the daemon may run in any directory: write a path in quotes that begins";
                refused(&[(&text, &format!("{place}: \"{path}\" {why}"))]);
            }
        }
        let long = format!("socket = \"/{}\"", "x".repeat(107));
        refused(&[(&long, "1:10: socket: a socket's path has at most 107 bytes, and this one 108")]);
    }

    #[test]
    fn what_is_no_toml_is_told_with_what_to_write() {
        refused(&[
            ("mode = ", "1:8: a value is missing: write one"),
            ("mode = # manage", "1:8: a value is missing: write one"),
            ("mode = manage", "1:8: manage is no value: a text stands in quotes: write \"manage\""),
            ("budget = 48 GiB # all", "1:10: 48 GiB is no value: a text stands in quotes: write \"48 GiB\""),
            ("mode = “manage”", "1:8: “manage” is no value: a text stands in quotes: write \"manage\""),
            (
                "discover = [web-*, \"a\"]",
                "1:13: web-* is no value: a text stands in quotes: write \"web-*\"",
            ),
            ("confine = yes", "1:11: yes is no value: write true or false"),
            ("mode \"manage\"", "1:6: this line sets nothing: write KEY = VALUE"),
            ("mode = \"manage\nbudget = \"host\"", "1:15: these quotes are not closed in their line"),
            ("mode = 'manage\nx", "1:15: these quotes are not closed in their line"),
            ("[class.db\nshares = 5", "1:10: this is no TOML: unclosed table, expected `]`"),
        ]);
    }

    #[test]
    fn the_first_byte_that_is_no_text_is_told_with_its_place() {
        for (bytes, place) in [
            (&b"mode = \"manage\"\n# K\xf6ln\n\xff"[..], "2:4: the byte 0xf6"),
            (b"# \xc3\xb6\xff", "1:4: the byte 0xff"),
            (b"\xff\xfem\0o\0", "1:1: the byte 0xff"),
            (b"mode = \"\xe2\x82", "1:9: the byte 0xe2"),
        ] {
            let error = Settings::parse(Path::new("m.toml"), bytes).unwrap_err().to_string();
            assert!(error.starts_with(&format!("m.toml:{place} is no UTF-8: save")), "{error}");
        }
    }

    #[test]
    fn what_is_no_file_or_too_long_is_refused_unread() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let error = |path: &Path| Settings::load(Some(path)).unwrap_err().to_string();
        assert!(error(dir.path()).ends_with(" is a directory: name the file in it"));
        let mode = rustix::fs::Mode::RWXU;
        rustix::fs::mknodat(rustix::fs::CWD, path("pipe"), rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert!(error(&path("pipe")).contains(" is a pipe, which can be read only once"));
        assert!(error(&path("none")).ends_with("none: cannot be read"));
        std::fs::write(path("file"), "#".repeat(1 << 20)).unwrap();
        assert_eq!(Settings::load(Some(&path("file"))).unwrap(), Settings::default());
        std::fs::write(path("file"), "#".repeat((1 << 20) + 1)).unwrap();
        assert!(error(&path("file")).contains(" is longer than 1 MiB, so no configuration"));
    }

    #[test]
    fn what_does_not_go_together_is_said_with_its_place_and_its_mend() {
        refused(&[
            ("journal = { max = \"5 MB\" }", "1:19: journal.max: `MB` is not a unit of memory"), // tidy-allow: MB
            ("states = { soft = \"1%\" }", "1:1: states: the states must fall: soft 1%"),
            ("[class.db]\nshares = 5", "1:8: class.db: no guest can belong to it"),
            ("[class.default]\nshares = 0", "2:10: class.default.shares: at least 1"),
            (
                "[class.default]\nreservation = \"2G\"\nlimit = \"1G\"",
                "2:15: class.default.reservation: 2 GiB is above the limit",
            ),
            ("budget = \"0\"", "1:10: budget: no guest fits into 0"),
            ("budget = \"50%\"", "1:10: budget: write \"host\" or a size"),
            ("reserve = \"100%\"", "1:11: reserve: it leaves nothing"),
            ("budget = \"1G\"\nreserve = \"1G\"", "2:11: reserve: it leaves nothing"),
            ("budget = \"12\"", "1:10: budget: no guest fits into 12 B"),
            ("discover = []", "1:12: discover: no guest would"),
            (
                "discover = [\"a\", \"\"]",
                "1:18: discover: no guest has an empty name: write a name, or \"*\"",
            ),
            ("[class.a]\nmatch = [\"\"]", "2:10: class.a.match: no guest has an empty name"),
            (
                "[class.db]\nmatch = [\"db-[0-9]\"]",
                "2:10: class.db.match: \"db-[0-9]\": brackets are no pattern: write ? for any one character, * for",
            ),
            (
                "[[guest]]\nname = \"\"\nqmp = \"/a\"",
                "2:8: guest.name: a guest without a name cannot be shown: write a",
            ),
            ("[class.default]\nlimit = \"0\"", "2:9: class.default.limit: 0 is too little"),
            (
                "budget = \"1G\"\n[class.default]\nreservation = \"2G\"",
                "3:15: class.default.reservation: 2 GiB is above the budget 1 GiB",
            ),
            ("[class.default]\nmatch = [\"a\"]", "2:9: class.default.match: the class takes all guests"),
            ("journal = { max = \"1M\" }", "1:19: journal.max: 1 MiB is too little: with less than 8 MiB"),
        ]);
    }
}

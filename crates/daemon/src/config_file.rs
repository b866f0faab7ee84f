//! The configuration file: TOML, every key optional.
//!
//! Nothing is guessed: an unknown key is refused together with the nearest known one, a value that is no size or share is
//! refused with what it should look like, each with file, line and column.

mod mistake;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use indexmap::IndexMap;
use memtide_model::{
    Amount, Budget, Bytes, Class, Commitment, Config, Limit, Mode, OnExit, Share, StateLines,
};
use serde::{Deserialize, Deserializer};

use self::mistake::{Mistake, explain, one_line, position};

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
    /// The configuration with these overrides.
    #[must_use]
    pub fn apply(self, mut config: Config) -> Config {
        config.mode = self.mode.unwrap_or(config.mode);
        config.budget = self.budget.unwrap_or(config.budget);
        config
    }
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
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
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
        match fs::read_to_string(path) {
            Ok(text) => Self::parse(path, &text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && !named => Ok(Self::default()),
            Err(source) => Err(ConfigError::Read { path: path.to_owned(), source }),
        }
    }

    /// The settings in `text`; `path` is named in errors.
    ///
    /// # Errors
    /// Where the text is not understood.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let parse_error = |(line, column, message): (usize, usize, String)| ConfigError::Parse {
            path: path.to_owned(),
            line,
            column,
            message: one_line(&message),
        };
        let file: File = toml::from_str(text).map_err(|error| {
            let (line, column) = position(text, error.span().map_or(0, |span| span.start));
            parse_error((line, column, explain(error.message())))
        })?;
        file.settings().map_err(|mistake| parse_error(mistake.explain(text)))
    }
}

/// A value that is written as text.
struct Text<T>(T);

impl<'de, T> Deserialize<'de> for Text<T>
where
    T: FromStr,
    T::Err: std::fmt::Display,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map(Self).map_err(serde::de::Error::custom)
    }
}

/// A size, a share, or a word for neither.
enum Word {
    Named(String),
    Size(Bytes),
    Share(Share),
}

impl FromStr for Word {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.ends_with('%') {
            return text
                .parse()
                .map(Self::Share)
                .map_err(|error: memtide_model::ParseShareError| error.to_string());
        }
        if text.starts_with(|c: char| c.is_ascii_digit()) {
            return text
                .parse()
                .map(Self::Size)
                .map_err(|error: memtide_model::ParseBytesError| error.to_string());
        }
        Ok(Self::Named(text.to_owned()))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    mode: Option<Mode>,
    commitment: Option<Commitment>,
    budget: Option<Text<Budget>>,
    reserve: Option<Text<Word>>,
    self_deflations: Option<u32>,
    on_exit: Option<OnExit>,
    discover: Option<Vec<String>>,
    socket: Option<PathBuf>,
    journal: Option<FileJournal>,
    confine: Option<bool>,
    states: Option<FileStates>,
    #[serde(default)]
    class: IndexMap<String, FileClass>,
    #[serde(default)]
    guest: Vec<GuestSettings>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileJournal {
    dir: Option<PathBuf>,
    max: Option<Text<Bytes>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileStates {
    soft: Option<Text<Share>>,
    hard: Option<Text<Share>>,
    low: Option<Text<Share>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileClass {
    #[serde(default, rename = "match")]
    patterns: Vec<String>,
    shares: Option<u32>,
    reservation: Option<Text<Bytes>>,
    limit: Option<Text<Word>>,
    idle_tax: Option<Text<Share>>,
    squeeze: Option<bool>,
    manage: Option<bool>,
}

impl File {
    fn settings(self) -> Result<Settings, Mistake> {
        let mut settings = Settings::default();
        let config = &mut settings.config;
        config.mode = self.mode.unwrap_or(config.mode);
        config.commitment = self.commitment.unwrap_or(config.commitment);
        config.self_deflations = self.self_deflations.unwrap_or(config.self_deflations);
        config.on_exit = self.on_exit.unwrap_or(config.on_exit);
        config.budget = self.budget.map_or(config.budget, |Text(budget)| budget);
        if let Some(Text(reserve)) = self.reserve {
            config.reserve = match reserve {
                Word::Size(size) => Amount::Bytes(size),
                Word::Share(share) => Amount::Share(share),
                Word::Named(_) => {
                    let mend = "write a share or a size, as in \"5%\" or \"2 GiB\"";
                    return Err(Mistake::at(&["reserve"], mend));
                }
            };
            let none_left = match (config.reserve, config.budget) {
                (Amount::Share(share), _) => share.basis_points() >= 10_000,
                (Amount::Bytes(bytes), Budget::Size(budget)) => bytes >= budget,
                (Amount::Bytes(_), Budget::Host) => false,
            };
            if none_left {
                return Err(Mistake::at(&["reserve"], "it leaves nothing for guests: write less"));
            }
        }
        if let Some(states) = self.states {
            let or = |text: Option<Text<Share>>, default| text.map_or(default, |Text(share)| share);
            let lines = config.states;
            config.states = StateLines::new(
                or(states.soft, lines.soft()),
                or(states.hard, lines.hard()),
                or(states.low, lines.low()),
            )
            .map_err(|error| Mistake::at(&["states"], error.to_string()))?;
        }
        for (name, class) in self.class {
            let class = class.class(&name)?;
            if let Budget::Size(budget) = config.budget
                && class.reservation > budget
            {
                let reservation = class.reservation;
                let wrong = format!("the reservation {reservation} is above the budget {budget}");
                return Err(Mistake::at(&["class", &name, "reservation"], wrong));
            }
            config.classes.insert(name.into(), class);
        }
        if let Some(journal) = self.journal {
            settings.journal.dir = journal.dir.unwrap_or(settings.journal.dir);
            settings.journal.max = journal.max.map_or(settings.journal.max, |Text(max)| max);
            if settings.journal.max < LEAST_JOURNAL {
                let wrong = format!("at least {LEAST_JOURNAL}, or little more than one start is kept");
                return Err(Mistake::at(&["journal", "max"], wrong));
            }
        }
        settings.socket = self.socket.unwrap_or(settings.socket);
        settings.confine = self.confine.unwrap_or(settings.confine);
        settings.discover = self.discover.unwrap_or(settings.discover);
        if settings.discover.is_empty() {
            let wrong = "no guest would be looked at; write names, as in [\"web-*\"]";
            return Err(Mistake::at(&["discover"], wrong));
        }
        settings.guests = guests(self.guest)?;
        Ok(settings)
    }
}

/// The held monitors, each a guest of its own.
fn guests(guests: Vec<GuestSettings>) -> Result<Vec<GuestSettings>, Mistake> {
    let (mut names, mut sockets) = (BTreeSet::new(), BTreeSet::new());
    for (number, GuestSettings { name, qmp }) in guests.iter().enumerate() {
        let wrong =
            |what: String| Mistake::at(&["guest", &number.to_string()], format!("\"{name}\": {what}"));
        if !qmp.is_absolute() {
            return Err(wrong(format!("write the whole path of its socket, not {}", qmp.display())));
        }
        if !names.insert(name) || !sockets.insert(qmp) {
            return Err(wrong(format!("{}: named twice", qmp.display())));
        }
    }
    Ok(guests)
}

impl FileClass {
    fn class(self, name: &str) -> Result<Class, Mistake> {
        let wrong = |key: &str, what: String| Mistake::at(&["class", name, key], what);
        let default = Class::default();
        let limit = match self.limit {
            None => default.limit,
            Some(Text(Word::Size(size))) => Limit::At(size),
            Some(Text(Word::Named(word))) if word == "max" => Limit::Max,
            Some(_) => return Err(wrong("limit", "write \"max\" or a size, as in \"2 GiB\"".to_owned())),
        };
        let reservation = self.reservation.map_or(default.reservation, |Text(size)| size);
        if let Limit::At(limit) = limit
            && reservation > limit
        {
            return Err(wrong("reservation", format!("{reservation} is above the limit {limit}")));
        }
        if let Limit::At(limit) = limit
            && limit < Config::LEAST_TARGET
        {
            let least = Config::LEAST_TARGET;
            return Err(wrong("limit", format!("at least {least}: no guest lives on less")));
        }
        let shares = self.shares.unwrap_or(default.shares);
        if shares == 0 {
            return Err(wrong("shares", "at least 1; use manage = false to leave guests alone".to_owned()));
        }
        if self.patterns.is_empty() && name != Config::DEFAULT_CLASS {
            let what = "no guest can belong to it: name some with match = [\"web-*\"]";
            return Err(Mistake::at(&["class", name], what));
        }
        if !self.patterns.is_empty() && name == Config::DEFAULT_CLASS {
            return Err(wrong(
                "match",
                "the class takes all guests that match no other; leave this out".to_owned(),
            ));
        }
        Ok(Class {
            patterns: self.patterns,
            shares,
            reservation,
            limit,
            idle_tax: self.idle_tax.map_or(default.idle_tax, |Text(share)| share),
            squeeze: self.squeeze.unwrap_or(default.squeeze),
            manage: self.manage.unwrap_or(default.manage),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Settings, String> {
        Settings::parse(Path::new("m.toml"), text).map_err(|error| error.to_string())
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
        for table in ["", "[class.default]\n"] {
            // The refusal of an unknown key lists those that there are.
            let error = parse(&format!("{table}no-such-key = 1")).unwrap_err();
            let known = error.split_once("(known: ").unwrap().1.trim_end_matches(')');
            for key in known.split(", ") {
                let in_page = [format!(".It Cm {key}"), format!("[{key}"), format!("[[{key}]]")];
                assert!(in_page.iter().any(|text| PAGE.contains(text)), "{key} is not in the page");
                let in_file = [format!("#{key} = "), format!("#     {key} = "), format!("[{key}")];
                let is_in_file = INSTALLED.lines().any(|line| in_file.iter().any(|text| line.contains(text)));
                assert!(is_in_file, "{key} is not in the installed file");
            }
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
    fn the_command_line_stays_over_the_file_and_fixed_keys_are_named() {
        let old = parse("budget = \"1 GiB\"").unwrap();
        let new = parse("budget = \"2 GiB\"\ndiscover = [\"a\"]").unwrap();
        let overrides =
            Overrides { mode: Some(Mode::Manage), budget: Some(Budget::Size(Bytes::from_mib(3))) };
        let config = overrides.apply(new.config.clone());
        assert_eq!((config.mode, config.budget), (Mode::Manage, Budget::Size(Bytes::from_mib(3))));
        assert_eq!(old.fixed_keys_changed(&new), ["discover"]);
    }

    #[test]
    fn a_message_is_one_short_line_whatever_it_quotes() {
        let guest = "[[guest]]\nname = \"a\\u001b[31m\\n\"\nqmp = \"b\"";
        let error = parse(guest).unwrap_err();
        assert_eq!(error, "m.toml:1:1: guest.0: \"a [31m \": write the whole path of its socket, not b");
        let error = parse(&format!("mode = \"{}\"", "x".repeat(8192))).unwrap_err();
        assert!(error.starts_with("m.toml:1:8: unknown value `xxx") && error.ends_with("x…"), "{error}");
        assert!(error.chars().count() < 600, "{error}");
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place_and_its_mend() {
        for (text, message) in [
            ("mdoe = \"manage\"", "m.toml:1:1: unknown key `mdoe`: did you mean `mode`?"),
            (
                "\n[class.db]\nmatch = [\"a\"]\nshare = 5",
                "m.toml:4:1: unknown key `share`: did you mean `shares`?",
            ),
            ("journal = { max = \"5 MB\" }", "m.toml:1:19: `MB` is not a unit of memory"), // tidy-allow: MB
            ("reserve = \"much\"", "m.toml:1:1: reserve: write a share or a size"),
            ("states = { soft = \"1%\" }", "m.toml:1:1: states: the states must fall: soft 1%"),
            ("[class.db]\nshares = 5", "m.toml:1:8: class.db: no guest can belong to it"),
            ("[class.default]\nshares = 0", "m.toml:2:1: class.default.shares: at least 1"),
            (
                "[class.default]\nreservation = \"2G\"\nlimit = \"1G\"",
                "m.toml:2:1: class.default.reservation: 2 GiB is above the limit",
            ),
            ("budget = \"0\"", "m.toml:1:10: no guest fits into 0"),
            ("budget = \"50%\"", "m.toml:1:10: write \"host\" or a size"),
            ("reserve = \"100%\"", "m.toml:1:1: reserve: it leaves nothing"),
            ("budget = \"1G\"\nreserve = \"1G\"", "m.toml:2:1: reserve: it leaves nothing"),
            ("budget = \"12\"", "m.toml:1:10: no guest fits into 12 B"),
            ("discover = []", "m.toml:1:1: discover: no guest would"),
            ("[class.default]\nlimit = \"0\"", "m.toml:2:1: class.default.limit: at least 32 MiB"),
            (
                "budget = \"1G\"\n[class.default]\nreservation = \"2G\"",
                "m.toml:3:1: class.default.reservation: the reservation 2 GiB is above the budget 1 GiB",
            ),
            (
                "[class.default]\nmatch = [\"a\"]",
                "m.toml:2:1: class.default.match: the class takes all guests",
            ),
            ("journal = { max = \"1M\" }", "m.toml:1:13: journal.max: at least 8 MiB"),
            (
                "[[guest]]\nname = \"a\"\nqmp = \"a.qmp\"",
                "m.toml:1:1: guest.0: \"a\": write the whole path of its socket, not a.qmp",
            ),
            (
                "[[guest]]\nname = \"a\"\nqmp = \"/a\"\n[[guest]]\nname = \"b\"\nqmp = \"/a\"",
                "m.toml:4:1: guest.1: \"b\": /a: named twice",
            ),
            ("mode = \"mangae\"", "m.toml:1:8: unknown value `mangae`: did you mean `manage`?"),
            ("mode = ", "m.toml:1:8: "),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with(message), "{text}: {error}");
        }
    }
}

//! What the operator asked for, checked and complete. The daemon reads it from TOML; the defaults are
//! those of a host without a configuration file.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use indexmap::IndexMap;
use serde::{Deserialize, Deserializer, Serialize};

use crate::{Bytes, ParseBytesError, Share};

/// Whether memtide may act.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Show the ledger and what could be saved; change nothing.
    #[default]
    Observe,
    /// Carry out the plans.
    Manage,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Observe => "observe",
            Self::Manage => "manage",
        })
    }
}

/// What the ledger promises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Commitment {
    /// All that the guests can come to cost fits into the capacity.
    #[default]
    Strict,
    /// What the guests can come to cost may exceed the capacity, as long as their joint surge fits into free memory.
    Elastic,
}

/// What the guests keep when the daemon ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnExit {
    /// The targets stay as they are.
    #[default]
    Keep,
    /// Every managed guest gets its full size back.
    Release,
}

/// A size, or a share of the capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Amount {
    /// This many bytes.
    Bytes(Bytes),
    /// This share of the capacity.
    Share(Share),
}

impl Amount {
    /// How much it is where there is `capacity` in all.
    #[must_use]
    pub fn of(self, capacity: Bytes) -> Bytes {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Share(share) => share.of(capacity),
        }
    }
}

/// What the guests and their VMMs may cost together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Budget {
    /// The host's memory, or that of the memory cgroup the guests live in where it has a limit.
    #[default]
    Host,
    /// This many bytes.
    Size(Bytes),
}

/// Why a text is no [`Budget`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseBudgetError {
    /// Neither the word nor a size.
    #[error("write \"host\" or a size, as in \"48 GiB\"")]
    Unknown,
    /// Less than any guest needs.
    #[error("no guest fits into {0}: write a size, as in \"48 GiB\"")]
    TooSmall(Bytes),
    /// A mistake in the size.
    #[error(transparent)]
    Size(#[from] ParseBytesError),
}

impl FromStr for Budget {
    type Err = ParseBudgetError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "host" => Ok(Self::Host),
            _ if !text.starts_with(|c: char| c.is_ascii_digit()) || text.ends_with('%') => {
                Err(ParseBudgetError::Unknown)
            }
            _ => match text.parse()? {
                size if size < Config::LEAST_TARGET => Err(ParseBudgetError::TooSmall(size)),
                size => Ok(Self::Size(size)),
            },
        }
    }
}

/// The most memory that a guest may get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// All that it was started with.
    #[default]
    Max,
    /// This much.
    At(Bytes),
}

/// The free shares of the capacity below which the host states begin; proven to fall in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "UncheckedLines")]
pub struct StateLines {
    soft: Share,
    hard: Share,
    low: Share,
}

/// Lines as a journal has them.
#[derive(Deserialize)]
struct UncheckedLines {
    soft: Share,
    hard: Share,
    low: Share,
}

impl TryFrom<UncheckedLines> for StateLines {
    type Error = StateLinesError;

    fn try_from(lines: UncheckedLines) -> Result<Self, Self::Error> {
        Self::new(lines.soft, lines.hard, lines.low)
    }
}

/// Why three lines are no [`StateLines`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the states are out of order: soft {soft} ≥ hard {hard} ≥ low {low} does not hold")]
pub struct StateLinesError {
    soft: Share,
    hard: Share,
    low: Share,
}

impl StateLines {
    /// The lines `soft` ≥ `hard` ≥ `low`.
    ///
    /// # Errors
    /// Where they do not fall in this order.
    pub fn new(soft: Share, hard: Share, low: Share) -> Result<Self, StateLinesError> {
        if soft >= hard && hard >= low {
            Ok(Self { soft, hard, low })
        } else {
            Err(StateLinesError { soft, hard, low })
        }
    }

    /// Below this free share: ask the guests.
    #[must_use]
    pub const fn soft(self) -> Share {
        self.soft
    }

    /// Below this free share: take from the guests.
    #[must_use]
    pub const fn hard(self) -> Share {
        self.hard
    }

    /// Below this free share: emergency.
    #[must_use]
    pub const fn low(self) -> Share {
        self.low
    }
}

/// 6 %, 4 %, 2 %: ESX's free-memory states without its highest one (peers.md §5).
impl Default for StateLines {
    fn default() -> Self {
        let share = |percent| Share::percent(percent).expect("a constant below 100");
        Self { soft: share(6), hard: share(4), low: share(2) }
    }
}

/// How a kind of guests is treated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Class {
    /// Patterns of guest names: `*` stands for any text, `?` for one character. A guest belongs to the first class (in
    /// the order of the configuration) with a matching pattern, else to `default`.
    pub patterns: Vec<String>,
    /// The weight in a scarcity; at least 1.
    pub shares: u32,
    /// Guaranteed memory.
    pub reservation: Bytes,
    /// The most memory it may get.
    pub limit: Limit,
    /// How much dearer idle memory is than used memory: an idle page costs `1 / (1 − tax)` used ones; with
    /// a tax of all, nothing is given beyond a demand until all demands are met.
    pub idle_tax: Share,
    /// Whether its page cache may be squeezed until it squeals.
    pub squeeze: bool,
    /// False: seen and counted, never touched.
    pub manage: bool,
}

impl Default for Class {
    fn default() -> Self {
        Self {
            patterns: Vec::new(),
            shares: 1000,
            reservation: Bytes::ZERO,
            limit: Limit::Max,
            idle_tax: Share::percent(75).expect("a constant below 100"),
            squeeze: true,
            manage: true,
        }
    }
}

/// Everything that an operator can set about decisions. Sockets and paths belong to the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// Whether memtide may act.
    pub mode: Mode,
    /// What the ledger promises.
    pub commitment: Commitment,
    /// What the guests and their VMMs may cost together.
    pub budget: Budget,
    /// Kept free of guests; with [`Budget::Host`] at least [`Config::LEAST_HOST_RESERVE`].
    pub reserve: Amount,
    /// Strict: how many guests may deflate their own balloon at once.
    pub self_deflations: u32,
    /// When the host states begin.
    pub states: StateLines,
    /// What the guests keep when the daemon ends.
    pub on_exit: OnExit,
    /// Classes by name, in the order of the configuration; `default` is always there.
    #[serde(deserialize_with = "checked_classes")]
    pub classes: IndexMap<Arc<str>, Class>,
}

/// Classes as a journal has them, which somebody else may have written: what decisions rely on is checked.
fn checked_classes<'de, D>(deserializer: D) -> Result<IndexMap<Arc<str>, Class>, D::Error>
where
    D: Deserializer<'de>,
{
    use serde::de::Error;

    let classes = IndexMap::<Arc<str>, Class>::deserialize(deserializer)?;
    if !classes.contains_key(Config::DEFAULT_CLASS) {
        return Err(Error::custom("there is no class `default`"));
    }
    for (name, class) in &classes {
        if class.shares == 0 {
            return Err(Error::custom(format_args!("class.{name}: no shares")));
        }
        if let Limit::At(limit) = class.limit {
            Bounds::new(class.reservation, limit)
                .map_err(|error| Error::custom(format_args!("class.{name}: {error}")))?;
        }
    }
    Ok(classes)
}

impl Config {
    /// The name of the class of guests that match no other.
    pub const DEFAULT_CLASS: &'static str = "default";
    /// No guest is asked to keep less than this of the memory that it booted with: no kernel lives on less.
    pub const LEAST_TARGET: Bytes = Bytes::from_mib(32);
    /// The smallest reserve of a whole host.
    pub const LEAST_HOST_RESERVE: Bytes = Bytes::from_mib(256);

    /// The class of the guest `name`, with the class's own name.
    ///
    /// # Panics
    /// Where the class `default` was removed: that is a mistake of the caller's.
    #[must_use]
    pub fn class_of(&self, name: &str) -> (&Arc<str>, &Class) {
        self.classes
            .iter()
            .find(|(_, class)| class.patterns.iter().any(|pattern| name_matches(pattern, name)))
            .or_else(|| self.classes.get_key_value(Self::DEFAULT_CLASS))
            .expect("the class `default` is always there")
    }

    /// What is kept free of guests out of `capacity`.
    #[must_use]
    pub fn reserve_of(&self, capacity: Bytes) -> Bytes {
        let asked = self.reserve.of(capacity);
        match self.budget {
            Budget::Host => asked.max(Self::LEAST_HOST_RESERVE),
            Budget::Size(_) => asked,
        }
        .min(capacity)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            mode: Mode::Observe,
            commitment: Commitment::Strict,
            budget: Budget::Host,
            reserve: Amount::Share(Share::percent(5).expect("a constant below 100")),
            self_deflations: 1,
            states: StateLines::default(),
            on_exit: OnExit::Keep,
            classes: IndexMap::from([(Self::DEFAULT_CLASS.into(), Class::default())]),
        }
    }
}

/// Whether `pattern` matches the whole of `name`: `*` stands for any text, `?` for one byte.
#[must_use]
pub fn name_matches(pattern: &str, name: &str) -> bool {
    matches(pattern.as_bytes(), name.as_bytes())
}

/// Linear in the name for each star, without recursion.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut last_star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                last_star = Some((p, n));
                p += 1;
            }
            Some(&c) if c == b'?' || c == name[n] => {
                p += 1;
                n += 1;
            }
            _ => match last_star {
                Some((star, eaten)) => {
                    last_star = Some((star, eaten + 1));
                    p = star + 1;
                    n = eaten + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&c| c == b'*')
}

/// The smallest and the largest memory that a guest may be given, proven to be in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    reservation: Bytes,
    limit: Bytes,
}

/// Why a reservation and a limit are no [`Bounds`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the reservation {reservation} is above the limit {limit}")]
pub struct BoundsError {
    reservation: Bytes,
    limit: Bytes,
}

impl Bounds {
    /// Between `reservation` and `limit`.
    ///
    /// # Errors
    /// Where the reservation is above the limit.
    pub fn new(reservation: Bytes, limit: Bytes) -> Result<Self, BoundsError> {
        if reservation <= limit {
            Ok(Self { reservation, limit })
        } else {
            Err(BoundsError { reservation, limit })
        }
    }

    /// The bounds of a class for a guest of `full` bytes: both are cut at the guest's full size, and a limit below the
    /// reservation is raised to it (the configuration refuses such a class where it can see it).
    #[must_use]
    pub fn of(class: &Class, full: Bytes) -> Self {
        let reservation = class.reservation.min(full);
        let limit = match class.limit {
            Limit::Max => full,
            Limit::At(bytes) => bytes.min(full),
        };
        Self { reservation, limit: limit.max(reservation) }
    }

    /// Guaranteed memory.
    #[must_use]
    pub const fn reservation(self) -> Bytes {
        self.reservation
    }

    /// The most memory.
    #[must_use]
    pub const fn limit(self) -> Bytes {
        self.limit
    }

    /// The nearest quantity within.
    #[must_use]
    pub fn clamp(self, bytes: Bytes) -> Bytes {
        bytes.clamp(self.reservation, self.limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_in_a_journal_is_checked_like_one_in_a_file() {
        let text = serde_json::to_string(&Config::default()).unwrap();
        assert_eq!(serde_json::from_str::<Config>(&text).unwrap(), Config::default());
        for (right, wrong, why) in [
            ("\"default\":", "\"other\":", "no class `default`"),
            ("\"shares\":1000", "\"shares\":0", "class.default: no shares"),
            ("\"limit\":\"max\"", "\"limit\":{\"at\":5}", "the reservation 7 B is above the limit 5 B"),
            ("\"soft\":600", "\"soft\":100", "the states are out of order"),
        ] {
            let text = text.replace("\"reservation\":0", "\"reservation\":7").replace(right, wrong);
            let error = serde_json::from_str::<Config>(&text).unwrap_err().to_string();
            assert!(error.contains(why), "{error}: {text}");
        }
    }

    #[test]
    fn a_guest_belongs_to_the_first_class_that_matches() {
        let mut config = Config::default();
        let class = |pattern: &str| Class { patterns: vec![pattern.to_owned()], ..Class::default() };
        config.classes.insert("database".into(), class("db-*"));
        config.classes.insert("web".into(), class("w?b*1"));
        config.classes.insert("any".into(), class("*-1"));
        for (guest, expected) in [
            ("db-1", "database"),
            ("x-1", "any"),
            ("db-", "database"),
            ("db", "default"),
            ("web-a-1", "web"),
            ("web-1-2", "default"),
            ("", "default"),
        ] {
            assert_eq!(config.class_of(guest).0.as_ref(), expected, "{guest}");
        }
    }

    #[test]
    fn many_stars_do_not_make_matching_slow() {
        let pattern = "*a".repeat(40);
        assert!(!matches(pattern.as_bytes(), "a".repeat(30).as_bytes()));
    }

    #[test]
    fn bounds_are_in_order_and_within_the_guest() {
        assert!(Bounds::new(Bytes::from_mib(2), Bytes::from_mib(1)).is_err());
        let class = Class {
            reservation: Bytes::from_mib(512),
            limit: Limit::At(Bytes::from_mib(256)),
            ..Class::default()
        };
        let bounds = Bounds::of(&class, Bytes::from_mib(1024));
        assert_eq!((bounds.reservation(), bounds.limit()), (Bytes::from_mib(512), Bytes::from_mib(512)));
        assert_eq!(Bounds::of(&class, Bytes::from_mib(128)).limit(), Bytes::from_mib(128));
    }

    #[test]
    fn a_whole_host_keeps_at_least_256_mib() {
        let config = Config::default();
        assert_eq!(config.reserve_of(Bytes::from_mib(2048)), Bytes::from_mib(256));
        let budget = Config { budget: Budget::Size(Bytes::from_mib(2000)), ..Config::default() };
        assert_eq!(budget.reserve_of(Bytes::from_mib(2000)), Bytes::from_mib(100));
    }
}

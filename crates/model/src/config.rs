//! The operator's settings, checked and complete. The daemon reads them from TOML. The defaults are those of a host
//! without a configuration file.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use indexmap::IndexMap;
use serde::{Deserialize, Deserializer, Serialize};

use crate::{
    Bytes, GuestSeen, KsmConfig, KsmMode, ParseBytesError, SelfDeflationWithin, Share, Span, Terms, Users,
};

/// Whether memtide may act.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Show the ledger and the possible savings; change nothing.
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

impl Mode {
    /// What the daemon does in it, for people.
    #[must_use]
    pub const fn in_words(self) -> &'static str {
        match self {
            Self::Observe => "observing (changes nothing)",
            Self::Manage => "managing",
        }
    }
}

/// The promise of the ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Commitment {
    /// The worst-case cost of all guests fits into the capacity.
    #[default]
    Strict,
    /// The worst-case cost of all guests may exceed the capacity if the growth that they can show together fits into free memory.
    Elastic,
}

/// As in the configuration.
impl fmt::Display for Commitment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Strict => "strict",
            Self::Elastic => "elastic",
        })
    }
}

/// The memory that guests keep after the daemon ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnExit {
    /// The targets stay as they are.
    #[default]
    Keep,
    /// Every managed guest gets its limit back.
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
    /// The amount, for a host of `capacity` bytes.
    #[must_use]
    pub fn of(self, capacity: Bytes) -> Bytes {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Share(share) => share.of(capacity),
        }
    }
}

/// The memory that all guests and their VMMs together may cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Budget {
    /// The host's memory, or the limit of the memory cgroup that contains the guests, if it has one.
    #[default]
    Host,
    /// This many bytes.
    Size(Bytes),
}

/// Why a text is not a [`Budget`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseBudgetError {
    /// Neither `host` nor a size.
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
            _ => match Bytes::if_size(text).ok_or(ParseBudgetError::Unknown)?? {
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
    /// The guest's full size.
    #[default]
    Max,
    /// This much.
    At(Bytes),
}

/// Free shares of the capacity: a host state begins below its line. The lines are proven to be in falling order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "UncheckedLines")]
pub struct StateLines {
    soft: Share,
    hard: Share,
    low: Share,
}

/// Unchecked lines from a journal.
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

/// Why three lines are not [`StateLines`].
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
    /// If the lines are not in this order.
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

/// 6 %, 4 %, 2 %: ESX's free-memory states without the highest one (peers.md §5).
impl Default for StateLines {
    fn default() -> Self {
        let share = |percent| Share::percent(percent).expect("a constant below 100");
        Self { soft: share(6), hard: share(4), low: share(2) }
    }
}

/// How memtide treats a class of guests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Class {
    /// Patterns of guest names: `*` matches any text, `?` matches one character. A guest belongs to the first class (in
    /// the order of the configuration) with a matching pattern, otherwise to `default`. A class with users and without patterns takes all
    /// names.
    pub patterns: Vec<String>,
    /// It takes only guests of these users; `None`: of all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub users: Option<Users>,
    /// The weight when memory is scarce; at least 1.
    pub shares: u32,
    /// Guaranteed memory.
    pub reservation: Bytes,
    /// The most memory that a guest may get.
    pub limit: Limit,
    /// Whether memtide may squeeze the guest's page cache until it squeals.
    pub squeeze: bool,
    /// Page cache that is never taken while the guest's kernel shows it.
    #[serde(default = "no_cache", skip_serializing_if = "is_no_cache")]
    pub cache: Amount,
    /// The most unmapped page cache that the guest's agent keeps, as a part of the guest's memory; `None`: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_limit: Option<Share>,
    /// The part of the guest's full size that may lie in a compressed tier; `None`: it gets no tier. Only in an
    /// elastic commitment ([`Config::tier_of`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<Share>,
    /// Whether KSM may merge the guests' memory, with each other's and with everything else, while memtide governs KSM.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub share: bool,
    /// False: memtide sees and counts the guest, but never changes it.
    pub manage: bool,
}

const fn no_cache() -> Amount {
    Amount::Bytes(Bytes::ZERO)
}

fn is_no_cache(cache: &Amount) -> bool {
    *cache == no_cache()
}

impl Class {
    /// The same class, for a guest with these terms of its own.
    fn with(&self, terms: &Terms) -> Self {
        Self {
            shares: terms.shares.unwrap_or(self.shares),
            reservation: terms.reservation.unwrap_or(self.reservation),
            limit: terms.limit.map_or(self.limit, Limit::At),
            ..self.clone()
        }
    }
}

impl Default for Class {
    fn default() -> Self {
        Self {
            patterns: Vec::new(),
            users: None,
            shares: 1000,
            reservation: Bytes::ZERO,
            limit: Limit::Max,
            squeeze: true,
            cache: no_cache(),
            cache_limit: None,
            tier: None,
            share: false,
            manage: true,
        }
    }
}

impl Class {
    /// Whether the guest `name` of this user belongs to it, unless an earlier class takes the guest.
    fn takes(&self, name: &str, user: Option<u32>) -> bool {
        let is_named = self.patterns.iter().any(|pattern| name_matches(pattern, name));
        match &self.users {
            Some(users) => (is_named || self.patterns.is_empty()) && users.have(user),
            None => is_named,
        }
    }
}

/// All settings of an operator that affect decisions. Sockets and paths belong to the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// Whether memtide may act.
    pub mode: Mode,
    /// The promise of the ledger.
    pub commitment: Commitment,
    /// The memory that all guests and their VMMs together may cost.
    pub budget: Budget,
    /// Memory kept free of guests. With [`Budget::Host`], at least [`Config::LEAST_HOST_RESERVE`].
    pub reserve: Amount,
    /// Strict: the number of guests that may deflate their own balloon at once.
    pub self_deflations: u32,
    /// Strict: how much of each of these deflations counts. Older journals have none: all of it counted.
    #[serde(default = "whole")]
    pub self_deflation_within: SelfDeflationWithin,
    /// Elastic: the share of the guests that nobody has seen grow and that may grow together.
    #[serde(default = "default_growth_prior")]
    pub growth_prior: Share,
    /// The time between two rounds of squeezes of a guest while nothing is wanted; `None`: nobody is squeezed then.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub squeeze_every: Option<Span>,
    /// KSM, the kernel's merging of equal pages.
    #[serde(skip_serializing_if = "is_default", default)]
    pub ksm: KsmConfig,
    /// The lines below which the host states begin.
    pub states: StateLines,
    /// The memory that guests keep after the daemon ends.
    pub on_exit: OnExit,
    /// The users whose guests are guests. An observation of the host leaves the others out.
    #[serde(skip_serializing_if = "is_default_users", default)]
    pub users: Users,
    /// Classes by name, in the order of the configuration. `default` is always present.
    #[serde(deserialize_with = "checked_classes")]
    pub classes: IndexMap<Arc<str>, Class>,
}

/// A third: docs/decisions/0029.
fn default_growth_prior() -> Share {
    Share::percent(33).expect("a constant below 100")
}

const fn whole() -> SelfDeflationWithin {
    SelfDeflationWithin::Whole
}

/// Journals leave out what nobody has changed.
fn is_default(ksm: &KsmConfig) -> bool {
    *ksm == KsmConfig::default()
}

fn is_default_users(users: &Users) -> bool {
    *users == Users::default()
}

/// Reads classes from a journal. Anybody may have written it, so everything that decisions rely on is checked.
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
    /// The name of the class for guests that match no other class.
    pub const DEFAULT_CLASS: &'static str = "default";
    /// Every guest keeps at least this much of the memory that it booted with. No kernel runs with less.
    pub const LEAST_TARGET: Bytes = Bytes::from_mib(32);
    /// The smallest reserve of a whole host.
    pub const LEAST_HOST_RESERVE: Bytes = Bytes::from_mib(256);

    /// The class of the guest `name` of this user, with the name of the class.
    ///
    /// # Panics
    /// If the class `default` was removed; that is a mistake of the caller.
    #[must_use]
    pub fn class_of(&self, name: &str, user: Option<u32>) -> (&Arc<str>, &Class) {
        self.classes
            .iter()
            .find(|(_, class)| class.takes(name, user))
            .or_else(|| self.classes.get_key_value(Self::DEFAULT_CLASS))
            .expect("the class `default` is always there")
    }

    /// The class of a guest as it was seen: what its own description asks for comes before the configuration. A class that is not configured counts as not
    /// named.
    ///
    /// # Panics
    /// As [`Config::class_of`].
    #[must_use]
    pub fn class_of_seen(&self, guest: &GuestSeen) -> (&Arc<str>, Cow<'_, Class>) {
        self.class_by_terms(guest.id.name(), guest.user, guest.told.terms.as_ref())
    }

    /// The class of a guest of `user` with this name and these terms.
    ///
    /// # Panics
    /// As [`Config::class_of`].
    #[must_use]
    pub fn class_by_terms(
        &self,
        name: &str,
        user: Option<u32>,
        terms: Option<&Terms>,
    ) -> (&Arc<str>, Cow<'_, Class>) {
        let named = terms.and_then(|terms| self.classes.get_key_value(terms.class.as_deref()?));
        let (name, class) = named.unwrap_or_else(|| self.class_of(name, user));
        match terms {
            Some(terms) => (name, Cow::Owned(class.with(terms))),
            None => (name, Cow::Borrowed(class)),
        }
    }

    /// Whether a class of guests may have tiers.
    #[must_use]
    pub fn has_tiers(&self) -> bool {
        self.classes.values().any(|class| self.tier_of(class).is_some())
    }

    /// The part of a guest's full size that may lie in a compressed tier. Strict has none: it counts a tier with what it takes if nothing in it compresses, and
    /// that is as much as the guest gives.
    #[must_use]
    pub fn tier_of(&self, class: &Class) -> Option<Share> {
        class.tier.filter(|_| self.commitment == Commitment::Elastic)
    }

    /// Whether the operator lets memtide govern KSM.
    #[must_use]
    pub fn governs_ksm(&self) -> bool {
        self.mode == Mode::Manage && self.ksm.mode == KsmMode::Govern
    }

    /// The memory kept free of guests, for a host of `capacity` bytes.
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
            self_deflation_within: SelfDeflationWithin::default(),
            growth_prior: default_growth_prior(),
            squeeze_every: None,
            ksm: KsmConfig::default(),
            states: StateLines::default(),
            on_exit: OnExit::Keep,
            users: Users::default(),
            classes: IndexMap::from([(Self::DEFAULT_CLASS.into(), Class::default())]),
        }
    }
}

/// Whether `pattern` matches all of `name`: `*` matches any text, `?` matches one character.
#[must_use]
pub fn name_matches(pattern: &str, name: &str) -> bool {
    matches(pattern.as_bytes(), name.as_bytes())
}

/// Whether a byte of UTF-8 is the first of its character.
const fn starts_a_character(byte: u8) -> bool {
    byte & 0xc0 != 0x80
}

/// Needs time linear in the name for each star, and no recursion.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut last_star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                last_star = Some((p, n));
                p += 1;
            }
            Some(b'?') if starts_a_character(name[n]) => {
                p += 1;
                n += 1;
                while n < name.len() && !starts_a_character(name[n]) {
                    n += 1;
                }
            }
            Some(&c) if c == name[n] => {
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

/// The least and the most memory that a guest may get, proven to be in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    reservation: Bytes,
    limit: Bytes,
}

/// Why a reservation and a limit are not [`Bounds`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the reservation {reservation} is above the limit {limit}")]
pub struct BoundsError {
    reservation: Bytes,
    limit: Bytes,
}

impl Bounds {
    /// Bounds from `reservation` to `limit`.
    ///
    /// # Errors
    /// If the reservation is above the limit.
    pub fn new(reservation: Bytes, limit: Bytes) -> Result<Self, BoundsError> {
        if reservation <= limit {
            Ok(Self { reservation, limit })
        } else {
            Err(BoundsError { reservation, limit })
        }
    }

    /// The bounds of a class for a guest of `full` bytes. Both are cut at the guest's full size. A limit below the reservation is
    /// raised to the reservation (the configuration refuses such a class if it can detect it).
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

    /// The nearest quantity within the bounds.
    #[must_use]
    pub fn clamp(self, bytes: Bytes) -> Bytes {
        bytes.clamp(self.reservation, self.limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_mark_stands_for_a_character_of_any_length() {
        assert!(name_matches("g?st", "gäst") && name_matches("?", "客") && name_matches("*?t", "öt"));
        assert!(!name_matches("g??st", "gäst") && !name_matches("??", "客"));
    }

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
            assert_eq!(config.class_of(guest, None).0.as_ref(), expected, "{guest}");
        }
    }

    #[test]
    fn a_class_with_users_takes_only_their_guests() {
        let mut config = Config::default();
        let of = |patterns: &[&str], range| Class {
            patterns: patterns.iter().map(|&pattern| pattern.to_owned()).collect(),
            users: Some(Users::new(Vec::new(), vec![range])),
            ..Class::default()
        };
        config.classes.insert("tenants".into(), of(&["web-*"], (100_000, 165_535)));
        config.classes.insert("alice".into(), of(&[], (1001, 1001)));
        for (guest, user, expected) in [
            ("web-1", Some(100_000), "tenants"),
            ("db-1", Some(100_000), "default"),
            ("web-1", Some(1001), "alice"),
            ("db-1", Some(1001), "alice"),
            ("web-1", Some(0), "default"),
            ("web-1", None, "default"),
        ] {
            assert_eq!(config.class_of(guest, user).0.as_ref(), expected, "{guest} of {user:?}");
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

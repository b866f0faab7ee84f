//! The meaning of each key of the configuration file, and the values that do not fit together.

use std::path::PathBuf;

use memtide_host::Accounts;
use memtide_model::{
    Amount, Budget, Bytes, Class, Commitment, Config, KsmConfig, KsmMode, Limit, Mode, OnExit,
    ParseShareError, Share, Span, StateLines, Users,
};
use toml::de::DeTable;

use crate::mistake::{Mistake, Quoted};
use crate::settings::{DEFAULT_JOURNAL, LEAST_JOURNAL};
use crate::table::{Entry, Kind, Table};
use crate::{DEFAULT_SOCKET, GuestSettings, JournalSettings, LibvirtSettings, Settings, users};

/// All keys above the first table, and the keys of a class.
pub fn keys() -> impl Iterator<Item = &'static str> {
    TOP.keys.iter().chain(CLASS.keys).copied()
}

/// The keys that decisions depend on, and the keys of a class.
pub fn policy_keys() -> impl Iterator<Item = &'static str> {
    POLICY_KEYS.iter().chain(CLASS_KEYS).copied()
}

/// The longest path of a socket in bytes: `sun_path` of unix(7), without the final NUL.
pub const LONGEST_SOCKET_PATH: usize = 107;

const TOP_KEYS: &[&str] = &[
    "mode",
    "commitment",
    "budget",
    "reserve",
    "self_deflations",
    "self_deflation_within",
    "growth_prior",
    "squeeze_every",
    "on_exit",
    "discover",
    "users",
    "socket",
    "journal",
    "confine",
    "ksm",
    "states",
    "class",
    "guest",
    "libvirt",
];
/// The keys among them that decisions depend on: a scenario of the simulator has them, too.
const POLICY_KEYS: &[&str] = &[
    "commitment",
    "reserve",
    "self_deflations",
    "self_deflation_within",
    "growth_prior",
    "squeeze_every",
    "ksm",
    "states",
    "class",
];
/// The least processor time of KSM, in hundredths of a percent: with less, no burst would ever begin.
const LEAST_KSM_CPU: u16 = 10;
/// Names for the processor time of KSM, as shares of one processor.
const KSM_CPU: [(&str, &str); 4] = [("quiet", "1%"), ("low", "5%"), ("medium", "20%"), ("full", "100%")];
/// The shortest time between two rounds of squeezes, and the longest.
const SHORTEST_SQUEEZE: Span = Span::from_secs(60);
const LONGEST_SQUEEZE: Span = Span::from_secs(366 * 86_400);
const CLASS_KEYS: &[&str] = &[
    "match",
    "users",
    "shares",
    "reservation",
    "limit",
    "squeeze",
    "cache",
    "cache_limit",
    "tier",
    "share",
    "manage",
];

const BELOW_A_CLASS: (&[&str], &str) = (CLASS_KEYS, "below a class, as [class.default]");
const ABOVE_TABLES: (&[&str], &str) = (TOP_KEYS, "above the first line that begins with \"[\"");

pub(crate) const TOP: Kind = Kind { keys: TOP_KEYS, elsewhere: &[BELOW_A_CLASS] };
const POLICY: Kind =
    Kind { keys: POLICY_KEYS, elsewhere: &[(CLASS_KEYS, "below a class, as [memtide.class.default]")] };
const SCENARIO_CLASS: Kind = Kind { keys: CLASS_KEYS, elsewhere: &[(POLICY_KEYS, "below [memtide]")] };
pub(crate) const CLASS: Kind = Kind { keys: CLASS_KEYS, elsewhere: &[ABOVE_TABLES] };
const GUEST: Kind = Kind { keys: &["name", "qmp"], elsewhere: &[ABOVE_TABLES, BELOW_A_CLASS] };
const LIBVIRT: Kind =
    Kind { keys: &["socket", "monitor_commands"], elsewhere: &[ABOVE_TABLES, BELOW_A_CLASS] };
const JOURNAL: Kind = Kind { keys: &["dir", "max"], elsewhere: &[ABOVE_TABLES, BELOW_A_CLASS] };
const KSM: Kind = Kind { keys: &["mode", "cpu", "worth"], elsewhere: &[ABOVE_TABLES, BELOW_A_CLASS] };
const STATES: Kind = Kind { keys: &["soft", "hard", "low"], elsewhere: &[ABOVE_TABLES, BELOW_A_CLASS] };

/// The settings in the tables of a file, on a host with these accounts.
pub(crate) fn settings(file: &DeTable<'_>, accounts: &Accounts) -> Result<Settings, Mistake> {
    let file = Table::top(file, TOP)?;
    let mut settings = Settings::default();
    let config = &mut settings.config;
    config.mode = file.read("mode", config.mode, |key| {
        key.one_of(&[("observe", Mode::Observe), ("manage", Mode::Manage)])
    })?;
    let budget = "\"host\" or a size in quotes, as in budget = \"48 GiB\"";
    config.budget = file.read("budget", config.budget, |key| key.parsed(budget))?;
    policy(&file, config, &Place::daemon(accounts))?;
    let ends = [("keep", OnExit::Keep), ("release", OnExit::Release)];
    config.on_exit = file.read("on_exit", config.on_exit, |key| key.one_of(&ends))?;
    config.users = file.read("users", users::system(accounts), |key| key.users(accounts))?;
    settings.journal = file.read("journal", settings.journal, journal)?;
    settings.socket = file.read("socket", settings.socket, socket)?;
    settings.confine = file.read("confine", settings.confine, Entry::switch)?;
    settings.discover = file.read("discover", settings.discover, |key| {
        let names = key.patterns("a list of names in quotes, as in discover = [\"web-*\"]")?;
        match names.is_empty() {
            true => Err(key.wrong("it matches no guest: write names, as in [\"web-*\"]")),
            false => Ok(names),
        }
    })?;
    settings.guests = file.read("guest", Vec::new(), guests)?;
    settings.libvirt = file.read("libvirt", Vec::new(), libvirt)?;
    Ok(settings)
}

/// Where the keys of the policy stand, for people.
struct Place<'a> {
    /// The users and groups of the host, if it is a real one.
    accounts: &'a Accounts,
    class: Kind,
    a_class: &'static str,
    /// The memory that guests share.
    memory: &'static str,
    /// Whether the commitment that is written there is the only one. A scenario is run with each.
    has_one_commitment: bool,
}

impl<'a> Place<'a> {
    const fn daemon(accounts: &'a Accounts) -> Self {
        Self { accounts, class: CLASS, a_class: A_CLASS, memory: "the budget", has_one_commitment: true }
    }

    const fn scenario(nobody: &'a Accounts) -> Self {
        let a_class = "[memtide.class.NAME] with one bracket on each side before the keys of each class";
        let memory = "the host's memory";
        Self { accounts: nobody, class: SCENARIO_CLASS, a_class, memory, has_one_commitment: false }
    }
}

/// Reads the table `entries`, called `name`, of a scenario into `config`. There are no accounts: of the words in `users`, only `system` and numbers have
/// a meaning.
pub(crate) fn policy_of(
    entries: &DeTable<'_>,
    name: &str,
    begins: usize,
    config: &mut Config,
) -> Result<(), Mistake> {
    policy(&Table::below(name, begins, entries, POLICY)?, config, &Place::scenario(&Accounts::default()))
}

/// Everything that decisions depend on.
fn policy(file: &Table<'_>, config: &mut Config, place: &Place<'_>) -> Result<(), Mistake> {
    let promises = [("strict", Commitment::Strict), ("elastic", Commitment::Elastic)];
    config.commitment = file.read("commitment", config.commitment, |key| key.one_of(&promises))?;
    config.reserve = file.read("reserve", config.reserve, |key| reserve(key, config.budget))?;
    config.self_deflations =
        file.read("self_deflations", config.self_deflations, |key| key.count("self_deflations = 1"))?;
    let within = "\"whole\" or a size in quotes, as in self_deflation_within = \"512 MiB\"";
    config.self_deflation_within =
        file.read("self_deflation_within", config.self_deflation_within, |key| key.parsed(within))?;
    let prior = "a share in quotes, as in growth_prior = \"33%\"";
    config.growth_prior = file.read("growth_prior", config.growth_prior, |key| key.parsed(prior))?;
    config.squeeze_every = file.read("squeeze_every", config.squeeze_every, squeeze_every)?;
    config.ksm = file.read("ksm", config.ksm, |key| ksm(key, config.ksm))?;
    config.states = file.read("states", config.states, |key| states(key, config.states))?;
    if let Some(classes) = file.get("class") {
        for (name, class) in classes.named(place.a_class)? {
            config.classes.insert(name.into(), self::class(name, &class, config, place)?);
        }
    }
    Ok(())
}

fn reserve(key: &Entry<'_>, budget: Budget) -> Result<Amount, Mistake> {
    let wanted = "a share or a size in quotes, as in reserve = \"5%\" or reserve = \"2 GiB\"";
    let reserve = key.amount(wanted, size_or_share)?;
    let none_left = match (reserve, budget) {
        (Amount::Share(share), _) => share.basis_points() >= 10_000,
        (Amount::Bytes(bytes), Budget::Size(budget)) => bytes >= budget,
        (Amount::Bytes(_), Budget::Host) => false,
    };
    if none_left { Err(key.wrong("it leaves nothing for guests: write less")) } else { Ok(reserve) }
}

/// `"off"`, or a time within the bounds.
fn squeeze_every(key: &Entry<'_>) -> Result<Option<Span>, Mistake> {
    let wanted = "\"off\" or a time in quotes, as in squeeze_every = \"1h\"";
    key.amount(wanted, |text| match text {
        "off" => Some(Ok(None)),
        _ => humantime::parse_duration(text).ok().map(|every| match Span::from(every) {
            every if every < SHORTEST_SQUEEZE => {
                Err(format!("less than {SHORTEST_SQUEEZE}: guests would never rest"))
            }
            every if every > LONGEST_SQUEEZE => Err("more than a year: write \"off\"".to_owned()),
            every => Ok(Some(every)),
        }),
    })
}

/// A size, if the text begins like a size.
fn size(text: &str) -> Option<Result<Bytes, String>> {
    Bytes::if_size(text).map(|size| size.map_err(|error| error.to_string()))
}

fn states(key: &Entry<'_>, default: StateLines) -> Result<StateLines, Mistake> {
    let states =
        key.table("a table, as in states = { soft = \"6%\", hard = \"4%\", low = \"2%\" }", STATES)?;
    let line = |name, default: Share| {
        states.read(name, default, |key| {
            key.parsed(&format!("a share in quotes, as in {name} = \"{default}\""))
        })
    };
    StateLines::new(line("soft", default.soft())?, line("hard", default.hard())?, line("low", default.low())?)
        .map_err(|error| key.wrong(error))
}

/// A table, or the mode alone.
fn ksm(key: &Entry<'_>, default: KsmConfig) -> Result<KsmConfig, Mistake> {
    let modes = [("off", KsmMode::Off), ("observe", KsmMode::Observe), ("govern", KsmMode::Govern)];
    if key.is_text() {
        return Ok(KsmConfig { mode: key.one_of(&modes)?, ..default });
    }
    let keys = key.table("a mode or a table, as in ksm = { mode = \"govern\", cpu = \"low\" }", KSM)?;
    Ok(KsmConfig {
        mode: keys.read("mode", default.mode, |key| key.one_of(&modes))?,
        cpu: keys.read("cpu", default.cpu, ksm_cpu)?,
        worth: keys.read("worth", default.worth, |key| {
            key.amount("a size in quotes for each second of processor time, as in worth = \"10 MiB\"", size)
        })?,
    })
}

/// A share of one processor, by name or as a number.
fn ksm_cpu(key: &Entry<'_>) -> Result<Share, Mistake> {
    let wanted = "\"quiet\", \"low\", \"medium\", \"full\", or a share of one processor, as in cpu = \"5%\"";
    let cpu: Share = key.amount(wanted, |text| {
        let preset = KSM_CPU.iter().find(|(name, _)| *name == text).map(|(_, share)| *share);
        let share = preset.or_else(|| Some(text).filter(|text| text.ends_with('%')))?;
        Some(share.parse().map_err(|error: ParseShareError| error.to_string()))
    })?;
    if cpu.basis_points() < LEAST_KSM_CPU {
        Err(key.wrong("KSM would never scan: write mode = \"observe\""))
    } else {
        Ok(cpu)
    }
}

const A_CLASS: &str = "[class.NAME] with one bracket on each side before the keys of each class";

fn class(name: &str, class: &Entry<'_>, config: &Config, place: &Place<'_>) -> Result<Class, Mistake> {
    let keys = class.table(place.a_class, place.class)?;
    let default = Class::default();
    let limit = keys.read("limit", default.limit, limit)?;
    let reservation = keys.read("reservation", default.reservation, |key| {
        let reservation = key.amount("a size in quotes, as in reservation = \"2 GiB\"", size)?;
        match (limit, config.budget) {
            (Limit::At(limit), _) if reservation > limit => {
                Err(key
                    .wrong(format!("{reservation} is above the limit {limit}: lower it, or raise the limit")))
            }
            (_, Budget::Size(budget)) if reservation > budget => {
                let memory = place.memory;
                Err(key
                    .wrong(format!("{reservation} is above {memory} {budget}: lower it, or raise {memory}")))
            }
            _ => Ok(reservation),
        }
    })?;
    let shares = keys.read("shares", default.shares, |key| match key.count("shares = 1000")? {
        0 => Err(key.wrong("at least 1; use manage = false to leave guests alone")),
        shares => Ok(shares),
    })?;
    let (patterns, users) = members(name, &keys, place.accounts)?;
    let read = Class {
        patterns,
        users,
        shares,
        reservation,
        limit,
        squeeze: keys.read("squeeze", default.squeeze, Entry::switch)?,
        cache: keys.read("cache", default.cache, least_cache)?,
        cache_limit: keys.read("cache_limit", default.cache_limit, cache_limit)?,
        tier: keys.read("tier", default.tier, |key| tier(key, config.commitment, place))?,
        share: keys.read("share", default.share, |key| key.switch_about("; the weight is `shares`"))?,
        manage: keys.read("manage", default.manage, Entry::switch)?,
    };
    if read.patterns.is_empty() && read.users.is_none() && name != Config::DEFAULT_CLASS {
        return Err(class.wrong("no guest belongs to it: name some with match = [\"web-*\"]"));
    }
    Ok(read)
}

/// The names and the users whose guests belong to the class `name`.
fn members(
    name: &str,
    keys: &Table<'_>,
    accounts: &Accounts,
) -> Result<(Vec<String>, Option<Users>), Mistake> {
    let of_others = |key: &Entry<'_>| match name == Config::DEFAULT_CLASS {
        true => Err(key.wrong("this class takes all guests that match no other class: leave it out")),
        false => Ok(()),
    };
    let patterns = keys.read("match", Vec::new(), |key| {
        of_others(key)?;
        match key.patterns("a list of names in quotes, as in match = [\"web-*\"]")? {
            // With `users`, a class without names takes all names.
            none if none.is_empty() && keys.get("users").is_some() => {
                Err(key.wrong("it matches no guest: leave it out, or write names, as in [\"web-*\"]"))
            }
            names => Ok(names),
        }
    })?;
    let users = keys.read("users", None, |key| {
        of_others(key)?;
        key.users(accounts).map(Some)
    })?;
    Ok((patterns, users))
}

fn least_cache(key: &Entry<'_>) -> Result<Amount, Mistake> {
    key.amount("a size or a share in quotes, as in cache = \"10%\"", size_or_share)
}

fn size_or_share(text: &str) -> Option<Result<Amount, String>> {
    match text.ends_with('%') {
        true => Some(text.parse().map(Amount::Share).map_err(|error: ParseShareError| error.to_string())),
        false => size(text).map(|size| size.map(Amount::Bytes)),
    }
}

fn cache_limit(key: &Entry<'_>) -> Result<Option<Share>, Mistake> {
    key.amount("\"off\" or a share in quotes, as in cache_limit = \"40%\"", |text| match text {
        "off" => Some(Ok(None)),
        _ => Some(text.parse().map(Some).map_err(|error: ParseShareError| error.to_string())),
    })
}

fn tier(key: &Entry<'_>, commitment: Commitment, place: &Place<'_>) -> Result<Option<Share>, Mistake> {
    let tier = key.amount("\"off\" or a share in quotes, as in tier = \"50%\"", |text| match text {
        "off" => Some(Ok(None)),
        _ => Some(text.parse().map(Some).map_err(|error: ParseShareError| error.to_string())),
    })?;
    match commitment {
        Commitment::Strict if tier.is_some() && place.has_one_commitment => Err(key.wrong(
            "it needs commitment = \"elastic\": a strict commitment counts a tier as if nothing in it compressed, so it would gain nothing",
        )),
        _ => Ok(tier),
    }
}

fn limit(key: &Entry<'_>) -> Result<Limit, Mistake> {
    let wanted = "\"max\" or a size in quotes, as in limit = \"2 GiB\"";
    let limit = key.amount(wanted, |text| match text {
        "max" => Some(Ok(Limit::Max)),
        _ => size(text).map(|size| size.map(Limit::At)),
    })?;
    let least = Config::LEAST_TARGET;
    match limit {
        Limit::At(limit) if limit < least => {
            Err(key.wrong(format!("{limit} is too small: a guest needs at least {least}")))
        }
        limit => Ok(limit),
    }
}

fn journal(key: &Entry<'_>) -> Result<JournalSettings, Mistake> {
    let wanted = format!("a table, as in journal = {{ dir = \"{DEFAULT_JOURNAL}\", max = \"256 MiB\" }}");
    let keys = key.table(&wanted, JOURNAL)?;
    let default = Settings::default().journal;
    let max = keys.read("max", default.max, |key| {
        match key.amount("a size in quotes, as in max = \"256 MiB\"", size)? {
            max if max < LEAST_JOURNAL => Err(key.wrong(format!(
                "{max} is too small: less than {LEAST_JOURNAL} hardly holds more than one start"
            ))),
            max => Ok(max),
        }
    })?;
    Ok(JournalSettings { dir: keys.read("dir", default.dir, |key| key.path(DEFAULT_JOURNAL))?, max })
}

fn socket(key: &Entry<'_>) -> Result<PathBuf, Mistake> {
    let socket = key.path(DEFAULT_SOCKET)?;
    match socket.as_os_str().len() {
        0..=LONGEST_SOCKET_PATH => Ok(socket),
        long => Err(key.wrong(format!(
            "a socket's path has at most {LONGEST_SOCKET_PATH} bytes, but this one has {long}: write a shorter one"
        ))),
    }
}

/// The daemons of libvirt that the operator names, and what is allowed there.
fn libvirt(key: &Entry<'_>) -> Result<Vec<LibvirtSettings>, Mistake> {
    let mut daemons: Vec<LibvirtSettings> = Vec::new();
    for table in
        key.tables("[[libvirt]] with two brackets on each side before the keys of each daemon", LIBVIRT)?
    {
        let socket = table.read("socket", None, |key| key.path("/run/libvirt/libvirt-sock").map(Some))?;
        let monitor_commands = table.read("monitor_commands", false, Entry::switch)?;
        if daemons.iter().any(|daemon| daemon.socket == socket) {
            let whose = match socket {
                Some(_) => "two daemons have the same socket",
                None => "two entries have no socket",
            };
            return Err(key.wrong(format!("{whose}: put the keys of both below one [[libvirt]]")));
        }
        daemons.push(LibvirtSettings { socket, monitor_commands });
    }
    Ok(daemons)
}

/// The guests with dedicated monitors.
fn guests(key: &Entry<'_>) -> Result<Vec<GuestSettings>, Mistake> {
    let mut guests: Vec<GuestSettings> = Vec::new();
    for table in
        key.tables("[[guest]] with two brackets on each side before the keys of each guest", GUEST)?
    {
        let a_name = "a name in quotes, as in name = \"web1\"";
        let name = table.need("name", a_name, |key| {
            let name = key.text(a_name)?;
            if name.is_empty() {
                return Err(key.wrong(format!("a guest without a name cannot be shown: write {a_name}")));
            }
            match guests.iter().any(|guest| guest.name == name) {
                true => Err(key.wrong(format!("two guests are named {}: write another name", Quoted(name)))),
                false => Ok(name.to_owned()),
            }
        })?;
        let qmp = table.need(
            "qmp",
            "a path in quotes that begins with \"/\", as in qmp = \"/run/vm/web1.qmp\"",
            |key| {
                let qmp = key.path("/run/vm/web1.qmp")?;
                match guests.iter().find(|guest| guest.qmp == qmp) {
                    Some(other) => Err(key.wrong(format!(
                        "the guest {} has the same socket: write this guest's own",
                        Quoted(&other.name)
                    ))),
                    None => Ok(qmp),
                }
            },
        )?;
        guests.push(GuestSettings { name, qmp });
    }
    Ok(guests)
}

//! Settings in a few words: the behaviour of a daemon with them, and the changes of another configuration.

use memtide_model::{Amount, Budget, Config, KsmMode, Mode, OnExit};

use crate::Settings;
use crate::mistake::key;

/// At most this many classes are named.
const MOST_CLASSES: usize = 8;

impl Settings {
    /// The behaviour of a daemon with these settings.
    #[must_use]
    pub fn summary(&self) -> String {
        let Config { mode, classes, .. } = &self.config;
        let mode = match mode {
            Mode::Observe => "observes only",
            Mode::Manage => "manages guests",
        };
        let (commitment, budget, reserve) =
            (self.config.commitment, budget(&self.config), reserve(&self.config));
        let classes = match classes.keys().filter(|name| name.as_ref() != Config::DEFAULT_CLASS).count() {
            0 => "no class".to_owned(),
            1 => "1 class".to_owned(),
            classes => format!("{classes} classes"),
        };
        format!("{mode}, {commitment}, budget {budget}, reserve {reserve}, {classes} besides the default")
    }
}

/// The keys whose values differ in `new`, with their new values, and the names of classes; `None` if nothing differs.
#[must_use]
pub fn changes(old: &Config, new: &Config) -> Option<String> {
    // This compares values instead of words, because words round.
    let keys = [
        ("mode", old.mode != new.mode, new.mode.to_string()),
        ("commitment", old.commitment != new.commitment, new.commitment.to_string()),
        ("budget", old.budget != new.budget, budget(new)),
        ("reserve", old.reserve != new.reserve, reserve(new)),
        ("self_deflations", old.self_deflations != new.self_deflations, new.self_deflations.to_string()),
        (
            "self_deflation_within",
            old.self_deflation_within != new.self_deflation_within,
            new.self_deflation_within.to_string(),
        ),
        ("growth_prior", old.growth_prior != new.growth_prior, new.growth_prior.to_string()),
        ("squeeze_every", old.squeeze_every != new.squeeze_every, squeeze_every(new)),
        ("ksm", old.ksm != new.ksm, ksm(new)),
        ("on_exit", old.on_exit != new.on_exit, on_exit(new).to_owned()),
        ("states", old.states != new.states, states(new)),
        ("users", old.users != new.users, new.users.to_string()),
    ];
    let differing = keys.into_iter().filter(|(_, differs, _)| *differs);
    let mut said: Vec<String> = differing.map(|(key, _, value)| format!("{key} {value}")).collect();
    let mut classes = classes_changed(old, new);
    let unnamed = classes.len().saturating_sub(MOST_CLASSES);
    classes.truncate(MOST_CLASSES);
    said.append(&mut classes);
    if unnamed > 0 {
        said.push(format!("{unnamed} more classes"));
    }
    (!said.is_empty()).then(|| said.join(", "))
}

fn ksm(config: &Config) -> String {
    let ksm = config.ksm;
    match ksm.mode {
        KsmMode::Off => "off".to_owned(),
        KsmMode::Observe => "observe".to_owned(),
        KsmMode::Govern => format!("govern, cpu {}, worth {}", ksm.cpu, ksm.worth),
    }
}

/// Each class that is new, changed or gone; if there is none, the order if it differs.
fn classes_changed(old: &Config, new: &Config) -> Vec<String> {
    let of_new = new.classes.iter().filter_map(|(name, class)| match old.classes.get(name) {
        Some(old) if old == class => None,
        Some(_) => Some((name, "changed")),
        None => Some((name, "new")),
    });
    let gone = old.classes.keys().filter(|name| !new.classes.contains_key(*name)).map(|name| (name, "gone"));
    let said: Vec<String> =
        of_new.chain(gone).map(|(name, what)| format!("class.{} {what}", key(name))).collect();
    match said.is_empty() && !old.classes.keys().eq(new.classes.keys()) {
        true => vec!["the classes in another order".to_owned()],
        false => said,
    }
}

fn budget(config: &Config) -> String {
    match config.budget {
        Budget::Host => "host".to_owned(),
        Budget::Size(size) => size.to_string(),
    }
}

fn reserve(config: &Config) -> String {
    match config.reserve {
        Amount::Bytes(size) => size.to_string(),
        Amount::Share(share) => share.to_string(),
    }
}

fn squeeze_every(config: &Config) -> String {
    config.squeeze_every.map_or_else(|| "off".to_owned(), |every| every.to_string())
}

const fn on_exit(config: &Config) -> &'static str {
    match config.on_exit {
        OnExit::Keep => "keep",
        OnExit::Release => "release",
    }
}

fn states(config: &Config) -> String {
    let states = config.states;
    format!("soft {} hard {} low {}", states.soft(), states.hard(), states.low())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn parse(text: &str) -> Settings {
        Settings::parse(Path::new("m.toml"), text.as_bytes()).unwrap()
    }

    #[test]
    fn the_summary_tells_what_the_daemon_would_do() {
        let summary = |text: &str| parse(text).summary();
        assert_eq!(
            summary(""),
            "observes only, strict, budget host, reserve 5%, no class besides the default"
        );
        let text = "mode = \"manage\"\ncommitment = \"elastic\"\nbudget = \"48G\"\nreserve = \"2G\"\n[class.default]\n[class.a]\nmatch = [\"a\"]";
        assert_eq!(
            summary(text),
            "manages guests, elastic, budget 48 GiB, reserve 2 GiB, 1 class besides the default"
        );
    }

    #[test]
    fn each_change_is_told_with_its_new_value() {
        let changes = |old: &str, new: &str| changes(&parse(old).config, &parse(new).config);
        assert_eq!(changes("", ""), None);
        assert_eq!(changes("", "socket = \"/run/another\""), None);
        let all = "mode = \"manage\"\ncommitment = \"elastic\"\nbudget = \"2 GiB\"\nreserve = \"1 GiB\"\n\
                   self_deflations = 2\non_exit = \"release\"\nstates = { soft = \"8%\" }";
        assert_eq!(
            changes("", all).unwrap(),
            "mode manage, commitment elastic, budget 2 GiB, reserve 1 GiB, self_deflations 2, on_exit release, \
             states soft 8% hard 4% low 2%"
        );
        assert_eq!(changes(all, &all.replace("1 GiB", "512 MiB")).unwrap(), "reserve 512 MiB");
        let budget = |size: &str| format!("budget = \"{size}\"");
        assert_eq!(changes(&budget("200 GiB"), &budget("204900 MiB")).unwrap(), "budget 200 GiB");
    }

    #[test]
    fn classes_are_told_by_name_and_no_more_than_a_few() {
        let changes = |old: &str, new: &str| changes(&parse(old).config, &parse(new).config);
        let class = |name: &str, shares: u32| format!("[class.{name}]\nmatch = [\"a\"]\nshares = {shares}\n");
        let old = class("a", 1) + &class("b", 1) + &class("c", 1);
        let new = class("b", 2) + &class("c", 1) + &class("\"d\\u001b\"", 1);
        let expected = "class.b changed, class.\"d\\u{1b}\" new, class.a gone";
        assert_eq!(changes(&old, &new).unwrap(), expected);
        let turned = class("b", 1) + &class("a", 1) + &class("c", 1);
        assert_eq!(changes(&old, &turned).unwrap(), "the classes in another order");
        let many: String = (0..100).map(|number| class(&format!("x{number}"), 1)).collect();
        let said = changes("", &many).unwrap();
        assert!(said.ends_with("class.x7 new, 92 more classes"), "{said}");
    }
}

//! The configuration file as operators write it: defaults, keys, and all mistakes with their place and fix.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::path::Path;

use memtide_config::{Overrides, Settings};
use memtide_host::Accounts;
use memtide_model::{Budget, Bytes, Mode};

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

/// The lines of the installed configuration that show defaults, as an operator would use them.
fn documented_defaults() -> String {
    let lines = INSTALLED.lines().filter_map(|line| line.strip_prefix('#'));
    lines.filter(|line| !line.is_empty() && !line.starts_with(' ')).map(|line| format!("{line}\n")).collect()
}

#[test]
fn the_documented_defaults_are_the_defaults() {
    assert_eq!(parse(INSTALLED).unwrap(), Settings::default());
    assert_eq!(parse(&documented_defaults()).unwrap(), Settings::default());
}

#[test]
fn every_key_is_documented() {
    for key in memtide_config::keys() {
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
    assert_eq!(settings.config.class_of("db-1", None).0.as_ref(), "database");
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
    assert_eq!(settings.config.class_of("db-1", None).1.shares, 4000);
    assert_eq!(settings.guests[0].qmp, Path::new("/run/vm/web1.qmp"));
}

#[test]
fn a_guest_belongs_to_the_class_that_stands_first_in_the_file() {
    let text = "[class.web]\nmatch = [\"*-1\"]\n[class.all]\nmatch = [\"*\"]";
    let settings = parse(text).unwrap();
    assert_eq!(settings.config.class_of("db-1", None).0.as_ref(), "web");
    assert_eq!(settings.config.class_of("db-2", None).0.as_ref(), "all");
}

/// A host with the users alice and bob, and a group that alice is in.
fn on_a_host(text: &str) -> Result<Settings, String> {
    let passwd = "root:x:0:0::/root:\nalice:x:1001:1001::/:\nbob:x:1002:1002::/:\n";
    let accounts = Accounts::parse(passwd, "vm:x:900:alice\nmemtide:x:990:bob\n");
    Settings::parse_with(Path::new("m.toml"), text.as_bytes(), &accounts).map_err(|error| error.to_string())
}

#[test]
fn users_are_names_numbers_ranges_and_groups() {
    let has = |text: &str, user| on_a_host(text).unwrap().config.users.have(Some(user));
    for (text, inside, outside) in [
        ("", &[0, 33, 999, 1002][..], &[1000, 1001, 100_000][..]),
        ("users = [\"system\"]", &[0, 999, 1002], &[1001]),
        ("users = [\"system\", \"alice\"]", &[0, 999, 1001, 1002], &[1000]),
        ("users = [\"alice\"]", &[1001], &[0, 999, 1002]),
        ("users = [\"@vm\", \"root\"]", &[0, 1001], &[1, 1002]),
        ("users = [\"5000\", \"100000-165535\"]", &[5000, 100_000, 165_535], &[0, 5001, 165_536]),
    ] {
        for user in inside {
            assert!(has(text, *user), "{text}: {user}");
        }
        for user in outside {
            assert!(!has(text, *user), "{text}: {user}");
        }
    }
}

#[test]
fn users_that_are_none_are_told_with_their_place() {
    for (text, message) in [
        (
            "users = [\"system\", \"alcie\"]",
            "1:20: users: /etc/passwd has no user \"alcie\": correct it, or write the user's number",
        ),
        (
            "users = [\"@kvm\"]",
            "1:10: users: /etc/group has no group \"kvm\": correct it, or write its members",
        ),
        ("users = [\"9-5\"]", "1:10: users: \"9-5\" ends before it begins: write 5-9"),
        ("users = [\"4294967295\"]", "1:10: users: \"4294967295\" is no number up to 4294967294"),
        ("users = [\"1-2-3\"]", "1:10: users: \"1-2-3\" is no number"),
        ("users = [\"1-+3\"]", "1:10: users: \"1-+3\" is no number"),
        (
            "users = [1001]",
            "1:10: users: found the number 1001: write a list of users in quotes, as in users",
        ),
        ("users = \"system\"", "1:9: users: found the text \"system\": write a list of users in quotes"),
        ("users = []", "1:9: users: no guest has one of these users"),
        ("[class.a]\nusers = [\"carol\"]", "2:10: class.a.users: /etc/passwd has no user \"carol\""),
        ("[class.default]\nusers = [\"alice\"]", "2:9: class.default.users: this class takes all guests"),
        (
            "[class.a]\nmatch = []\nusers = [\"alice\"]",
            "2:9: class.a.match: it matches no guest: leave it out",
        ),
    ] {
        let error = on_a_host(text).unwrap_err();
        assert!(error.starts_with(&format!("m.toml:{message}")), "{error}");
    }
}

#[test]
fn a_class_with_users_takes_their_guests() {
    let text = "[class.tenants]\nmatch = [\"web-*\"]\nusers = [\"alice\"]\n[class.bobs]\nusers = [\"bob\"]\n";
    let config = on_a_host(text).unwrap().config;
    let class = |name, user| config.class_of(name, Some(user)).0.as_ref();
    assert_eq!(
        [class("web-1", 1001), class("db-1", 1001), class("db-1", 1002), class("web-1", 0)],
        ["tenants", "default", "bobs", "default"]
    );
}

#[test]
fn the_users_of_a_new_configuration_are_taken_at_a_reload_and_told() {
    let (old, new) = (on_a_host("").unwrap(), on_a_host("users = [\"system\", \"alice\"]").unwrap());
    assert!(old.fixed_keys_changed(&new).is_empty());
    let told = memtide_config::changes(&old.config, &new.config);
    assert_eq!(told.as_deref(), Some("users system alice"));
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
    let overrides = Overrides { mode: Some(Mode::Manage), budget: Some(Budget::Size(Bytes::from_mib(3))) };
    let config = overrides.apply(None, new.config.clone()).unwrap();
    assert_eq!((config.mode, config.budget), (Mode::Manage, Budget::Size(Bytes::from_mib(3))));
    assert_eq!(old.fixed_keys_changed(&new), ["discover"]);
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
        ("squeeze_every = 60", "1:17: squeeze_every: found the number 60: write \"off\" or a time in quotes"),
        ("squeeze_every = \"1s\"", "1:17: squeeze_every: less than 60.0 s"),
        ("squeeze_every = \"900 days\"", "1:17: squeeze_every: more than a year"),
        ("growth_prior = 0.75", "1:16: growth_prior: found the number 0.75: write a share in quotes"),
        (
            "commitment = \"strict\"\n[class.default]\ntier = \"50%\"",
            "3:8: class.default.tier: it needs commitment = \"elastic\"",
        ),
        ("[class.x]\nlimit = \"50%\"", "2:9: class.x.limit: found the text \"50%\": write \"max\" or a size"),
        ("discover = \"x\"", "1:12: discover: found the text \"x\": write a list of names in quotes, as in"),
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
        ("mode = \"manage\"\n\nmode = \"manage\"", "3:1: `mode` appears twice, first on line 1: keep one"),
        (
            "[class.a]\nshares = 1\n[class.b]\nshares = 2\n\nshares = 3",
            "6:1: `shares` appears twice, first on line 4: keep one",
        ),
        (
            "[class.a]\n[class.b]\n[class.a]",
            "3:8: [class.a] appears twice, first on line 1: put the keys of both below one, or use \
             another name",
        ),
        ("[class.'a b']\n[class.\"a b\"]", "2:8: [class.\"a b\"] appears twice, first on line 1: put"),
        ("journal.dir = \"/a\"\njournal.dir = \"/b\"", "2:9: `dir` appears twice, first on line 1: keep"),
        (
            "journal = { dir = \"/a\",\n dir = \"/b\" }",
            "2:2: `dir` appears twice, first on line 1: keep one of the two",
        ),
        (
            "[states]\n[states]",
            "2:2: [states] appears twice, first on line 1: put the keys of both below one",
        ),
        ("[guest]\n[guest]", "2:2: [guest] appears twice, first on line 1: write [[guest]] with two"),
        (
            "[[guest]]\nname = \"a\"\nqmp = \"/a\"\n[[guest]]\nname = \"b\"\nqmp = \"/a\"",
            "6:7: guest.qmp: the guest \"a\" has the same socket",
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
        (
            "[class.db]\nshare = 5",
            "2:9: class.db.share: found the number 5: write true or false without quotes, as in share = true; the weight is `shares`",
        ),
        ("\n[class.db]\nshards = 5", "3:1: unknown key `class.db.shards`: did you mean `shares`?"),
        ("[class.db]\nmax = \"5G\"", "2:1: unknown key `class.db.max`: known here: match, users, shares, "),
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
            let why = "is not an absolute path, and the daemon may run in any directory: write a path in quotes that begins";
            refused(&[(&text, &format!("{place}: \"{path}\" {why}"))]);
        }
    }
    let long = format!("socket = \"/{}\"", "x".repeat(107));
    refused(&[(&long, "1:10: socket: a socket's path has at most 107 bytes, but this one has 108")]);
}

#[test]
fn what_is_no_toml_is_told_with_what_to_write() {
    refused(&[
        ("mode = ", "1:8: a value is missing: write one"),
        ("mode = # manage", "1:8: a value is missing: write one"),
        ("mode = manage", "1:8: manage is not a value: put text in quotes: write \"manage\""),
        ("budget = 48 GiB # all", "1:10: 48 GiB is not a value: put text in quotes: write \"48 GiB\""),
        ("mode = “manage”", "1:8: “manage” is not a value: put text in quotes: write \"manage\""),
        ("discover = [web-*, \"a\"]", "1:13: web-* is not a value: put text in quotes: write \"web-*\""),
        ("confine = yes", "1:11: yes is not a value: write true or false"),
        ("mode \"manage\"", "1:6: this line sets nothing: write KEY = VALUE"),
        ("mode = \"manage\nbudget = \"host\"", "1:15: these quotes are not closed on their line"),
        ("mode = 'manage\nx", "1:15: these quotes are not closed on their line"),
        ("[class.db\nshares = 5", "1:10: not valid TOML: unclosed table, expected `]`"),
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
        assert!(error.starts_with(&format!("m.toml:{place} is not UTF-8: save")), "{error}");
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
    assert!(error(&path("none")).starts_with("cannot read "));
    std::fs::write(path("file"), "#".repeat(1 << 20)).unwrap();
    assert_eq!(Settings::load(Some(&path("file"))).unwrap(), Settings::of_this_host());
    std::fs::write(path("file"), "#".repeat((1 << 20) + 1)).unwrap();
    assert!(error(&path("file")).contains(" is too long for a configuration"));
}

#[test]
fn what_does_not_go_together_is_said_with_its_place_and_its_mend() {
    refused(&[
        ("journal = { max = \"5 MB\" }", "1:19: journal.max: `MB` is not a unit of memory"), // tidy-allow: MB
        ("reserve = \"5\"", "1:11: reserve: `5` has no unit: write `5M` or `5G`"),
        ("budget = \"48\"", "1:10: budget: `48` has no unit: write `48M` or `48G`"),
        ("states = { soft = \"1%\" }", "1:1: states: the states are out of order: soft 1%"),
        ("[class.db]\nshares = 5", "1:8: class.db: no guest belongs to it"),
        ("[class.default]\nshares = 0", "2:10: class.default.shares: at least 1"),
        (
            "[class.default]\nreservation = \"2G\"\nlimit = \"1G\"",
            "2:15: class.default.reservation: 2 GiB is above the limit",
        ),
        ("budget = \"0\"", "1:10: budget: no guest fits into 0"),
        ("budget = \"50%\"", "1:10: budget: write \"host\" or a size"),
        ("reserve = \"100%\"", "1:11: reserve: it leaves nothing"),
        ("budget = \"1G\"\nreserve = \"1G\"", "2:11: reserve: it leaves nothing"),
        ("budget = \"12B\"", "1:10: budget: no guest fits into 12 B"),
        ("discover = []", "1:12: discover: it matches no guest"),
        ("discover = [\"a\", \"\"]", "1:18: discover: no guest has an empty name: write a name, or \"*\""),
        ("[class.a]\nmatch = [\"\"]", "2:10: class.a.match: no guest has an empty name"),
        (
            "[class.db]\nmatch = [\"db-[0-9]\"]",
            "2:10: class.db.match: \"db-[0-9]\": brackets are not supported: write ? for any one character, * for",
        ),
        (
            "[[guest]]\nname = \"\"\nqmp = \"/a\"",
            "2:8: guest.name: a guest without a name cannot be shown: write a",
        ),
        ("[class.default]\nlimit = \"0\"", "2:9: class.default.limit: 0 is too small"),
        (
            "budget = \"1G\"\n[class.default]\nreservation = \"2G\"",
            "3:15: class.default.reservation: 2 GiB is above the budget 1 GiB",
        ),
        ("[class.default]\nmatch = [\"a\"]", "2:9: class.default.match: this class takes all guests"),
        ("journal = { max = \"1M\" }", "1:19: journal.max: 1 MiB is too small: less than 8 MiB"),
    ]);
}

#[test]
fn a_tier_needs_no_strict_commitment() {
    let text = "commitment = \"elastic\"\n[class.default]\ntier = \"50%\"";
    assert!(parse(text).unwrap().config.has_tiers());
    assert!(!parse("[class.default]\ntier = \"off\"").unwrap().config.has_tiers());
    // A scenario is run with both.
    let mut config = memtide_model::Config::default();
    let scenario = "[memtide]\ncommitment = \"strict\"\n[memtide.class.default]\ntier = \"50%\"";
    memtide_config::read_policy(scenario, "memtide", &mut config).unwrap();
    assert!(!config.has_tiers());
}

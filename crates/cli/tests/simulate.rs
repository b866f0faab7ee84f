//! `memtide simulate` as users type it.
#![allow(clippy::unwrap_used, reason = "what a test does not find fails it")]

use std::fs;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use serde_json::Value;

const MINE: &str = r#"
about = "Two guests."
lasts = "5m"

[host]
memory = "1500 MiB"

[[guest]]
name = "calm"
uses = "100 MiB"
cold_cache = "700 MiB"

[[guest]]
name = "grows"
program = [{ uses = "100 MiB", grows_to = "700 MiB", at = "60s" }]
"#;

fn memtide() -> Command {
    Command::new(assert_cmd::cargo::cargo_bin!("memtide"))
}

fn simulate(arguments: &[&str], file: &Path) -> (String, String, i32) {
    let output = memtide().arg("simulate").arg(file).args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (text(output.stdout), text(output.stderr), output.status.code().unwrap())
}

fn written(dir: &tempfile::TempDir, text: &str) -> PathBuf {
    let path = dir.path().join("mine.toml");
    fs::write(&path, text).unwrap();
    path
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn a_scenario_gives_a_table_and_the_same_bytes_each_time() {
    let dir = tempfile::tempdir().unwrap();
    let file = written(&dir, MINE);
    let (out, err, code) = simulate(&[], &file);
    assert_eq!((err.as_str(), code), ("", 0));
    assert!(out.contains("2 guests on 1.46 GiB for 5 min"), "{out}");
    assert!(out.contains("strict") && out.contains("elastic") && out.contains("none"), "{out}");
    assert_eq!(simulate(&[], &file).0, out);
    assert_eq!(simulate(&["--json"], &file).0, simulate(&["--json"], &file).0);
}

#[test]
fn several_scenarios_make_one_table() {
    let dir = tempfile::tempdir().unwrap();
    let file = written(&dir, MINE);
    let second = dir.path().join("second.toml");
    fs::copy(&file, &second).unwrap();
    let second = second.to_str().unwrap();
    let (out, err, code) = simulate(&[second, "--policy", "strict,none"], &file);
    assert_eq!((err.as_str(), code), ("", 0));
    let cells = |label: &str| -> Vec<String> {
        let line = out.lines().find(|line| line.starts_with(label)).unwrap_or_else(|| panic!("{out}"));
        line[label.len()..].split_whitespace().map(str::to_owned).collect()
    };
    assert!(out.starts_with("2 scenarios\n"), "{out}");
    assert_eq!(cells("hosts"), ["2", "2"]);
    assert_eq!(cells("work done at full speed, mean"), cells("  least of any host"), "twice the same: {out}");
    let (_, err, code) = simulate(&[second, "--json"], &file);
    assert!(code == 1 && err.contains("--json is for one scenario: name only one"), "{err}");
    let (_, err, code) = simulate(&["none-such.toml"], &file);
    assert!(code == 1 && err.contains("none-such.toml"), "{err}");
}

#[test]
fn json_and_the_page_have_all_managers() {
    let dir = tempfile::tempdir().unwrap();
    let (file, page) = (written(&dir, MINE), dir.path().join("page.html"));
    let (out, _, code) = simulate(&["--policy", "all", "--json", "--report", page.to_str().unwrap()], &file);
    assert_eq!(code, 0);
    let json: Value = serde_json::from_str(&out).unwrap();
    let managers: Vec<&str> =
        json["runs"].as_array().unwrap().iter().map(|run| run["manager"].as_str().unwrap()).collect();
    assert_eq!(managers, ["strict", "elastic", "mom", "proxmox", "squeezed", "qubes", "fixed", "none"]);
    assert!(json["runs"][0]["guests"]["grows"]["busy_us"].as_u64().unwrap() > 0);
    let page = fs::read_to_string(page).unwrap();
    assert_eq!(page.matches("<svg").count(), 8 * 3);
}

#[test]
fn a_page_never_overwrites_what_was_read() {
    let dir = tempfile::tempdir().unwrap();
    let file = written(&dir, MINE);
    let (link, hard) = (dir.path().join("link"), dir.path().join("hard"));
    std::os::unix::fs::symlink(&file, &link).unwrap();
    fs::hard_link(&file, &hard).unwrap();
    let (trace, config) = (dir.path().join("trace.mtj"), dir.path().join("memtide.toml"));
    fs::copy(workspace().join("traces/demo-elastic.mtj"), &trace).unwrap();
    fs::write(&config, "reserve = \"5%\"\n").unwrap();
    for page in [&file, &link, &hard, &trace, &config] {
        let (before, page_name) = (fs::read(page).unwrap(), page.to_str().unwrap());
        let (_, err, code) = simulate(&["--config", config.to_str().unwrap(), "--report", page_name], &file);
        assert!(code == 1 && err.contains("would overwrite"), "{page_name}: {err}");
        assert_eq!(fs::read(page).unwrap(), before);
    }
    let arguments = ["simulate", "--from", trace.to_str().unwrap(), "--report", trace.to_str().unwrap()];
    assert_eq!(memtide().args(arguments).output().unwrap().status.code(), Some(1));
    let fresh = dir.path().join("page.html");
    fs::write(&fresh, "an old page").unwrap();
    assert_eq!(simulate(&["--report", fresh.to_str().unwrap()], &file).2, 0);
}

#[test]
fn options_that_would_be_ignored_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = written(&dir, MINE);
    for arguments in [["--explain=calm@5s", "--json"], ["--explain=calm@5s", "--report=page.html"]] {
        let (_, err, code) = simulate(&arguments, &file);
        assert!(code == 2 && err.contains("cannot be used with"), "{arguments:?}: {err}");
    }
    let (_, err, code) = simulate(&["--policy", "strict", "--commitment", "elastic"], &file);
    assert!(code == 1 && err.contains("--commitment and --policy strict both name a commitment"), "{err}");
    let (out, _, code) = simulate(&["--policy", "all", "--commitment", "elastic"], &file);
    assert!(
        code == 0 && !out.contains("strict") && out.contains("elastic") && out.contains("qubes"),
        "{out}"
    );
}

#[test]
fn a_configuration_changes_the_commitment_only_if_it_sets_it() {
    let dir = tempfile::tempdir().unwrap();
    let (file, config) = (written(&dir, MINE), dir.path().join("memtide.toml"));
    let managers = |text: &str| {
        fs::write(&config, text).unwrap();
        let (out, err, _) = simulate(&["--json", "--config", config.to_str().unwrap()], &file);
        let json: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{err}"));
        json["runs"].as_array().unwrap().iter().map(|run| run["manager"].to_string()).collect::<Vec<_>>()
    };
    assert_eq!(managers("reserve = \"5%\"\n"), [r#""strict""#, r#""elastic""#, r#""none""#]);
    assert_eq!(managers("commitment = \"elastic\"\n"), [r#""elastic""#, r#""none""#]);
}

#[test]
fn a_decision_is_explained() {
    let dir = tempfile::tempdir().unwrap();
    let file = written(&dir, MINE);
    let (out, _, code) = simulate(&["--policy", "strict", "--explain", "grows@62s"], &file);
    assert_eq!(code, 0);
    assert!(out.starts_with("strict, 62") && out.contains(" s after the start"), "{out}");
    assert!(out.contains("entitlement") && out.contains("last changes"), "{out}");
    let (_, err, code) = simulate(&["--explain", "nobody@62s"], &file);
    assert_eq!(code, 5);
    assert!(err.contains("the guests are calm, grows"), "{err}");
    let (_, err, code) = simulate(&["--explain", "grows@2h"], &file);
    assert_eq!(code, 1);
    assert!(err.contains("ends before"), "{err}");
}

#[test]
fn an_absent_guest_is_explained_with_its_reason() {
    let dir = tempfile::tempdir().unwrap();
    let more = "[[guest]]\nname = \"late\"\nstarts = \"3m\"\n\
                [[guest]]\nname = \"short\"\nends = \"40s\"\n\
                [[guest]]\nname = \"a@b\"\n\
                [[guest]]\nname = \"large\"\nstarts = \"10s\"\nmemory = \"2 GiB\"\ncold_cache = \"full\"\n";
    let file = written(&dir, &format!("{MINE}{more}"));
    let explain = |what: &str| simulate(&["--policy", "elastic", "--explain", what], &file);
    for (what, why) in [
        ("late@64s", "elastic: late is not there at 64 s: it starts at 180 s"),
        ("short@64s", "elastic: short is not there at 64 s: it ended at 40 s"),
        ("large@64s", "elastic: large is not there at 64 s: the host killed it at 10."),
    ] {
        let (out, err, code) = explain(what);
        assert!(code == 5 && out.is_empty() && err.contains(why), "{err}{out}");
    }
    let (out, err, code) = explain("a@b@64s");
    assert!(code == 0 && out.contains("entitlement"), "{err}{out}");
    let (_, err, code) = simulate(&["--policy", "none", "--explain", "calm@64s"], &file);
    assert!(code == 1 && err.contains("only memtide gives reasons"), "{err}");
}

#[test]
fn a_mistake_is_told_with_its_line_and_key() {
    let dir = tempfile::tempdir().unwrap();
    let mistakes = [
        ("[[guest]]\nname = \"a\"\nmemry = \"1 GiB\"\n", ":3:1: unknown key `memry`: did you mean `memory`?"),
        (
            "[[guest]]\nname = \"a\"\nuses = 150\n",
            ":3:8: uses: 150 has no unit: write a size such as \"150 MiB\"",
        ),
        ("[[guest]]\nname = \"a\"\ncount = 0\n", ":3:9: count: write 1 to 20000"),
        ("[[guest]]\nname = \"a\"\n[[guest]]\nname = \"a\"\n", ":4:8: name: another guest is named `a`"),
        (
            "[[guest]]\nname = \"a\"\n[[fault]]\nat = \"5s\"\nguest = \"b\"\nis = \"stuck\"\n",
            ":5:9: guest: there is no guest `b`",
        ),
        (
            "[[guest]]\nname = \"a\"\n[[fault]]\nat = \"5s\"\nis = \"stuck\"\n",
            ":5:6: is: this fault needs a guest: add guest = \"NAME\"",
        ),
        ("[host]\nmemory = \"4 GiB\"\n", ":1:1: the key `guest` is missing"),
        ("[guest]\nname = \"a\"\n", ":1:1: write [[guest]]: there can be several"),
        (
            "[[guest]]\nname = \"a\"\nprogram = { uses = \"1 MiB\" }\n",
            ":3:11: program: write a list: program = [{ uses = \"1 MiB\" }]",
        ),
        ("[[guest]]\nname = \"a\"\n[guest.file]\n", ":3:1: write [[guest.file]]: there can be several"),
        ("[[guest]]\nname = 3\n", ":2:8: name: write it in quotes: name = \"3\""),
        (
            "[[guest]]\nname = \"a\"\ncount = 5000000000\n",
            ":3:9: count: 5000000000 is too large: 4294967295 is the most",
        ),
        ("[[guest]]\nname = \"a\"\n\"b\\u001b\" = 1\n", "unknown key `b\\u{1b}`"),
    ];
    for (text, says) in mistakes {
        let file = written(&dir, text);
        let (_, err, code) = simulate(&[], &file);
        assert_eq!(code, 1, "{text}");
        assert!(err.contains(says), "{err}");
    }
}

#[test]
fn a_journal_is_no_scenario_and_nothing_is_none() {
    let traces = workspace().join("traces");
    let (_, err, code) = simulate(&[], &traces.join("demo-elastic.mtj"));
    assert!(
        code == 1 && err.contains("demo-elastic.mtj is a journal: simulate its guests with --from"),
        "{err}"
    );
    let dir = tempfile::tempdir().unwrap();
    fs::copy(traces.join("demo-elastic.mtj"), dir.path().join("000001.mtj")).unwrap();
    let (_, err, _) = simulate(&[], dir.path());
    assert!(err.contains("is a journal"), "{err}");
    let output = memtide().arg("simulate").output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(["<SCENARIO>", "--from"].iter().all(|way| err.contains(way)), "{err}");
}

#[test]
fn a_terminal_obeys_nothing_in_a_scenario() {
    let dir = tempfile::tempdir().unwrap();
    let (out, _, code) = simulate(&[], &written(&dir, &MINE.replace("Two guests.", "\\u001b[31mTwo")));
    assert!(code == 0 && out.contains("\\u{1b}[31mTwo") && !out.contains('\u{1b}'), "{out}");
}

#[test]
fn many_guests_have_no_rows_and_it_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let (out, _, code) =
        simulate(&[], &written(&dir, "lasts = \"1m\"\n[[guest]]\nname = \"a\"\ncount = 20\n"));
    assert!(code == 0 && out.contains("the rows of 20 guests are left out: --json has them all"), "{out}");
}

#[test]
fn a_bound_that_breaks_or_no_longer_fails_sets_the_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    let kept = format!("{MINE}\n[[keep]]\npolicy = \"strict\"\nkills = 0\n");
    assert_eq!(simulate(&[], &written(&dir, &kept)).2, 0);
    let broken = format!("{MINE}\n[[keep]]\npolicy = \"strict\"\nguest = \"calm\"\nmoved = \"1 KiB\"\n");
    let (out, _, code) = simulate(&[], &written(&dir, &broken));
    assert_eq!(code, 6, "{out}");
    assert!(out.contains("BROKEN: calm: moved"), "{out}");
    let known = broken.replace("moved =", "fails = \"balloons move\"\nmoved =");
    assert_eq!(simulate(&[], &written(&dir, &known)).2, 0);
    let stale = kept.replace("kills =", "fails = \"it kills\"\nkills =");
    assert_eq!(simulate(&[], &written(&dir, &stale)).2, 6);
}

#[test]
fn json_and_the_page_say_how_the_bounds_held() {
    let dir = tempfile::tempdir().unwrap();
    let bounds = "[[keep]]\npolicy = \"strict\"\nguest = \"calm\"\nmoved = \"1 KiB\"\nkills = 0\n\
                  [[keep]]\npolicy = \"elastic\"\nwork = \"10%\"\n";
    let (file, page) = (written(&dir, &format!("{MINE}{bounds}")), dir.path().join("page.html"));
    let (out, _, code) = simulate(&["--json", "--report", page.to_str().unwrap()], &file);
    assert_eq!(code, 6);
    let json: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(json["scenario"], file.to_str().unwrap());
    assert_eq!((&json["host_memory"], &json["lasts"]), (&(1500_u64 << 20).into(), &300_000.into()));
    let broken = &json["bounds"][0];
    assert_eq!((&broken["policy"], &broken["verdict"]), (&"strict".into(), &"broken".into()));
    assert_eq!(
        (&broken["measured"][0]["key"], &broken["measured"][0]["bound"]),
        (&"moved".into(), &1024.into())
    );
    assert!(broken["measured"][0]["value"].as_u64().unwrap() > 1024);
    assert_eq!(json["bounds"][1]["verdict"], "kept");
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("2 guests on 1.46 GiB for 5 min, seed 0"), "{page}");
    assert!(page.contains("<td>strict</td><td>moved</td><td>calm</td><td>1 KiB</td>"), "{page}");
    assert!(page.contains("<td>BROKEN</td>") && page.contains("<td>kept</td>"), "{page}");
    // People read the values that hold, too.
    let (out, _, _) = simulate(&[], &file);
    assert!(out.contains("elastic: kept: calm: work ") && out.contains(" %, bound 10.0 %"), "{out}");
}

#[test]
fn a_recorded_run_is_simulated_with_other_settings() {
    let trace = workspace().join("traces/demo-elastic.mtj");
    let run = |arguments: &[&str]| {
        let output = memtide().args(["simulate", "--from"]).arg(&trace).args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    // As in the demo on real guests: without a manager, two of four guests die; with memtide, none.
    let json: Value = serde_json::from_str(&run(&["--json"])).unwrap();
    let killed = |run: &Value| run["host"]["killed_guests"].as_u64().unwrap();
    let runs = json["runs"].as_array().unwrap();
    assert_eq!(runs.iter().map(killed).collect::<Vec<_>>(), [0, 2]);
    assert_ne!(run(&["--policy", "elastic"]), run(&["--policy", "elastic", "--reserve", "20%"]));
}

/// The examples of the documentation, and the commands in it that need no journal, no shell and no minutes.
fn documented() -> (Vec<String>, Vec<Vec<String>>) {
    let text = fs::read_to_string(workspace().join("docs/simulator.md")).unwrap();
    let blocks = |kind: &str| -> Vec<String> {
        let after = text.split(kind).skip(1);
        after.map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
    };
    let words = |line: &str| line.split('#').next().unwrap().split_whitespace().map(str::to_owned).collect();
    let shell = blocks("```sh\n").concat();
    let is_quick =
        |line: &&str| (line.contains("mine.toml") || line.contains("scenarios/")) && !line.contains('*');
    let quick = shell.lines().filter(is_quick);
    (blocks("```toml\n"), quick.map(words).collect())
}

#[test]
fn the_commands_of_the_documentation_work() {
    let (examples, commands) = documented();
    let dir = tempfile::tempdir().unwrap();
    written(&dir, &examples[0]);
    std::os::unix::fs::symlink(
        workspace().join("scenarios").canonicalize().unwrap(),
        dir.path().join("scenarios"),
    )
    .unwrap();
    assert!(commands.len() >= 4, "{commands:?}");
    for words in commands {
        let output = memtide().args(&words[1..]).current_dir(dir.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        if words.iter().any(|word| word == "--explain") {
            let out = String::from_utf8(output.stdout).unwrap();
            assert!(out.contains("build") && out.contains("entitlement"), "{out}");
        }
    }
}

#[test]
fn the_examples_of_the_documentation_do_what_it_says() {
    let dir = tempfile::tempdir().unwrap();
    let (examples, _) = documented();
    // Guests lost under strict, elastic and nobody, their work in thousandths, and the exit code.
    let brings = |text: &str| {
        let (out, err, code) = simulate(&["--json"], &written(&dir, text));
        let json: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{err}"));
        let runs = json["runs"].as_array().unwrap().clone();
        let lost: Vec<u64> = runs.iter().map(|run| run["host"]["killed_guests"].as_u64().unwrap()).collect();
        let sum = |run: &Value, key: &str| -> u64 {
            run["guests"].as_object().unwrap().values().map(|guest| guest[key].as_u64().unwrap()).sum()
        };
        let work: Vec<u64> =
            runs.iter().map(|run| sum(run, "done_us") * 1_000 / sum(run, "busy_us")).collect();
        (lost, work, code)
    };
    let [grows, cache, wrong] = &examples[..] else { panic!("{} examples", examples.len()) };
    assert_eq!(brings(grows).0, [0, 0, 1]);
    assert_eq!(brings(&grows.replace("50 MiB/s", "200 MiB/s")).0, [0, 0, 1]);
    let work = brings(cache).1;
    assert!(work[0] >= 975 && work[1] >= 975 && work[2] >= 995, "{work:?}");
    let work = brings(&cache.replace("[memtide]\n", "[memtide]\nself_deflation_within = \"whole\"\n")).1;
    assert!((960..=978).contains(&work[0]), "{work:?}");
    let work = brings(&cache.replace("[memtide]\n", "[memtide]\nself_deflations = 0\n")).1;
    assert!(work[0] >= 995, "{work:?}");
    let (lost, _, code) = brings(wrong);
    assert_eq!((lost, code), (vec![0, 0, 0], 0));
}

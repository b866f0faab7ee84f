//! The commands as a user types them: messages and exit codes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Output;

use assert_cmd::Command;

fn memtide(arguments: &[&str]) -> Output {
    Command::cargo_bin("memtide").unwrap().args(arguments).output().unwrap()
}

fn error_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn without_a_daemon_the_exit_code_is_4_and_the_message_says_what_to_do() {
    for command in [&["status"][..], &["explain", "web1"]] {
        let output = memtide(&[command, &["--socket", "/nonexistent/memtide.sock"]].concat());
        assert_eq!(output.status.code(), Some(4));
        let text = error_of(&output);
        assert!(text.contains("no daemon answers here: start one with `memtide run`"), "{text}");
    }
}

#[test]
fn a_wrong_configuration_is_refused_with_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("memtide.toml");
    std::fs::write(&file, "mode = \"manage\"\ncomitment = \"strict\"\n").unwrap();
    let output = memtide(&["run", "--config", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let text = error_of(&output);
    assert!(text.contains("memtide.toml:2:1: unknown key `comitment`: did you mean `commitment`?"), "{text}");
}

#[test]
fn a_check_says_what_the_daemon_would_do_and_runs_none() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("memtide.toml");
    let socket = dir.path().join("memtide.sock");
    let text = format!(
        "mode = \"manage\"\nbudget = \"48 GiB\"\nsocket = {socket:?}\n[class.db]\nmatch = [\"db-*\"]\n"
    );
    std::fs::write(&file, &text).unwrap();
    let check =
        |more: &[&str]| memtide(&[&["run", "--check", "--config", file.to_str().unwrap()], more].concat());
    let said = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();

    let valid = check(&[]);
    assert_eq!((valid.status.code(), error_of(&valid).as_str()), (Some(0), ""));
    let would = "valid: manages guests, strict, budget 48 GiB, reserve 5%, 1 class besides the default";
    assert_eq!(said(&valid), format!("{}: {would}\n", file.display()));
    assert!(!socket.exists());

    let would = "valid: observes only, strict, budget 2 GiB, reserve 5%, 1 class besides the default\n";
    assert!(said(&check(&["--observe", "--budget", "2G"])).ends_with(would));
    std::fs::write(&file, "# nothing\n").unwrap();
    assert!(said(&check(&[])).contains(": valid, sets only defaults: observes only, "));

    std::fs::write(&file, format!("{text}shares = \"many\"\n")).unwrap();
    let (checked, run) = (check(&[]), memtide(&["run", "--config", file.to_str().unwrap()]));
    assert!(error_of(&checked).contains("memtide.toml:6:10: class.db.shares: found the text \"many\""));
    assert_eq!(said(&checked), "");
    assert_eq!((checked.status, error_of(&checked)), (run.status, error_of(&run)));
}

#[test]
fn a_check_refuses_the_place_of_the_socket_that_a_daemon_refuses() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("memtide.toml");
    for socket in [dir.path(), &file] {
        std::fs::write(&file, format!("socket = {socket:?}\n")).unwrap();
        let run = memtide(&["run", "--config", file.to_str().unwrap()]);
        let check = memtide(&["run", "--check", "--config", file.to_str().unwrap()]);
        assert!(error_of(&check).contains("not a socket, so left as it is"), "{check:?}");
        assert_eq!((check.status, error_of(&check)), (run.status, error_of(&run)));
    }
}

#[test]
fn a_wrong_command_line_is_2() {
    assert_eq!(memtide(&["run", "--manage", "--observe"]).status.code(), Some(2));
    assert_eq!(memtide(&["run", "--budget", "5 MB"]).status.code(), Some(2)); // tidy-allow: MB
}

#[test]
fn a_file_that_is_no_journal_is_said_to_be_none() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("text");
    std::fs::write(&file, "not a journal, but long enough for a header").unwrap();
    for command in ["journal", "replay"] {
        let output = memtide(&[command, file.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(1));
        assert!(error_of(&output).contains("text"), "{}", error_of(&output));
    }
}

#[test]
fn a_directory_without_a_journal_is_said_to_have_none() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("notes"), "no segment").unwrap();
    for command in ["journal", "replay"] {
        let output = memtide(&[command, dir.path().to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(1));
        assert!(output.stdout.is_empty());
        let text = error_of(&output);
        assert!(
            text.contains("there is no journal here: a daemon writes its decisions")
                && text.contains("journal.dir"),
            "{text}"
        );
    }
}

#[test]
fn a_report_is_of_the_journal_that_the_configuration_names() {
    let dir = tempfile::tempdir().unwrap();
    let (file, journal) = (dir.path().join("memtide.toml"), dir.path().join("journal"));
    std::fs::write(&file, format!("journal = {{ dir = {journal:?} }}\n")).unwrap();
    let page = dir.path().join("page.html");
    let [config, output] = [&file, &page].map(|path| path.to_str().unwrap());
    let report = |more: &[&str]| memtide(&[&["report", "--config", config, "--output"], more].concat());

    let missing = report(&[output]);
    assert_eq!(missing.status.code(), Some(1));
    let text = error_of(&missing);
    assert!(text.contains("there is no journal in") && text.contains("`journal.dir`"), "{text}");

    std::fs::create_dir(&journal).unwrap();
    let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/../../traces/react-halve.mtj");
    std::fs::copy(trace, journal.join("000001.mtj")).unwrap();
    let written = report(&[output]);
    assert_eq!((written.status.code(), error_of(&written).as_str()), (Some(0), ""));
    let said = String::from_utf8_lossy(&written.stdout).into_owned();
    assert_eq!(said, format!("{} shows the journal in {}\n", page.display(), journal.display()));
    let shown = report(&["-"]);
    assert_eq!(shown.stdout, std::fs::read(&page).unwrap());

    let over = memtide(&["report", "--from", trace, "--output", trace]);
    assert_eq!(over.status.code(), Some(1));
    assert!(error_of(&over).contains("would overwrite"), "{}", error_of(&over));
    let wrong = memtide(&["report", "--since", "noon"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(error_of(&wrong).contains("write a time such as `14:32`"), "{}", error_of(&wrong));
}

#[test]
fn the_exit_codes_are_in_the_help() {
    let output = memtide(&["--help"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("Exit codes:"), "{text}");
}

#[test]
fn a_program_is_started_whose_memory_ksm_may_merge() {
    let flags = "grep -q 'VmFlags:.* mg' /proc/self/smaps && exit 7; exit 8";
    let output = memtide(&["ksm", "run", "--", "sh", "-c", flags]);
    match output.status.code() {
        Some(7) => {}
        // Before Linux 6.10, the started program can lose it.
        Some(8) => assert!(release() < (6, 10)),
        // Without KSM.
        Some(1) => assert!(error_of(&output).contains("this kernel cannot"), "{}", error_of(&output)),
        other => panic!("{other:?}: {}", error_of(&output)),
    }
    if output.status.code() == Some(7) {
        let output = memtide(&["ksm", "run", "--", "/nonexistent/program"]);
        assert_eq!(output.status.code(), Some(1));
        assert!(error_of(&output).contains("cannot start /nonexistent/program"), "{}", error_of(&output));
    }
}

#[test]
fn an_audit_of_this_process_tells_what_merging_would_save() {
    let pid = std::process::id().to_string();
    let output = memtide(&["audit", "--pid", &pid, "--wait", "0s", "--json"]);
    if output.status.code() == Some(1) && error_of(&output).contains("Operation not permitted") {
        memtide_testing::skipped("this process may not read the memory of a process that is not its child");
        return;
    }
    assert_eq!(output.status.code(), Some(0), "{}", error_of(&output));
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told["schema"], 1);
    let size = |key: &str| told["ksm"][key].as_u64().unwrap();
    assert!(size("low") <= size("saving_bytes") && size("saving_bytes") <= size("high"), "{told}");
    assert_eq!(told["groups"].as_array().unwrap().len(), 1);
    let output = memtide(&["audit", "--pid", &pid, "--wait", "0s", "--exact"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("all pages compared") && text.contains("in total"), "{text}");
    let output = memtide(&["audit", "--pid", "2147483647"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(error_of(&output).contains("no memory could be read"), "{}", error_of(&output));
}

/// The first two numbers of the kernel's version.
fn release() -> (u32, u32) {
    let name = rustix::system::uname();
    let text = name.release().to_string_lossy().into_owned();
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

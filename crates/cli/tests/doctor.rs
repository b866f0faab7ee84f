//! `memtide doctor` as an operator runs it: its output, its exit codes, and its output for an ordinary user.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../doctor/tests/common/mod.rs"]
mod common;

use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use common::{BALLOON, Tree};
use serde_json::{Value, json};

const NOBODY: u32 = 65534;

/// A tree with a configuration that refers to no file of this system.
fn tree() -> Tree {
    let tree = Tree::new();
    let socket = tree.path().join("memtide.sock");
    let text = format!("socket = {socket:?}\njournal = {{ dir = \"/journal\", max = \"8 MiB\" }}\n");
    tree.file("memtide.toml", text);
    tree
}

fn command(program: &Path, tree: &Tree, more: &[&str]) -> Command {
    let mut command = Command::new(program);
    command
        .arg("doctor")
        .arg("--root")
        .arg(tree.path())
        .arg("--config")
        .arg(tree.path().join("memtide.toml"));
    command.args(more).env("NO_COLOR", "1");
    command
}

fn doctor(tree: &Tree, more: &[&str]) -> Output {
    command(Path::new(env!("CARGO_BIN_EXE_memtide")), tree, more).output().unwrap()
}

/// The output, with a fixed name for the tree.
fn printed(tree: &Tree, output: &Output) -> String {
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).replace(tree.path().to_str().unwrap(), "TREE")
}

#[test]
fn a_host_that_lacks_nothing_is_told_what_was_looked_at() {
    let tree = tree();
    let _guest = tree.guest(41, "web", "vm/41.qmp", &[]);
    let output = doctor(&tree, &[]);
    assert_eq!(output.status.code(), Some(0));
    insta::assert_snapshot!(printed(&tree, &output), @r"
    host    Linux 6.12.9-amd64, 8 GiB with 5 GiB available, no swap, THP madvise, KSM off, PSI on, cgroups v2
    guests  1, promised 512 MiB in total, 1 asked through its monitor
    daemon  none answers at TREE/memtide.sock
            start one: sudo memtide run --config TREE/memtide.toml

    nothing is lacking: checked the host's memory, swap, overcommit, huge pages, KSM, pressure and cgroups, and
    the monitor, balloon, statistics and pinned memory of 1 guest
    ");
}

#[test]
fn the_cache_of_zfs_is_available_down_to_its_minimum() {
    let tree = tree();
    let arc = "9 1 0x01 147 39984 1 2\nname type data\nc_min 4 268435456\nsize 4 1342177280\n";
    tree.file("proc/spl/kstat/zfs/arcstats", arc);
    let text = printed(&tree, &doctor(&tree, &[]));
    assert!(text.contains("8 GiB with 6 GiB available (1 GiB of it in ZFS's cache), no swap"), "{text}");
}

#[test]
fn without_guests_only_the_host_lacks_nothing() {
    let tree = tree();
    let output = doctor(&tree, &[]);
    assert_eq!(output.status.code(), Some(0));
    insta::assert_snapshot!(printed(&tree, &output), @r"
    host    Linux 6.12.9-amd64, 8 GiB with 5 GiB available, no swap, THP madvise, KSM off, PSI on
    guests  none found
    daemon  none answers at TREE/memtide.sock
            start one: sudo memtide run --config TREE/memtide.toml

    the host lacks nothing: checked its memory, swap, overcommit, huge pages, KSM, pressure and cgroups; there are
    no guests to check
    ");
}

#[test]
fn people_read_problems_first_and_what_is_alike_once() {
    let tree = tree();
    let plain = |name| ["-name", name, "-accel", "kvm", "-m", "1G"];
    tree.qemu(51, &plain("db1"));
    tree.qemu(52, &plain("db2"));
    let _locked =
        tree.guest(53, "evil\u{1b}[31m; rm -rf $HOME", "vm/53.qmp", &["-overcommit", "mem-lock=on"]);
    let polled_by_nobody = tree.guest(54, "web", "vm/54.qmp", &[]);
    polled_by_nobody.change(|machine| (machine.interval, machine.deflate_on_oom) = (0, false));
    tree.file("proc/sys/vm/overcommit_memory", "2\n");
    let output = doctor(&tree, &[]);
    assert_eq!(output.status.code(), Some(11));
    insta::assert_snapshot!(printed(&tree, &output), @r#"
    host    Linux 6.12.9-amd64, 8 GiB with 5 GiB available, no swap, THP madvise, KSM off, PSI on, cgroups v2
    guests  4, promised 3 GiB in total, 2 asked through their monitors
    daemon  none answers at TREE/memtide.sock
            start one: sudo memtide run --config TREE/memtide.toml

    problem  db1 (process 51), db2 (process 52)
      no QMP socket on QEMU's command line
      costs  memtide can only count it, at its worst case
      fix    QEMU's command line (from the next start; the directory must exist), and likewise for the other:
               -qmp unix:/run/vm/db1.qmp,server=on,wait=off

    problem  db1 (process 51), db2 (process 52)
      no balloon device
      costs  memtide can take nothing from it: its whole 1 GiB stays promised to it
      fix    QEMU's command line (from the next start):
               -device virtio-balloon-pci,id=balloon0,deflate-on-oom=on,free-page-reporting=on

    problem  evil_[31m; rm -rf $HOME (process 53)
      its memory will be locked (mem-lock=on)
      costs  the kernel frees no locked page: a balloon takes memory from the guest, and the host gets none of it
      fix    QEMU's command line (from the next start):
               -overcommit mem-lock=off
             or leave it alone, in TREE/memtide.toml (before other classes that match it):
               [class."fixed-evil__31m__rm_-rf__HOME"]
               # Each ? matches any character, also in the names of other guests.
               match = ["evil_?31m; rm -rf $HOME"]
               manage = false

    warning  the host
      vm.overcommit_memory is 2: 3 GiB of 4 GiB are left
      costs  the kernel counts each guest at its full size, whatever its balloon holds: another guest fails to
             start with "cannot allocate memory" although memory is free
      fix    a shell:
               sysctl -w vm.overcommit_memory=0
               echo 'vm.overcommit_memory = 0' > /etc/sysctl.d/60-vm.overcommit_memory.conf

    warning  web (process 54)
      deflate-on-oom is off
      costs  a guest that grows faster than memtide grants kills its own processes instead of taking memory back
             from its balloon; in return a strict commitment needs no room for its self-deflation
      fix    QEMU's command line (from the next start):
               -device virtio-balloon-pci,id=balloon0,deflate-on-oom=on,free-page-reporting=on

    hint     web (process 54)
      nobody polls the balloon statistics
      costs  memtide only observes, so it cannot tell how much this guest uses; when it manages, it polls them
             itself
      fix    a shell: let memtide manage:
               sudo memtide run --manage --config TREE/memtide.toml
             or QEMU's command line (from the next start):
               -device virtio-balloon-pci,id=balloon0,deflate-on-oom=on,free-page-reporting=on,guest-stats-polling-interval=1
             or its QMP monitor, at once:
               {"execute":"qom-set","arguments":{"path":"/machine/peripheral/balloon0","property":"guest-stats-polling-interval","value":1}}

    5 problems, 2 warnings, 1 hint
    "#);
}

#[test]
fn the_exit_code_is_that_of_the_worst() {
    let tree = tree();
    let guest = tree.guest(41, "web", "vm/41.qmp", &[]);
    guest.change(|machine| machine.interval = 0);
    assert_eq!(doctor(&tree, &[]).status.code(), Some(0), "a hint");
    guest.change(|machine| machine.free_page_reporting = false);
    assert_eq!(doctor(&tree, &[]).status.code(), Some(10), "a warning");
    guest.change(|machine| machine.balloon = false);
    assert_eq!(doctor(&tree, &[]).status.code(), Some(11), "a problem");
    let nowhere = doctor(&tree, &["--config", "/nonexistent/memtide.toml"]);
    assert_eq!(nowhere.status.code(), Some(2), "named twice");
    tree.file("memtide.toml", "mode = \"sometimes\"\n");
    let output = doctor(&tree, &[]);
    assert_eq!(output.status.code(), Some(11));
    assert!(printed(&tree, &output).contains("the configuration is refused: TREE/memtide.toml:1:8"));
    fs::remove_file(tree.path().join("memtide.toml")).unwrap();
    assert_eq!(doctor(&tree, &[]).status.code(), Some(1), "what was named must be there");
}

#[test]
fn programs_read_json() {
    let tree = tree();
    let guest = tree.guest(41, "web", "vm/41.qmp", &[]);
    guest.change(|machine| machine.balloon = false);
    let output = doctor(&tree, &["--json"]);
    assert_eq!(output.status.code(), Some(11));
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&told["problems"], &told["warnings"], &told["hints"]), (&json!(1), &json!(0), &json!(0)));
    assert_eq!(
        told["guests"],
        json!([{"name": "web", "pid": 41, "libvirt": false, "managed": true, "told_by": "monitor"}])
    );
    let finding = &told["findings"][0];
    assert_eq!(finding["rule"], "balloon.none");
    assert_eq!(finding["severity"], "problem");
    assert_eq!(finding["subject"], json!({"kind": "guest", "name": "web", "pid": 41}));
    assert_eq!(finding["mends"][0]["lines"], json!([format!("-device {BALLOON}")]));
}

/// The program at a path where every user can run it, as a user without rights: nobody if this is root, otherwise this user.
fn as_nobody(tree: &Tree) -> Command {
    let program = tree.path().join("memtide");
    fs::copy(env!("CARGO_BIN_EXE_memtide"), &program).unwrap();
    fs::set_permissions(tree.path(), Permissions::from_mode(0o755)).unwrap();
    let mut command = command(&program, tree, &[]);
    if rustix::process::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}

/// Runs a program that was just copied: a child process of another test may still have it open for writing.
fn run(command: &mut Command) -> Output {
    let begun = Instant::now();
    loop {
        match command.output() {
            Err(error)
                if error.kind() == ErrorKind::ExecutableFileBusy
                    && begun.elapsed() < Duration::from_secs(60) =>
            {
                std::thread::yield_now();
            }
            output => return output.unwrap(),
        }
    }
}

#[test]
fn an_ordinary_user_is_told_what_could_not_be_seen() {
    let tree = tree();
    let _web = tree.guest(41, "web", "secret/41.qmp", &[]);
    let _db = tree.guest(42, "db", "secret/42.qmp", &[]);
    let closed = ["secret", "proc/41/smaps", "proc/42/smaps"].map(|name| tree.path().join(name));
    for path in &closed {
        fs::set_permissions(path, Permissions::from_mode(0o000)).unwrap();
    }
    let output = run(&mut as_nobody(&tree));
    for path in &closed {
        fs::set_permissions(path, Permissions::from_mode(0o700)).unwrap();
    }
    let text = printed(&tree, &output);
    assert_eq!(output.status.code(), Some(10), "{text}");
    let user =
        if rustix::process::geteuid().is_root() { NOBODY } else { rustix::process::geteuid().as_raw() };
    assert!(text.contains(&format!("user {user} cannot reach the monitors of db, web")), "{text}");
    assert!(
        text.contains(&format!("user {user} may not read the mappings (/proc/PID/smaps) of db, web")),
        "{text}"
    );
    assert!(text.contains("sudo memtide doctor --config TREE/memtide.toml"), "{text}");
    assert!(text.contains("0 problems, 2 warnings, 0 hints"), "{text}");
}

#[test]
fn a_socket_of_the_daemon_that_is_not_ours_is_told() {
    let tree = tree();
    fs::create_dir(tree.path().join("run")).unwrap();
    let socket = tree.path().join("run/memtide.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    fs::set_permissions(tree.path().join("run"), Permissions::from_mode(0o000)).unwrap();
    let output = run(as_nobody(&tree).arg("--socket").arg(&socket));
    fs::set_permissions(tree.path().join("run"), Permissions::from_mode(0o700)).unwrap();
    let text = printed(&tree, &output);
    assert_eq!(output.status.code(), Some(10), "{text}");
    assert!(text.contains("may not use the daemon's socket TREE/run/memtide.sock"), "{text}");
}

#[test]
fn a_daemon_that_was_killed_or_stopped_does_not_answer() {
    let tree = tree();
    let socket = tree.path().join("memtide.sock");
    // The queue accepts the connection, but no process reads it.
    let stopped = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let output = doctor(&tree, &[]);
    let text = printed(&tree, &output).replace("\n  ", "");
    assert_eq!(output.status.code(), Some(10), "{text}");
    assert!(text.contains("no daemon answers at TREE/memtide.sock: one listens there"), "{text}");
    assert!(text.contains("sudo memtide run --config TREE/memtide.toml"), "{text}");
    assert!(!text.contains("version"), "{text}");
    let status =
        Command::new(env!("CARGO_BIN_EXE_memtide")).arg("status").arg("--socket").arg(&socket).output();
    assert_eq!(status.unwrap().status.code(), Some(4));
    drop(stopped);
    assert!(socket.exists());
    let output = doctor(&tree, &[]);
    let text = printed(&tree, &output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("none answers at TREE/memtide.sock\n"), "{text}");
    assert!(text.contains("start one: sudo memtide run --config TREE/memtide.toml\n"), "{text}");
}

#[test]
fn a_monitor_on_tcp_is_told_with_the_socket_that_mends_it() {
    let tree = tree();
    tree.qemu(
        51,
        &["-name", "db1", "-m", "1G", "-device", BALLOON, "-qmp", "tcp:localhost:4444,server=on,wait=off"],
    );
    let text = printed(&tree, &doctor(&tree, &[]));
    let said = "its QMP monitor is on TCP (tcp:localhost:4444): memtide uses only Unix sockets";
    assert!(text.contains(said), "{text}");
    assert!(text.contains("-qmp unix:/run/vm/db1.qmp,server=on,wait=off"), "{text}");
}

#[test]
fn the_help_names_the_exit_codes() {
    let output = Command::new(env!("CARGO_BIN_EXE_memtide")).arg("--help").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("10  doctor: there are warnings, but no problems"), "{text}");
    assert!(text.contains("11  doctor: there are problems"), "{text}");
}

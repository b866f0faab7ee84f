//! Actions that an operator may take while memtide manages real guests.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use memtide_lab::experiments::react::stall::managing;
use memtide_lab::guest::Guest;
use memtide_lab::machine::lab::Run;
use memtide_lab::managers::daemon::Daemon;
use memtide_lab::wait::until;
use memtide_lab::work::exercise::fill;
use memtide_load::helper::wire::Ask;
use memtide_model::{Bytes, Fence, Keeps, Reading, Verdict};
use serde_json::json;

use crate::JOB;
use crate::mib;
use crate::prepare;
use crate::reporting;
use crate::start;
use crate::unhurt;
use crate::until_smaller;

/// A run with two guests of 512 MiB, of which only the first may deflate its own balloon, and the configuration of a daemon
/// that manages them. The daemon has already made the first one smaller.
struct Setting {
    run: Run,
    guests: Vec<Guest>,
    config: String,
    daemon: Daemon,
}

impl Setting {
    /// Guests whose names begin with `name`.
    fn new(name: &str) -> Self {
        let run = prepare(&format!("test-{name}"));
        let builders = [("1", true), ("2", false)]
            .map(|(number, deflates)| reporting(&format!("{name}-{number}"), mib(512), deflates));
        let guests = start(&run, builders);
        // One of them can have its full size, in addition to the other one's need and the cost of their processes.
        let config = managing(&format!("{name}-"), mib(512 + 200 + 2 * 90));
        let daemon = Daemon::start(run.path(), &config).unwrap();
        until_smaller(&daemon, guests[0].name(), mib(450), JOB);
        Self { run, guests, config, daemon }
    }

    /// Stops the daemon, and checks that no guest was hurt.
    fn end(self) {
        self.daemon.stop().unwrap();
        self.guests.iter().for_each(unhurt);
    }
}

pub fn verdict(daemon: &Daemon, name: &str) -> Verdict {
    daemon.guest(name).unwrap().status.report.verdict
}

/// Waits until the verdict on a guest is the wanted one.
pub fn until_said(daemon: &Daemon, what: &str, name: &str, wanted: impl Fn(&Verdict) -> bool) {
    let said = daemon.until(what, JOB, name, |detail| wanted(&detail.status.report.verdict).then_some(()));
    assert!(said.is_ok(), "{what}: {:#?}", daemon.guest(name).unwrap().status);
}

/// Waits until memtide's last target has settled.
pub fn until_settled(daemon: &Daemon, name: &str) {
    daemon
        .until("a settled guest", JOB, name, |detail| {
            let settled = detail.status.report.verdict == Verdict::Steady;
            (settled && detail.status.last_change?.as_millis() > 3_000).then_some(())
        })
        .unwrap();
}

/// Twenty decisions pass, and the guest keeps `size`, except for memory that its driver was just moving.
pub fn stays(daemon: &Daemon, guest: &Guest, size: Bytes) {
    let begun = daemon.status().unwrap().counters.ticks;
    until("twenty decisions", JOB, || {
        let now = guest.actual()?;
        assert!(now.abs_diff(size) <= mib(4), "{}: {size}, and then {now}", guest.name());
        Ok((daemon.status()?.counters.ticks >= begun + 20).then_some(()))
    })
    .unwrap();
}

fn until_kept(daemon: &Daemon) {
    until("the commitment kept", JOB, || Ok(daemon.status()?.host.breach.is_zero().then_some(()))).unwrap();
}

/// How often the daemon's log says that the commitment is not kept.
fn breaches_so_far(daemon: &Daemon) -> usize {
    daemon.log().unwrap().matches("the commitment is not kept").count()
}

pub fn is_foreign(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Held(hold) if matches!(hold.keeps, Keeps::Foreign { .. }))
}

pub fn an_operator_is_obeyed() {
    let mut setting = Setting::new("op");
    let Setting { run, guests, config, daemon } = &mut setting;
    hold_release_and_resume(daemon, &guests[0]);
    fences(daemon, &guests[0]);
    somebody_knocks(daemon, &guests[0]);
    a_second_daemon(run, config);
    configurations(daemon, config);
    setting.end();
}

fn hold_release_and_resume(daemon: &Daemon, guest: &Guest) {
    let said = daemon.command(&["hold", "op-1", "--for", "1h"]).unwrap();
    assert!(said.starts_with("op-1: held by the operator for 60 min, keeps "), "{said}");
    // Its driver may have been inflating: it comes back to the size that it had when it was held.
    daemon
        .until("a held guest at its size", JOB, "op-1", |detail| {
            let report = &detail.status.report;
            report.target.is_none_or(|target| target == report.actual).then_some(())
        })
        .unwrap();
    stays(daemon, guest, guest.actual().unwrap());

    // A guest that was held while both were still being made smaller keeps more than it was to keep: the other one makes up for it.
    until_kept(daemon);
    let breaches = breaches_so_far(daemon);
    let said = daemon.command(&["release", "op-1"]).unwrap();
    assert!(said.starts_with("op-1: "), "{said}");
    // The other guest gives memory that it does not need, and the first keeps its full size.
    let full = daemon.until("its full size", JOB, "op-1", |detail| {
        (detail.status.report.actual >= mib(504)).then_some(())
    });
    assert!(full.is_ok(), "{:#?}", daemon.status().unwrap());
    // The ledger is full, and the footprint of a QEMU process grows by itself now and then: the next decision makes up for it.
    until_kept(daemon);
    assert_eq!(breaches_so_far(daemon), breaches, "{}", daemon.log().unwrap());
    until_said(daemon, "released", "op-1", |verdict| matches!(verdict, Verdict::Held(_)));
    stays(daemon, guest, guest.actual().unwrap());

    let said = daemon.command(&["resume"]).unwrap();
    assert_eq!(said.lines().count(), 2, "{said}");
}

pub fn balloons_that_somebody_else_moved_are_left_alone() {
    let setting = Setting::new("else");
    let Setting { guests, daemon, .. } = &setting;
    // Both make room: the first for the second guest's memory, and the other way round.
    for (guest, others) in [(&guests[0], 300), (&guests[1], 400), (&guests[1], 200)] {
        let name = guest.name();
        until_said(daemon, "no hold", name, |verdict| !matches!(verdict, Verdict::Held(_)));
        until_settled(daemon, name);
        let before = guest.actual().unwrap();
        // Up for guests that keep less, down for guests that keep more, by at least 64 MiB.
        let size = if before.abs_diff(mib(others)) < mib(64) { mib(others - 100) } else { mib(others) };
        guest.set_target(size).unwrap();
        until_said(daemon, &format!("{name} from {before} to {size}"), name, is_foreign);
        until("its size", JOB, || Ok((guest.actual()? == size).then_some(()))).unwrap();
        stays(daemon, guest, size);
        let explained = daemon.command(&["explain", name]).unwrap();
        assert!(explained.contains(&format!("`memtide resume {name}` manages it again")), "{explained}");
        daemon.command(&["resume", name]).unwrap();
    }
    setting.end();
}

pub fn who_runs_dry_gets_what_somebody_else_gave_to_another_guest() {
    let setting = Setting::new("dry");
    let Setting { guests, daemon, .. } = &setting;
    let [held, grows] = &guests[..] else { unreachable!("two were started") };
    until_settled(daemon, held.name());
    // Somebody gives the first guest its full size. 200 MiB are left for the second guest, and nobody takes anything back.
    held.set_target(mib(512)).unwrap();
    until_said(daemon, "the full size", held.name(), is_foreign);
    until("its size", JOB, || Ok((held.actual()? >= mib(508)).then_some(()))).unwrap();
    stays(daemon, held, mib(512));
    // The second guest, which may not deflate its own balloon, now uses more than that.
    let job = grows.run(fill(3, 260, Some(20)), JOB).unwrap();
    assert!(!is_foreign(&verdict(daemon, held.name())));
    assert!(held.actual().unwrap() < mib(480), "it gave what the other one lacked");
    let log = daemon.log().unwrap();
    assert!(log.contains(&format!("{} lacks", grows.name())), "{log}");
    let explained = daemon.command(&["explain", held.name()]).unwrap();
    assert!(explained.contains("managed again after somebody else moved its balloon"), "{explained}");
    // And it stays so: the same movement is not foreign again.
    let begun = daemon.status().unwrap().counters.ticks;
    until("forty decisions", JOB, || {
        assert!(!is_foreign(&verdict(daemon, held.name())));
        Ok((daemon.status()?.counters.ticks >= begun + 40).then_some(()))
    })
    .unwrap();
    grows.ask::<serde_json::Value>(Ask::Cancel { job: job.id() }, JOB).unwrap();
    setting.end();
}

fn fences(daemon: &Daemon, guest: &Guest) {
    guest.pause().unwrap();
    until_said(daemon, "paused", "op-1", |verdict| *verdict == Verdict::Fenced(Fence::Paused));
    stays(daemon, guest, guest.actual().unwrap());
    guest.resume().unwrap();
    until_said(daemon, "running", "op-1", |verdict| !matches!(verdict, Verdict::Fenced(_)));

    // A slow migration.
    guest.qmp("migrate-set-parameters", &json!({ "max-bandwidth": 65_536 })).unwrap();
    guest.qmp("migrate", &json!({ "uri": "exec:cat >/dev/null" })).unwrap();
    until_said(daemon, "migrating", "op-1", |verdict| *verdict == Verdict::Fenced(Fence::Migrating));
    guest.qmp("migrate_cancel", &json!({})).unwrap();
    until_said(daemon, "migrated no more", "op-1", |verdict| !matches!(verdict, Verdict::Fenced(_)));
}

/// The monitor is kept open while memtide manages. A client that connects is still served, and memtide comes back.
fn somebody_knocks(daemon: &Daemon, guest: &Guest) {
    let mut client = UnixStream::connect(guest.monitor()).unwrap();
    client.set_read_timeout(Some(JOB)).unwrap();
    let mut lines = BufReader::new(client.try_clone().unwrap());
    let mut line = String::new();
    let begun = Instant::now();
    lines.read_line(&mut line).unwrap();
    println!("a client that knocks is greeted after {:.2?}", begun.elapsed());
    client.write_all(b"{\"execute\":\"qmp_capabilities\"}{\"execute\":\"query-status\"}\n").unwrap();
    while !line.contains("running") {
        line.clear();
        assert!(lines.read_line(&mut line).unwrap() > 0, "the monitor closed");
    }
    drop((client, lines));
    let fresh = daemon.until("readings again", JOB, "op-1", |detail| {
        let age = match &detail.seen.told.balloon {
            Reading::Fresh { age, .. } => *age,
            _ => return None,
        };
        (age.as_millis() < 1_000).then_some(())
    });
    assert!(fresh.is_ok(), "{:#?}", daemon.guest("op-1").unwrap().seen);
}

fn a_second_daemon(run: &Run, config: &str) {
    let part = run.part("second").unwrap();
    let second = Daemon::start(part.path(), config).unwrap();
    for name in ["op-1", "op-2"] {
        until_said(&second, "managed by the first", name, |verdict| {
            matches!(verdict, Verdict::Fenced(Fence::Another { .. }))
        });
    }
    let status = second.status().unwrap();
    assert!(status.warnings.iter().any(|line| line.contains("manages 2 of 2 guests")), "{status:#?}");
    assert_eq!(status.counters.actions_done, 0);
    second.stop().unwrap();
}

fn configurations(daemon: &mut Daemon, config: &str) {
    daemon.configure(&format!("{config}\n[class.mine]\nmatch = [\"op-2\"]\nmanag = false")).unwrap();
    let refused = until("a refusal", JOB, || {
        let warnings = daemon.status()?.warnings;
        Ok(warnings.into_iter().find(|line| line.contains("did you mean `manage`?")))
    });
    let refused = refused.unwrap();
    assert!(refused.contains("memtide.toml:11:1: ") && refused.contains("the old one stays"), "{refused}");
    daemon.configure(&format!("{config}\n[class.mine]\nmatch = [\"op-2\"]\nmanage = false")).unwrap();
    until_said(daemon, "not managed", "op-2", |verdict| *verdict == Verdict::NotManaged);
    assert!(!matches!(verdict(daemon, "op-1"), Verdict::NotManaged));
    let warnings = daemon.status().unwrap().warnings;
    assert!(!warnings.contains(&refused), "{warnings:?}");
}

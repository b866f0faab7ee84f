//! A journal shows each moment as the board showed it.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use memtide_engine::journal::{JournalError, Reader, Writer, encode, header};
use memtide_engine::{Counters, Engine, EventKind, Killed, Policy, Published, Recorded, own_policy};
use memtide_model::{Bytes, Config, Hold, Keeps, Moment, Order, Ordered, Outsiders, Record, Span, WallClock};

use crate::toy::{Toy, halves, id, manage, wrong_halves};

/// What a journal does not hold has its defaults.
fn as_recorded(published: &Published) -> Published {
    let mut published = published.clone();
    (published.counters, published.unwritten) = (Counters::default(), None);
    published.outsiders = Outsiders::default();
    published.warnings.retain(|warning| warning.starts_with("a change was refused"));
    if let Some(last) = &mut published.last {
        last.took = Span::ZERO;
    }
    published
}

/// The boards of a run of `ticks` decisions: a guest refuses in the first two, one comes, one goes, one is held, one is killed, and the
/// configuration changes.
fn record(dir: &Path, policy: Arc<dyn Policy>, begins: u64, ticks: u64) -> Vec<Published> {
    let (writer, _) = Writer::open(dir, Bytes::from_mib(64)).unwrap();
    let toy = Toy { now: Moment::from_millis(begins), ..Toy::with(&["a", "b"]) };
    let mut engine = Engine::new(toy, manage()).with_policy(policy).with_journal(writer);
    let boards = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&boards);
    engine.board().on_publish(move |board| seen.lock().unwrap().push(as_recorded(board)));
    for tick in 0..ticks {
        let toy = engine.world_mut();
        toy.now = toy.now.after(Span::from_millis(250));
        toy.guest("a").refuses = tick < 2;
        match tick {
            3 => toy.guests.extend(Toy::with(&["c"]).guests),
            5 => {
                let hold = Hold { keeps: Keeps::Size, until: None };
                toy.orders.push(Order { guest: id("b"), ordered: Ordered::Leave(hold) });
            }
            7 => {
                toy.guests.remove(&id("c"));
                toy.killed = vec![Killed { guest: id("c"), how: "killed by the host".to_owned() }];
            }
            9 => toy.now = toy.now.after(Span::from_secs(300)),
            _ => {}
        }
        if tick == 4 {
            engine.reload(Config { self_deflations: 2, ..manage() });
        }
        engine.tick();
    }
    engine.finish();
    Arc::try_unwrap(boards).unwrap().into_inner().unwrap()
}

#[test]
fn each_moment_is_shown_as_it_was_in_any_order() {
    for policy in [own_policy(), halves(), wrong_halves()] {
        let dir = tempfile::tempdir().unwrap();
        let mut boards = record(dir.path(), Arc::clone(&policy), 60_000, 30);
        boards.extend(record(dir.path(), Arc::clone(&policy), 900_000, 12));
        // The host starts again: its clock begins anew.
        boards.extend(record(dir.path(), Arc::clone(&policy), 1_000, 5));
        let mut recorded = Recorded::open_with(dir.path(), policy).unwrap();
        assert_eq!(recorded.len(), boards.len());
        let forth = 0..boards.len();
        let places = forth.clone().chain(forth.clone().rev()).chain(forth.map(|place| place * 7 % 47));
        for place in places {
            let past = recorded.show(place).unwrap();
            assert_eq!(past.published, boards[place], "{place}");
            assert_eq!((past.place, past.differs), (place, None));
        }
        recorded.show(20).unwrap();
        let next = recorded.next().unwrap().unwrap();
        let before = recorded.previous().unwrap().unwrap();
        assert_eq!((next.place, next.published), (21, boards[21].clone()));
        assert_eq!((before.place, before.published), (20, boards[20].clone()));
        assert!(recorded.unread().is_empty() && recorded.torn().is_none() && recorded.missing() == 0);
    }
}

#[test]
fn each_decision_of_the_kept_runs_is_shown_as_it_was() {
    let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces");
    let mut decisions = 0;
    for trace in fs::read_dir(traces).unwrap().map(|entry| entry.unwrap().path()) {
        if trace.extension().is_none_or(|ending| ending != "mtj") {
            continue;
        }
        let mut recorded = Recorded::open(&trace).unwrap();
        let ticks = Reader::open(&trace).unwrap().filter_map(|record| match record.unwrap() {
            Record::Tick(tick) => Some(tick),
            _ => None,
        });
        for tick in ticks {
            let past = recorded.next().unwrap().unwrap();
            assert_eq!(past.differs, None, "{} {}", trace.display(), past.place);
            let last = past.published.last.unwrap();
            assert_eq!((last.seen, last.plan, last.answers), (tick.seen, tick.plan, tick.answers));
            decisions += 1;
        }
        assert_eq!(recorded.next().unwrap(), None);
    }
    assert!(decisions > 1_000, "{decisions}");
}

#[test]
fn a_guest_that_helps_itself_stalled_at_the_size_that_it_had() {
    let trace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces/strict-liar.mtj");
    let events = Recorded::open(&trace).unwrap().events_between(0, usize::MAX).unwrap();
    let stalls = events.iter().filter(|event| event.kind == EventKind::Stall).map(ToString::to_string);
    let stalls: Vec<String> = stalls.collect();
    let text = "liar-3: stalled for lack of memory at 345 MiB, and took back 40 MiB by itself";
    assert!(stalls.iter().any(|stall| stall == text), "{stalls:#?}");
}

#[test]
fn what_happened_is_found_forwards_and_backwards() {
    let dir = tempfile::tempdir().unwrap();
    record(dir.path(), own_policy(), 60_000, 12);
    record(dir.path(), own_policy(), 900_000, 12);
    let mut recorded = Recorded::open(dir.path()).unwrap();
    let all = recorded.events_between(0, usize::MAX).unwrap();
    let of = |kind| {
        all.iter().filter(move |event| event.kind == kind).map(|event| (event.place, event.to_string()))
    };
    assert_eq!(
        of(EventKind::Came).collect::<Vec<_>>(),
        [(3, "c: is a new guest of 1 GiB".into()), (15, "c: is a new guest of 1 GiB".into())]
    );
    assert_eq!(of(EventKind::Went).next().unwrap(), (7, "c: is gone".into()));
    let kills = of(EventKind::Kill).collect::<Vec<_>>();
    assert_eq!(
        kills,
        [(8, "c is gone: killed by the host".into()), (20, "c is gone: killed by the host".into())]
    );
    assert_eq!(of(EventKind::Order).next().unwrap(), (5, "b: is left alone: the operator's order".into()));
    let is_kill = |event: &memtide_engine::Event| event.kind == EventKind::Kill;
    assert_eq!(recorded.next_event(is_kill).unwrap().unwrap().place, 8);
    assert_eq!(recorded.next_event(is_kill).unwrap().unwrap().place, 20);
    assert_eq!(recorded.next_event(is_kill).unwrap(), None);
    assert_eq!(recorded.place(), Some(20), "it stays where it was");
    assert_eq!(recorded.previous_event(is_kill).unwrap().unwrap().place, 8);
    assert_eq!(recorded.previous_event(is_kill).unwrap(), None);
    let silent = recorded.show(9).unwrap().silence;
    assert_eq!(silent, Some(Span::from_millis(300_250)));
    assert_eq!(recorded.show(10).unwrap().silence, None);
}

#[test]
fn the_last_changes_of_a_guest_are_found_in_all_segments() {
    let dir = tempfile::tempdir().unwrap();
    let mut boards = record(dir.path(), halves(), 60_000, 12);
    boards.extend(record(dir.path(), halves(), 900_000, 12));
    let live: Vec<_> = boards.iter().filter_map(|board| board.last.as_ref()).collect();
    let recorded = Recorded::open_with(dir.path(), halves()).unwrap();
    for (place, most) in [(23, 100), (13, 100), (13, 2), (1, 2), (0, 0)] {
        let changes = live[..=place].iter().flat_map(|last| {
            let of_a = last.plan.actions.iter().zip(&last.answers);
            let of_a = of_a.filter(|(action, _)| action.guest() == Some(&id("a")));
            of_a.map(|(action, answer)| (last.seen.taken_at, action.clone(), answer.clone()))
        });
        let mut changes: Vec<_> = changes.collect();
        changes.drain(..changes.len().saturating_sub(most));
        let tried = recorded.tried(place, &id("a"), most).unwrap().into_iter();
        let tried: Vec<_> = tried.map(|done| (done.at, done.action, done.answer)).collect();
        assert_eq!(tried, changes, "{place} {most}");
    }
}

#[test]
fn the_last_decision_before_a_time_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    record(dir.path(), own_policy(), 60_000, 8);
    record(dir.path(), own_policy(), 30_000, 8);
    let mut recorded = Recorded::open(dir.path()).unwrap();
    // The first run decides at 60.25 s and so on, the second one, after the clock was set back, at 30.25 s.
    for (wall, place) in [(0, 0), (30_250, 8), (30_499, 8), (30_500, 9), (60_250, 15), (u64::MAX, 15)] {
        assert_eq!(recorded.at(WallClock(wall)).unwrap().place, place, "{wall}");
    }
    let ((first, _), (last, wall)) = recorded.moments().unwrap();
    assert_eq!((first.as_millis(), last.as_millis(), wall.0), (60_250, 32_000, 32_000));
    let empty = tempfile::tempdir().unwrap();
    let mut recorded = Recorded::open(empty.path()).unwrap();
    assert!(recorded.is_empty() && recorded.moments().is_none() && recorded.next().unwrap().is_none());
    assert!(matches!(recorded.at(WallClock(0)), Err(JournalError::NoDecision)));
}

#[test]
fn decisions_of_another_version_are_shown_as_such() {
    let dir = tempfile::tempdir().unwrap();
    let boards = record(dir.path(), halves(), 60_000, 12);
    let mut recorded = Recorded::open(dir.path()).unwrap();
    let past = recorded.show(4).unwrap();
    let said = past.differs.unwrap().to_string();
    let expected =
        format!("memtide {} with the policy `halves` wrote this journal", env!("CARGO_PKG_VERSION"));
    assert!(said.starts_with(&expected), "{said}");
    let (shown, live) = (past.published.last.unwrap(), boards[4].last.clone().unwrap());
    assert_eq!((shown.seen, shown.plan, shown.answers), (live.seen, live.plan, live.answers));
    let targets =
        |report: memtide_model::Report| report.guests.iter().map(|guest| guest.target).collect::<Vec<_>>();
    assert_eq!(targets(shown.report), targets(live.report), "targets are recorded");
}

/// The journal below `dir` as bytes with this change to its records, and where its decisions are in them.
fn rewritten(dir: &Path, change: impl Fn(usize, &mut Record)) -> (Vec<u8>, Vec<usize>) {
    let (mut bytes, mut places) = (header().to_vec(), Vec::new());
    for record in Reader::open(dir).unwrap() {
        let mut record = record.unwrap();
        if let Record::Tick(_) = record {
            change(places.len(), &mut record);
            places.push(bytes.len());
        }
        encode(&record, &mut bytes).unwrap();
    }
    (bytes, places)
}

#[test]
fn what_is_shown_does_not_depend_on_the_way_there() {
    let dir = tempfile::tempdir().unwrap();
    record(dir.path(), own_policy(), 60_000, 40);
    // Every checksum but that of the 24th decision, after which a checkpoint lies: the decisions after it still agree with the journal.
    let (bytes, _) = rewritten(dir.path(), |nth, record| match record {
        Record::Tick(tick) if nth == 23 => tick.state_crc ^= 1,
        _ => {}
    });
    fs::write(dir.path().join("000001.mtj"), bytes).unwrap();
    let mut recorded = Recorded::open(dir.path()).unwrap();
    let backwards: Vec<_> = (0..40).rev().map(|place| recorded.show(place).unwrap().differs).collect();
    let forwards: Vec<_> = (0..40).map(|place| recorded.show(place).unwrap().differs).collect();
    assert!(backwards.iter().rev().eq(&forwards), "{backwards:?} {forwards:?}");
    let differ: Vec<usize> = (0..40).filter(|place| forwards[*place].is_some()).collect();
    assert_eq!(differ, [23, 24], "the decision itself, and the one that follows from it");
}

#[test]
fn a_last_frame_that_is_not_whole_is_a_torn_tail_however_long_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let boards = record(dir.path(), own_policy(), 60_000, 12);
    let (mut bytes, places) = rewritten(dir.path(), |_, _| {});
    // A write of whose blocks the last one did not come to the disk.
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(dir.path().join("000001.mtj"), &bytes).unwrap();
    let mut recorded = Recorded::open(dir.path()).unwrap();
    let torn = recorded.torn().unwrap();
    assert!(torn.offset >= places[11] as u64, "{torn:?}");
    let newest = recorded.len() - 1;
    assert_eq!(recorded.show(newest).unwrap().published, boards[newest]);
    bytes[last] ^= 1;
    fs::write(dir.path().join("000001.mtj"), &bytes).unwrap();
    recorded.refresh().unwrap();
    assert_eq!((recorded.len(), recorded.torn()), (12, None), "the rest has come");
}

#[test]
fn a_broken_place_is_told_and_what_follows_is_not_shown_as_exact() {
    let dir = tempfile::tempdir().unwrap();
    let boards = record(dir.path(), own_policy(), 60_000, 12);
    let file = dir.path().join("000001.mtj");
    let (mut bytes, places) = rewritten(dir.path(), |_, _| {});
    let broken = places[4] + 200;
    bytes[broken] ^= 1;
    bytes.truncate(bytes.len() - 5);
    fs::write(&file, &bytes).unwrap();
    let mut recorded = Recorded::open(dir.path()).unwrap();
    assert!(recorded.torn().is_some());
    assert!(matches!(recorded.show(4), Err(JournalError::Corrupt { .. })));
    assert_eq!(recorded.place(), Some(4), "one can go on from there");
    let next = recorded.next().unwrap().unwrap();
    assert!(next.differs.is_some(), "the state before it is unknown");
    assert_eq!(next.published.last.unwrap().seen, boards[5].last.clone().unwrap().seen);
    let before = recorded.show(3).unwrap();
    assert_eq!((before.published, before.differs), (boards[3].clone(), None));
    // A length that cannot be: the place is found when the journal is opened.
    bytes[places[4]..places[4] + 4].fill(0xff);
    fs::write(&file, &bytes).unwrap();
    let recorded = Recorded::open(dir.path()).unwrap();
    assert!(matches!(recorded.unread(), [JournalError::Corrupt { .. }]));
    assert_eq!(recorded.len(), 11);
}

#[test]
fn a_journal_that_is_written_is_followed() {
    let dir = tempfile::tempdir().unwrap();
    record(dir.path(), own_policy(), 60_000, 5);
    let mut recorded = Recorded::open(dir.path()).unwrap();
    recorded.show(4).unwrap();
    let boards = record(dir.path(), own_policy(), 90_000, 5);
    assert_eq!((recorded.refresh().unwrap(), recorded.len()), (0, 10));
    assert_eq!(recorded.next().unwrap().unwrap().published, boards[0]);
    fs::remove_file(dir.path().join("000001.mtj")).unwrap();
    assert_eq!((recorded.refresh().unwrap(), recorded.len(), recorded.place()), (5, 5, Some(0)));
    assert_eq!(recorded.next().unwrap().unwrap().published, boards[1]);
    record(dir.path(), own_policy(), 120_000, 5);
    record(dir.path(), own_policy(), 150_000, 5);
    fs::remove_file(dir.path().join("000003.mtj")).unwrap();
    recorded.refresh().unwrap();
    assert_eq!((recorded.len(), recorded.missing()), (10, 1));
}

//! A replay repeats an engine's journal, and finds every forgery.

use std::path::Path;
use std::sync::Arc;

use memtide_engine::journal::{Reader, Writer};
use memtide_engine::{Difference, Engine, Mismatch, Policy, Replay, describe, golden_with, replay_journal};
use memtide_model::{Answer, Bytes, Config, Record, Span, Tick};
use proptest::prelude::*;

use crate::toy::{FULL, HALF, Toy, halves, id, manage, quarters, wrong_halves};

const MOST: Bytes = Bytes::from_mib(64);

/// Six ticks of an engine. A guest refuses in the first two, another guest appears in the fourth, and the configuration
/// changes before the fifth.
fn record(dir: &Path, policy: Arc<dyn Policy>) -> Vec<Record> {
    let (writer, _) = Writer::open(dir, MOST).unwrap();
    let mut engine = Engine::new(Toy::with(&["a", "b"]), manage()).with_policy(policy).with_journal(writer);
    for tick in 0..6 {
        let toy = engine.world_mut();
        toy.now = toy.now.after(Span::from_millis(250));
        toy.guest("a").refuses = tick < 2;
        if tick == 3 {
            toy.guests.extend(Toy::with(&["c"]).guests);
        }
        if tick == 4 {
            engine.reload(Config { self_deflations: 2, ..manage() });
        }
        engine.tick();
    }
    engine.finish();
    Reader::open(dir).unwrap().collect::<Result<_, _>>().unwrap()
}

fn replay_with(policy: Arc<dyn Policy>, records: Vec<Record>) -> Result<Replay, Box<Difference>> {
    let mut replay = Replay::with_policy(policy);
    for record in records {
        replay.step(record)?;
    }
    Ok(replay)
}

fn ticks(records: &mut [Record]) -> Vec<&mut Tick> {
    let tick = |record| match record {
        &mut Record::Tick(ref mut tick) => Some(&mut **tick),
        _ => None,
    };
    records.iter_mut().filter_map(tick).collect()
}

#[test]
fn a_journal_replays_with_its_failures_and_its_reload() {
    let dir = tempfile::tempdir().unwrap();
    let summary = replay_with(halves(), record(dir.path(), halves())).unwrap().summary();
    // Three attempts for a, one each for b and c. Two of a's attempts failed.
    assert_eq!((summary.ticks, summary.actions, summary.failed), (6, 5, 2));
    assert_eq!((summary.runs, summary.gaps, summary.refused), (1, 0, 0));
    assert_eq!(summary.notes, 3);
}

#[test]
fn a_journal_of_refused_actions_replays() {
    let dir = tempfile::tempdir().unwrap();
    let summary = replay_with(wrong_halves(), record(dir.path(), wrong_halves())).unwrap().summary();
    // The same actions come again at each tick: two guests, then three.
    assert_eq!((summary.refused, summary.failed), (15, 0));
}

#[test]
fn a_second_run_is_a_run_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    record(dir.path(), halves());
    let summary = replay_with(halves(), record(dir.path(), halves())).unwrap().summary();
    assert_eq!((summary.ticks, summary.runs, summary.gaps), (12, 2, 0));
}

#[test]
fn another_policy_is_found_and_shown_line_by_line() {
    let dir = tempfile::tempdir().unwrap();
    let difference = replay_with(quarters(), record(dir.path(), halves())).unwrap_err();
    assert_eq!(difference.tick, 1);
    assert_eq!(
        difference.to_string(),
        "tick 1 at +0.000s: recorded with the policy `halves`, decided again with `quarters`: a different plan\n\
         - a target 512 MiB: 512 MiB idle (needs 512 MiB); 512 MiB needed elsewhere\n\
         - b target 512 MiB: 512 MiB idle (needs 512 MiB); 512 MiB needed elsewhere\n\
         + a target 256 MiB: 512 MiB idle (needs 512 MiB); 512 MiB needed elsewhere\n\
         + b target 256 MiB: 512 MiB idle (needs 512 MiB); 512 MiB needed elsewhere"
    );
}

#[test]
fn a_stricter_check_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let difference = replay_with(wrong_halves(), record(dir.path(), halves())).unwrap_err();
    assert!(matches!(difference.what, Mismatch::Refusals { .. }), "{difference}");
}

#[test]
fn forged_records_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let records = record(dir.path(), halves());

    let mut forged = records.clone();
    ticks(&mut forged)[3].state_crc ^= 1;
    let difference = replay_with(halves(), forged).unwrap_err();
    assert_eq!((difference.tick, difference.since), (4, Span::from_millis(750)));
    assert!(matches!(difference.what, Mismatch::State { .. }), "{difference}");

    let mut forged = records.clone();
    ticks(&mut forged)[3].witness_crc = Some(0);
    let difference = replay_with(halves(), forged).unwrap_err();
    assert!(matches!(difference.what, Mismatch::Witness { .. }), "{difference}");

    let mut forged = records.clone();
    for record in forged.iter_mut().skip(1) {
        if let Record::Start { witness, .. } = record {
            witness.as_mut().unwrap().guests.get_mut(&id("b")).unwrap().target = Some(FULL);
        }
    }
    let difference = replay_with(halves(), forged).unwrap_err();
    assert!(matches!(difference.what, Mismatch::Witness { .. }), "{difference}");

    let mut forged = records.clone();
    ticks(&mut forged)[0].answers[0] = Answer::Accepted;
    let difference = replay_with(halves(), forged).unwrap_err();
    assert!(matches!(difference.what, Mismatch::State { .. }), "{difference}");

    let mut forged = records.clone();
    for record in forged.iter_mut().skip(1) {
        if let Record::Start { state, .. } = record {
            state.guests.get_mut(&id("a")).unwrap().target = Some(FULL);
        }
    }
    let difference = replay_with(halves(), forged).unwrap_err();
    assert!(matches!(difference.what, Mismatch::Start { .. }), "{difference}");
    assert_eq!(difference.to_string().lines().count(), 3, "one line for each side: {difference}");

    let without_start = records.into_iter().skip(1).collect();
    let difference = replay_with(halves(), without_start).unwrap_err();
    assert_eq!(difference.what, Mismatch::NoStart);
}

#[test]
fn an_older_journal_without_records_of_the_check_replays() {
    let dir = tempfile::tempdir().unwrap();
    let mut older = record(dir.path(), halves());
    for record in &mut older {
        match record {
            Record::Start { witness, .. } => *witness = None,
            Record::Tick(tick) => tick.witness_crc = None,
            Record::SetsKsm { .. } | Record::Note { .. } => {}
        }
    }
    assert_eq!(replay_with(halves(), older).unwrap().summary().ticks, 6);
}

#[test]
fn plans_that_read_alike_are_shown_with_every_byte() {
    let dir = tempfile::tempdir().unwrap();
    let mut forged = record(dir.path(), halves());
    let nearly = Bytes::new(HALF.get() + 4096);
    ticks(&mut forged)[0].plan.actions[0].request = memtide_model::Request::SetTarget(nearly);
    let text = replay_with(halves(), forged).unwrap_err().to_string();
    assert!(text.contains("536875008") && text.contains("536870912"), "{text}");
    assert_eq!(text.lines().count(), 4, "{text}");
}

#[test]
fn a_journal_reads_as_text() {
    let dir = tempfile::tempdir().unwrap();
    let mut records = record(dir.path(), halves());
    let why = "512 MiB idle (needs 512 MiB); 512 MiB needed elsewhere";
    let expected = format!(
        "+0.000s a target 1 GiB → 512 MiB: {why} [failed: refused: not now]\n\
         +0.000s b target 1 GiB → 512 MiB: {why}\n\
         +0.250s a target 1 GiB → 512 MiB: {why} [failed: refused: not now]\n\
         +0.250s b: steady\n\
         +0.500s a target 1 GiB → 512 MiB: {why}\n\
         +0.750s c target 1 GiB → 512 MiB: {why}\n\
         +0.750s a: steady\n\
         +1.000s c: steady\n"
    );
    assert_eq!(golden_with(halves(), records.clone()), expected);
    assert!(golden_with(quarters(), records.clone()).contains("1 GiB → 256 MiB"));
    let text = describe(ticks(&mut records)[0]);
    assert_eq!(
        text.lines().next().unwrap(),
        format!("a target 1 GiB → 512 MiB: {why} [failed: refused: not now]")
    );
    assert!(golden_with(wrong_halves(), records).contains("+0.000s refused: a must not shrink\n"));
}

#[test]
fn a_journal_of_a_host_over_its_capacity_replays() {
    let dir = tempfile::tempdir().unwrap();
    let (writer, _) = Writer::open(dir.path(), MOST).unwrap();
    let mut engine = Engine::new(Toy::with(&["a", "b", "c"]), manage()).with_journal(writer);
    for tick in 0..60 {
        let toy = engine.world_mut();
        toy.now = toy.now.after(Span::from_secs(1));
        toy.guest("b").refuses = tick % 20 == 0;
        engine.tick();
    }
    engine.finish();
    let summary = replay_journal(&mut Reader::open(dir.path()).unwrap()).unwrap();
    assert_eq!((summary.ticks, summary.refused), (60, 0));
    assert!(summary.actions > summary.failed && summary.failed > 0, "{summary:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// memtide's own policy, with guests that come, go, grow, shrink and refuse.
    #[test]
    fn whatever_the_guests_do_the_journal_replays(
        steps in prop::collection::vec((0_u64..2000, 0_u64..1024, any::<bool>(), any::<bool>()), 1..25)
    ) {
        let dir = tempfile::tempdir().unwrap();
        let (writer, _) = Writer::open(dir.path(), MOST).unwrap();
        let mut engine = Engine::new(Toy::with(&["a", "b", "c"]), manage()).with_journal(writer);
        let ticks = steps.len() as u64;
        for (millis, wish, refuses, stays) in steps {
            let toy = engine.world_mut();
            toy.now = toy.now.after(Span::from_millis(millis + 1));
            toy.guest("a").model.wish(0, Bytes::from_mib(wish));
            toy.guest("b").refuses = refuses;
            if stays {
                let guest = toy.guest("a").clone();
                toy.guests.insert(id("c"), guest);
            } else {
                toy.guests.remove(&id("c"));
            }
            engine.tick();
        }
        engine.finish();
        let summary = replay_journal(&mut Reader::open(dir.path()).unwrap());
        prop_assert_eq!(summary.map(|summary| summary.ticks).map_err(|error| error.to_string()), Ok(ticks));
    }
}

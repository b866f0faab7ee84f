//! A run continues from the journal of the former run, whatever ended that run.

use std::fs::OpenOptions;
use std::path::Path;
use std::sync::Arc;

use memtide_engine::journal::{Writer, segments};
use memtide_engine::{Engine, Policy, own_policy, resume};
use memtide_model::{Bytes, Hold, Keeps, KsmOrder, KsmSettings, Moment, Order, Ordered, Record, Span, State};

use crate::toy::{HALF, Toy, halves, id, manage, merges, merging_halves, release};

const MOST: Bytes = Bytes::from_mib(64);
const HOLD: Hold = Hold { keeps: Keeps::Size, until: None };

/// Five ticks of an engine, and then nothing more, like after a SIGKILL. In the second tick the operator holds "a", and another guest
/// appears. In the third tick its statistics are there, and "b" must give more for it; the fourth tick asks it for the rest.
fn killed(dir: &Path, policy: Arc<dyn Policy>) -> (State, Moment) {
    let (writer, _) = Writer::open(dir, MOST).unwrap();
    let mut engine = Engine::new(Toy::with(&["a", "b"]), manage()).with_policy(policy).with_journal(writer);
    for tick in 0..5 {
        let toy = engine.world_mut();
        toy.now = toy.now.after(Span::from_millis(250));
        if tick == 1 {
            toy.orders.push(Order { guest: id("a"), ordered: Ordered::Leave(HOLD) });
            toy.guests.extend(Toy::with(&["c"]).guests);
        }
        engine.tick();
    }
    let now = engine.world_mut().now.after(Span::from_secs(5));
    (engine.state().clone(), now)
}

#[test]
fn what_was_asked_and_ordered_is_taken_over() {
    // memtide's own policy decides the segment again. Other policies note it, like after an upgrade.
    for policy in [own_policy(), halves()] {
        let dir = tempfile::tempdir().unwrap();
        let (before, now) = killed(dir.path(), policy);
        let after = resume(dir.path(), now).unwrap().memory.unwrap().0;
        assert_eq!(after.decided_at, None);
        for name in ["a", "b"] {
            let (before, after) = (&before.guests[&id(name)], &after.guests[&id(name)]);
            assert_eq!(
                (after.target, after.target_set_at, after.actual),
                (before.target, before.target_set_at, before.actual)
            );
            assert_eq!(after.gain, before.gain, "what is known of the host's gain");
            assert_eq!(after.doubt_until, Some(now.after(Span::from_secs(30))));
        }
        assert_eq!(after.guests[&id("a")].hold, Some(HOLD));
        assert_eq!(after.guests[&id("b")].hold, None);
    }
}

#[test]
fn the_new_run_goes_on_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let (_, now) = killed(dir.path(), halves());
    let memory = resume(dir.path(), now).unwrap().memory.unwrap();
    assert_eq!(memory.1.guests[&id("a")].target, Some(HALF), "the check remembers the writes, too");
    let (writer, _) = Writer::open(dir.path(), MOST).unwrap();
    let mut toy = Toy { now, ..Toy::with(&["a", "b"]) };
    toy.guest("a").keep(HALF);
    let mut engine =
        Engine::new(toy, manage()).with_policy(halves()).with_memory(memory).with_journal(writer);
    engine.tick();
    assert_eq!(engine.world_mut().asked, [], "both have what they were asked to keep");
    let journal = memtide_engine::journal::Reader::open(dir.path()).unwrap();
    let mut replay = memtide_engine::Replay::with_policy(halves());
    journal.for_each(|record| replay.step(record.unwrap()).unwrap());
    assert_eq!((replay.summary().runs, replay.summary().ticks), (2, 6));
}

#[test]
fn a_torn_tail_loses_no_more_than_itself() {
    let dir = tempfile::tempdir().unwrap();
    let (_, now) = killed(dir.path(), own_policy());
    let newest = segments(dir.path()).unwrap().pop().unwrap();
    let file = OpenOptions::new().write(true).open(&newest).unwrap();
    file.set_len(file.metadata().unwrap().len() - 7).unwrap();
    let after = resume(dir.path(), now).unwrap().memory.unwrap().0;
    assert_eq!(after.guests[&id("a")].hold, Some(HOLD));
    // The start of this segment is broken, so the segment before it counts.
    std::fs::write(dir.path().join("000009.mtj"), &std::fs::read(&newest).unwrap()[..40]).unwrap();
    assert!(resume(dir.path(), now).unwrap().memory.is_some());
}

#[test]
fn what_follows_a_corrupt_place_is_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    let (before, now) = killed(dir.path(), own_policy());
    let newest = segments(dir.path()).unwrap().pop().unwrap();
    let whole = std::fs::read(&newest).unwrap();
    // The order came with the second of five ticks. The start and the first tick get broken.
    let begins: Vec<usize> =
        (0..whole.len()).filter(|at| whole[*at..].starts_with(br#"{"record":"#)).collect();
    assert_eq!(begins.len(), 7, "a start, a note, five ticks");
    // The third tick asked "b" for more: that is lost with it.
    for (broken, keeps_the_target) in [(2, true), (4, false), (6, true)] {
        let mut bytes = whole.clone();
        bytes[begins[broken] + 20] ^= 1;
        std::fs::write(&newest, &bytes).unwrap();
        let after = resume(dir.path(), now).unwrap();
        assert_eq!(after.unread.len(), usize::from(broken < 6), "the last one is a torn tail");
        let state = after.memory.unwrap().0;
        let a = &state.guests[&id("a")];
        assert_eq!(a.hold, Some(HOLD), "{broken}");
        let target = |state: &State| state.guests.get(&id("b")).and_then(|guest| guest.target);
        assert_eq!(target(&state) == target(&before), keeps_the_target, "{broken}");
    }
    // Without its start, the run continues from the segment before.
    std::fs::copy(&newest, dir.path().join("000002.mtj")).unwrap();
    let mut bytes = whole.clone();
    bytes[begins[0] + 20] ^= 1;
    std::fs::write(dir.path().join("000002.mtj"), &bytes).unwrap();
    std::fs::write(&newest, &whole[..begins[2] - 8]).unwrap();
    let after = resume(dir.path(), now).unwrap();
    assert!(after.unread[0].to_string().ends_with("000002.mtj is corrupt at byte 12"), "{:?}", after.unread);
    assert_eq!(after.memory.unwrap().0.guests[&id("a")].hold, Some(HOLD));
}

#[test]
fn another_boot_of_the_host_takes_nothing_over() {
    let dir = tempfile::tempdir().unwrap();
    killed(dir.path(), halves());
    assert_eq!(resume(dir.path(), Moment::from_millis(1000)).unwrap().memory, None);
    assert_eq!(resume(tempfile::tempdir().unwrap().path(), Moment::from_millis(1000)).unwrap().memory, None);
}

#[test]
fn after_a_clean_end_holds_are_left_and_targets_only_where_they_were_kept() {
    for (config, kept) in [(manage(), true), (release(), false)] {
        let dir = tempfile::tempdir().unwrap();
        let (writer, _) = Writer::open(dir.path(), MOST).unwrap();
        let mut engine =
            Engine::new(Toy::with(&["a", "b"]), config).with_policy(merging_halves()).with_journal(writer);
        engine.world_mut().orders.push(Order { guest: id("a"), ordered: Ordered::Leave(HOLD) });
        engine.tick();
        let now = engine.world_mut().now;
        engine.finish();
        let after = resume(dir.path(), now).unwrap().memory.unwrap().0;
        assert_eq!(after.guests[&id("a")].hold, Some(HOLD));
        let target = after.guests.get(&id("b")).and_then(|guest| guest.target);
        assert_eq!(target, kept.then_some(HALF));
        // Only the next run can put it back if the helper was killed, too.
        assert_eq!(after.ksm.found, Some(KsmSettings::default()));
    }
}

#[test]
fn an_order_to_ksm_is_in_the_journal_before_it_is_given() {
    let dir = tempfile::tempdir().unwrap();
    let (writer, _) = Writer::open(dir.path(), MOST).unwrap();
    let found = KsmSettings { pages_to_scan: 100, sleep_millisecs: 20, ..KsmSettings::default() };
    let toy = Toy { ksm: Some(found), journal: dir.path().to_owned(), ..Toy::with(&["a"]) };
    let mut engine = Engine::new(toy, manage()).with_policy(merges()).with_journal(writer);
    for _ in 0..2 {
        let now = engine.world_mut().now;
        engine.world_mut().now = now.after(Span::from_millis(250));
        engine.tick();
    }
    let scans = KsmOrder::Scan { smart: true }.after(found);
    let known = std::mem::take(&mut engine.world_mut().known);
    let told: Vec<_> = known.iter().map(|ksm| (ksm.found, ksm.tried)).collect();
    assert_eq!(told, [scans, KsmOrder::Stop.after(scans)].map(|wanted| (Some(found), Some(wanted))));
    assert_eq!(known[1].written, Some(scans), "the first order was carried out");
    // With the tick of an order, nothing is in doubt.
    let now = engine.world_mut().now;
    let ksm = resume(dir.path(), now).unwrap().memory.unwrap().0.ksm;
    assert_eq!((ksm.found, ksm.tried), (Some(found), None));
    let mut replay = memtide_engine::Replay::with_policy(merges());
    let journal = memtide_engine::journal::Reader::open(dir.path()).unwrap();
    journal.for_each(|record| replay.step(record.unwrap()).unwrap());
    assert_eq!(replay.summary().ticks, 2);
    // A run that begins, or ends, tells itself what it knows of KSM.
    let (sets, began) =
        (tempfile::tempdir().unwrap(), Record::SetsKsm { at: now, before: found, wanted: scans });
    let journal = memtide_engine::journal::Reader::open(dir.path()).unwrap();
    let start = journal.map(Result::unwrap).next().unwrap();
    let (mut writer, _) = Writer::open(sets.path(), MOST).unwrap();
    writer.write(|| start.clone(), &[began]).unwrap();
    assert_eq!(resume(sets.path(), now).unwrap().memory.unwrap().0.ksm.tried, Some(scans));
    writer.write(|| start.clone(), std::slice::from_ref(&start)).unwrap();
    let ksm = resume(sets.path(), now).unwrap().memory.unwrap().0.ksm;
    assert_eq!((ksm.found, ksm.tried), (None, None));
    // A run that has put KSM back leaves nothing to the next one.
    engine.world_mut().puts_back = true;
    engine.finish();
    assert_eq!(resume(dir.path(), now).unwrap().memory.unwrap().0.ksm.found, None);
}

#[test]
fn an_order_to_ksm_stays_in_doubt_if_a_segment_ends_between_it_and_its_tick() {
    let whole = tempfile::tempdir().unwrap();
    let (writer, _) = Writer::open(whole.path(), MOST).unwrap();
    let found = KsmSettings { pages_to_scan: 100, sleep_millisecs: 20, ..KsmSettings::default() };
    let toy = Toy { ksm: Some(found), journal: whole.path().to_owned(), ..Toy::with(&["a"]) };
    let mut engine = Engine::new(toy, manage()).with_policy(merges()).with_journal(writer);
    engine.tick();
    let now = engine.world_mut().now;
    let all: Vec<Record> =
        memtide_engine::journal::Reader::open(whole.path()).unwrap().map(Result::unwrap).collect();
    let (Some(start), Some(tick)) = (all.first(), all.last()) else { panic!("{all:?}") };
    let order = all.iter().find(|record| matches!(record, Record::SetsKsm { .. })).unwrap();
    let scans = KsmOrder::Scan { smart: true }.after(found);
    let note = Record::Note { at: now, text: String::new() };
    // Each of these is a segment after the start that the writer adds. The order's tick would be the next record.
    for (segments, tried) in [
        (vec![vec![order.clone()], vec![note.clone()]], Some(scans)),
        (vec![vec![order.clone(), note.clone()], vec![note.clone()]], Some(scans)),
        (vec![vec![order.clone()], vec![note.clone(), tick.clone()]], None),
        (vec![vec![order.clone(), tick.clone()], vec![note.clone()]], None),
    ] {
        let cut = tempfile::tempdir().unwrap();
        for segment in &segments {
            let (mut writer, _) = Writer::open(cut.path(), MOST).unwrap();
            writer.write(|| start.clone(), segment).unwrap();
        }
        assert_eq!(memtide_engine::journal::segments(cut.path()).unwrap().len(), 2);
        let ksm = resume(cut.path(), now).unwrap().memory.unwrap().0.ksm;
        assert_eq!(ksm.tried, tried, "{segments:?}");
        assert!(tried.is_none() || ksm.found == Some(found), "{segments:?}");
    }
}

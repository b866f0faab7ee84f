//! One tick after the other: the applied actions, the believed ones, and the time of the next tick.

use std::fs;

use memtide_engine::journal::{LateWriter, Reader, Writer};
use memtide_engine::{Engine, Killed, Replay, Wake};
use memtide_model::{
    Answer, Bytes, Class, Config, Fence, Limit, Mode, OnExit, Reason, Record, Refusal, Request, Span,
};

use crate::toy::{
    FULL, HALF, Toy, donors, half_wrong_halves, halves, id, manage, polled_halves, release, wrong_halves,
};

const MOST: Bytes = Bytes::from_mib(16);

#[test]
fn a_plan_is_applied_in_its_order_and_published() {
    let mut engine = Engine::new(Toy::with(&["c", "a", "b"]), manage()).with_policy(halves());
    let board = engine.board();
    assert_eq!(board.latest().last, None);
    engine.tick();
    assert_eq!(engine.world_mut().asked_names(), ["a", "b", "c"]);
    let published = board.latest();
    let last = published.last.as_ref().unwrap();
    assert_eq!(last.answers, vec![Answer::Accepted; 3]);
    assert_eq!(last.state.guests[&id("a")].target, Some(HALF));
    assert_eq!((published.counters.ticks, published.counters.actions_done), (1, 3));
    assert!(published.warnings.is_empty());

    engine.tick();
    assert_eq!(engine.world_mut().asked.len(), 3, "what is reached is not asked for again");
}

#[test]
fn an_observer_changes_nothing_and_believes_nothing() {
    let mut engine = Engine::new(Toy::with(&["a"]), Config::default()).with_policy(halves());
    engine.tick();
    assert!(engine.world_mut().asked.is_empty());
    assert_eq!(engine.state().guests[&id("a")].target, None);
}

#[test]
fn an_action_that_is_refused_is_not_carried_out_and_said_aloud() {
    let mut engine = Engine::new(Toy::with(&["a"]), manage()).with_policy(wrong_halves());
    engine.tick();
    engine.tick();
    assert!(engine.world_mut().asked.is_empty());
    assert_eq!(engine.state().guests[&id("a")].target, None);
    assert_eq!(engine.state().guests[&id("a")].doubt_until, None, "nobody tried");
    let published = engine.board().latest();
    let warning = "a change was refused, its guest stays as it is: a must not shrink";
    assert_eq!(published.warnings, [warning]);
    assert_eq!((published.counters.actions_refused, published.counters.actions_failed), (2, 0));
    let last = published.last.as_ref().unwrap();
    assert_eq!(last.refusals, [Refusal { action: 0, why: "a must not shrink".to_owned() }]);
    assert_eq!(last.answers, [Answer::Refused]);
    assert_eq!(last.report.guests[0].target, None, "the report shows the target in force");
}

#[test]
fn a_guest_that_was_killed_is_in_the_journal_and_the_worlds_warnings_in_the_status() {
    let dir = tempfile::tempdir().unwrap();
    let (writer, _) = Writer::open(dir.path(), MOST).unwrap();
    let mut engine = Engine::new(Toy::with(&["a", "b"]), manage()).with_journal(writer);
    engine.tick();
    assert!(engine.board().latest().warnings.is_empty());
    let world = engine.world_mut();
    world.guests.remove(&id("a"));
    world.killed = vec![Killed { guest: id("a"), how: "a limit was too low".to_owned() }];
    world.warnings = vec!["b may be killed".to_owned()];
    for _ in 0..2 {
        engine.world_mut().now = engine.world_mut().now.after(Span::from_secs(1));
        engine.tick();
    }
    assert_eq!(engine.board().latest().warnings, ["b may be killed"]);
    drop(engine.finish());
    let records: Vec<Record> = Reader::open(dir.path()).unwrap().collect::<Result<_, _>>().unwrap();
    let notes = records.iter().filter(
        |record| matches!(record, Record::Note { text, .. } if text == "a is gone: a limit was too low"),
    );
    assert_eq!(notes.count(), 1, "{records:?}");
}

#[test]
fn the_other_actions_of_a_plan_are_carried_out() {
    let mut engine = Engine::new(Toy::with(&["a", "b", "c"]), manage()).with_policy(half_wrong_halves());
    engine.tick();
    assert_eq!(engine.world_mut().asked_names(), ["a", "c"]);
    let targets = ["a", "b", "c"].map(|name| engine.state().guests[&id(name)].target);
    assert_eq!(targets, [Some(HALF), None, Some(HALF)]);
    let last = engine.board().latest();
    let last = last.last.as_ref().unwrap();
    assert_eq!(last.answers, [Answer::Accepted, Answer::Refused, Answer::Accepted]);
}

#[test]
fn what_a_vmm_refuses_is_not_believed_and_asked_again() {
    let mut engine = Engine::new(Toy::with(&["a", "b"]), manage()).with_policy(halves());
    engine.world_mut().guest("a").refuses = true;
    engine.tick();
    assert_eq!(engine.state().guests[&id("a")].target, None);
    assert_eq!(engine.state().guests[&id("b")].target, Some(HALF));
    let failed = Answer::Failed("refused: not now".to_owned());
    let answers = engine.board().latest().last.as_ref().unwrap().answers.clone();
    assert_eq!(answers, [failed, Answer::Accepted]);

    engine.world_mut().guest("a").refuses = false;
    engine.tick();
    assert_eq!(engine.world_mut().asked_names(), ["a", "b", "a"]);
    assert_eq!(engine.state().guests[&id("a")].target, Some(HALF));
}

#[test]
fn a_grant_that_rests_on_a_failed_donor_is_not_tried() {
    // Of 1536 MiB: donor 1024 → 512, taker 512 → 1024. If the donor keeps its 1024, there is nothing to grant.
    let mut toy = Toy::with(&["donor", "taker"]);
    toy.guest("donor").refuses = true;
    toy.guest("taker").keep(HALF);
    let mut engine = Engine::new(toy, manage()).with_policy(donors());
    engine.tick();
    assert_eq!(engine.world_mut().asked_names(), ["donor"]);
    let published = engine.board().latest();
    let answers = &published.last.as_ref().unwrap().answers;
    assert!(matches!(&answers[1], Answer::Failed(why) if why.starts_with("not tried")));
    assert_eq!(engine.state().guests[&id("taker")].target, None);
}

#[test]
fn a_journal_that_fails_does_not_stop_the_management_and_begins_again() {
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("journal");
    let (writer, cut) = Writer::open(&journal, MOST).unwrap();
    assert_eq!(cut, None);
    let mut engine = Engine::new(Toy::with(&["a"]), manage()).with_policy(halves()).with_journal(writer);
    engine.tick();

    // The directory is moved away, and a file takes its place.
    fs::rename(&journal, dir.path().join("old")).unwrap();
    fs::remove_file(dir.path().join("old/000001.mtj")).unwrap();
    fs::write(&journal, "in the way").unwrap();
    engine.world_mut().guests.extend(Toy::with(&["b"]).guests);
    for _ in 0..3 {
        engine.world_mut().now = engine.world_mut().now.after(Span::from_secs(1));
        engine.tick();
    }
    assert_eq!(engine.state().guests[&id("b")].target, Some(HALF), "managing goes on");
    let published = engine.board().latest();
    assert_eq!(published.counters.ticks_not_journalled, 3);
    let warning = &published.warnings[0];
    assert!(warning.contains("3 decisions are missing") && warning.contains("journal"), "{warning}");

    fs::remove_file(&journal).unwrap();
    engine.world_mut().now = engine.world_mut().now.after(Span::from_secs(1));
    engine.tick();
    assert!(engine.board().latest().warnings.is_empty());
    drop(engine);
    let records: Vec<Record> = Reader::open(&journal).unwrap().collect::<Result<_, _>>().unwrap();
    assert!(matches!(&records[1], Record::Note { text, .. } if text.starts_with("3 ticks before this one")));
    let mut replay = Replay::with_policy(halves());
    for record in records {
        replay.step(record).unwrap();
    }
    assert_eq!(replay.summary().ticks, 1);
}

#[test]
fn a_journal_that_cannot_be_opened_is_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("journal");
    fs::write(&journal, "in the way").unwrap();
    let error = Writer::open(&journal, MOST).unwrap_err();
    let engine = Engine::new(Toy::with(&["a"]), manage()).with_policy(halves());
    let mut engine = engine.with_journal(LateWriter::new(&journal, MOST, &error));
    let mut tick = |secs: u64| {
        engine.world_mut().now = engine.world_mut().now.after(Span::from_secs(secs));
        engine.tick();
        engine.board().latest().warnings.first().cloned()
    };
    let warning = tick(1).unwrap();
    assert!(warning.contains("put a directory there") && warning.contains("trying again"), "{warning}");
    fs::remove_file(&journal).unwrap();
    assert!(tick(1).is_some(), "not at once");
    assert_eq!(tick(60), None);
    drop(engine);
    let records: Vec<Record> = Reader::open(&journal).unwrap().collect::<Result<_, _>>().unwrap();
    let [
        Record::Start { .. },
        Record::Note { text: missing, .. },
        Record::Note { text: begins, .. },
        Record::Tick(_),
    ] = &records[..]
    else {
        panic!("{records:?}")
    };
    assert!(
        missing.starts_with("2 ticks before this one") && begins.contains("begins"),
        "{missing} {begins}"
    );
}

#[test]
fn the_loop_ends_when_told_and_releases_what_was_changed() {
    let mut config = release();
    config.classes.insert(
        "small".into(),
        Class { patterns: vec!["s*".to_owned()], limit: Limit::At(Bytes::from_mib(768)), ..Class::default() },
    );
    let mut toy = Toy::with(&["a", "paused", "small"]);
    toy.wakes.push_back((Span::from_millis(250), Wake::Stop));
    toy.guest("paused").fence = Some(Fence::Paused);
    let toy = Engine::new(toy, config).with_policy(polled_halves()).run();
    let released: Vec<_> = toy.asked[3..]
        .iter()
        .map(|action| (action.guest().unwrap().name(), action.request, action.reason))
        .collect();
    assert_eq!(
        released,
        [
            ("a", Request::SetTarget(FULL), Reason::Release),
            ("a", Request::PollStats(Span::ZERO), Reason::Release),
            ("small", Request::SetTarget(Bytes::from_mib(768)), Reason::Release),
            ("small", Request::PollStats(Span::ZERO), Reason::Release),
        ]
    );
}

#[test]
fn the_polling_is_given_back_also_by_who_keeps_sizes() {
    let mut toy = Toy::with(&["a"]);
    toy.wakes.push_back((Span::from_millis(250), Wake::Stop));
    let config = Config { on_exit: OnExit::Keep, ..release() };
    let toy = Engine::new(toy, config).with_policy(polled_halves()).run();
    let last = toy.asked.last().unwrap();
    assert_eq!((last.request, last.reason), (Request::PollStats(Span::ZERO), Reason::Release));
    assert!(!toy.asked.iter().any(|action| action.request == Request::SetTarget(FULL)), "{:?}", toy.asked);
}

#[test]
fn a_guest_that_a_killed_run_left_small_is_released_too() {
    let mut toy = Toy::with(&["a"]);
    toy.guest("a").keep(HALF);
    let mut engine = Engine::new(toy, release()).with_policy(halves());
    engine.tick();
    assert!(engine.world_mut().asked.is_empty(), "it is steady");
    let toy = engine.finish();
    assert_eq!(toy.guests[&id("a")].model.size().actual, FULL);
}

#[test]
fn a_manager_that_only_observes_from_now_on_releases_and_begins_anew() {
    let dir = tempfile::tempdir().unwrap();
    let (writer, _) = Writer::open(dir.path(), MOST).unwrap();
    let mut engine = Engine::new(Toy::with(&["a"]), release()).with_policy(halves()).with_journal(writer);
    engine.tick();
    engine.reload(Config { mode: Mode::Observe, ..release() });
    assert_eq!(engine.world_mut().guests[&id("a")].model.size().actual, FULL);
    engine.tick();
    assert_eq!(engine.state().guests[&id("a")].target, None);
    engine.finish();
    let mut replay = Replay::with_policy(halves());
    for record in Reader::open(dir.path()).unwrap() {
        replay.step(record.unwrap()).unwrap();
    }
    assert_eq!((replay.summary().runs, replay.summary().ticks), (2, 2));
}

#[test]
fn nothing_is_released_by_default_or_by_an_observer() {
    for config in [manage(), Config { mode: Mode::Observe, ..release() }] {
        let mut engine = Engine::new(Toy::with(&["a"]), config).with_policy(halves());
        engine.tick();
        let asked = engine.world_mut().asked.len();
        assert_eq!(engine.finish().asked.len(), asked);
    }
}

#[test]
fn a_guest_that_refuses_every_release_does_not_keep_the_engine() {
    let mut engine = Engine::new(Toy::with(&["a", "b"]), release()).with_policy(halves());
    engine.tick();
    engine.world_mut().guest("a").refuses = true;
    let toy = engine.finish();
    assert_eq!(toy.guests[&id("a")].model.size().actual, HALF);
    assert_eq!(toy.guests[&id("b")].model.size().actual, FULL);
}

#[test]
fn an_event_wakes_at_once_but_not_more_often_than_every_50_ms() {
    let mut toy = Toy::with(&["a"]);
    let events = [60, 10, 10, 10, 300].map(|after| (Span::from_millis(after), Wake::Event));
    toy.wakes.extend(events);
    toy.wakes.push_back((Span::ZERO, Wake::Stop));
    let toy = Engine::new(toy, manage()).with_policy(halves()).run();
    // The first event comes 60 ms after the first tick; the next ones 10, 20 and 30 ms after the second tick, whose
    // interval then ends 50 ms after it began.
    let gaps: Vec<u64> = toy.observed.windows(2).map(|pair| pair[1].since(pair[0]).as_millis()).collect();
    assert_eq!(gaps, [60, 50]);
}

#[test]
fn intervals_grow_to_two_seconds_while_nothing_changes() {
    let mut engine = Engine::new(Toy::with(&["a"]), Config::default()).with_policy(halves());
    let mut intervals = Vec::new();
    for _ in 0..70 {
        engine.tick();
        intervals.push(engine.interval().as_millis());
        let toy = engine.world_mut();
        toy.now = toy.now.after(Span::from_secs(1));
    }
    assert_eq!(intervals[..3], [500, 1000, 1000]);
    assert_eq!(intervals.last(), Some(&2000));
}

#[test]
fn a_new_configuration_counts_from_the_next_tick_on() {
    let mut toy = Toy::with(&["a"]);
    toy.wakes.push_back((Span::from_millis(100), Wake::Reload(Box::new(manage()))));
    toy.wakes.push_back((Span::ZERO, Wake::Stop));
    let engine = Engine::new(toy, Config::default()).with_policy(halves());
    let board = engine.board();
    let toy = engine.run();
    assert_eq!(toy.observed.len(), 2);
    assert_eq!(toy.asked_names(), ["a"]);
    assert_eq!((board.latest().config.mode, board.latest().counters.reloads), (Mode::Manage, 1));
}

//! A journal that takes everything, and writes it late or loses it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use memtide_engine::Engine;
use memtide_engine::journal::{Lost, Sink};
use memtide_model::{Action, Answer, KsmSettings, Moment, Record, Request, Span};

use crate::toy::{Toy, halves, manage, merges};

/// A journal on a slow disk: it takes everything, and writes it when told to.
#[derive(Clone, Debug, Default)]
struct Slow(Arc<Mutex<Disk>>);

#[derive(Debug, Default)]
struct Disk {
    is_behind: bool,
    taken: Vec<Record>,
    lost: Option<Lost>,
}

impl Sink for Slow {
    fn ready(&mut self, _now: Moment) -> Result<(), String> {
        Ok(())
    }

    fn write(&mut self, start: &mut dyn FnMut() -> Record, records: &[Record]) -> Result<(), String> {
        let mut disk = self.0.lock().unwrap();
        if disk.taken.is_empty() {
            disk.taken.push(start());
        }
        disk.taken.extend(records.iter().cloned());
        Ok(())
    }

    fn lost(&mut self) -> Option<Lost> {
        self.0.lock().unwrap().lost.take()
    }

    fn behind(&mut self, within: Duration) -> Option<Duration> {
        self.0.lock().unwrap().is_behind.then_some(within.max(Duration::from_secs(7)))
    }
}

fn ticks(slow: &Slow) -> usize {
    slow.0.lock().unwrap().taken.iter().filter(|record| matches!(record, Record::Tick(_))).count()
}

#[test]
fn while_the_journal_is_behind_ksm_does_not_begin_to_scan() {
    let (slow, nothing) = (Slow::default(), tempfile::tempdir().unwrap());
    let toy =
        Toy { ksm: Some(KsmSettings::default()), journal: nothing.path().to_owned(), ..Toy::with(&["a"]) };
    let mut engine = Engine::new(toy, manage()).with_policy(merges()).with_journal(slow.clone());
    let mut tick = |is_behind| {
        slow.0.lock().unwrap().is_behind = is_behind;
        engine.world_mut().now = engine.world_mut().now.after(Span::from_secs(1));
        engine.tick();
        let merges = |action: &Action| matches!(action.request, Request::Merge(_));
        let given =
            std::mem::take(&mut engine.world_mut().asked).iter().filter(|action| merges(action)).count();
        (given, engine.board().latest())
    };
    let (given, published) = tick(true);
    assert_eq!(given, 0);
    let last = published.last.as_ref().unwrap();
    assert!(last.answers.contains(&Answer::Refused));
    assert_eq!(last.state.ksm.tried, None, "what KSM does is not taken for somebody else's work");
    assert!(published.warnings[0].contains("the journal is 7 s behind"), "{:?}", published.warnings);
    assert_eq!(published.unwritten, Some(Span::from_secs(7)));
    let (given, published) = tick(false);
    assert_eq!((given, published.warnings.len(), published.unwritten), (1, 0, None));
    let records = slow.0.lock().unwrap().taken.clone();
    let orders = records.iter().filter(|record| matches!(record, Record::SetsKsm { .. })).count();
    assert_eq!(
        (orders, ticks(&slow)),
        (1, 2),
        "the order is in the journal, the one that was not given is not"
    );
}

#[test]
fn what_a_journal_has_lost_is_told_once_it_goes_on() {
    let slow = Slow::default();
    let mut engine =
        Engine::new(Toy::with(&["a"]), manage()).with_policy(halves()).with_journal(slow.clone());
    let mut tick = |is_behind, lost: u64| {
        let lost = (lost > 0).then(|| Lost { ticks: lost, why: "the disk is slow".to_owned() });
        (slow.0.lock().unwrap().is_behind, slow.0.lock().unwrap().lost) = (is_behind, lost);
        engine.world_mut().now = engine.world_mut().now.after(Span::from_secs(1));
        engine.tick();
        let published = engine.board().latest();
        (published.counters.ticks_not_journalled, published.warnings.clone())
    };
    assert_eq!(tick(false, 0), (0, Vec::new()));
    tick(true, 0);
    let (missing, _) = tick(true, 2);
    assert_eq!(missing, 2);
    // The note is told again if what tells it is lost, too, with all that is missing by then.
    let (missing, _) = tick(true, 1);
    assert_eq!(missing, 3);
    assert_eq!(tick(false, 0), (3, Vec::new()), "all that was taken is written");
    let records = slow.0.lock().unwrap().taken.clone();
    let told: Vec<_> = records
        .iter()
        .filter_map(|record| match record {
            Record::Note { text, .. } if text.contains("could not be written") => Some(text.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].starts_with("2 ticks") && told[1].starts_with("3 ticks"), "{told:?}");
}

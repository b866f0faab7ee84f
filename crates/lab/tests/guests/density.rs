//! The experiment `density` at its smallest, with real guests: more guests get through with memtide than without.

use memtide_lab::experiments::density::{Density, DensityResult, Scale};
use memtide_lab::experiments::experiment::{ArmSeen, Effort, Experiment, Repetition};
use memtide_lab::output::png::png;
use memtide_lab::output::screen::Screen;
use memtide_model::Bytes;

pub fn more_guests_get_through_with_memtide() {
    let run = crate::prepare("test-density");
    let screen = Screen::new();
    let mut density = crate::or_skip(Density::measure(Scale::LEAST, &run, &screen));
    let seen: Vec<ArmSeen<DensityResult>> = Density::arms(Effort::Quick)
        .into_iter()
        .map(|arm| {
            let part = run.part(&arm.key).unwrap();
            let one = density.run(Repetition { arm: &arm, nth: 0, seed: 1 }, &part, &screen).unwrap();
            ArmSeen { arm, runs: vec![one], ended: Vec::new() }
        })
        .collect();
    let result = |key: &str| &seen.iter().find(|seen| seen.arm.key == key).unwrap().runs[0].result;
    let (unmanaged, reporting, elastic) = (result("unmanaged"), result("reporting"), result("elastic"));
    println!(
        "unmanaged {}, free page reporting {}, memtide {}",
        unmanaged.guests_finished, reporting.guests_finished, elastic.guests_finished
    );
    assert!(unmanaged.guests_finished < reporting.guests_finished, "{unmanaged:?} {reporting:?}");
    assert!(reporting.guests_finished <= elastic.guests_finished, "{reporting:?} {elastic:?}");
    assert_eq!(unmanaged.memory_moved_bytes, Bytes::ZERO);
    for result in [unmanaged, reporting, elastic] {
        assert_eq!(result.work_done_bytes, result.work_planned_bytes, "{result:?}");
        assert_eq!(result.mismatched_words, 0);
        assert_eq!(result.by_guests.len() as u64, result.guests_finished);
    }
    assert_eq!((elastic.oom_kills, elastic.guest_oom_kills), (0, Some(0)), "{elastic:?}");

    let findings = density.find(&seen).unwrap();
    assert_eq!(findings.failures, [""; 0]);
    assert_eq!((findings.tables.len(), findings.figures.len()), (2, 2));
    for figure in findings.figures {
        assert!(png(&figure.svg).unwrap().len() > 10_000, "{}", figure.name);
    }
}

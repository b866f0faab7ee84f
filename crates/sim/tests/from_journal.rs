//! What a recorded run must hold to be simulated.

use std::fs;
use std::path::Path;

use memtide_engine::journal::{Reader, encode, header};
use memtide_model::Record;
use memtide_sim::{from_journal, is_journal};

#[test]
fn a_journal_without_time_or_guests_is_refused() {
    let trace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces/demo-elastic.mtj");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("short.mtj");
    let records = || Reader::open(&trace).unwrap().map(Result::unwrap);
    let refused = |records: &mut dyn Iterator<Item = Record>| {
        let mut bytes = header().to_vec();
        records.for_each(|record| encode(&record, &mut bytes).unwrap());
        fs::write(&file, bytes).unwrap();
        assert!(is_journal(&file));
        from_journal(&file, 0).unwrap_err().to_string()
    };
    let until_first = records().position(|record| matches!(record, Record::Tick(_))).unwrap() + 1;
    assert!(
        refused(&mut records().take(until_first))
            .ends_with("holds a single moment: nothing can be simulated")
    );
    let mut nobody = records().map(|mut record| {
        if let Record::Tick(tick) = &mut record {
            tick.seen.guests.clear();
        }
        record
    });
    assert!(refused(&mut nobody).ends_with("holds no guest: nothing can be simulated"));
}

//! What a recorded run must hold to be simulated.

use std::fs;
use std::path::Path;

use memtide_engine::journal::{Reader, encode, header};
use memtide_model::{Bytes, Reading, Record, Space, Tmpfs, TmpfsId};
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

#[test]
fn the_smallest_tmpfs_with_guests_is_simulated() {
    let trace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces/uml-idle-gives.mtj");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tmpfs.mtj");
    let tmpfs = |id, mib| {
        let space = Space { size: Bytes::from_mib(mib), free: Bytes::from_mib(mib) };
        Tmpfs { id: TmpfsId(id), at: format!("/tmp/{id}"), space: Reading::now(space) }
    };
    let mut bytes = header().to_vec();
    for record in Reader::open(&trace).unwrap() {
        let mut record = record.unwrap();
        if let Record::Tick(tick) = &mut record {
            tick.seen.tmpfs = vec![tmpfs(1, 900), tmpfs(2, 700)];
            for (guest, id) in tick.seen.guests.iter_mut().zip([1, 2]) {
                guest.tmpfs = Some(TmpfsId(id));
            }
        }
        encode(&record, &mut bytes).unwrap();
    }
    fs::write(&file, bytes).unwrap();
    let setup = from_journal(&file, 0).unwrap();
    assert_eq!(setup.host.tmpfs, Some(Bytes::from_mib(700)));
    assert_eq!(setup.guests.iter().filter(|guest| guest.in_tmpfs).count(), 1);
}

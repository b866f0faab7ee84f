//! What a recorded run must hold to be simulated.

use std::fs;
use std::path::Path;

use memtide_engine::journal::{Reader, encode, header};
use memtide_model::{Bytes, Class, Reading, Record, Space, Tmpfs, TmpfsId, Users};
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

#[test]
fn guests_whose_class_came_from_their_users_keep_it() {
    let trace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces/demo-elastic.mtj");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("users.mtj");
    let mut bytes = header().to_vec();
    let mut names = Vec::new();
    for record in Reader::open(&trace).unwrap() {
        let mut record = record.unwrap();
        match &mut record {
            Record::Start { config, .. } => {
                let users = Some(Users::new(vec!["1001".to_owned()], vec![(1001, 1001)]));
                config.classes.insert("alice".into(), Class { users, shares: 7, ..Class::default() });
            }
            Record::Tick(tick) => {
                if let Some(guest) = tick.seen.guests.first_mut() {
                    guest.user = Some(1001);
                    names.push(guest.id.name().to_owned());
                }
            }
            _ => {}
        }
        encode(&record, &mut bytes).unwrap();
    }
    fs::write(&file, bytes).unwrap();
    let setup = from_journal(&file, 0).unwrap();
    names.dedup();
    let of_alice = |name: &str| setup.config.class_of(name, None).1.shares == 7;
    let in_setup: Vec<&str> = setup.guests.iter().map(|guest| guest.name.as_str()).collect();
    assert!(in_setup.len() > names.len(), "others have other users: {in_setup:?}");
    for name in in_setup {
        assert_eq!(of_alice(name), names.iter().any(|of_hers| of_hers == name), "{name}");
    }
}

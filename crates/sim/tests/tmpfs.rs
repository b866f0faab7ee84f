//! A tmpfs that holds the memory of some guests.
#![expect(clippy::unwrap_used, reason = "tests")]

use memtide_model::Bytes;
use memtide_sim::{Manager, Options, Outcome, Scenario, run};

/// A host of 4 GiB with a tmpfs of 512 MiB. `calm` uses 250 MiB in it, `grows` up to 300 MiB, and `large` has 1 GiB elsewhere.
const TEXT: &str = "lasts = \"5m\"\n[host]\nmemory = \"4 GiB\"\ntmpfs = \"512 MiB\"\n\
    [[guest]]\nname = \"calm\"\nin_tmpfs = true\nkernel_uses = \"20 MiB\"\nuses = \"250 MiB\"\n\
    [[guest]]\nname = \"grows\"\nin_tmpfs = true\nkernel_uses = \"20 MiB\"\nfree_page_reporting = false\n\
    program = [{ uses = \"50 MiB\", grows_to = \"300 MiB\", at = \"60s\", rate = \"20 MiB/s\" }]\n\
    [[guest]]\nname = \"large\"\nmemory = \"2 GiB\"\nuses = \"1 GiB\"\n";

fn unmanaged(text: &str) -> Outcome {
    run(&Scenario::parse(text).unwrap().setup, Manager::Nobody, &Options::default(), &mut |_| ())
}

#[test]
fn a_full_tmpfs_kills_the_guest_that_grows_in_it() {
    let outcome = unmanaged(TEXT);
    let kills: Vec<u64> = outcome.guests.iter().map(|guest| guest.kills).collect();
    assert_eq!((kills.as_slice(), outcome.host.killed_guests), (&[0, 1, 0][..], 1));
    assert!(outcome.guests[1].lost_at > Some(60_000));
    assert_eq!(outcome.host.above_capacity, 0, "the host has free memory");
    let most = Bytes::new(outcome.host.most_in_tmpfs);
    assert!(most <= Bytes::from_mib(512) && most > Bytes::from_mib(450), "{most}");
    // The same guests, with their memory elsewhere.
    let elsewhere = TEXT.replace("in_tmpfs = true\n", "").replace("tmpfs = \"512 MiB\"\n", "");
    assert_eq!(unmanaged(&elsewhere).host.killed_guests, 0);
}

#[test]
fn a_tmpfs_without_guests_or_guests_without_a_tmpfs_are_a_mistake() {
    let message = |text: &str| Scenario::parse(text).unwrap_err().to_string();
    let empty = message("[host]\ntmpfs = \"512 MiB\"\n[[guest]]\nname = \"a\"\n");
    assert_eq!(empty, "2:9: tmpfs: nobody's memory is in it: add in_tmpfs = true to some guests");
    let nowhere = message("[[guest]]\nname = \"a\"\nin_tmpfs = true\n");
    assert_eq!(nowhere, "3:12: in_tmpfs: say how large it is: add tmpfs = \"512 MiB\" below [host]");
    let small = message("[host]\ntmpfs = \"1 MiB\"\n[[guest]]\nname = \"a\"\n");
    assert_eq!(small, "2:9: tmpfs: 1 MiB is too small: write at least 64 MiB");
    let merges = message(
        "[host]\ntmpfs = \"512 MiB\"\n[[guest]]\nname = \"a\"\nin_tmpfs = true\nequal = \"50 MiB\"\n",
    );
    assert_eq!(merges, "6:9: equal: KSM merges no memory of a file: take out equal or in_tmpfs");
}

//! What guests were promised, compared with the memory there is.

use super::*;

#[test]
fn more_is_promised_than_there_is() {
    let many = |facts: &mut Facts| {
        // 9 GiB on 8.
        facts.guests = (0..9).map(|n| guest(&format!("web{n}"), 100 + n)).collect();
    };
    let findings = found(many);
    assert_eq!(rules(&findings), ["promises.unmanaged", "ksm.off"]);
    // 8 GiB less 5 %.
    assert!(
        findings[0].fact.contains("promised 9 GiB together, 1.40 GiB more than the 7.60 GiB"),
        "{}",
        findings[0].fact
    );
    assert!(findings[0].cost.contains("room for 1 of them"), "{}", findings[0].cost);
    assert!(findings[0].cost.contains("up to 512 MiB"), "{}", findings[0].cost);
    let whole = found(|facts| {
        many(facts);
        facts.config.self_deflation_within = SelfDeflationWithin::Whole;
    });
    assert!(whole[0].cost.contains("up to 1 GiB"), "{}", whole[0].cost);
    let managed = found(|facts| {
        many(facts);
        facts.daemon =
            Daemon::Runs { version: "0.1.0".to_owned(), mode: Mode::Manage, guests: Default::default() };
    });
    assert_eq!(rules(&managed), ["promises.self-deflations", "ksm.off"], "memtide is made for this");
    let says = text(&managed[0]);
    assert!(says.contains("9 guests may deflate") && says.contains("self_deflations = 9"), "{says}");
    for change in [(|config| config.self_deflations = 9) as fn(&mut Config), |config| {
        config.commitment = Commitment::Elastic
    }] {
        let none = found(|facts| {
            many(facts);
            change(&mut facts.config);
            facts.daemon =
                Daemon::Runs { version: "0.1.0".to_owned(), mode: Mode::Manage, guests: Default::default() };
        });
        assert_eq!(rules(&none), ["ksm.off"]);
    }
    let fixed = found(|facts| {
        many(facts);
        facts.guests.iter_mut().for_each(|guest| guest.managed = false);
    });
    assert_eq!(rules(&fixed), ["promises.held", "ksm.off"]);
    assert_eq!(fixed[0].severity, PROBLEM);
}

#[test]
fn a_reserve_that_leaves_nothing_is_a_problem() {
    let with_a_reserve_of =
        |gib: u64| found(|facts| facts.config.reserve = Amount::Bytes(Bytes::from_mib(gib * 1024)));
    let all = with_a_reserve_of(8);
    assert_eq!(kinds(&all)[0], ("promises.reserve", PROBLEM));
    assert!(
        text(&all[0]).contains("8 GiB leaves nothing of 8 GiB") && text(&all[0]).contains("reserve = \"5%\""),
        "{all:#?}"
    );
    let more = with_a_reserve_of(900);
    assert!(text(&more[0]).contains("900 GiB leaves nothing of 8 GiB"), "as it was written: {more:#?}");
    assert_eq!(with_a_reserve_of(4), []);
}

//! The port for an agent, and whether it answers.

use super::*;

#[test]
fn what_an_agent_needs() {
    gives(HINT, "agent.none", "-device virtserialport,chardev=agent,name=org.memtide.agent.0", |facts| {
        first(facts).agent = None;
    });
    // A guest of libvirt with a second monitor, which memtide alone uses.
    let findings = found(|facts| {
        first(facts).agent = None;
        first(facts).launch.by = Launcher::Libvirt;
    });
    let finding = findings.iter().find(|finding| finding.rule == "agent.none").unwrap();
    assert!(text(finding).contains("<target type='virtio' name='org.memtide.agent.0'/>"), "{finding:?}");
    gives(HINT, "agent.limited", "cannot trim (needs Linux 5.19)", |facts| {
        let cannot = [(Can::Trim, "needs Linux 5.19".to_owned()), (Can::Ages, "no debugfs".to_owned())];
        first(facts).told.agent = Reading::now(Agent { cannot: cannot.into(), ..Agent::default() });
    });
    gives(HINT, "agent.limited", "free memory in pieces below 2 MiB stays with it", |facts| {
        let cannot = [(Can::ReportPieces, "no parameter".to_owned())];
        first(facts).told.agent = Reading::now(Agent { cannot: cannot.into(), ..Agent::default() });
    });
    gives(WARNING, "agent.silent", "systemctl enable --now memtide-agent", |facts| {
        first(facts).told.agent = Reading::absent(Absence::Silent);
    });
}

#[test]
fn freed_memory_that_stays_with_the_host_is_told() {
    let kept = |facts: &mut Facts| {
        let actual = balloon(facts).actual;
        stats(facts).free = Some(actual.mul_div(1, 2));
        status(facts).resident = actual.mul_div(7, 8);
    };
    gives(HINT, "agent.pieces", "page_reporting.page_reporting_order=4", kept);
    let nothing = |spoil: &dyn Fn(&mut Facts)| {
        let findings = found(|facts| {
            kept(facts);
            spoil(facts);
        });
        assert!(!rules(&findings).contains(&"agent.pieces"), "{findings:#?}");
    };
    nothing(&|facts| status(facts).resident = balloon(facts).actual.mul_div(9, 16));
    nothing(&|facts| first(facts).age = Some(Span::from_secs(10)));
    nothing(&|facts| {
        first(facts).told.agent = Reading::now(Agent { reports_pieces: true, ..Agent::default() });
    });
}

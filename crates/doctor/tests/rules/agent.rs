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
    gives(WARNING, "agent.silent", "systemctl enable --now memtide-agent", |facts| {
        first(facts).told.agent = Reading::absent(Absence::Silent);
    });
}

//! Facts that could not be seen.

use super::*;

#[test]
fn what_could_not_be_seen_is_said() {
    gives(PROBLEM, "sight.no-processes", "cannot read /proc", |facts| {
        facts.no_guests = Some("cannot read /proc".to_owned())
    });
    gives(PROBLEM, "configuration.refused", "x:1:1: no", |facts| {
        facts.trouble = Some(Trouble::Refused("x:1:1: no".to_owned()))
    });
    gives(WARNING, "sight.mappings", "CAP_SYS_PTRACE", |facts| {
        first(facts).mappings = Err(Absence::Forbidden)
    });
    gives(WARNING, "sight.processes", "hidepid", |facts| {
        facts.user = 1000;
        facts.host.hides_processes = true;
    });
    gives(WARNING, "sight.daemon", "/run/m.sock", |facts| {
        facts.daemon = Daemon::Forbidden { socket: "/run/m.sock".into() }
    });
    gives(WARNING, "sight.daemon", "no daemon answers at /run/m.sock", |facts| {
        facts.daemon = Daemon::Silent { socket: "/run/m.sock".into() }
    });
    gives(WARNING, "sight.daemon", "sudo systemctl restart memtide", |facts| {
        facts.daemon = Daemon::Silent { socket: "/run/m.sock".into() }
    });
    gives(WARNING, "sight.daemon", "another version", |facts| {
        facts.daemon = Daemon::Strange { socket: "/run/m.sock".into(), why: "another version".to_owned() }
    });
    gives(WARNING, "sight.cgroups", "web1: no", |facts| facts.cgroups.unseen = vec!["web1: no".to_owned()]);
    gives(WARNING, "sight.configuration", "x: no", |facts| {
        facts.trouble = Some(Trouble::Unreadable("x: no".to_owned()))
    });
    gives(WARNING, "sight.slow", "the mappings of evil (process 7) took too long to read", |facts| {
        facts.slow = vec!["the mappings of evil (process 7)".to_owned()];
    });
    gives(WARNING, "guest.unmatched", "process 7 listens there, and runs no guest", |facts| {
        let why = SocketTrouble::NoGuest(7);
        facts.unmatched = vec![Unmatched { name: "db".to_owned(), qmp: "/run/a".into(), why }];
    });
    gives(WARNING, "journal.room", r#"journal = { dir = "/var/j", max = "50 MiB" }"#, |facts| {
        facts.host.journal = Some(Journal { dir: "/var/j".into(), free: mib(100), needed: mib(256) })
    });
    gives(WARNING, "guest.unmatched", "-qmp unix:/run/a,,b,server=on,wait=off", |facts| {
        facts.unmatched =
            vec![Unmatched { name: "db".to_owned(), qmp: "/run/a,b".into(), why: SocketTrouble::Gone }]
    });
}

#[test]
fn mends_name_the_configuration_that_was_named() {
    let spoils: &[Spoil] = &[
        |facts| absent(facts, Absence::ControlTaken),
        |facts| equipment(facts).mem_lock = true,
        |facts| facts.trouble = Some(Trouble::Refused("no".to_owned())),
        |facts| facts.trouble = Some(Trouble::Unreadable("no".to_owned())),
        |facts| facts.host.journal = Some(Journal { dir: "/var/j".into(), free: mib(1), needed: mib(2) }),
        |facts| {
            facts.unmatched =
                vec![Unmatched { name: "db".into(), qmp: "/q".into(), why: SocketTrouble::Gone }]
        },
        |facts| facts.daemon = Daemon::Silent { socket: "/run/m.sock".into() },
        |facts| first(facts).mappings = Err(Absence::Forbidden),
        |facts| first(facts).told.polling = Polling::Off,
        |facts| facts.guests = (0..9).map(|n| guest(&format!("web{n}"), 100 + n)).collect(),
    ];
    for spoil in spoils {
        let findings = found(|facts| {
            facts.configuration = Configuration { path: "/srv/my hosts.toml".into(), is_named: true };
            spoil(facts);
        });
        let all: String = findings.iter().map(text).collect();
        assert!(all.contains("/srv/my hosts.toml"), "{all}");
        assert!(!all.contains("/etc/memtide"), "{all}");
    }
}

#[test]
fn who_may_not_look_is_not_told_of_problems() {
    // The path means something else in the guest's own mounts, which this user may not see.
    let findings = found(|facts| {
        absent(facts, Absence::Disconnected);
        first(facts).mappings = Err(Absence::Forbidden);
    });
    assert_eq!(findings.iter().map(|finding| finding.severity).max(), Some(WARNING), "{findings:#?}");
}

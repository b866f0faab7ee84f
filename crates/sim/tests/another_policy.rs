//! A division of the memory in place of memtide's own: one file.
use std::sync::Arc;

use memtide_engine::{Engine, Policy, World as _};
use memtide_model::{Bytes, Config, Decision, Mode, Snapshot, State};
use memtide_policy::belief::guest::Guest;
use memtide_policy::belief::scene::Scene;
use memtide_policy::{Sharing, decide_by};
use memtide_sim::Scenario;
use memtide_sim::machine::Machine;

/// Each guest should have the same, whatever it needs.
#[derive(Debug)]
struct Even;

impl Sharing for Even {
    fn entitle(&self, _: &Config, scene: &Scene, guests: &mut [Guest<'_>]) {
        let each = scene.ledger.for_guests().mul_div(1, guests.len() as u64);
        for guest in guests {
            guest.entitlement = guest.bounds.clamp(each).round_down(guest.step());
        }
    }
}

impl Policy for Even {
    fn identity(&self) -> &str {
        "even"
    }

    fn decide(&self, config: &Config, state: &State, seen: &Snapshot) -> Decision {
        decide_by(self, config, state, seen)
    }

    fn has_manners(&self) -> bool {
        false
    }
}

#[test]
fn guests_are_divided_by_it_and_the_promises_are_kept() {
    let text = r#"
lasts = "10m"
[host]
memory = "3 GiB"
[[guest]]
name = "busy"
memory = "1 GiB"
uses = "100 MiB"
program = [{ uses = "0", grows_to = "500 MiB", rate = "20 MiB/s", at = "1m" }]
[[guest]]
name = "rests"
count = 3
memory = "1 GiB"
uses = "100 MiB"
cold_cache = "600 MiB"
"#;
    let setup = Scenario::parse(text).unwrap().setup;
    let config = Config { mode: Mode::Manage, ..setup.config.clone() };
    let sizes = |policy: Option<Arc<dyn Policy>>| {
        let mut engine = Engine::new(Machine::new(&setup), config.clone());
        if let Some(policy) = policy {
            engine = engine.with_policy(policy);
        }
        let mut entitled = Vec::new();
        while !engine.world_mut().is_over() {
            let began = engine.world_mut().now();
            let step = engine.step();
            assert!(step.refusals.is_empty(), "{:?}", step.refusals);
            entitled = step.report.guests.iter().map(|guest| guest.entitlement).collect();
            engine.wait(began);
        }
        let machine = engine.into_world();
        assert_eq!(machine.measures.host.killed_guests, 0);
        entitled
    };
    let even: Vec<Bytes> = sizes(Some(Arc::new(Even)));
    assert!(even.windows(2).all(|pair| pair[0] == pair[1]), "{even:?}");
    let own = sizes(None);
    assert!(own[0] > own[1], "memtide's own knows who needs more: {own:?}");
}

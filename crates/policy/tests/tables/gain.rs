//! A guest gives little until the host is known to gain, and nothing any more once it was seen not to.

use memtide_model::{Bytes, Config, Proof, Reading, Reason, Request, State, Verdict, Withheld, Witness};
use memtide_policy::{check, witness};

use crate::common::decide;

use super::common::{OVERHEAD, but, config, elastic, guest, id, mib, snapshot};

/// A host of two guests of 1 GiB. `giver` has 700 MiB to give, `taker` wants 600 MiB.
struct Host {
    config: Config,
    state: State,
    witness: Witness,
    now: u64,
    /// The host's memory, in MiB.
    capacity: u64,
    /// What `giver` keeps.
    keeps: Bytes,
    /// What of it is resident for what it keeps.
    resident: fn(Bytes) -> Bytes,
    /// Whether its mappings can be read.
    is_mapped: bool,
}

impl Host {
    fn new(config: Config, resident: fn(Bytes) -> Bytes) -> Self {
        let (state, witness) = (State::default(), Witness::default());
        Self {
            config,
            state,
            witness,
            now: 100_000,
            capacity: 1500,
            keeps: mib(1024),
            resident,
            is_mapped: true,
        }
    }

    /// One tick of 250 ms, checked. The balloon follows at once. Returns what `giver` is asked for.
    fn tick(&mut self) -> Option<(Bytes, Reason)> {
        self.now += 250;
        let resident = (self.resident)(self.keeps);
        let keeps = self.keeps.whole_mib();
        let giver = but(guest("giver", keeps, 100), |guest| {
            guest.cost.footprint = Reading::now(resident.saturating_add(OVERHEAD));
            guest.cost.ram = Reading::now(resident);
            if !self.is_mapped {
                guest.cost.ram = Reading::absent(memtide_model::Absence::Forbidden);
            }
        });
        let taker = but(guest("taker", 400, 390), |guest| {
            guest.told.stats = guest
                .told
                .stats
                .clone()
                .map(|stats| memtide_model::GuestStats { alloc_stalls: Some(self.now), ..stats });
        });
        let seen = snapshot(self.now, self.capacity, vec![giver, taker]);
        let decision = decide(&self.config, &self.state, &seen);
        witness::looks(&mut self.witness, &self.config, &seen);
        let refused = check(&self.config, &self.witness, &seen, &decision.plan);
        assert_eq!(refused, [], "at {} ms: {:#?}", self.now, decision.plan);
        let asks = decision.plan.actions.iter().find_map(|action| match action.request {
            Request::SetTarget(target) if action.guest() == Some(&id("giver")) => {
                Some((target, action.reason))
            }
            _ => None,
        });
        let answers = vec![memtide_model::Answer::Accepted; decision.plan.actions.len()];
        witness::hears(&mut self.witness, &seen, &decision.plan, &answers);
        if let Some((target, _)) = asks {
            self.keeps = target;
        }
        self.state = decision.state;
        asks
    }

    /// The sizes of `giver` at all ticks of ten seconds.
    fn sizes(&mut self) -> Vec<u64> {
        let mut sizes = vec![self.keeps.whole_mib()];
        for _ in 0..40 {
            self.tick();
            sizes.push(self.keeps.whole_mib());
        }
        sizes.dedup();
        sizes
    }

    fn proof(&self) -> Proof {
        self.state.guests[&id("giver")].gain.proof
    }
}

fn both() -> [Config; 2] {
    [config(), elastic()]
}

#[test]
fn a_guest_gives_a_64th_of_its_memory_and_then_what_is_wanted() {
    for config in both() {
        let mut host = Host::new(config, |keeps| keeps);
        let sizes = host.sizes();
        assert_eq!(sizes[..2], [1024, 1008], "{sizes:?}");
        assert!(sizes.last() < Some(&960), "{sizes:?}");
        assert_eq!(host.proof(), Proof::Gained);
    }
}

#[test]
fn a_guest_that_gives_nothing_is_asked_once_and_gets_its_size_back() {
    for config in both() {
        for is_mapped in [true, false] {
            let mut host = Host::new(config.clone(), |_| mib(1024));
            host.is_mapped = is_mapped;
            assert_eq!(host.sizes(), [1024, 1008, 1024], "mapped: {is_mapped}");
            let [policy, check] = [host.proof(), host.witness.guests[&id("giver")].gain.proof];
            let is_vain = |proof| matches!(proof, Proof::Vain { resident, .. } if resident == mib(1024));
            assert!(is_vain(policy) && policy == check, "{policy:?} {check:?}");
        }
    }
}

#[test]
fn memory_that_is_not_resident_is_taken_at_once_and_proves_nothing() {
    // 600 MiB are locked, and nothing else is resident.
    let mut host = Host::new(config(), |_| mib(600));
    host.capacity = 1100;
    assert_eq!(host.sizes(), [1024, 584, 1024], "a probe below what is resident, once");
}

#[test]
fn memory_that_came_back_by_itself_is_proof_enough() {
    for config in both() {
        let mut host = Host::new(config, |keeps| keeps);
        let capacity = std::mem::replace(&mut host.capacity, 2048);
        host.tick();
        assert_eq!(host.proof(), Proof::None);
        // The guest has freed 24 MiB, and returned them.
        host.resident = |keeps| keeps.min(mib(1000));
        host.tick();
        assert_eq!(host.proof(), Proof::Gained);
        host.capacity = capacity;
        let sizes = host.sizes();
        assert!(sizes[1] < 1000 - 16, "{sizes:?}");
    }
}

#[test]
fn a_mechanism_that_stops_working_is_noticed_at_the_next_step() {
    // Only 24 MiB can be given.
    let mut host = Host::new(config(), |keeps| keeps.max(mib(1000)));
    let sizes = host.sizes();
    assert_eq!(sizes[..2], [1024, 1008], "{sizes:?}");
    assert_eq!((sizes.len(), sizes.last()), (4, Some(&1024)), "{sizes:?}");
}

#[test]
fn it_is_said_and_known_again_only_for_another_size() {
    let mut host = Host::new(config(), |_| mib(1024));
    host.sizes();
    let giver = but(guest("giver", 1024, 100), |guest| guest.cost.ram = Reading::now(mib(1024)));
    let seen = snapshot(host.now + 250, 1500, vec![giver.clone()]);
    let decision = decide(&host.config, &host.state, &seen);
    let verdict = &decision.report.guests[0].verdict;
    assert!(matches!(verdict, Verdict::Withheld(Withheld::GivesNothing { .. })), "{verdict:?}");
    let larger = but(giver, |guest| guest.told.full = mib(2048));
    let seen = snapshot(host.now + 500, 1500, vec![larger]);
    let state = decide(&host.config, &decision.state, &seen).state;
    assert_eq!(state.guests[&id("giver")].gain.proof, Proof::None);
    assert_eq!(state.guests[&id("giver")].gain.full, mib(2048));
}

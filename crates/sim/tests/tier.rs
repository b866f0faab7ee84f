//! Compressed tiers: what the host attaches, what an agent does with it, and what it costs.
#![expect(clippy::unwrap_used, reason = "tests")]

use memtide_engine::{ApplyError, Asking, World};
use memtide_model::{Action, Bytes, Deed, GuestSeen, Reason, Request, Span, Tier, TierOrder};
use memtide_sim::Scenario;
use memtide_sim::machine::Machine;
use memtide_sim::setup::BEGINS;

const GUEST: &str = "lasts = \"10m\"\n[host]\nmemory = \"4 GiB\"\n[[guest]]\nname = \"web\"\nagent = true\nprogram = [{ uses = \"600 MiB\", touches = \"0\", compresses = 2 }]\n";
const SIZE: Bytes = Bytes::from_mib(512);

fn mib(mib: u64) -> Bytes {
    Bytes::from_mib(mib)
}

fn machine(more: &str) -> Machine {
    Machine::new(&Scenario::parse(&format!("{GUEST}{more}")).unwrap().setup)
}

fn seen(machine: &mut Machine) -> GuestSeen {
    let id = machine.observe(&mut Asking::default()).guests[0].id.clone();
    // Its VMM is asked now.
    machine.look(std::slice::from_ref(&id));
    machine.observe(&mut Asking::default()).guests[0].clone()
}

fn ask(machine: &mut Machine, request: Request) -> Result<(), ApplyError> {
    let id = seen(machine).id;
    machine.apply(&Action::of(id, request, Reason::Ordered)).map(|_| ())
}

fn attach(machine: &mut Machine) -> Result<(), ApplyError> {
    ask(machine, Request::Tier(TierOrder::Attach(SIZE)))
}

fn live(machine: &mut Machine, secs: u64) {
    machine.live(BEGINS.after(Span::from_secs(secs)), false);
}

fn tier(machine: &mut Machine) -> Tier {
    *seen(machine).cost.tier.fresh().unwrap()
}

#[test]
fn what_lies_in_a_tier_costs_the_host_its_compressed_size() {
    let mut machine = machine("");
    live(&mut machine, 10);
    assert!(machine.observe(&mut Asking::default()).host.tiers);
    assert!(seen(&mut machine).cost.tier.is_unsupported());
    attach(&mut machine).unwrap();
    assert!(attach(&mut machine).is_err(), "it has one");
    let before = seen(&mut machine).cost;
    assert_eq!((before.overhead, before.overhead_bound), (mib(60), mib(60 + 578)));
    ask(&mut machine, Request::Agent(Deed::UseTier(true))).unwrap();
    ask(&mut machine, Request::Agent(Deed::PageOut(mib(100)))).unwrap();
    let held = mib(50);
    assert_eq!(
        tier(&mut machine),
        Tier { size: SIZE, limit: mib(578), stored: mib(100), held, ..Tier::default() }
    );
    let agent = seen(&mut machine).told.agent.fresh().unwrap().clone();
    assert_eq!((agent.ended, agent.freed, agent.memory.anon), (2, mib(100), mib(500)));
    assert_eq!((agent.memory.tier_total, agent.memory.tier_free), (SIZE, mib(412)));
    // The guest reports what became free.
    live(&mut machine, 60);
    let after = seen(&mut machine).cost;
    assert_eq!((after.overhead, after.overhead_bound), (mib(110), mib(60 + 578)));
    let gained = before.footprint.fresh().unwrap().saturating_sub(*after.footprint.fresh().unwrap());
    assert_eq!(gained, mib(50));
    // It is read back and let go.
    assert!(ask(&mut machine, Request::Tier(TierOrder::Detach)).is_err(), "the guest swaps to it");
    ask(&mut machine, Request::Agent(Deed::UseTier(false))).unwrap();
    assert_eq!((tier(&mut machine).held, tier(&mut machine).read), (Bytes::ZERO, mib(100)));
    ask(&mut machine, Request::Tier(TierOrder::Detach)).unwrap();
    assert!(seen(&mut machine).cost.tier.is_unsupported());
    assert_eq!(seen(&mut machine).cost.overhead_bound, mib(60));
}

#[test]
fn a_vmm_may_refuse_a_tier_and_an_answer_may_get_lost() {
    let fault = |is: &str| format!("[[fault]]\nat = \"0\"\nlasts = \"1m\"\nguest = \"web\"\nis = \"{is}\"\n");
    let mut refuses = machine(&fault("refuses"));
    assert!(attach(&mut refuses).is_err());
    assert!(seen(&mut refuses).cost.tier.is_unsupported());
    let mut lost = machine(&fault("answers-lost"));
    assert!(attach(&mut lost).is_err());
    assert_eq!(tier(&mut lost).limit, mib(578), "it was attached");
}

#[test]
fn an_agent_takes_its_time_and_a_process_that_ends_takes_its_tier_along() {
    let mut machine = machine(
        "agent_takes = \"5s\"\n[[fault]]\nat = \"1m\"\nlasts = \"10s\"\nguest = \"web\"\nis = \"vanishes\"\n",
    );
    attach(&mut machine).unwrap();
    ask(&mut machine, Request::Agent(Deed::UseTier(true))).unwrap();
    ask(&mut machine, Request::Agent(Deed::PageOut(mib(100)))).unwrap();
    assert!(seen(&mut machine).told.agent.fresh().unwrap().busy);
    live(&mut machine, 6);
    let agent = seen(&mut machine).told.agent.fresh().unwrap().clone();
    assert_eq!((agent.busy, agent.ended, agent.memory.tier_total), (false, 1, SIZE));
    assert_eq!(tier(&mut machine).stored, Bytes::ZERO, "it works on one request at a time");
    live(&mut machine, 80);
    assert!(seen(&mut machine).cost.tier.is_unsupported());
}

#[test]
fn a_host_without_tiers_says_so() {
    let text = GUEST.replace("[[guest]]", "tiers = false\n[[guest]]");
    let mut machine = Machine::new(&Scenario::parse(&text).unwrap().setup);
    assert!(!machine.observe(&mut Asking::default()).host.tiers);
}

//! Random hosts: a configuration, guests of fixed shape, and their readings at a few moments.
//!
//! The guests of a case stay the same; their readings are drawn anew for every moment. The state after earlier decisions
//! therefore meets readings that contradict it. `Follow` lets an actual obey the target now and then.
#![allow(clippy::unwrap_used, reason = "what a test does not find fails it")]

#[path = "decide.rs"]
mod decide;

use indexmap::IndexMap;
use std::fmt;

pub use self::decide::decide;
use memtide_model::{
    Absence, Agent, AgentCounters, AgentMemory, Amount, Backend, Balloon, Budget, Bytes, Capabilities, Class,
    Commitment, Config, Cost, DiskReads, Fence, GuestId, GuestSeen, GuestStats, Hold, HostSeen, Hotplug,
    Keeps, Limit, Mode, Moment, Order, Ordered, Plan, Polling, Pressure, Reading, Share, Snapshot, Space,
    Span, State, SwapCounters, Tmpfs, TmpfsId, Told, WallClock, Witness,
};
use memtide_policy::{Violation, check, witness};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

/// The tmpfs of random hosts that have one.
const SHM: TmpfsId = TmpfsId(26);

/// The name suffixes that the classes of a random configuration match; the last one is the default class.
pub const SUFFIXES: [&str; 3] = ["gold", "lead", "none"];

/// A part of a whole in thousandths.
type Permille = u64;

/// A host, its guests and the moments of its snapshots.
#[derive(Clone, Debug)]
pub struct Case {
    pub config: Config,
    pub shapes: Vec<Shape>,
    /// At least one; the last one is the decision under test.
    pub moments: Vec<At>,
}

/// The constant facts about a guest.
#[derive(Clone, Debug)]
pub struct Shape {
    pub full: Bytes,
    pub overhead: Bytes,
    pub suffix: usize,
    pub deflates: bool,
    pub old_driver: bool,
    pub reporting: bool,
}

/// The host at one moment.
#[derive(Clone, Debug)]
pub struct At {
    pub after: Span,
    /// In thousandths of all full sizes together.
    pub capacity: Permille,
    /// In thousandths of the capacity.
    pub other: Permille,
    pub swapped_in: Option<u64>,
    pub stalled_us: Option<u64>,
    pub guests: Vec<Appearance>,
}

/// The age of a reading.
#[derive(Clone, Copy, Debug)]
pub enum Age {
    Fresh,
    Stale,
    Absent,
}

impl Age {
    pub fn read<T>(self, value: T) -> Reading<T> {
        let why = Absence::Silent;
        match self {
            Self::Fresh => Reading::now(value),
            Self::Stale => Reading::Stale { value, age: Span::from_secs(30), why },
            Self::Absent => Reading::Absent { why },
        }
    }
}

/// One guest at one moment.
#[derive(Clone, Debug)]
pub struct Appearance {
    pub present: bool,
    /// In thousandths of actual plus overhead; above 1000, it is beyond the guest's reach.
    pub footprint: (Age, Permille),
    /// In thousandths of its full size; `None` means its target.
    pub actual: (Age, Option<Permille>),
    pub stats: (Age, Contents),
    pub hotplug: Option<(u64, u64)>,
    pub polling: Polling,
    pub rare: Rare,
}

/// A guest's statistics, in thousandths: used memory of the actual, cache of the rest.
#[derive(Clone, Copy, Debug)]
pub struct Contents {
    pub used: Permille,
    pub cache: Permille,
    pub counters: [u64; 6],
}

/// A rare event in a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rare {
    Nothing,
    Reset,
    Fenced(Fence),
    Owned,
    /// The operator holds it, releases it, or ends both.
    Ordered(Option<Keeps>),
}

fn age() -> impl Strategy<Value = Age> {
    prop_oneof![8 => Just(Age::Fresh), 1 => Just(Age::Stale), 1 => Just(Age::Absent)]
}

fn size(mib: std::ops::Range<u64>) -> impl Strategy<Value = Bytes> {
    (mib, prop_oneof![4 => Just(0_u64), 1 => 0..1_048_576_u64])
        .prop_map(|(mib, odd)| Bytes::from_mib(mib).saturating_add(Bytes::new(odd)))
}

fn share(percent: std::ops::RangeInclusive<u8>) -> impl Strategy<Value = Share> {
    percent.prop_map(|percent| Share::percent(percent).unwrap())
}

fn class(manage: f64) -> impl Strategy<Value = Class> {
    (
        1_u32..8000,
        prop_oneof![Just(Bytes::ZERO), size(0..600)],
        prop_oneof![2 => Just(Limit::Max), 1 => size(0..1500).prop_map(Limit::At)],
        prop::bool::weighted(0.8),
        prop::bool::weighted(manage),
    )
        .prop_map(|(shares, reservation, limit, squeeze, manage)| Class {
            patterns: Vec::new(),
            shares,
            reservation,
            limit,
            squeeze,
            manage,
            ..Class::default()
        })
}

/// A configuration in manage mode; `manage` is the share of classes that are managed.
pub fn config(manage: f64) -> impl Strategy<Value = Config> {
    let amount = prop_oneof![size(0..300).prop_map(Amount::Bytes), share(0..=10).prop_map(Amount::Share)];
    (any::<bool>(), any::<bool>(), amount, 0_u32..4, [class(manage), class(manage), class(manage)]).prop_map(
        |(elastic, whole, reserve, self_deflations, classes)| {
            let mut named = IndexMap::new();
            for (suffix, mut class) in SUFFIXES.into_iter().zip(classes) {
                let name = if suffix == "none" { Config::DEFAULT_CLASS } else { suffix };
                class.patterns = if suffix == "none" { Vec::new() } else { vec![format!("*-{suffix}")] };
                named.insert(name.into(), class);
            }
            Config {
                mode: Mode::Manage,
                commitment: if elastic { Commitment::Elastic } else { Commitment::Strict },
                budget: if whole { Budget::Host } else { Budget::Size(Bytes::from_mib(4096)) },
                reserve,
                self_deflations,
                growth_prior: Share::percent(33).unwrap(),
                classes: named,
                ..Config::default()
            }
        },
    )
}

fn shape() -> impl Strategy<Value = Shape> {
    (size(64..4096), size(0..200), 0..SUFFIXES.len(), any::<bool>(), prop::bool::weighted(0.2), any::<bool>())
        .prop_map(|(full, overhead, suffix, deflates, old_driver, reporting)| Shape {
            full,
            overhead,
            suffix,
            deflates,
            old_driver,
            reporting,
        })
}

fn contents() -> impl Strategy<Value = Contents> {
    let counter = prop_oneof![4 => Just(0_u64), 1 => 0..2_000_u64, 1 => 0..200_000_u64];
    let counters =
        [counter.clone(), counter.clone(), counter.clone(), counter.clone(), counter.clone(), counter];
    (0_u64..=1000, 0_u64..=1000, counters).prop_map(|(used, cache, counters)| Contents {
        used,
        cache,
        counters,
    })
}

fn rare() -> impl Strategy<Value = Rare> {
    prop_oneof![
        20 => Just(Rare::Nothing),
        1 => Just(Rare::Reset),
        1 => Just(Rare::Fenced(Fence::Paused)),
        1 => Just(Rare::Fenced(Fence::Migrating)),
        1 => Just(Rare::Owned),
        1 => Just(Rare::Ordered(Some(Keeps::Size))),
        1 => Just(Rare::Ordered(Some(Keeps::Limit))),
        1 => Just(Rare::Ordered(None)),
    ]
}

fn polling() -> impl Strategy<Value = Polling> {
    prop_oneof![
        4 => Just(Polling::Every(Span::from_secs(1))),
        1 => Just(Polling::Every(Span::from_secs(5))),
        1 => Just(Polling::Off),
        1 => Just(Polling::Unknown),
    ]
}

fn appearance() -> impl Strategy<Value = Appearance> {
    let actual = prop_oneof![2 => Just(None), 1 => (1_u64..=1000).prop_map(Some)];
    (
        prop::bool::weighted(0.95),
        (age(), prop_oneof![5 => 0_u64..=1000, 1 => 1000_u64..1500]),
        (age(), actual),
        (age(), contents()),
        option::weighted(0.1, (0_u64..512, 0_u64..512)),
        polling(),
        rare(),
    )
        .prop_map(|(present, footprint, actual, stats, hotplug, polling, rare)| Appearance {
            present,
            footprint,
            actual,
            stats,
            hotplug,
            polling,
            rare,
        })
}

fn at(guests: usize) -> impl Strategy<Value = At> {
    let after = prop_oneof![4 => Just(250_u64), 4 => 1..6_000_u64, 1 => 0..2_000_000_u64];
    (
        after,
        100_u64..1800,
        prop_oneof![Just(0_u64), 0..300_u64],
        option::weighted(0.2, 0_u64..1_000_000_000),
        option::weighted(0.2, 0_u64..10_000_000),
        vec(appearance(), guests),
    )
        .prop_map(|(after, capacity, other, swapped_in, stalled_us, guests)| At {
            after: Span::from_millis(after),
            capacity,
            other,
            swapped_in,
            stalled_us,
            guests,
        })
}

/// Any host with 1 to 12 guests and up to five earlier moments.
pub fn case() -> impl Strategy<Value = Case> {
    (1_usize..=12, 1_usize..=6).prop_flat_map(|(guests, moments)| {
        (config(0.9), vec(shape(), guests), vec(at(guests), moments))
            .prop_map(|(config, shapes, moments)| Case { config, shapes, moments })
    })
}

impl Case {
    /// The name of the guest `index`: its place in the order, and its class.
    pub fn name(&self, index: usize) -> String {
        format!("vm{index:02}-{}", SUFFIXES[self.shapes[index].suffix])
    }

    pub fn id(&self, index: usize) -> GuestId {
        GuestId::new(&self.name(index), 1, "boot")
    }

    /// The snapshot at the moment `step`; `state` is the state before it.
    pub fn seen(&self, step: usize, state: &State) -> Snapshot {
        let at = &self.moments[step];
        let all = Bytes::sum(self.shapes.iter().map(|shape| shape.full.saturating_add(shape.overhead)));
        let capacity = all.mul_div(at.capacity, 1000);
        let millis = self.moments[..=step].iter().map(|at| at.after.as_millis()).sum::<u64>() + 100_000;
        let absent = || Reading::absent(Absence::Unsupported);
        let host = HostSeen {
            capacity,
            other: capacity.mul_div(at.other, 1000),
            // Odd hosts have torn huge pages, and every fourth can split them.
            ending: Bytes::ZERO,
            torn: match at.other % 2 {
                0 => Reading::unsupported(),
                _ => Reading::now(capacity.mul_div(at.other, 4000)),
            },
            splits: at.other % 4 == 1,
            tiers: at.other % 4 == 2,
            swap: at.swapped_in.map_or_else(
                || Reading::absent(Absence::Unsupported),
                |bytes| {
                    Reading::now(SwapCounters { swapped_in: Bytes::new(bytes), ..SwapCounters::default() })
                },
            ),
            pressure: at
                .stalled_us
                .map_or_else(absent, |some_us| Reading::now(Pressure { some_us, full_us: some_us / 2 })),
            ksm: Reading::unsupported(),
            missed: None,
        };
        let seen = (0..self.shapes.len()).filter(|i| at.guests[*i].present);
        let guests = seen.map(|i| self.guest(i, &at.guests[i], state)).collect();
        let space = Space { size: all.mul_div(1, 3), free: all.mul_div(at.other, 1500) };
        let read = if self.is_in_tmpfs() { Some(Reading::now(space)) } else { None };
        let tmpfs =
            read.into_iter().map(|space| Tmpfs { id: SHM, at: "/dev/shm".to_owned(), space }).collect();
        Snapshot {
            taken_at: Moment::from_millis(millis),
            wall: WallClock(0),
            host,
            guests,
            tmpfs,
            orders: self.orders(at),
        }
    }

    /// On a third of the hosts, the memory of every other guest is in a tmpfs.
    fn is_in_tmpfs(&self) -> bool {
        self.moments[0].other % 3 == 1
    }

    fn orders(&self, at: &At) -> Vec<Order> {
        let orders = at.guests.iter().enumerate().filter_map(|(index, appearance)| match appearance.rare {
            Rare::Ordered(keeps) => {
                let hold = keeps.map(|keeps| Hold { keeps, until: None });
                Some(Order { guest: self.id(index), ordered: hold.map_or(Ordered::Manage, Ordered::Leave) })
            }
            _ => None,
        });
        orders.collect()
    }

    fn guest(&self, index: usize, appearance: &Appearance, state: &State) -> GuestSeen {
        let shape = &self.shapes[index];
        let id = self.id(index);
        let target = state.guests.get(&id).and_then(|before| before.target).unwrap_or(shape.full);
        let actual = match appearance.actual.1 {
            Some(part) => shape.full.mul_div(part, 1000),
            None => target.min(shape.full),
        };
        let cost = actual.saturating_add(shape.overhead).mul_div(appearance.footprint.1, 1000);
        let balloon =
            Balloon { actual, deflate_on_oom: shape.deflates, free_page_reporting: shape.reporting };
        GuestSeen {
            id,
            pid: 1,
            user: None,
            backend: Backend::new("QEMU"),
            capabilities: Capabilities {
                can_be_set: appearance.rare != Rare::Owned,
                ..Capabilities::BALLOON
            },
            cost: Cost::of(
                appearance.footprint.0.read(cost),
                shape.overhead.mul_div(1, 2),
                shape.overhead,
                &Absence::Unsupported,
            ),
            tmpfs: (self.is_in_tmpfs() && index.is_multiple_of(2)).then_some(SHM),
            withheld: None,
            told: Told {
                claimed: false,
                full: shape.full,
                balloon: appearance.actual.0.read(balloon),
                hotplug: appearance.hotplug.map_or_else(
                    || Reading::absent(Absence::Unsupported),
                    |(requested, plugged)| {
                        Reading::now(Hotplug {
                            requested: Bytes::from_mib(requested),
                            plugged: Bytes::from_mib(plugged),
                            most: Bytes::ZERO,
                        })
                    },
                ),
                stats: appearance.stats.0.read(appearance.stats.1.stats(shape, actual)),
                agent: agent(shape, appearance, actual),
                disks: appearance.stats.0.read(DiskReads {
                    bytes: cost.mul_div(appearance.footprint.1, 100),
                    took_us: shape.deflates.then_some(cost.get()),
                }),
                merges: Reading::unsupported(),
                polling: appearance.polling,
                reset: appearance.rare == Rare::Reset,
                fence: match appearance.rare {
                    Rare::Fenced(fence) => Some(fence),
                    _ => None,
                },
                terms: None,
            },
        }
    }

    /// The state before the last moment, and the snapshot at that moment.
    pub fn warmed(&self) -> (State, Snapshot) {
        let last = self.moments.len() - 1;
        let mut state = State::default();
        for step in 0..last {
            state = decide(&self.config, &state, &self.seen(step, &state)).state;
        }
        let seen = self.seen(last, &state);
        (state, seen)
    }
}

impl Contents {
    pub fn stats(&self, shape: &Shape, actual: Bytes) -> GuestStats {
        let used = actual.mul_div(self.used, 1000);
        let available = actual.saturating_sub(used);
        let cache = available.mul_div(self.cache, 1000);
        let [stalls, direct, asynchronous, swapped, major, kills] = self.counters;
        let modern = |count: u64| (!shape.old_driver).then_some(count);
        GuestStats {
            total: Some(actual),
            free: Some(available.saturating_sub(cache)),
            available: Some(available),
            disk_caches: Some(cache),
            swapped_in: Some(Bytes::new(swapped)),
            major_faults: Some(major),
            alloc_stalls: modern(stalls),
            direct_scans: modern(direct),
            async_scans: modern(asynchronous),
            oom_kills: Some(kills / 50_000),
            ..GuestStats::default()
        }
    }
}

/// One line for each guest, for messages of failed properties.
pub struct Table<'a>(pub &'a memtide_model::Report);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:?}", self.0.host)?;
        for guest in &self.0.guests {
            let target = guest.target.map_or_else(|| "none".to_owned(), |target| target.to_string());
            writeln!(
                f,
                "{}: actual {} demand {} entitled {} target {target} {:?}",
                guest.id, guest.actual, guest.demand, guest.entitlement, guest.verdict
            )?;
        }
        Ok(())
    }
}

/// A host whose guests are quiet: no odd moments, and statistics of every guest.
pub fn quiet_case() -> impl Strategy<Value = Case> {
    case().prop_map(|mut case| {
        case.moments.truncate(1);
        case.moments[0].swapped_in = None;
        case.moments[0].stalled_us = None;
        for appearance in &mut case.moments[0].guests {
            appearance.present = true;
            appearance.rare = Rare::Nothing;
            appearance.footprint.0 = Age::Fresh;
            appearance.actual.0 = Age::Fresh;
            appearance.polling = Polling::Every(Span::from_secs(1));
        }
        case
    })
}

/// The promises that a plan breaks, if the check has seen what `state` remembers. From one step to the next, random guests jump to any size, so
/// a record of its own would hold other targets than the policy's memory.
pub fn broken(config: &Config, state: &State, seen: &Snapshot, plan: &Plan) -> Vec<(usize, Violation)> {
    let mut witness = Witness::from(state);
    witness::looks(&mut witness, config, seen);
    check(config, &witness, seen, plan)
}

/// The agent of a guest that reports freed pages and has a newer driver: it tells the same as the driver.
fn agent(shape: &Shape, appearance: &Appearance, actual: Bytes) -> Reading<Agent> {
    if shape.old_driver || !shape.reporting {
        return Reading::unsupported();
    }
    let stats = appearance.stats.1.stats(shape, actual);
    let free = stats.free.unwrap_or_default();
    let memory = AgentMemory {
        total: stats.total.unwrap_or_default(),
        free,
        free_blocks: free.mul_div(1, 2),
        available: stats.available.unwrap_or_default(),
        unmapped_cache: stats.disk_caches.unwrap_or_default(),
        ..AgentMemory::default()
    };
    let activations_file = Bytes::new(stats.async_scans.unwrap_or_default());
    let counters = AgentCounters { activations_file, ..AgentCounters::default() };
    let agent =
        Agent { memory, counters, counts_refaults: true, trims: true, compacts: true, ..Agent::default() };
    appearance.stats.0.read(agent)
}

//! KSM in bursts, in closed loop with a model of the kernel's scanner.

use memtide_model::{
    Bytes, Config, KsmConfig, KsmMode, KsmOrder, KsmReason, KsmReport, KsmRun, KsmSeen, KsmSettings,
    KsmSparse, KsmState, KsmVerdict, Mode, Moment, Plan, Reading, Reason, Request, Share, Span, State,
};
use memtide_policy::ksm::decide;

use crate::common::mib;

/// Pages that the scanner works on in a second.
const SPEED: u64 = 400_000;
const TICK: u64 = 250;
/// The host has run for a while when memtide starts.
const START: u64 = 1_000_000;

/// A host: its mergeable memory, in pieces that were there from some pass on, and the kernel's scanner.
struct Host {
    config: Config,
    state: KsmState,
    now: u64,
    seen: KsmSeen,
    /// Memory, the part of it in percent that is equal to other pages, and the pass that has worked on it first.
    pieces: Vec<(Bytes, u64, Option<u64>)>,
    /// Pages of the present pass that are done.
    done: u64,
    /// The scanner walks through holes and comes to no end.
    hangs: bool,
    /// Tasks wait for a processor for this long in each tick, in microseconds.
    waits_us: u64,
    /// Savings that the kernel still counts, of processes that are gone: the next pass finds out.
    stale: Bytes,
    orders: Vec<(u64, KsmOrder, KsmReason)>,
}

impl Host {
    fn new() -> Self {
        let mut config = Config { mode: Mode::Manage, ..Config::default() };
        config.ksm.mode = KsmMode::Govern;
        let settings = KsmSettings {
            run: KsmRun::Stopped,
            pages_to_scan: 100,
            sleep_millisecs: 20,
            smart_scan: Some(true),
            advisor: Some(false),
        };
        let seen = KsmSeen { settings, waited_us: Some(0), cpu_time: Some(Span::ZERO), ..KsmSeen::default() };
        let (state, pieces, orders) = (KsmState::default(), Vec::new(), Vec::new());
        Self {
            config,
            state,
            now: START,
            seen,
            pieces,
            done: 0,
            hangs: false,
            waits_us: 0,
            stale: Bytes::ZERO,
            orders,
        }
    }

    /// Memory appears, of which this many percent are equal to other pages.
    fn add(&mut self, size: u64, percent: u64) {
        self.pieces.push((mib(size), percent, None));
        self.count();
    }

    /// The memory that appeared last is gone.
    fn take_last(&mut self) {
        self.pieces.pop();
        self.count();
    }

    fn count(&mut self) {
        self.seen.mergeable = Bytes::sum(self.pieces.iter().map(|(size, ..)| *size));
    }

    fn run(&mut self, seconds: u64) {
        let end = self.now + seconds * 1_000;
        while self.now < end {
            self.now += TICK;
            self.seen.waited_us = self.seen.waited_us.map(|waited| waited + self.waits_us);
            if self.seen.settings.run == KsmRun::Scanning {
                self.scan(SPEED * TICK / 1_000);
            }
            let (state, plan, _) = self.decide();
            self.state = state;
            for action in &plan.actions {
                let (Request::Merge(order), Reason::Ksm(reason)) = (action.request, action.reason) else {
                    panic!("{action:?}")
                };
                self.seen.settings = order.after(self.seen.settings);
                self.orders.push((self.now - START, order, reason));
            }
        }
    }

    /// Works on this many pages. A page is remembered at its first pass, and merged at its second.
    fn scan(&mut self, pages: u64) {
        self.seen.cpu_time = self.seen.cpu_time.map(|time| time.plus(Span::from_millis(TICK)));
        if self.hangs {
            return;
        }
        self.done += pages;
        let all = self.seen.mergeable.get() >> 12;
        while all > 0 && self.done >= all {
            self.done -= all;
            self.seen.full_scans += 1;
            let stale = std::mem::take(&mut self.stale);
            self.seen.saved = self.seen.saved.saturating_sub(stale);
            for (size, percent, first) in &mut self.pieces {
                if first.is_none() {
                    *first = Some(self.seen.full_scans);
                } else if *percent > 0 {
                    self.seen.saved = self.seen.saved.saturating_add(size.mul_div(*percent, 100));
                    *percent = 0;
                }
            }
        }
    }

    fn decide(&self) -> (KsmState, Plan, KsmReport) {
        let (seen, mut plan) = (Reading::now(self.seen.clone()), Plan::default());
        let now = Moment::from_millis(self.now);
        let (state, report) = decide(&self.config, &self.state, &seen, false, now, &mut plan);
        (state, plan, report.unwrap())
    }

    fn verdict(&self) -> KsmVerdict {
        self.decide().2.verdict
    }

    fn scans(&self) -> usize {
        self.orders.iter().filter(|(_, order, _)| matches!(order, KsmOrder::Scan { .. })).count()
    }

    fn cpu(&self) -> u64 {
        self.seen.cpu_time.unwrap_or_default().as_millis()
    }

    /// For how long the kernel has scanned, in milliseconds.
    fn scanned_for(&self) -> u64 {
        let mut since = None;
        self.orders.iter().fold(0, |sum, (at, order, _)| match order {
            KsmOrder::Scan { .. } => {
                since = Some(*at);
                sum
            }
            KsmOrder::Stop => sum + since.take().map_or(0, |since| at - since),
        })
    }
}

#[test]
fn new_memory_is_merged_in_one_burst_of_as_few_passes_as_it_needs() {
    let mut host = Host::new();
    host.run(1);
    host.add(2_048, 70);
    host.run(60);
    assert_eq!(host.seen.saved, mib(2_048).mul_div(70, 100));
    let [(began, KsmOrder::Scan { smart: true }, _), (ended, KsmOrder::Stop, _)] = host.orders[..] else {
        panic!("{:?}", host.orders)
    };
    // It settles for 8 to 16 s. A pass takes 1.3 s, and the third is soon seen to find nothing.
    assert!((9_000..18_000).contains(&began), "{began}");
    assert!(ended - began < 3_500, "{:?}", host.orders);
    assert_eq!(host.verdict(), KsmVerdict::Sleeps);
    assert!(host.seen.settings.run == KsmRun::Stopped);
    assert_eq!(host.decide().2.burst_ended_with, Some(host.seen.saved));
}

#[test]
fn memory_with_nothing_to_gain_costs_two_passes_and_then_little() {
    let mut host = Host::new();
    host.add(2_048, 0);
    host.run(600);
    assert_eq!(host.orders.len(), 2, "{:?}", host.orders);
    assert!(host.cpu() < 3_500, "{}", host.cpu());
    let before = host.cpu();
    host.run(86_400);
    // It looks again after 15 min, 30 min, …: at most 1 s of processor time in five minutes.
    assert!(host.cpu() - before < 86_400 / 300 * 1_000, "{}", host.cpu());
    assert!(host.scans() > 4);
    // Nobody has looked at the pages that the kernel leaves out of a pass: these bursts do.
    let again = &host.orders[2..];
    assert!(again.iter().all(|(_, order, _)| *order != KsmOrder::Scan { smart: true }), "{again:?}");
}

#[test]
fn a_guest_that_starts_later_is_merged_within_half_a_minute_of_its_memory_being_stable() {
    let mut host = Host::new();
    host.add(1_024, 50);
    host.run(300);
    let before = host.seen.saved;
    host.add(512, 90);
    host.run(30);
    assert_eq!(host.seen.saved.saturating_sub(before), mib(512).mul_div(90, 100));
}

#[test]
fn a_guest_in_the_place_of_one_that_has_left_is_new() {
    let mut host = Host::new();
    for _ in 0..2 {
        host.add(1_024, 50);
    }
    host.run(300);
    assert_eq!(host.seen.saved, mib(1_024));
    // Between two looks, one of them has left and another one has come: as much is mergeable as before.
    host.pieces.remove(0);
    host.seen.left = mib(1_024);
    host.stale = mib(512);
    host.add(1_024, 80);
    host.run(30);
    let saved = mib(512).saturating_add(mib(1_024).mul_div(80, 100));
    assert_eq!(host.seen.saved, saved, "{:?}", host.orders);
    let scans = host.scans();
    host.run(300);
    assert_eq!(host.scans(), scans, "and nothing else is");
}

#[test]
fn memory_that_grows_all_the_time_is_not_scanned_before_it_rests() {
    let mut host = Host::new();
    host.run(1);
    for _ in 0..60 {
        host.add(100, 50);
        host.run(1);
    }
    assert_eq!(host.orders, [], "it still grows");
    assert!(matches!(host.verdict(), KsmVerdict::Settles { .. }));
    host.run(15);
    assert_eq!(host.scans(), 1);
}

#[test]
fn a_burst_waits_for_processor_time_and_goes_on() {
    let mut host = Host::new();
    host.config.ksm.cpu = Share::percent(1).unwrap();
    // 64 GiB: a pass takes 42 s, and 6 s may be used at once.
    host.add(65_536, 50);
    host.run(3_600);
    assert!(host.cpu() <= 6_000 + 36_000 + 1_000, "{}", host.cpu());
    let waits = host.orders.iter().filter(|(.., reason)| *reason == KsmReason::NoCpuTime).count();
    assert!(waits > 10, "{:?}", host.orders);
    host.run(6 * 3_600);
    assert_eq!(host.seen.saved, mib(65_536).mul_div(50, 100), "it came to its end");
}

#[test]
fn processor_time_that_cannot_be_read_is_not_free() {
    let mut host = Host::new();
    host.seen.cpu_time = None;
    host.config.ksm.cpu = Share::percent(1).unwrap();
    // 64 GiB: a pass takes 42 s, and 6 s may be used at once.
    host.add(65_536, 50);
    host.run(3_600);
    assert!(host.scanned_for() <= 6_000 + 36_000 + 1_000, "{}", host.scanned_for());
    let waits = host.orders.iter().filter(|(.., reason)| *reason == KsmReason::NoCpuTime).count();
    assert!(waits > 10, "{:?}", host.orders);
    host.run(6 * 3_600);
    assert_eq!(host.seen.saved, mib(65_536).mul_div(50, 100), "it came to its end");
    assert!(!host.orders.iter().any(|(.., reason)| matches!(reason, KsmReason::Hangs { .. })));
    // A pass that is not worth it ends all the same.
    let mut host = Host::new();
    host.seen.cpu_time = None;
    host.add(2_048, 0);
    host.run(60);
    assert!((1..3_500).contains(&host.scanned_for()), "{:?}", host.orders);
}

#[test]
fn processor_time_that_can_be_read_again_is_not_charged_at_once() {
    let mut host = Host::new();
    host.add(2_048, 50);
    host.run(1);
    assert_eq!(host.scans(), 1);
    host.seen.cpu_time = None;
    host.run(1);
    // All that the thread has used since the host's boot.
    host.seen.cpu_time = Some(Span::from_secs(100_000));
    host.run(60);
    assert_eq!(host.verdict(), KsmVerdict::Sleeps);
    assert_eq!(host.seen.saved, mib(1_024), "{:?}", host.orders);
    assert!(host.decide().2.allowance > Span::from_secs(20), "{:?}", host.decide().2);
}

#[test]
fn a_busy_host_gets_a_quarter_of_the_processor_time() {
    let used = |waits_us: u64| {
        let mut host = Host { waits_us, ..Host::new() };
        host.config.ksm.cpu = Share::percent(1).unwrap();
        host.add(1 << 20, 50);
        host.run(3_600);
        host.cpu()
    };
    let (calm, busy) = (used(10_000), used(200_000));
    assert!(busy * 2 < calm, "{busy} {calm}");
}

#[test]
fn a_pass_without_an_end_is_stopped() {
    let mut host = Host::new();
    host.add(1_024, 50);
    host.seen.sparsest = Some(KsmSparse { pid: 7, name: "java".to_owned(), holes: mib(1 << 25) });
    host.hangs = true;
    host.run(60);
    let (_, order, reason) = *host.orders.last().unwrap();
    assert!(matches!((order, reason), (KsmOrder::Stop, KsmReason::Hangs { .. })), "{:?}", host.orders);
    assert!(host.cpu() < 15_000, "{}", host.cpu());
    assert_eq!(host.verdict(), KsmVerdict::Rests);
    host.run(3_000);
    assert_eq!(host.scans(), 1);
}

#[test]
fn somebody_else_who_sets_ksm_is_not_fought() {
    let mut host = Host::new();
    host.add(1_024, 50);
    host.run(11);
    assert_eq!(host.scans(), 1);
    host.seen.settings.pages_to_scan = 300;
    host.run(3_600);
    assert_eq!(host.scans(), 1, "{:?}", host.orders);
    assert_eq!(host.verdict(), KsmVerdict::Foreign);
    // Told otherwise: another configuration, and back.
    host.config.ksm.mode = KsmMode::Observe;
    host.run(1);
    assert_eq!(host.verdict(), KsmVerdict::Observes);
    host.config.ksm.mode = KsmMode::Govern;
    host.run(30);
    assert_eq!(host.scans(), 2);
    // A program that is known to set KSM is not fought from the start.
    let mut host = Host::new();
    host.seen.others = vec!["ksmtuned".to_owned()];
    host.add(1_024, 50);
    host.run(60);
    assert_eq!((host.scans(), host.verdict()), (0, KsmVerdict::Foreign));
}

#[test]
fn what_a_killed_run_has_written_is_its_own_and_what_was_put_back_is_not() {
    let mut host = Host::new();
    host.add(1_024, 50);
    host.run(1);
    let found = host.state.found;
    assert!(found.is_some() && host.seen.settings.run == KsmRun::Scanning);
    // Killed in the middle of a burst: the next run remembers the settings, and goes on.
    host.state = KsmState { found, written: host.state.written, ..KsmState::default() };
    host.run(30);
    assert_eq!(host.state.found, found);
    assert_eq!(host.verdict(), KsmVerdict::Sleeps);
    // Its helper has put back what was found: nothing is foreign.
    host.seen.settings = found.unwrap();
    host.state = KsmState { found, written: host.state.written, ..KsmState::default() };
    host.run(1);
    assert_eq!(host.state.foreign_since, None);
}

#[test]
fn an_order_that_is_carried_out_late_is_memtides_own() {
    let mut host = Host::new();
    host.add(1_024, 50);
    host.run(1);
    assert_eq!(host.scans(), 1);
    // The stop had no answer in time: settled as unknown. The kernel has stopped meanwhile.
    let stopped = KsmOrder::Stop.after(host.seen.settings);
    host.state.tried = Some(stopped);
    host.seen.settings = stopped;
    host.run(1);
    assert_eq!((host.state.foreign_since, host.state.written), (None, Some(stopped)));
}

#[test]
fn a_burst_ends_when_its_processes_leave() {
    let mut host = Host::new();
    host.add(1_024, 50);
    host.run(1);
    host.pieces.clear();
    host.seen.mergeable = Bytes::ZERO;
    host.run(1);
    assert_eq!(host.seen.settings.run, KsmRun::Stopped);
    assert_eq!(host.verdict(), KsmVerdict::Sleeps);
}

#[test]
fn new_memory_does_not_wait_forever_for_the_rest_of_it() {
    let mut host = Host::new();
    host.run(1);
    for _ in 0..320 {
        host.add(100, 50);
        host.run(1);
    }
    assert_eq!(host.scans(), 1, "{:?}", host.orders);
}

#[test]
fn a_configuration_that_does_not_even_look_forgets_what_was_written() {
    let mut host = Host::new();
    host.add(1_024, 50);
    host.run(1);
    assert!(host.state.written.is_some());
    let off = Config { ksm: KsmConfig { mode: KsmMode::Off, ..host.config.ksm }, ..host.config.clone() };
    let state = State { ksm: Box::new(host.state.clone()), ..State::default() };
    let seen = crate::common::snapshot(2_000, 1_024, Vec::new());
    let next = memtide_policy::decide(&off, &state, &seen).state.ksm;
    assert_eq!((next.written, next.found, next.foreign_since), (None, None, None));
}

#[test]
fn an_observer_asks_for_nothing() {
    for (mode, ksm) in [(Mode::Observe, KsmMode::Govern), (Mode::Manage, KsmMode::Observe)] {
        let mut host = Host::new();
        (host.config.mode, host.config.ksm.mode) = (mode, ksm);
        host.add(1_024, 50);
        host.run(600);
        assert_eq!(host.orders, []);
    }
}

#[test]
fn memory_that_comes_and_goes_within_seconds_is_not_new() {
    let mut host = Host::new();
    host.add(2_048, 50);
    host.run(60);
    let scans = host.scans();
    for _ in 0..60 {
        host.add(512, 0);
        host.run(7);
        host.take_last();
        host.run(7);
    }
    assert_eq!(host.scans(), scans, "{:?}", host.orders);
}

#[test]
fn memory_that_comes_and_goes_for_minutes_in_vain_is_scanned_less_and_less() {
    let mut host = Host::new();
    host.add(2_048, 0);
    host.run(60);
    let mut scans = Vec::new();
    for _ in 0..20 {
        let before = host.scans();
        host.add(512, 0);
        host.run(60);
        host.take_last();
        host.run(60);
        scans.push(host.scans() - before);
    }
    assert_eq!(scans[0], 1);
    // At most one in five minutes.
    assert!(scans[10..].iter().sum::<usize>() <= 5, "{scans:?}");
    // Memory that is worth it ends the pauses.
    host.add(512, 50);
    host.run(330);
    assert_eq!(host.seen.saved, mib(256));
    host.add(512, 50);
    host.run(30);
    assert_eq!(host.seen.saved, mib(512));
}

#[test]
fn what_the_kernel_finds_to_be_gone_does_not_count_against_a_burst() {
    let mut host = Host::new();
    for _ in 0..8 {
        host.add(512, 90);
    }
    host.run(60);
    for _ in 0..6 {
        // Two guests have left, and their pages are still counted until the next pass. One arrives.
        host.pieces.drain(..2);
        host.stale = mib(900);
        for size in [512, 512, 512] {
            host.add(size, 90);
        }
        host.run(30);
        assert!(!host.state.in_vain.lasts(Moment::from_millis(host.now)), "{:?}", host.orders);
    }
}

#[test]
fn a_burst_whose_processes_leave_was_not_in_vain() {
    let mut host = Host::new();
    host.add(1_024, 0);
    host.run(1);
    host.pieces.clear();
    host.count();
    host.run(1);
    assert_eq!(host.state.in_vain, Default::default());
}

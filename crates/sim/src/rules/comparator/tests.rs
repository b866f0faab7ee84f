use super::*;

fn mib(mib: u64) -> Bytes {
    Bytes::from_mib(mib)
}

fn at(secs: u64) -> Moment {
    Moment::from_millis(secs * 1000)
}

fn host(total: u64, free: u64) -> HostInput {
    HostInput { total: mib(total), free: mib(free), other: Bytes::ZERO }
}

fn guest(name: &str, size: u64, unused: u64) -> GuestInput {
    GuestInput {
        id: GuestId::new(name, 1, "boot"),
        full: mib(1000),
        size: mib(size),
        target: None,
        driver: true,
        unused: Some(mib(unused)),
        available: Some(mib(unused)),
        min: mib(100),
        shares: 1000,
    }
}

/// Targets as names and MiB.
fn short(targets: &[(GuestId, Bytes)]) -> Vec<(&str, u64)> {
    targets.iter().map(|(id, target)| (id.name(), target.whole_mib())).collect()
}

/// Guests whose balloons move at most `rate` per sample.
struct World {
    host: HostInput,
    guests: Vec<GuestInput>,
    targets: BTreeMap<GuestId, Bytes>,
    rate: Bytes,
}

impl World {
    fn new(for_guests: u64, guests: Vec<GuestInput>) -> Self {
        Self { host: host(for_guests, 0), guests, targets: BTreeMap::new(), rate: mib(1000) }
    }

    /// Takes samples until `end`, and returns the targets with the time of each write.
    fn run(&mut self, comparator: &mut Comparator, end: u64) -> Vec<(u64, Vec<(GuestId, Bytes)>)> {
        let mut written = Vec::new();
        while comparator.next_sample() <= at(end) {
            let now = comparator.next_sample();
            let targets = comparator.targets(now, self.host, &self.guests);
            self.targets.extend(targets.iter().cloned());
            if !targets.is_empty() {
                written.push((now.as_millis(), targets));
            }
            for guest in &mut self.guests {
                let target = self.targets.get(&guest.id).copied().unwrap_or(guest.size);
                let step = target.abs_diff(guest.size).min(self.rate);
                let (less, more) = (guest.size.saturating_sub(step), guest.size.saturating_add(step));
                guest.size = if target < guest.size { less } else { more };
            }
        }
        written
    }

    fn sizes(&self) -> Vec<u64> {
        self.guests.iter().map(|guest| guest.size.whole_mib()).collect()
    }
}

#[test]
fn mom_decides_every_ten_seconds_from_averages() {
    let mut mom = Comparator::new(Rule::Mom);
    assert_eq!(mom.next_sample(), at(0));
    assert_eq!(mom.targets(at(3), host(1000, 400), &[guest("a", 500, 300)]), []);
    assert_eq!(mom.next_sample(), at(8));
    // Too early.
    assert_eq!(mom.targets(at(7), host(1000, 0), &[guest("a", 900, 0)]), []);
    assert_eq!(mom.targets(at(8), host(1000, 100), &[guest("a", 450, 50)]), []);
    assert_eq!(mom.next_sample(), at(13));
    // Free: (400 + 100 + 40) / 3 = 180 < 200: the guard is 0.2 × 0.18 / 0.2 = 0.18. Used: (500 + 450 + 400) / 3 − (300 + 50 + 100) / 3 =
    // 450 − 150 = 300: 300 + 0.18 × 400 = 372 < 0.95 × 400 = 380.
    assert_eq!(short(&mom.targets(at(13), host(1000, 40), &[guest("a", 400, 100)])), [("a", 380)]);
    assert_eq!(mom.targets(at(18), host(1000, 40), &[guest("a", 380, 80)]), []);
}

#[test]
fn mom_forgets_all_but_ten_samples() {
    let mut mom = Comparator::new(Rule::Mom);
    // The first of 11 samples says that the guest uses everything. At 50 s it is dropped, and the guest uses 100: 100 + 0.2 × 400 < 1.05 ×
    // 400.
    for sample in 0..=10 {
        let unused = if sample == 0 { 0 } else { 300 };
        let targets = mom.targets(at(sample * 5), host(1000, 500), &[guest("a", 400, unused)]);
        let expected = if sample > 0 && sample % 2 == 0 { vec![("a", 420)] } else { vec![] };
        assert_eq!(short(&targets), expected);
    }
}

#[test]
fn mom_leaves_a_guest_without_statistics_alone_and_keeps_its_samples() {
    let mut mom = Comparator::new(Rule::Mom);
    let silent = GuestInput { unused: None, ..guest("a", 400, 0) };
    assert_eq!(mom.targets(at(0), host(1000, 500), &[guest("a", 400, 0)]), []);
    assert_eq!(mom.targets(at(5), host(1000, 500), std::slice::from_ref(&silent)), []);
    assert_eq!(mom.targets(at(10), host(1000, 500), &[silent]), []);
    assert_eq!(mom.targets(at(15), host(1000, 500), &[guest("a", 400, 0)]), []);
    // Used: 400 − (0 + 0 + 150) / 3 = 350: 350 + 80 = 430 > 420.
    assert_eq!(short(&mom.targets(at(20), host(1000, 500), &[guest("a", 400, 150)])), [("a", 430)]);
}

#[test]
fn a_guest_that_comes_back_is_a_new_one() {
    let mut mom = Comparator::new(Rule::Mom);
    assert_eq!(mom.targets(at(0), host(1000, 500), &[guest("a", 400, 0)]), []);
    assert_eq!(mom.targets(at(5), host(1000, 500), &[]), []);
    // Used: 250 from the only sample: 250 + 80 = 330 < 420. With the other sample it would be 325: 405.
    assert_eq!(short(&mom.targets(at(10), host(1000, 500), &[guest("a", 400, 150)])), [("a", 420)]);
}

#[test]
fn mom_decides_in_time_even_if_its_samples_come_late() {
    let mut mom = Comparator::new(Rule::Mom);
    let ms = Moment::from_millis;
    let guests = [guest("a", 400, 200)];
    assert_eq!(mom.targets(ms(0), host(1000, 500), &guests), []);
    assert_eq!(mom.targets(ms(5_200), host(1000, 500), &guests), []);
    assert_eq!(mom.next_sample(), ms(10_000));
    assert_eq!(short(&mom.targets(ms(10_000), host(1000, 500), &guests)), [("a", 420)]);
    assert_eq!(mom.next_sample(), ms(10_200));
}

#[test]
fn proxmox_decides_every_ten_seconds_from_one_look() {
    let mut proxmox = Comparator::new(Rule::Proxmox);
    let boots = GuestInput { driver: false, unused: None, available: None, ..guest("b", 1000, 0) };
    let guests = [guest("a", 400, 200), boots];
    assert_eq!(proxmox.targets(at(0), host(1000, 500), &guests), []);
    assert_eq!(proxmox.next_sample(), at(10));
    // Goal: 800 − 500 = 300. Only the booting guest is uncomfortable, and it takes no part. So 400 + 100.
    assert_eq!(short(&proxmox.targets(at(10), host(1000, 500), &guests)), [("a", 500)]);
    // Goal: 800 − 795 = 5, within 10.
    assert_eq!(proxmox.targets(at(20), host(1000, 205), &guests), []);
}

#[test]
fn squeezed_runs_until_all_have_their_part() {
    // Room for 1072: 72 stay free, so each of the two guests gets 500, less the inaccuracy. They give 200 a second.
    let mut world = World::new(1072, vec![guest("a", 1000, 0), guest("b", 1000, 0)]);
    world.rate = mib(200);
    let mut squeezed = Comparator::new(Rule::Squeezed);
    let written = world.run(&mut squeezed, 9);
    assert!(written.is_empty());
    let written = world.run(&mut squeezed, 60);
    // Free: −928. Surplus: −928 + 1800 − 16 KiB − 72 = 800 MiB − 16 KiB of 1800: γ = 0.44: 100 + 400 − 8 KiB.
    assert_eq!(written[0].0, 10_000);
    assert_eq!(short(&written[0].1), [("a", 499), ("b", 499)]);
    assert_eq!(written.len(), 1);
    // It looked every second while they moved, then every ten seconds.
    assert_eq!(world.sizes(), [499, 499]);
    assert!(squeezed.next_sample() > at(60) && squeezed.next_sample() <= at(70));
}

#[test]
fn squeezed_takes_from_the_others_if_one_guest_is_stuck() {
    let mut world = World::new(1272, vec![guest("a", 1000, 0), guest("b", 1000, 0)]);
    let mut squeezed = Comparator::new(Rule::Squeezed);
    let mut written = Vec::new();
    while squeezed.next_sample() <= at(17) {
        let end = squeezed.next_sample().as_millis() / 1000;
        written.extend(world.run(&mut squeezed, end));
        // This guest does not move.
        world.guests[0].size = mib(1000);
    }
    // Free: −728. Surplus: −728 + 1800 − 72 = 1000 of 1800, less 16 KiB: 600 each.
    assert_eq!((written[0].0, short(&written[0].1)), (10_000, vec![("a", 599), ("b", 599)]));
    // The first guest is left out more than 5 s after the second sample. Free: 1272 − 1600 = −328. Surplus: −328 + 500 − 72 = 100: 200.
    assert_eq!((written[1].0, short(&written[1].1)), (16_000, vec![("b", 199)]));
    assert_eq!(written.len(), 2);
}

#[test]
fn qubes_acts_when_a_guest_reports_a_change() {
    // Each uses 400 of 1000, with room for 2050: nothing to do. More room has no effect until a guest reports a change.
    let mut world = World::new(2050, vec![guest("a", 1000, 600), guest("b", 1000, 600)]);
    let mut qubes = Comparator::new(Rule::Qubes);
    assert_eq!(world.run(&mut qubes, 5), []);
    world.host.total = mib(3050);
    assert_eq!(world.run(&mut qubes, 10), []);
    // Preferences: 715 and 520. Free: 3050 − 2000 − 50 = 1000, and 765 could be given: 1765. 0.999 × (520 + 743) exceeds 1000, and so does
    // the other part: both guests are full and stay full.
    world.guests[0].available = Some(mib(450));
    assert_eq!(world.run(&mut qubes, 11), []);
    world.host.total = mib(1050);
    // Preferences: 780 and 520. Free: 1050 − 2000 − 50 = −1000, and 700 can be given: too little. Both give everything above their
    // preference.
    world.guests[0].available = Some(mib(400));
    let written = world.run(&mut qubes, 12);
    assert_eq!((written[0].0, short(&written[0].1)), (12_000, vec![("a", 780), ("b", 520)]));
}

#[test]
fn qubes_waits_in_steps_of_a_tenth_of_a_second() {
    // Preferences: 650 and 200. Free: 1050 − 1000 − 50 = 0; the first needs 150, the second can give 300: 150. As 650:200 →
    // 0.999 × (650 + 114.7) = 763.9 and 0.999 × (200 + 35.3) = 235.1.
    let mut qubes = Comparator::new(Rule::Qubes);
    let mut guests = [guest("a", 500, 0), guest("b", 500, 400)];
    assert_eq!(short(&qubes.targets(at(1), host(1050, 0), &guests)), [("b", 235)]);
    assert_eq!(qubes.next_sample(), Moment::from_millis(1100));
    guests[1].size = mib(400);
    assert_eq!(qubes.targets(Moment::from_millis(1100), host(1050, 0), &guests), []);
    guests[1].size = Bytes::new(246_463_744);
    assert_eq!(short(&qubes.targets(Moment::from_millis(1200), host(1050, 0), &guests)), [("a", 763)]);
    assert_eq!(qubes.next_sample(), Moment::from_millis(2200));
}

#[test]
fn a_static_partition_is_written_once() {
    let mut fixed = Comparator::new(Rule::Fixed);
    let other = HostInput { other: mib(200), ..host(1000, 0) };
    let boots = GuestInput { driver: false, ..guest("b", 1000, 0) };
    let guests = [guest("a", 1000, 0), boots];
    // (1000 − 200) / 2.
    assert_eq!(short(&fixed.targets(at(0), other, &guests)), [("a", 400)]);
    // The other guest gets it once its driver runs. Later changes of overheads and sizes have no effect.
    let guests = [guest("a", 900, 0), guest("b", 1000, 0)];
    assert_eq!(short(&fixed.targets(at(1), host(1000, 0), &guests)), [("b", 400)]);
    assert_eq!(fixed.targets(at(2), host(1000, 0), &guests), []);
    // Alone it gets 800.
    assert_eq!(short(&fixed.targets(at(3), other, &guests[..1])), [("a", 800)]);
}

#[test]
fn the_order_of_guests_plays_no_part() {
    for rule in Rule::ALL {
        let guests: Vec<GuestInput> =
            (0..9).map(|i| guest(&format!("guest-{i}"), 1000 - 20 * i, 100 * i)).collect();
        let mut forwards = World::new(5000, guests);
        forwards.host.free = mib(900);
        forwards.rate = mib(150);
        let reversed = forwards.guests.iter().rev().cloned().collect();
        let mut backwards = World { guests: reversed, targets: BTreeMap::new(), ..forwards };
        let written = forwards.run(&mut Comparator::new(rule), 120);
        assert!(!written.is_empty(), "{rule}");
        assert_eq!(written, backwards.run(&mut Comparator::new(rule), 120), "{rule}");
    }
}

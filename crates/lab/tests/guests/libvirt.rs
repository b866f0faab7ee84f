//! Guests of libvirt: a real libvirtd of the lab's own starts them, and memtide reaches them over it.

use memtide_host::Root;
use memtide_host::zram::noted;
use memtide_lab::experiments::react::stall::managing;
use memtide_lab::guest::Guest;
use memtide_lab::machine::lab::{Lab, Run};
use memtide_lab::machine::libvirtd::Libvirtd;
use memtide_lab::managers::daemon::Daemon;
use memtide_lab::wait::until;
use memtide_lab::work::exercise::{fill, load};
use memtide_load::exerciser::report::Summary;
use memtide_model::{Fence, Polling, Span, Verdict};
use memtide_testing::skip;
use rustix::process::{Pid, Signal, kill_process};

use crate::operator::{until_said, until_settled, verdict};
use crate::{JOB, mib, reporting, say, start, the_lab, unhurt, until_smaller};

/// Two guests of 512 MiB on a host in which only one of them can have its full size, under a daemon that manages them.
struct Setting {
    lab: Lab,
    guests: Vec<Guest>,
    run: Run,
    daemon: Daemon,
}

impl Setting {
    fn new(name: &str) -> Self {
        let lab = the_lab().with_libvirt(&say).unwrap_or_else(|why| skip(&why.to_string()));
        let run = Run::create(&lab, &format!("test-{name}")).unwrap();
        let builders = [("1", true), ("2", false)]
            .map(|(number, deflates)| reporting(&format!("{name}-{number}"), mib(512), deflates));
        let guests = start(&run, builders);
        // As Cockpit and nova do.
        let libvirtd = lab.libvirtd().unwrap();
        libvirtd.virsh(&["dommemstat", guests[1].name(), "--period", "10", "--live"]).unwrap();
        let config = managing(&format!("{name}-"), mib(512 + 200 + 2 * 90));
        let config = format!("on_exit = \"release\"\n{config}{}", libvirtd.settings());
        let daemon = Daemon::start(run.path(), &config).unwrap();
        until_smaller(&daemon, guests[0].name(), mib(450), JOB);
        Self { lab, guests, run, daemon }
    }

    fn libvirtd(&self) -> &Libvirtd {
        self.lab.libvirtd().unwrap()
    }

    /// Seconds between two polls of the statistics, as libvirt says.
    fn period(&self, guest: &Guest) -> u32 {
        let xml = self.libvirtd().virsh(&["dumpxml", guest.name()]).unwrap();
        let period = xml.split("<stats period='").nth(1).and_then(|rest| rest.split('\'').next());
        period.map_or(0, |period| period.parse().unwrap())
    }

    fn is_fresh(&self, guest: &Guest) -> bool {
        self.daemon.guest(guest.name()).unwrap().seen.told.balloon.fresh().is_some()
    }

    /// Waits until the readings of `guest` are fresh, or are not.
    fn until_fresh(&self, guest: &Guest, is_fresh: bool) {
        let what = format!("{} {}", guest.name(), if is_fresh { "answers" } else { "does not answer" });
        until(&what, JOB, || Ok((self.is_fresh(guest) == is_fresh).then_some(()))).unwrap();
    }
}

/// The balloon moves, a pause fences, a balloon that somebody moves by virsh is left alone, libvirtd may die at any moment, and in the end everything is as it was.
pub fn a_guest_of_libvirt_is_managed_like_any_other() {
    let setting = Setting::new("lv");
    let Setting { guests, daemon, .. } = &setting;
    let (first, libvirtd) = (&guests[0], setting.libvirtd());
    // To ask out of turn, memtide stops the polling for a moment.
    until("polling each second", JOB, || Ok((setting.period(first) == 1).then_some(()))).unwrap();
    assert_eq!(daemon.guest(first.name()).unwrap().seen.told.polling, Polling::Every(Span::from_secs(1)));

    libvirtd.virsh(&["suspend", first.name()]).unwrap();
    until_said(daemon, "paused", first.name(), |verdict| *verdict == Verdict::Fenced(Fence::Paused));
    libvirtd.virsh(&["resume", first.name()]).unwrap();
    until_said(daemon, "no fence", first.name(), |verdict| !matches!(verdict, Verdict::Fenced(_)));

    // While memory moves from one guest to the other, libvirtd is killed, and started again.
    let load = first.begin(fill(3, 250, None)).unwrap();
    until("the guest grows", JOB, || Ok((first.actual()? > mib(300)).then_some(()))).unwrap();
    libvirtd.kill();
    setting.until_fresh(first, false);
    libvirtd.begin().unwrap();
    setting.until_fresh(first, true);
    first.finish::<serde_json::Value>(load, "memory in use", JOB).unwrap();
    guests.iter().for_each(unhurt);

    // The other guest may not deflate its own balloon: whatever moves it, it is not the guest.
    let other = &guests[1];
    until_settled(daemon, other.name());
    let size = if other.actual().unwrap() > mib(300) { 220 } else { 320 };
    // If memtide sets a target in the same moment, the last word counts, and the person tries again.
    until("somebody else moved it", JOB, || {
        libvirtd.virsh(&["setmem", other.name(), &format!("{size}M"), "--live"])?;
        Ok(matches!(verdict(daemon, other.name()), Verdict::Held(_)).then_some(()))
    })
    .unwrap();
    // What moves after an order to manage it again would be foreign, too.
    until("its size", JOB, || Ok((other.actual()? == mib(size)).then_some(()))).unwrap();
    until_quiet(daemon, other);
    daemon.command(&["resume", other.name()]).unwrap();
    until_said(daemon, "no hold", other.name(), |verdict| !matches!(verdict, Verdict::Held(_)));

    let Setting { lab, guests, run: _run, daemon } = setting;
    daemon.stop().unwrap();
    let libvirtd = lab.libvirtd().unwrap();
    for guest in &guests {
        until("its full size", JOB, || Ok((guest.actual()? == mib(512)).then_some(()))).unwrap();
        let xml = libvirtd.virsh(&["dumpxml", guest.name()]).unwrap();
        let was_polled = guest.name() == guests[1].name();
        assert_eq!(xml.contains("<stats period='10'/>"), was_polled, "{xml}");
        assert_eq!(xml.contains("<stats period="), was_polled, "nobody polled the first one before: {xml}");
        unhurt(guest);
    }
}

/// Waits until the daemon has seen the size that the guest keeps.
fn until_quiet(daemon: &Daemon, guest: &Guest) {
    until("the daemon sees its size", JOB, || {
        let actual = daemon.guest(guest.name())?.status.report.actual;
        Ok((actual == guest.actual()?).then_some(()))
    })
    .unwrap();
}

/// A frozen QEMU holds up calls about its own domain for as long as it is frozen, and nobody else's.
pub fn a_frozen_qemu_holds_up_nobody_else() {
    let setting = Setting::new("lvf");
    let Setting { guests, daemon, .. } = &setting;
    let (other, frozen) = (&guests[0], &guests[1]);
    let pid = Pid::from_raw(i32::try_from(frozen.pid()).unwrap()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    setting.until_fresh(frozen, false);
    let load = other.begin(fill(3, 200, None)).unwrap();
    let begun = daemon.status().unwrap().counters.ticks;
    // A guest at work under emulation misses a deadline now and then. One that waits for the frozen one would miss all.
    let (mut looks, mut misses) = (0, 0);
    until("forty decisions", JOB, || {
        looks += 1;
        misses += u32::from(!setting.is_fresh(other));
        Ok((daemon.status()?.counters.ticks >= begun + 40).then_some(()))
    })
    .unwrap();
    assert!(!setting.is_fresh(frozen), "it is still frozen");
    assert!(misses * 4 < looks, "the other guest was held up: {misses} of {looks}");
    kill_process(pid, Signal::CONT).unwrap();
    setting.until_fresh(frozen, true);
    other.finish::<serde_json::Value>(load, "memory in use", JOB).unwrap();
    guests.iter().for_each(unhurt);
}

/// A guest that is saved is gone, and comes back in another process with the size that it had: it is managed again, and what it used is unharmed.
pub fn a_guest_that_was_saved_and_restored_is_managed_again() {
    let setting = Setting::new("lvs");
    let Setting { guests, daemon, run, .. } = &setting;
    let (saved, libvirtd) = (&guests[1], setting.libvirtd());
    until_settled(daemon, saved.name());
    let (pid, size) = (saved.pid(), saved.actual().unwrap());
    assert!(size < mib(512), "it has given memory: {size}");
    let file = run.path().join("saved");
    let file = file.to_str().unwrap();
    libvirtd.virsh(&["save", saved.name(), file]).unwrap();
    until("it is gone", JOB, || Ok(daemon.guest(saved.name()).is_err().then_some(()))).unwrap();
    libvirtd.virsh(&["restore", file]).unwrap();
    let seen = until("it is managed", JOB, || {
        let Ok(guest) = daemon.guest(saved.name()) else { return Ok(None) };
        let is_managed = !matches!(guest.status.report.verdict, Verdict::Fenced(_) | Verdict::NoBalloon(_));
        Ok((is_managed && guest.seen.told.stats.fresh().is_some()).then_some(guest.seen))
    })
    .unwrap();
    assert_ne!(seen.pid, pid);
    assert!(seen.actual() < mib(512), "its balloon is as it was: {}", seen.actual());
    libvirtd.virsh(&["destroy", saved.name()]).unwrap();
    until("it is gone", JOB, || Ok(daemon.guest(saved.name()).is_err().then_some(()))).unwrap();
    unhurt(&guests[0]);
}

/// libvirt opens the device by its path, and gives it to a guest of its own; at the end it takes it away.
pub fn a_guest_swaps_to_a_tier_that_libvirt_attached() {
    crate::needs_zram();
    let lab = the_lab().with_libvirt(&say).unwrap_or_else(|why| skip(&why.to_string()));
    let run = Run::create(&lab, "test-lvt").unwrap();
    let guests = start(&run, [reporting("lvt-1", mib(512), true).agent(true).hotplug(true)]);
    let guest = &guests[0];
    let config = |tier: &str| {
        format!(
            "mode = \"manage\"\nbudget = \"2 GiB\"\ndiscover = [\"lvt-*\"]\ncommitment = \"elastic\"\n\
             [class.default]\ntier = \"{tier}\"\n{}",
            lab.libvirtd().unwrap().settings()
        )
    };
    let mut daemon = Daemon::start(run.path(), &config("50%")).unwrap();
    let explained = |daemon: &Daemon| daemon.command(&["explain", "lvt-1"]).unwrap();
    let heap =
        guest.begin(load("--size 300M --content heap --seed 5 --passes 1 --rate 5M --verify")).unwrap();
    crate::tier::until_swapping(&daemon, guest);
    let xml = lab.libvirtd().unwrap().virsh(&["dumpxml", "lvt-1"]).unwrap();
    assert!(xml.contains("memtide-tier"), "{xml}");
    // More than fits: its kernel swaps.
    let more =
        guest.begin(load("--size 200M --content heap --seed 6 --passes 1 --hold 5s --verify")).unwrap();
    until("memory in the tier", JOB, || {
        let tier = daemon.guest("lvt-1")?.seen.cost.tier.latest().copied();
        Ok(tier.filter(|tier| tier.stored >= mib(16)))
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", explained(&daemon)));
    for (job, what) in [(more, "taking memory"), (heap, "keeping a heap")] {
        guest.finish::<Summary>(job, what, JOB).unwrap();
    }
    unhurt(guest);
    daemon.configure(&config("off")).unwrap();
    until("no device", JOB, || {
        Ok(noted(&Root::system()).iter().all(|noted| noted.pid != guest.pid()).then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", explained(&daemon)));
    let xml = lab.libvirtd().unwrap().virsh(&["dumpxml", "lvt-1"]).unwrap();
    assert!(!xml.contains("memtide-tier"), "{xml}");
    daemon.stop().unwrap();
}

//! The real daemon manages honest guests beside guests that misbehave in every known way.
//!
//! All guests are stand-ins in their own processes; the daemon finds and queries them like QEMUs. Memory and CPU time are
//! compared with the bounds that the daemon promises. Everything else is compared within one run, between two daemons at the same
//! time: one with hostile guests, and one with honest guests in their place.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;
mod display;

use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use common::{Daemon, MIB, memtide, needs_costs, play_or_run};
use memtide_api::view::GuestStatus;
use memtide_host::{Meminfo, Root};
use memtide_model::{Absence, Bytes, Polling};
use memtide_stand_in::qemu::process::{Actor, Stage};
use memtide_stand_in::qemu::{AgentBehaviour, Behaviour, ESCAPES, News, Workload};
use memtide_testing::trial;

/// The number of honest guests.
const HONEST: usize = 4;
/// The memory of a guest with a hostile agent, in MiB.
const SMALL: u64 = 256;
/// The number of guests that all send too much.
const CROWD: usize = 100;
/// The number of stalls that must be answered without hostile guests, and again with them.
const STALLS: usize = 8;
/// The limit for the daemon's peak resident memory, in KiB.
const MOST_RESIDENT: u64 = 32 << 10;
/// The factor by which hostile guests may raise its CPU time.
const MOST_CPU: f64 = 5.0;
/// The time over which CPU time is measured.
const WINDOW: Duration = Duration::from_secs(10);
/// The limit for reported failures of all hostile guests together: they run for a minute, with a few kinds of changes.
const MOST_FAILURES_SAID: usize = 3 * Behaviour::HOSTILE.len();
/// The factor by which hostile guests may slow answers and ticks: each may make one tick wait for its whole deadline.
const MOST_SLOWDOWN: f64 = 3.0;

fn main() -> ExitCode {
    // One at a time, because CPU time is measured.
    play_or_run(1, || {
        vec![
            trial("one_of_each_kind_costs_little_delays_nobody_and_draws_nothing", one_of_each_kind),
            trial("agents_of_each_kind_cost_little_delay_nobody_and_gain_nothing", agents_of_each_kind),
            trial("a_claim_of_900_gib_by_a_small_process_counts_at_what_it_uses", claims_of_900_gib),
            trial("a_guest_outside_users_is_listed_with_the_line_that_admits_it", outside_users),
            trial("crowds_of_long_lines_and_answers_cost_no_more_memory_than_a_few", || {
                at_once(
                    || a_crowd("long lines", |setting, name| setting.guest(name, 64, Behaviour::LongLine)),
                    || a_crowd("long answers", |setting, name| setting.guest(name, 64, Behaviour::Verbose)),
                );
            }),
            trial("a_crowd_of_agents_that_flood_costs_no_more_memory_than_a_few", || {
                a_crowd("floods of events", |setting, name| {
                    setting.guest_with_agent(name, 64, AgentBehaviour::EventFlood)
                });
            }),
        ]
    })
}

/// Runs both at the same time.
fn at_once<A, B: Send>(one: impl FnOnce() -> A, other: impl FnOnce() -> B + Send) -> (A, B) {
    thread::scope(|scope| {
        let other = scope.spawn(other);
        (one(), other.join().unwrap())
    })
}

/// A daemon with its own guests.
struct Setting {
    /// The prefix of the guests' names: no daemon sees the guests of another daemon or another test run.
    name: String,
    directory: tempfile::TempDir,
    stage: Stage,
}

impl Setting {
    fn new(name: &str) -> Self {
        let name = format!("{name}{}", std::process::id());
        let directory = tempfile::tempdir().unwrap();
        let stage = Stage::new(directory.path()).unwrap();
        Self { name, directory, stage }
    }

    fn journal(&self) -> PathBuf {
        self.directory.path().join("journal")
    }

    /// A daemon whose budget keeps honest guests below their full size, both alone and beside the hostile ones.
    fn daemon(&self) -> Daemon {
        self.daemon_with("")
    }

    /// The same with more lines in its configuration.
    fn daemon_with(&self, lines: &str) -> Daemon {
        let (names, journal) = (&self.name, self.journal());
        let configuration = format!(
            "{lines}mode = \"manage\"\nbudget = \"3600 MiB\"\ndiscover = [\"{names}-*\"]\njournal = {{ dir = {journal:?} }}"
        );
        Daemon::start(memtide(), self.directory.path(), &configuration, &[])
    }

    fn guest(&self, name: &str, mib: u64, behaviour: Behaviour) -> Actor {
        self.stage.start(&format!("{}-{name}", self.name), mib, behaviour, workload(mib)).unwrap()
    }

    fn guest_with_agent(&self, name: &str, mib: u64, agent: AgentBehaviour) -> Actor {
        self.stage.start_with_agent(&format!("{}-{name}", self.name), mib, workload(mib), agent).unwrap()
    }

    /// A small neighbour for each kind of misbehaviour, with a name that would break out of its line. `behaves` chooses each
    /// neighbour's behaviour.
    fn neighbours(&self, behaves: fn(Behaviour) -> Behaviour) -> Vec<Actor> {
        let neighbour = |&kind| self.guest(&format!("{kind:?}-\"{ESCAPES}\\"), 64, behaves(kind));
        Behaviour::HOSTILE.iter().map(neighbour).collect()
    }

    /// The same for each kind of agent.
    fn agents(&self, behaves: fn(AgentBehaviour) -> AgentBehaviour) -> Vec<Actor> {
        let neighbour = |&kind| self.guest_with_agent(&format!("{kind:?}"), SMALL, behaves(kind));
        AgentBehaviour::HOSTILE.iter().map(neighbour).collect()
    }

    /// A daemon that manages the honest guests, and has seen their neighbours.
    fn peopled(&self, neighbours: impl FnOnce(&Self) -> Vec<Actor>) -> Peopled {
        let honest = |n| self.guest_with_agent(&format!("honest-{n}"), 1024, AgentBehaviour::Honest);
        let honest: Vec<Actor> = (0..HONEST).map(honest).collect();
        let daemon = self.daemon();
        daemon.until("all honest guests are managed", |status| {
            status.guests.iter().filter(|guest| guest.report.target.is_some()).count() == HONEST
        });
        let neighbours = neighbours(self);
        daemon.until("all neighbours are seen", |status| status.guests.len() == HONEST + neighbours.len());
        Peopled { honest, daemon, _neighbours: neighbours }
    }

    /// Waits until the target of the stalling guest is raised; returns the seconds that it took.
    fn raised_after(&self, daemon: &Daemon, guest: &Actor) -> f64 {
        let deadline = Instant::now() + Duration::from_secs(20);
        while let Some(news) = self.stage.hear_of(guest.name(), deadline).unwrap() {
            match news {
                News::Raised { after_us } => return Duration::from_micros(after_us).as_secs_f64(),
                // The answer to an earlier stall.
                News::Enough { .. } => {}
                other => panic!("{} says {other:?}", guest.name()),
            }
        }
        panic!("the stall of {} is not answered\n{}", guest.name(), daemon.ask(&["status"]))
    }

    fn watch_stalls(&self, Peopled { honest, daemon, .. }: &mut Peopled) -> Watched {
        let (begun, ticks) = (Instant::now(), daemon.status().counters.ticks);
        let mut seconds = 0.0;
        for stall in 0..STALLS {
            let guest = &mut honest[stall % HONEST];
            daemon.until("honest guests are fresh", |status| honest_are_fresh(&status.guests));
            guest.stall(32 * MIB).unwrap();
            seconds += self.raised_after(daemon, guest);
            let status = daemon.status();
            assert!(honest_are_fresh(&status.guests), "{:#?}", status.guests);
            guest.calm().unwrap();
        }
        let ticks = daemon.status().counters.ticks - ticks;
        Watched { reaction: seconds / STALLS as f64, tick: begun.elapsed().as_secs_f64() / ticks as f64 }
    }
}

/// A guest of `mib` MiB uses a fifth of them, but at least the memory that a kernel needs.
fn workload(mib: u64) -> Workload {
    Workload { base: (mib / 5).max(24) * MIB, cache: mib * MIB / 32, ..Workload::default() }
}

/// A daemon and its guests.
struct Peopled {
    honest: Vec<Actor>,
    daemon: Daemon,
    _neighbours: Vec<Actor>,
}

/// The observations of honest guests that stalled in turn.
#[derive(Debug)]
struct Watched {
    /// Seconds from a stall to the command that raises the target, on average.
    reaction: f64,
    /// Seconds from one tick to the next, on average.
    tick: f64,
}

fn one_of_each_kind() {
    needs_costs();
    let hostile = Setting::new("wire");
    let war = cost_little(
        &Setting::new("calm"),
        &hostile,
        |setting| setting.neighbours(|_| Behaviour::Honest),
        |setting| setting.neighbours(|kind| kind),
    );
    let log = assert_harmless(war, &hostile);
    let failures = log.lines().filter(|line| line.contains("WARN failed")).count();
    assert!(failures < MOST_FAILURES_SAID, "{failures} lines of failures: {log}");
}

fn claims_of_900_gib() {
    needs_costs();
    // More than any machine that runs this test.
    let memory = Meminfo::read(&Root::system()).unwrap().total;
    let claim = Bytes::from_mib(900 << 10).max(memory.mul_div(2, 1));
    for commitment in ["strict", "elastic"] {
        let setting = Setting::new(commitment);
        let daemon = setting.daemon_with(&format!("commitment = {commitment:?}\n"));
        let _honest: Vec<Actor> =
            (0..HONEST).map(|n| setting.guest(&format!("honest-{n}"), 1024, Behaviour::Honest)).collect();
        daemon.until("all honest guests have told their use", |status| {
            status.guests.iter().filter(|guest| guest.report.used.is_some()).count() == HONEST
        });
        let liar = |name: &str, behaviour| setting.guest(name, claim.whole_mib(), behaviour);
        let _liars = [liar("answers", Behaviour::Honest), liar("silent", Behaviour::SilentAfterGreeting)];
        daemon.until("the claims are shown", |status| {
            let claims = |guest: &&GuestStatus| guest.state.contains("more than this machine has");
            status.guests.iter().filter(claims).count() == 2
        });
        let ticks = daemon.status().counters.ticks;
        daemon.until("more decisions", |status| status.counters.ticks > ticks + 10);
        let status = daemon.status();
        let (liars, honest): (Vec<&GuestStatus>, Vec<&GuestStatus>) =
            status.guests.iter().partition(|guest| guest.report.full != Bytes::from_mib(1024));
        assert_eq!((liars.len(), honest.len()), (2, HONEST));
        for GuestStatus { name, report, .. } in liars {
            let costs = report.footprint.unwrap();
            assert_eq!((report.reach, report.target), (costs, None), "{name}");
        }
        let promised = Bytes::sum(honest.iter().map(|guest| guest.report.reach));
        assert!(status.host.reach < promised.saturating_add(Bytes::from_mib(200)), "{:#?}", status.host);
        // A guest may have grown by a page since the last decision. What the liars claim would always be missing.
        daemon.until("the commitment is kept", |status| {
            status.host.breach.is_zero() && status.host.unmet.is_zero()
        });
    }
}

fn outside_users() {
    let setting = Setting::new("outside");
    // The stand-ins run as the user of this test.
    let users = "users = [\"65534\"]";
    let daemon = setting.daemon_with(&format!("{users}\n"));
    let mut guest = setting.guest("theirs", 64, Behaviour::Honest);
    daemon.until("it is listed", |status| status.outsiders.count == 1);
    let status = daemon.status();
    assert_eq!(status.guests.len(), 0);
    let outsider = &status.outsiders.listed[0];
    let (user, line) = (Some(rustix::process::getuid().as_raw()), outsider.line.clone().unwrap());
    assert_eq!((outsider.name.as_str(), outsider.pid, outsider.user), (guest.name(), guest.pid(), user));
    assert!(outsider.footprint.is_some_and(|footprint| !footprint.is_zero()), "{outsider:?}");
    let shown = daemon.ask(&["status"]);
    assert!(shown.contains(guest.name()) && shown.contains(&line), "{shown}");
    guest.count().unwrap();
    match setting.stage.hear_of(guest.name(), Instant::now() + Duration::from_secs(20)).unwrap() {
        Some(News::Counted { connections, .. }) => assert_eq!(connections, 0),
        other => panic!("{other:?}"),
    }
    // The line admits it, without a restart.
    daemon.reconfigure(users, &line);
    daemon.until("it is admitted", |status| status.guests.len() == 1 && status.outsiders.count == 0);
    daemon.until("it answers", |status| status.guests[0].polling != Polling::Unknown);
}

fn agents_of_each_kind() {
    needs_costs();
    let hostile = Setting::new("wild");
    let war = cost_little(
        &Setting::new("tame"),
        &hostile,
        |setting| setting.agents(|_| AgentBehaviour::Honest),
        |setting| setting.agents(|kind| kind),
    );
    // Whatever an agent says, its guest gets its fair share at most.
    for GuestStatus { name, report, .. } in &war.daemon.status().guests {
        let most = report.entitlement.saturating_add(Bytes::from_mib(SMALL / 8));
        assert!(report.actual <= most, "{name}: {report:#?}");
    }
    assert_harmless(war, &hostile);
}

/// The same guests twice: the hostile neighbours differ from their counterparts in nothing else. Returns the hostile ones and their
/// daemon.
fn cost_little(
    peaceful: &Setting,
    hostile: &Setting,
    honest: impl FnOnce(&Setting) -> Vec<Actor>,
    kinds: impl FnOnce(&Setting) -> Vec<Actor> + Send,
) -> Peopled {
    let (mut peace, mut war) = at_once(|| peaceful.peopled(honest), || hostile.peopled(kinds));
    let cpu = |peace: &Peopled, war: &Peopled| {
        at_once(|| cpu_of_a_window(&peace.daemon), || cpu_of_a_window(&war.daemon))
    };
    let first = cpu(&peace, &war);
    let (alone, beside) = at_once(|| peaceful.watch_stalls(&mut peace), || hostile.watch_stalls(&mut war));
    let later = cpu(&peace, &war);
    assert_costs_little(&war.daemon, [first, later], &alone, &beside);
    war
}

/// Whatever guests are called and say, nothing that is shown leaves its line. Ends the daemon, and returns its log.
fn assert_harmless(war: Peopled, hostile: &Setting) -> String {
    let Peopled { daemon, .. } = war;
    let names: Vec<String> = daemon.status().guests.into_iter().map(|guest| guest.name).collect();
    for (what, text) in display::all(&daemon, &hostile.journal(), &names) {
        display::assert_harmless(&what, &text);
    }
    let log = daemon.end();
    display::assert_harmless("the log", &log);
    log
}

/// The daemon's cost, at two times, and what hostile guests do to the answers to honest ones. `cpu` has the part of a core that it takes with
/// peaceful guests, and with these, in the same window.
fn assert_costs_little(daemon: &Daemon, cpu: [(f64, f64); 2], alone: &Watched, beside: &Watched) {
    let resident = daemon.most_resident();
    for (peaceful, hostile) in cpu {
        println!("{:.1} % of a core, with peaceful guests {:.1} %", hostile * 100.0, peaceful * 100.0);
    }
    println!("{:.1} MiB resident", resident as f64 / 1024.0);
    println!("alone  {alone:?}\nbeside {beside:?}");
    assert!(resident < MOST_RESIDENT, "{resident} KiB resident");
    let is_little = |(peaceful, hostile)| hostile < peaceful * MOST_CPU;
    assert!(cpu.into_iter().all(is_little), "parts of a core, peaceful and hostile: {cpu:.3?}");
    assert!(beside.reaction < alone.reaction * MOST_SLOWDOWN, "{beside:?}, alone {alone:?}");
    assert!(beside.tick < alone.tick * MOST_SLOWDOWN, "{beside:?}, alone {alone:?}");
}

fn a_crowd(what: &'static str, guest: fn(&Setting, &str) -> Actor) {
    let setting = Setting::new(&what.replace(' ', "-"));
    let daemon = setting.daemon();
    let crowd: Vec<Actor> = (0..CROWD).map(|n| guest(&setting, &n.to_string())).collect();
    daemon.until("all were asked", |status| {
        let asked = |guest: &&GuestStatus| guest.state != Absence::NotYet.to_string();
        status.guests.iter().filter(asked).count() == crowd.len() && status.counters.ticks > 20
    });
    let resident = daemon.most_resident();
    println!("{CROWD} guests with {what}: {:.1} MiB resident", resident as f64 / 1024.0);
    assert!(resident < MOST_RESIDENT, "{resident} KiB resident");
}

/// The daemon's CPU use as a fraction of one core, while the test watches the honest guests.
fn cpu_of_a_window(daemon: &Daemon) -> f64 {
    let (begun, before) = (Instant::now(), daemon.cpu_seconds());
    while begun.elapsed() < WINDOW {
        let status = daemon.status();
        assert!(honest_are_fresh(&status.guests), "{:#?}", status.guests);
        thread::sleep(Duration::from_millis(500));
    }
    (daemon.cpu_seconds() - before) / begun.elapsed().as_secs_f64()
}

/// Whether the daemon knows the used memory of all honest guests.
fn honest_are_fresh(guests: &[GuestStatus]) -> bool {
    let honest = guests.iter().filter(|guest| guest.name.contains("-honest-"));
    honest.filter(|guest| guest.report.used.is_some()).count() == HONEST
}

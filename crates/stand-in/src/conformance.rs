//! The cases that every backend must pass.
//!
//! A backend's tests implement [`Stage`], which starts guests of its VMM and makes them misbehave. Each of the [`CASES`] then runs on a new
//! stage. It sees the backend only through a [`Fleet`], as the daemon does.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use memtide_model::{Absence, Bytes, GuestId, Reading, Request};
use tokio::sync::oneshot;

use memtide_vmm::{Admitted, Backend, Control, DiscoverError, Fleet, Found, Seen, Wish};

/// The size of each guest with an empty balloon.
pub const FULL: Bytes = Bytes::from_mib(512);
/// A size that guests are asked to keep.
pub const TARGET: Bytes = Bytes::from_mib(256);
/// The size at which a guest stops that follows only a part of the way to [`TARGET`].
pub const PART: Bytes = Bytes::from_mib(384);
/// The reason that a guest gives if it refuses.
pub const NOT_TODAY: &str = "not today";

/// The deadline for calls that should work: generous, because the machine may be busy.
const PLENTY: Duration = Duration::from_secs(10);
/// The deadline for calls to guests that hang.
const SHORT: Duration = Duration::from_millis(500);
/// The most that a call may exceed its deadline.
const SLACK: Duration = Duration::from_secs(2);

/// A VMM under test.
pub trait Stage {
    /// A new backend that finds the guests of this stage.
    fn backend(&mut self) -> Box<dyn Backend>;

    /// Starts a guest of [`FULL`] bytes with an empty balloon. It follows its target completely.
    fn start(&mut self, name: &str);

    /// Ends a guest.
    fn end(&mut self, name: &str);

    /// Makes a guest behave like this from now on.
    fn behave(&mut self, name: &str, behaviour: Behaviour);

    /// How much of a move by somebody else the backend may miss.
    fn misses_of_others(&self) -> Bytes {
        Bytes::ZERO
    }
}

/// The behaviour of a guest and its VMM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// Answers, accepts targets and follows them.
    Good,
    /// Accepts targets, and stops at [`PART`] on the way to [`TARGET`].
    StopsPartWay,
    /// Refuses each request with [`NOT_TODAY`].
    Refuses,
    /// Does not answer.
    Hangs,
    /// Answers with numbers that no guest can have.
    Absurd,
}

/// A case: it panics if the backend fails.
pub type Case = fn(&mut dyn Stage);

/// All cases, with their names.
pub const CASES: [(&str, Case); 9] = [
    ("appears", appears),
    ("vanishes", vanishes),
    ("refuses", refuses),
    ("hangs", hangs),
    ("follows_part_of_the_way", follows_part_of_the_way),
    ("restarts_under_its_name", restarts_under_its_name),
    ("tells_absurd_numbers", tells_absurd_numbers),
    ("obeys_two_controllers", obeys_two_controllers),
    ("gets_its_control_late", gets_its_control_late),
];

/// A fleet on a runtime of its own.
struct Host {
    fleet: Fleet,
    /// Dropping it ends the runtime's thread.
    _end: oneshot::Sender<()>,
}

impl Host {
    fn new(stage: &mut dyn Stage) -> Self {
        Self::of(stage.backend())
    }

    fn of(backend: Box<dyn Backend>) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let handle = runtime.handle().clone();
        let (end, ended) = oneshot::channel::<()>();
        std::thread::spawn(move || runtime.block_on(ended));
        Self { fleet: Fleet::start(handle, vec![backend], Admitted::named(&["*"]), |_| {}), _end: end }
    }

    fn observe(&mut self, deadline: Duration) -> Vec<Seen> {
        let begun = Instant::now();
        let seen = self.fleet.observe(deadline, |_| Some(Wish::default()));
        assert!(begun.elapsed() < deadline + SLACK, "an observation took {:?}", begun.elapsed());
        seen
    }

    fn find(&mut self, name: &str, deadline: Duration) -> Option<Seen> {
        self.observe(deadline).into_iter().find(|seen| seen.found.id.name() == name)
    }

    /// Observes until the guest `name` is as `is_so` says.
    fn until(&mut self, name: &str, what: &str, is_so: impl Fn(&Seen) -> bool) -> Seen {
        let begun = Instant::now();
        loop {
            let seen = self.find(name, PLENTY);
            if let Some(seen) = seen.as_ref().filter(|seen| is_so(seen)) {
                return seen.clone();
            }
            assert!(begun.elapsed() < PLENTY, "still waiting until {name} {what}: {seen:#?}");
            std::thread::yield_now();
        }
    }

    fn until_it_keeps(&mut self, name: &str, size: Bytes) -> Seen {
        self.until(name, &format!("keeps {size}"), |seen| keeps(seen) == Some(size))
    }

    /// The same, but for what a backend may miss of somebody else's move.
    fn until_it_keeps_about(&mut self, name: &str, size: Bytes, misses: Bytes) {
        let is_about = |seen: &Seen| keeps(seen).is_some_and(|keeps| keeps.abs_diff(size) <= misses);
        self.until(name, &format!("keeps about {size}"), is_about);
    }

    fn request(&self, seen: &Seen, request: Request, deadline: Duration) -> Result<(), Absence> {
        let begun = Instant::now();
        let result = self.fleet.request(&seen.found.id, request, deadline);
        assert!(begun.elapsed() < deadline + SLACK, "a request took {:?}", begun.elapsed());
        result
    }
}

fn keeps(seen: &Seen) -> Option<Bytes> {
    seen.told.balloon.fresh().map(|balloon| balloon.actual)
}

/// A guest that starts is found, with its size. One that starts later is found, too.
fn appears(stage: &mut dyn Stage) {
    stage.start("first");
    let mut host = Host::new(stage);
    let first = host.until_it_keeps("first", FULL);
    assert_eq!(first.told.full, FULL);
    assert!(first.found.capabilities.can_be_set, "{first:#?}");
    stage.start("second");
    host.until_it_keeps("second", FULL);
    assert_eq!(host.observe(PLENTY).len(), 2);
}

/// A guest that ends is forgotten. A request to it fails.
fn vanishes(stage: &mut dyn Stage) {
    stage.start("a");
    stage.start("b");
    let mut host = Host::new(stage);
    let a = host.until_it_keeps("a", FULL);
    host.until_it_keeps("b", FULL);
    stage.end("a");
    let begun = Instant::now();
    while host.find("a", SHORT).is_some() {
        assert!(begun.elapsed() < PLENTY, "a is still there");
    }
    host.until_it_keeps("b", FULL);
    assert_eq!(host.request(&a, Request::SetTarget(TARGET), SHORT), Err(Absence::Gone));
}

/// A refusal comes back with its text, and changes nothing. The next request can work.
fn refuses(stage: &mut dyn Stage) {
    stage.start("a");
    let mut host = Host::new(stage);
    let a = host.until_it_keeps("a", FULL);
    stage.behave("a", Behaviour::Refuses);
    match host.request(&a, Request::SetTarget(TARGET), PLENTY) {
        Err(Absence::Refused(why)) => {
            let words: Vec<&str> = why.split_whitespace().collect();
            assert!(words.join(" ").contains(NOT_TODAY), "{why}");
        }
        other => panic!("not refused: {other:?}"),
    }
    stage.behave("a", Behaviour::Good);
    host.until_it_keeps("a", FULL);
    assert_eq!(host.request(&a, Request::SetTarget(TARGET), PLENTY), Ok(()));
    host.until_it_keeps("a", TARGET);
}

/// A guest that hangs delays nobody beyond the deadline. Its readings grow old and say why. It is fresh again once it answers.
fn hangs(stage: &mut dyn Stage) {
    stage.start("a");
    stage.start("b");
    let mut host = Host::new(stage);
    let a = host.until_it_keeps("a", FULL);
    host.until_it_keeps("b", FULL);
    stage.behave("a", Behaviour::Hangs);
    let begun = Instant::now();
    loop {
        let seen = host.observe(SHORT);
        let of = |name: &str| seen.iter().find(|seen| seen.found.id.name() == name).expect("it is there");
        if let Reading::Stale { value, .. } = &of("a").told.balloon {
            assert_eq!(value.actual, FULL);
        }
        if keeps(of("a")).is_none() && keeps(of("b")) == Some(FULL) {
            break;
        }
        assert!(begun.elapsed() < PLENTY, "a is still fresh, or delays b: {seen:#?}");
    }
    assert!(host.request(&a, Request::SetTarget(TARGET), SHORT).is_err());
    stage.behave("a", Behaviour::Good);
    host.until("a", "answers again", |seen| keeps(seen).is_some());
}

/// A guest that stops on the way to its target shows what it keeps, not what it was asked for.
fn follows_part_of_the_way(stage: &mut dyn Stage) {
    stage.start("a");
    let mut host = Host::new(stage);
    let a = host.until_it_keeps("a", FULL);
    stage.behave("a", Behaviour::StopsPartWay);
    assert_eq!(host.request(&a, Request::SetTarget(TARGET), PLENTY), Ok(()));
    host.until_it_keeps("a", PART);
    stage.behave("a", Behaviour::Good);
    assert_eq!(host.request(&a, Request::SetTarget(FULL), PLENTY), Ok(()));
    host.until_it_keeps("a", FULL);
}

/// A guest that ends and starts again under its name is another guest, with nothing left of the first one.
fn restarts_under_its_name(stage: &mut dyn Stage) {
    stage.start("a");
    let mut host = Host::new(stage);
    let before = host.until_it_keeps("a", FULL);
    assert_eq!(host.request(&before, Request::SetTarget(TARGET), PLENTY), Ok(()));
    host.until_it_keeps("a", TARGET);
    stage.end("a");
    stage.start("a");
    let after = host.until("a", "is another guest", |seen| seen.found.id != before.found.id);
    assert_eq!(after.told.full, FULL);
    host.until_it_keeps("a", FULL);
    assert_eq!(host.observe(PLENTY).len(), 1);
    assert_eq!(host.request(&before, Request::SetTarget(TARGET), SHORT), Err(Absence::Gone));
    host.until_it_keeps("a", FULL);
}

/// Absurd numbers change no guest's full size, give no fresh reading beyond it, and hurt no other guest.
fn tells_absurd_numbers(stage: &mut dyn Stage) {
    stage.start("a");
    stage.start("b");
    let mut host = Host::new(stage);
    host.until_it_keeps("a", FULL);
    stage.behave("a", Behaviour::Absurd);
    for _ in 0..10 {
        let a = host.find("a", SHORT).expect("it is there");
        assert!(a.told.full == FULL && keeps(&a).is_none_or(|actual| actual <= FULL), "{a:#?}");
        host.until_it_keeps("b", FULL);
    }
    stage.behave("a", Behaviour::Good);
    host.until_it_keeps("a", FULL);
}

/// Two fleets can observe and set the same guest, also at the same moment. Each sees what the other one did.
fn obeys_two_controllers(stage: &mut dyn Stage) {
    stage.start("a");
    let (mut one, mut other) = (Host::new(stage), Host::new(stage));
    let a = one.until_it_keeps("a", FULL);
    other.until_it_keeps("a", FULL);
    assert_eq!(one.request(&a, Request::SetTarget(TARGET), PLENTY), Ok(()));
    let misses = stage.misses_of_others();
    other.until_it_keeps_about("a", TARGET, misses);
    assert_eq!(other.request(&a, Request::SetTarget(PART), PLENTY), Ok(()));
    one.until_it_keeps_about("a", PART, misses);

    // At the same moment, one of them may have to wait or give up. The guest follows one of the two.
    let set = |host: &mut Host, size| host.request(&a, Request::SetTarget(size), PLENTY);
    let results = std::thread::scope(|scope| {
        let first = scope.spawn(|| set(&mut one, FULL));
        let second = set(&mut other, TARGET);
        [first.join().expect("a result"), second]
    });
    assert!(results.contains(&Ok(())), "{results:?}");
    let is_about = |size: Bytes, other: Bytes| size.abs_diff(other) <= misses;
    let followed =
        |seen: &Seen| keeps(seen).is_some_and(|size| is_about(size, FULL) || is_about(size, TARGET));
    // A VMM that moves in steps may pass one size on the way to the other.
    let begun = Instant::now();
    loop {
        let size = keeps(&one.until("a", "follows one of the two", followed));
        let seen = other.find("a", PLENTY);
        if seen.as_ref().and_then(keeps).zip(size).is_some_and(|(seen, size)| is_about(seen, size)) {
            return;
        }
        assert!(begun.elapsed() < PLENTY, "they do not see the same: {size:?}, {seen:#?}");
    }
}

/// A backend whose first controls for each guest fail.
struct Reluctant {
    backend: Box<dyn Backend>,
    asked: Arc<AtomicUsize>,
}

impl Reluctant {
    /// The number of controls that fail.
    const FAIL: usize = 2;
}

impl Backend for Reluctant {
    fn discover(&mut self, ended: bool) -> Result<Option<Vec<Found>>, DiscoverError> {
        self.backend.discover(ended)
    }

    fn control(&mut self, guest: &GuestId) -> Result<Box<dyn Control>, Absence> {
        if self.asked.fetch_add(1, Ordering::Relaxed) < Self::FAIL {
            return Err(Absence::Refused(NOT_TODAY.to_owned()));
        }
        self.backend.control(guest)
    }
}

/// A guest whose control could not be made is left alone, and says why. Its backend is asked again for a control until there is one.
fn gets_its_control_late(stage: &mut dyn Stage) {
    stage.start("a");
    let asked = Arc::new(AtomicUsize::new(0));
    let mut host = Host::of(Box::new(Reluctant { backend: stage.backend(), asked: Arc::clone(&asked) }));
    let refused = Absence::Refused(NOT_TODAY.to_owned());
    let a = host.until("a", "is left alone", |seen| seen.told.balloon.why_not() == Some(&refused));
    assert_eq!(host.request(&a, Request::SetTarget(TARGET), SHORT), Err(refused));
    host.until("a", "is asked", |seen| keeps(seen).is_some());
    assert_eq!(asked.load(Ordering::Relaxed), Reluctant::FAIL + 1, "nobody asks for a control that is there");
    assert_eq!(host.request(&a, Request::SetTarget(TARGET), PLENTY), Ok(()));
    host.until_it_keeps("a", TARGET);
}

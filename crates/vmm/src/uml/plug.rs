//! Unplugs and plugs an instance's memory, step by step, in place of a balloon.
//!
//! **Problem.** `config mem=-N` makes the instance's kernel allocate pages and give them to the host. It allocates like an interrupt handler: it
//! waits for nothing, goes below the kernel's own reserve of free pages, ends early without an error if nothing is free, and lets nothing else run
//! in the meantime. `config mem=+N` gives pages back at once, and at most those that were taken. The console does not tell how many are gone: its
//! answer to `config mem` is a constant.
//!
//! **Rule.** A step takes no more than is free beyond the kernel's reserve, and than is available at all, and lasts some ten milliseconds, as
//! measured by the last one. The instance then runs for as long. If nothing is free, a small pause lets its kernel reclaim page cache: falling
//! below the low watermark wakes kswapd. What is gone is counted, and compared with the memory that is on none of the kernel's lists: a step that
//! fell short, and memory that somebody else took or gave, show there.

use std::time::Duration;

use memtide_model::{Bytes, PAGE_4K};

use super::kernel::Kernel;

/// The time that a step should take. Unplugging 1 MiB took 0.4 to 0.8 ms on a machine with 2 cores (Linux 6.1).
const STEP_TAKES: Duration = Duration::from_millis(10);
/// The least and the largest step, and the first one.
const STEPS: (Bytes, Bytes) = (Bytes::from_mib(1), Bytes::from_mib(32));
const FIRST_STEP: Bytes = Bytes::from_mib(4);
/// A smaller step is not worth a request, unless it is the last one.
const LEAST_STEP: Bytes = Bytes::from_kib(128);
/// The pauses of an instance that has nothing free: the first one, and the longest. kswapd needs some milliseconds.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
/// Unlisted memory that differs by less from what is expected is the kernel's own: lists of free pages of the processor (up to some MiB),
/// buffers of drivers.
const DRIFT: Bytes = Bytes::from_mib(4);
/// A small difference that lasts for this many looks is the kernel's own. Before, it may be the first step of somebody else.
const SETTLES: u8 = 16;
/// [`DRIFT`] directly after a step.
const NOISE: Bytes = Bytes::from_mib(1);
/// The most that a kernel is believed to allocate for itself outside its lists: this, and a 64th of its memory. An instance of 256 MiB had 3 to
/// 4.4 MiB (Linux 6.1).
const MOST_OWN: Bytes = Bytes::from_mib(12);

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Unplug this much.
    Take(Bytes),
    /// Plug this much.
    Give(Bytes),
    /// Look again after a pause: nothing is free at the moment.
    Wait(Duration),
    /// Nothing: the size is reached as far as it can be, or nobody has asked for one.
    Done,
}

impl Step {
    /// The console's command for it; `None` if there is nothing to ask for.
    #[must_use]
    pub fn command(self) -> Option<String> {
        match self {
            Self::Take(bytes) => Some(format!("config mem=-{}K", bytes.get() >> 10)),
            Self::Give(bytes) => Some(format!("config mem=+{}K", bytes.get() >> 10)),
            Self::Wait(_) | Self::Done => None,
        }
    }
}

/// The plugged memory of one instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plug {
    full: Bytes,
    /// Unplugged memory.
    removed: Bytes,
    /// What the kernel allocates for itself outside its lists; `None` before the first look.
    own: Option<Bytes>,
    /// The size to reach; `None` once it was reached. From then on, anybody may move it.
    target: Option<Bytes>,
    /// A step was sent since the last look.
    sent: bool,
    /// Looks in a row that differed a little from what was expected.
    small_looks: u8,
    step: Bytes,
    /// The next pause if nothing is free.
    pause: Duration,
}

/// What the kernel allocates for itself, at the first look: all that is unlisted, if that can be. Otherwise somebody has taken memory before.
fn first_own(unlisted: Bytes, most_own: Bytes) -> Bytes {
    if unlisted <= most_own { unlisted } else { DRIFT }
}

impl Plug {
    /// An instance of `full` bytes.
    #[must_use]
    pub const fn new(full: Bytes) -> Self {
        Self {
            full,
            removed: Bytes::ZERO,
            own: None,
            target: None,
            sent: false,
            small_looks: 0,
            step: FIRST_STEP,
            pause: PAUSES.0,
        }
    }

    /// Unplugged memory.
    #[must_use]
    pub const fn removed(&self) -> Bytes {
        self.removed
    }

    /// Memory that the instance keeps now.
    #[must_use]
    pub const fn actual(&self) -> Bytes {
        self.full.saturating_sub(self.removed)
    }

    /// Compares what is counted with what the kernel tells.
    pub fn see(&mut self, kernel: &Kernel) {
        let unlisted = kernel.unlisted;
        let most_own = MOST_OWN.saturating_add(kernel.memory.total.mul_div(1, 64));
        let tolerance = if std::mem::take(&mut self.sent) { NOISE } else { DRIFT };
        let own = self.own.unwrap_or_else(|| first_own(unlisted, most_own));
        let expected = own.saturating_add(self.removed);
        let (more, less) = (unlisted.saturating_sub(expected), expected.saturating_sub(unlisted));
        let is_small = more.max(less) <= tolerance;
        self.small_looks = if is_small && unlisted != expected { self.small_looks + 1 } else { 0 };
        if !is_small || self.own.is_none() {
            self.removed = self.removed.saturating_add(more).saturating_sub(less);
        }
        let own = match self.small_looks {
            SETTLES => unlisted.saturating_sub(self.removed),
            _ => own,
        };
        self.small_looks %= SETTLES;
        // What the kernel cannot have allocated for itself is gone, and what is listed is there.
        let beyond = unlisted.saturating_sub(self.removed).saturating_sub(most_own);
        self.removed = self.removed.saturating_add(beyond).min(unlisted).min(self.full);
        self.own = Some(own.min(most_own));
        let is_reached = |target: Bytes| target.min(self.full).abs_diff(self.actual()) < PAGE_4K.bytes();
        if self.target.is_some_and(is_reached) {
            self.target = None;
        }
    }

    /// From now on, the instance should keep `target`.
    pub const fn aim(&mut self, target: Bytes) {
        self.target = Some(target);
        self.pause = PAUSES.0;
    }

    /// From now on, the instance keeps what it has.
    pub const fn rest(&mut self) {
        self.target = None;
    }

    /// Whether a size is still to be reached.
    #[must_use]
    pub const fn is_moving(&self) -> bool {
        self.target.is_some()
    }

    /// What comes next for a kernel that keeps `reserve` free for itself.
    #[must_use]
    pub fn next(&self, kernel: &Kernel, reserve: Bytes) -> Step {
        let (Some(target), actual) = (self.target, self.actual()) else { return Step::Done };
        let more = target.saturating_sub(actual).min(self.removed).round_down(PAGE_4K);
        if !more.is_zero() {
            return Step::Give(more);
        }
        let wanted = actual.saturating_sub(target).round_down(PAGE_4K);
        if wanted.is_zero() {
            return Step::Done;
        }
        let free = kernel.memory.free.min(kernel.memory.available).saturating_sub(reserve);
        let step = wanted.min(self.step).min(free).round_down(PAGE_4K);
        if step < LEAST_STEP.min(wanted) { Step::Wait(self.pause) } else { Step::Take(step) }
    }

    /// A step is about to be sent. It counts from now on: nobody may be there to hear its answer.
    pub fn sends(&mut self, step: Step) {
        self.removed = match step {
            Step::Take(bytes) => self.removed.saturating_add(bytes).min(self.full),
            Step::Give(bytes) => self.removed.saturating_sub(bytes),
            Step::Wait(_) | Step::Done => self.removed,
        };
        self.sent = true;
    }

    /// A step was carried out, and took this long. Returns the pause after it.
    pub fn did(&mut self, step: Step, took: Duration) -> Duration {
        match step {
            Step::Take(bytes) => {
                self.pause = PAUSES.0;
                let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1);
                let fits = bytes.mul_div(micros(STEP_TAKES), micros(took));
                // A small step says little about a large one.
                if bytes >= STEPS.0 || fits < self.step {
                    self.step = fits.clamp(STEPS.0, STEPS.1);
                }
                took
            }
            Step::Wait(pause) => {
                self.pause = (self.pause * 2).min(PAUSES.1);
                pause
            }
            Step::Give(_) | Step::Done => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use memtide_model::AgentMemory;
    use proptest::prelude::*;

    use super::*;

    const RESERVE: Bytes = Bytes::from_mib(2);

    fn mib(mib: u64) -> Bytes {
        Bytes::from_mib(mib)
    }

    /// A kernel of 240 MiB that allocates 4 MiB for itself, with `cache` MiB of page cache, and with `removed` bytes gone.
    fn kernel(removed: Bytes, cache: u64) -> Kernel {
        let gone = removed.saturating_add(mib(4));
        let free = mib(240 - cache).saturating_sub(gone);
        let memory = AgentMemory { total: mib(240), free, available: free, ..AgentMemory::default() };
        Kernel { memory, unlisted: gone, ..Kernel::default() }
    }

    fn plug() -> Plug {
        let mut plug = Plug::new(mib(256));
        plug.see(&kernel(Bytes::ZERO, 0));
        plug
    }

    #[test]
    fn a_size_is_reached_in_steps_and_given_back_at_once() {
        let mut plug = plug();
        assert_eq!((plug.actual(), plug.next(&kernel(Bytes::ZERO, 0), RESERVE)), (mib(256), Step::Done));
        plug.aim(mib(156));
        let mut steps = 0;
        loop {
            let step = plug.next(&kernel(plug.removed(), 0), RESERVE);
            let Step::Take(bytes) = step else { break };
            steps += 1;
            plug.sends(step);
            let pause = plug.did(step, Duration::from_micros(500 * bytes.whole_mib().max(1)));
            assert!(pause <= STEP_TAKES * 2);
            plug.see(&kernel(plug.removed(), 0));
        }
        assert_eq!(plug.actual(), mib(156));
        assert!((5..=8).contains(&steps), "{steps} steps of 4 and 20 MiB");
        plug.aim(mib(200));
        let step = plug.next(&kernel(plug.removed(), 0), RESERVE);
        assert_eq!(step, Step::Give(mib(44)));
        plug.sends(step);
        assert_eq!(plug.actual(), mib(200));
        plug.aim(mib(999));
        assert_eq!(
            plug.next(&kernel(plug.removed(), 0), RESERVE),
            Step::Give(mib(56)),
            "no more than was taken"
        );
    }

    #[test]
    fn nothing_is_taken_below_the_kernels_reserve() {
        let mut plug = plug();
        plug.aim(mib(56));
        let full = kernel(Bytes::ZERO, 234);
        let step = plug.next(&full, RESERVE);
        assert_eq!(step, Step::Wait(PAUSES.0), "2 MiB are free");
        for _ in 0..10 {
            let step = plug.next(&full, RESERVE);
            plug.did(step, Duration::ZERO);
        }
        assert_eq!(plug.next(&full, RESERVE), Step::Wait(PAUSES.1));
        assert_eq!(plug.next(&kernel(Bytes::ZERO, 233), RESERVE), Step::Take(mib(1)), "kswapd has freed one");
    }

    #[test]
    fn moves_of_others_and_short_steps_show() {
        let mut plug = plug();
        plug.see(&kernel(mib(50), 0));
        assert_eq!(plug.removed(), mib(50), "somebody took 50");
        plug.see(&kernel(mib(20), 0));
        assert_eq!(plug.removed(), mib(20), "and gave 30");
        plug.aim(mib(200));
        plug.sends(Step::Take(mib(8)));
        plug.see(&kernel(mib(21), 0));
        assert_eq!(plug.removed(), mib(21), "the step got 1 of 8");
        assert!(plug.is_moving());
        (0..20).for_each(|_| plug.see(&kernel(mib(22), 0)));
        assert_eq!(plug.removed(), mib(21), "the kernel's own");
        plug.aim(mib(256 - 21));
        plug.see(&kernel(mib(22), 0));
        plug.see(&kernel(mib(80), 0));
        assert!(!plug.is_moving(), "a size that was reached is not defended");

        let mut later = Plug::new(mib(256));
        later.see(&kernel(mib(100), 0));
        assert_eq!(later.removed(), mib(100), "memtide starts again");
        let mut creeping = self::plug();
        (0..60).for_each(|more| creeping.see(&kernel(mib(more), 0)));
        assert!(creeping.removed() >= mib(59 - 12), "{}", creeping.removed());
    }

    proptest! {
        #[test]
        fn the_count_never_leaves_the_memory(seen in proptest::collection::vec((0_u64..1000, 0_u64..300, any::<bool>()), 0..50)) {
            let mut plug = Plug::new(mib(256));
            for (unlisted, step, takes) in seen {
                let memory = AgentMemory { total: mib(240), ..AgentMemory::default() };
                plug.see(&Kernel { memory, unlisted: mib(unlisted), ..Kernel::default() });
                plug.aim(mib(step));
                let step = if takes { Step::Take(mib(step)) } else { Step::Give(mib(step)) };
                plug.sends(step);
                plug.did(step, STEP_TAKES);
                prop_assert!(plug.removed() <= mib(256) && plug.step >= STEPS.0 && plug.step <= STEPS.1);
            }
        }
    }
}

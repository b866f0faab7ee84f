//! The numbers of the policy: each with its unit, its source, and the scenario that pins it.
//!
//! **Terms.** A scenario *pins* a number if it gets clearly worse when the number is halved or doubled, or when its rule is switched off:
//! a bound breaks, a guest works less, or guests take turns. [`crate::check()`] has numbers of its own.

use memtide_model::{Bytes, Span};

/// A part of a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    numerator: u64,
    denominator: u64,
}

impl Part {
    const fn new(numerator: u64, denominator: u64) -> Self {
        Self { numerator, denominator }
    }

    /// This part of `whole`.
    #[must_use]
    pub fn of(self, whole: Bytes) -> Bytes {
        whole.mul_div(self.numerator, self.denominator)
    }
}

// Evidence of want: rates, from the balloon's statistics.

/// Allocations a second that had to wait: from here on, a guest stalls.
/// Pinned by: scenarios/says-anything.toml (off).
pub const ALLOC_STALLS: u64 = 4;
/// Bytes a second that direct reclaim scanned, kswapd scanned after a step of the search, or the guest read back from its swap: from here on,
/// it lacks memory. An idle guest scans nothing.
/// Pinned by: scenarios/found-cache-before-used.toml (off).
pub const SCANS: Bytes = Bytes::from_mib(1);
/// Bytes a second that kswapd scanned: from here on, scans stand for refaults.
/// Pinned by: scenarios/choice-slowest-disk.toml (off).
pub const REFAULT_SCANS: Bytes = Bytes::from_mib(16);
/// Bytes a second of the working set that were read again, as an agent counts them: from here on, the guest lacks memory. A judgement: a
/// disk of 100 MiB/s is busy for a 25th of the time.
/// No scenario pins it.
pub const REFAULTS: Bytes = Bytes::from_mib(4);
/// Some task waits for a disk for this long in each millisecond, in microseconds, while memory is read again: the guest lacks memory. On a
/// slow disk, few refaults cost much.
/// Pinned by: scenarios/agents-no-harm-hard-disk.toml (off).
pub const DISK_WAITS_US: u64 = 125;
/// Bytes a second that are read again meanwhile, at least. Source: a hard disk reads 100 to 200 pages a second at random places.
/// Pinned by: scenarios/agents-no-harm-hard-disk.toml (off).
pub const SLOW_REFAULTS: Bytes = Bytes::new(256 << 10);
/// Major faults a second that stand for refaults while little memory is free. Program starts fault, too.
/// No scenario pins it.
pub const MAJOR_FAULTS: u64 = 128;

/// Guests that use less are about alike, in thousandths of one CPU. A judgement. Idle guests under software emulation, with their statistics read
/// each second, used 60 to 80: there only the ratio to others counts.
/// No scenario pins it.
pub const IDLE_CPU: u64 = 4;

/// The time to read a MiB again, in microseconds: 100 MiB/s, as from a disk. It only orders offers, and shows in their prices.
pub const READ_AGAIN_US: u64 = 10_000;
/// The time that a guest's CPU use is averaged over.
/// No scenario pins it.
pub const ACTIVITY_OVER: Span = Span::from_secs(30);

// The need of a guest.

/// The headroom of a guest that does not grow: this part of its size, within the two bounds below.
/// Pinned by: scenarios/escape.toml (halved), scenarios/found-step-without-reserve.toml (doubled).
pub const HEADROOM: Part = Part::new(1, 32);
/// The least headroom, and all that a guest keeps in an emergency.
/// Pinned by: scenarios/bursts-no-deflate.toml (doubled).
pub const LEAST_HEADROOM: Bytes = Bytes::from_mib(16);
/// The most headroom of a guest that does not grow.
/// No scenario pins it.
pub const MOST_HEADROOM: Bytes = Bytes::from_mib(512);
/// Growth counts as at most this part of a guest's size.
/// Pinned by: scenarios/joint-growth-after-an-hour.toml (halved).
pub const MOST_GROWTH: Part = Part::new(1, 4);
/// Free memory that a guest's kernel keeps for itself (watermarks, per-CPU lists): this part of its size. Source: guests of 1 GiB under pressure
/// had 57 to 75 MiB free. No balloon brings it back without taking cache.
/// Pinned by: scenarios/found-hot-files-squeezed.toml (halved), scenarios/migrates.toml (doubled).
pub const KERNEL_KEEPS: Part = Part::new(5, 64);
/// The most of it.
/// No scenario pins it.
pub const KERNEL_KEEPS_AT_MOST: Bytes = Bytes::from_mib(160);
/// Free memory in pieces that free page reporting does not return and a balloon takes first: at most this part of a guest's size. Source: guests
/// of 1 GiB that had filled and freed 819 MiB. The first 60 MiB of an inflation brought 58 back, and the next 540 none.
/// Pinned by: scenarios/pieces.toml (off).
pub const PIECES: Part = Part::new(1, 16);
/// A smaller change of a target is not worth making: this part of the least headroom. A guest that lacks all of its headroom is never overlooked.
/// Pinned by: scenarios/hot-cache-each-five-minutes.toml (off), scenarios/bursts-no-deflate.toml (doubled).
pub const DEAD_BAND: Part = Part::new(1, 2);
/// A stall raises a guest's need by this part of the memory that it holds.
/// Pinned by: scenarios/says-anything.toml (halved, doubled).
pub const RAISE: Part = Part::new(1, 4);
/// The least grant to a guest that stalled, or that scans for want of cache; and a step of cold page cache that is wanted urgently.
/// Pinned by: scenarios/choice-slowest-disk.toml (off).
pub const LEAST_GRANT: Bytes = Bytes::from_mib(64);
/// A stall raises the need for this long.
/// No scenario pins it.
pub const STALL_HOLDS: Span = Span::from_secs(10);
/// A guest's balloon follows within this time: stalls so shortly after its inflation are memtide's own doing, movements so shortly after a
/// new target are no one else's, and a target is not written again before. Source: inflating alone was measured to cause 0.4 s of PSI.
/// Pinned by: scenarios/found-cache-before-used.toml (off).
pub const FOLLOWS: Span = Span::from_secs(2);
/// For this long after a reset, balloon movements do not count as the guest's own, and its actual is doubted.
/// No scenario pins it.
pub const RESET_SETTLES: Span = Span::from_secs(10);
/// The possible error in the age of statistics: the driver makes them while the balloon moves.
/// Pinned by: scenarios/first-do-no-harm-tight.toml (off).
pub const AGE_SLACK: Span = Span::from_millis(100);
/// Equal statistics made within this time of each other are the same: their age was computed twice.
/// No scenario pins it.
pub const SAME_WITHIN: Span = Span::from_millis(20);

// Growth and the host.

/// The time constant of remembered growth.
/// Pinned by: scenarios/stream-slow.toml (halved), scenarios/used-plus-a-bit.toml (doubled).
pub const MEMORY: Span = Span::from_secs(600);
/// A guest that fills memory grows by this much a second. Source: measured 300 MiB/s under KVM with huge pages off.
/// Pinned by: scenarios/paused.toml (halved), scenarios/resets.toml (doubled).
pub const GROWS_BY: Bytes = Bytes::from_mib(300);
/// The longest time between two decisions that counts as observed.
/// No scenario pins it.
pub const OBSERVED: Span = Span::from_secs(10);
/// The reaction time before the first measurement.
/// Pinned by: scenarios/paused.toml (halved), scenarios/resets.toml (doubled).
pub const FIRST_REACTION: Span = Span::from_secs(1);
/// The reaction time is that for this much memory. A judgement: the least grant to a guest that stalls.
/// Pinned by: scenarios/agents-no-harm.toml (off).
pub const REACTS_WITH: Bytes = Bytes::from_mib(64);
/// The shortest reaction time.
/// Pinned by: scenarios/joint-growth.toml (doubled).
pub const SHORTEST_REACTION: Span = Span::from_millis(500);
/// The longest reaction time.
/// Pinned by: scenarios/suspend.toml (doubled).
pub const LONGEST_REACTION: Span = Span::from_secs(3);
/// The rate at which a balloon takes untouched memory, in bytes a second. Source: 284 to 387 MiB/s with a vCPU under emulation, 80 MiB/s if
/// others want its processor.
/// Pinned by: scenarios/untouched-in-the-way.toml (doubled).
pub const INFLATES_BY: Bytes = Bytes::from_mib(64);
/// The longest time for which the present growth is expected to last.
/// Pinned by: scenarios/offset-builds.toml (off: guests of 16 GiB are inflated by 13 GiB again and again).
pub const FORESEES: Span = Span::from_secs(10);
/// A state of the host ends at this multiple of its line, and grants for memory in use stop there.
/// Pinned by: scenarios/bursts-no-deflate.toml (off).
pub const LINE_ENDS: Part = Part::new(5, 4);
/// Stalls of one part in this many of the time are pressure on the host. Source: oomd's default is of this order; senpai aims two orders
/// lower, but it sees cgroups and not a whole host.
/// No scenario pins it.
pub const PRESSURE_PART: u64 = 10;

// The search for needed page cache.

/// After a step has settled, the guest is watched for this long: several reports of its statistics. As long, at most, nobody knows whether a balloon
/// was moved by somebody else or by its guest.
/// Pinned by: scenarios/wrong-winner.toml (halved), scenarios/stream-slow.toml (doubled).
pub const WATCHED: Span = Span::from_secs(5);
/// The same for a guest of which neither scans nor reads from disks are told: only stalls that lead to faults and kills show.
/// No scenario pins it.
pub const WATCHED_BLIND: Span = Span::from_secs(20);
/// Scans count from this long after a balloon arrived: kswapd still works, reports are a second old, and a grant fills.
/// Pinned by: scenarios/stuck-guest.toml (off), scenarios/agents-no-harm-at-once.toml (off).
pub const SCANS_SETTLE: Span = Span::from_secs(4);
/// A trial that does not arrive ends after this time.
/// Pinned by: scenarios/stream-fast.toml (off).
pub const NEVER_ARRIVES: Span = Span::from_secs(60);
/// A grant is watched for this long: on a slow disk, it takes minutes to fill.
/// Pinned by: scenarios/stream.toml (halved).
pub const GRANT_WATCHED: Span = Span::from_secs(120);
/// A grant is refuted if the guest still scans this part as fast.
/// Pinned by: scenarios/host-swaps.toml (doubled).
pub const STILL_SCANS: Part = Part::new(1, 2);
/// The first pause after a guest was hurt by a step of the search, and the time for which a guest that deflated its own balloon is not asked
/// for memory in use.
/// Pinned by: scenarios/both-in-use-deflate-on-oom.toml (halved), scenarios/starts-in-bursts.toml (off).
pub const HURT_PAUSE: Span = Span::from_secs(60);
/// The longest pause of a search.
/// Pinned by: scenarios/wrong-winner.toml (ten minutes).
pub const LONGEST_SEARCH_PAUSE: Span = Span::from_secs(3600);
/// The first time for which scans prove nothing.
/// Pinned by: scenarios/resets.toml (off), scenarios/stream.toml (doubled).
pub const FIRST_DEAF: Span = Span::from_secs(600);
/// The smallest step of a search, and the least torn memory that is worth a request.
/// Pinned by: scenarios/bursts-no-cache.toml (off), scenarios/at-rest-cold-cache.toml (doubled).
pub const LEAST_STEP: Bytes = Bytes::from_mib(16);
/// A step without urgency: this part of the cache that may be taken.
/// Pinned by: scenarios/found-hot-files-squeezed.toml (doubled), scenarios/migrates.toml (halved).
pub const STEP: Part = Part::new(1, 4);
/// Each report of a guest that does not use the room for its needed cache lowers that need by this part of the unused rest.
/// Pinned by: scenarios/bursts.toml (off), scenarios/bursts-no-deflate.toml (doubled).
pub const UNUSED: Part = Part::new(1, 8);
/// A guest of which neither scans nor reads from disks are told keeps this part of its size as cache.
/// No scenario pins it.
pub const BLIND_KEEPS: Part = Part::new(1, 16);

// Who gives, who grows, who waits.

/// Without urgency, a guest gives at most this part of its size a second: inflation takes its CPU time.
/// Pinned by: scenarios/stream-slow.toml (doubled), scenarios/wrong-winner.toml (halved).
pub const GENTLE: Part = Part::new(1, 8);
/// The shortest time between two gentle gifts of a guest: each new target is work for it.
/// Pinned by: scenarios/h31-oscillators.toml (off: two fifths more targets).
pub const GENTLE_EVERY: Span = Span::from_secs(1);
/// Cache is granted at the earliest this long after a change, so that guests do not take turns. Source: decision 0004.
/// Pinned by: scenarios/stream-slow.toml (off), scenarios/host-swaps.toml (doubled).
pub const CACHE_WAITS: Span = Span::from_secs(5);
/// The same for comfort.
/// Pinned by: scenarios/hot-cache-each-minute.toml (off).
pub const COMFORT_WAITS: Span = Span::from_secs(30);
/// Comfort of less than this part of a guest's size is not worth a change.
/// Pinned by: scenarios/hot-cache-each-minute.toml (halved).
pub const LEAST_COMFORT: Part = Part::new(1, 16);
/// A guest's torn pages are split at most this often. Meanwhile, no guest gives page cache for the memory that a split should return. Source: the
/// kernel was measured to return 409 MiB within 87 ms.
/// Pinned by: scenarios/torn-huge-pages.toml (halved).
pub const SPLIT_EVERY: Span = Span::from_secs(1);
/// A request to an agent that freed less than this part of what was asked for freed too little.
/// No scenario pins it.
pub const FREED_ENOUGH: Part = Part::new(1, 4);
/// An agent is asked for free memory in pieces at most this often: compaction takes the guest's CPU time, and a pass of reporting returns a
/// sixteenth of the pieces every two seconds (`mm/page_reporting.c`).
/// No scenario pins it.
pub const COMPACT_EVERY: Span = Span::from_secs(60);
/// The first pause after a split that returned nothing, an agent that freed too little, or a burst of KSM that saved too little.
/// Pinned by: scenarios/first-do-no-harm-tight.toml (halved), scenarios/sharing-in-vain.toml (off).
pub const FIRST_PAUSE: Span = Span::from_secs(10);

// Compressed tiers.

/// A guest whose kernel has written more than this to its tier since the last look, without being asked, swaps memory that it uses.
/// Pinned by: scenarios/tier-swaps-in-use.toml.
pub const SWAPS: Bytes = Bytes::from_mib(1);

/// A guest that was asked to swap to its tier until the pause is this long cannot: with [`FIRST_PAUSE`], it was asked three times.
pub const TIER_LOST: Span = Span::from_secs(40);

/// A guest writes at most this much at a time: a few seconds of a processor that compresses (0.5 GiB/s with lzo-rle, measured).
/// No scenario pins it.
pub const TIER_MOST: Bytes = Bytes::from_mib(1024);
/// A batch that was cold says this long that the next one is.
/// No scenario pins it.
pub const TIER_COLD: Span = Span::from_secs(60);
/// The first batch that a guest writes, the least size of a tier, and the least memory that programs keep.
/// No scenario pins it.
pub const TIER_LEAST: Bytes = Bytes::from_mib(16);
/// What was written to a tier is watched for this long.
/// No scenario pins it.
pub const TIER_WATCHED: Span = Span::from_secs(10);
/// And this long while memory is urgently wanted: growth at 20 MiB/s does not wait longer for batches of 64 MiB.
/// No scenario pins it.
pub const TIER_WATCHED_URGENTLY: Span = Span::from_secs(2);
/// If more than this part of it was read back meanwhile, it was in use.
/// No scenario pins it.
pub const READ_BACK: Part = Part::new(1, 16);
/// A tier is emptied if nobody has needed what it saves for this long.
/// No scenario pins it.
pub const TIER_UNWANTED: Span = Span::from_secs(600);
/// The pause after a tier whose contents did not compress.
/// No scenario pins it.
pub const VAIN_TIER: Span = Span::from_secs(3600);
/// The VMM is asked for changes of a guest's tier at most this often.
/// No scenario pins it.
pub const TIER_EVERY: Span = Span::from_secs(2);

// Guests that make no progress, or are left alone.

/// A smaller distance counts as arrived; a smaller step is no progress.
/// Pinned by: scenarios/gives-too-much.toml (off).
pub const TOLERANCE: Bytes = Bytes::from_mib(1);

/// The part of a guest's memory that it may lose before the host is known to gain. A smaller step is judged as if it were as large: half of it is more
/// than a footprint wavers by.
pub const PROBE: Part = Part::new(1, 64);
/// The mappings of a guest are read within this time after a step that seems to have brought nothing. If they cannot be read, its footprint decides.
pub const JUDGED_WITHIN: Span = Span::from_secs(1);
/// A guest without progress for this long is stuck, and is left out for as long, the first time. Source: squeezed's constant.
/// Pinned by: scenarios/gives-too-much.toml (off), scenarios/clock-jump.toml (halved, doubled).
pub const STUCK_AFTER: Span = Span::from_secs(5);
/// A guest without progress for this long is reported, and a request is given this long to return memory. Source: squeezed's constant; an agent
/// gives up a trim after 10 s.
/// Pinned by: scenarios/gives-too-much.toml (off, doubled).
pub const SAID_AFTER: Span = Span::from_secs(20);
/// The longest pause of a guest that makes no progress, or whose splits return nothing, and the time after which it is asked again whether KSM may merge
/// its memory.
/// No scenario pins it.
pub const LONGEST_PAUSE: Span = Span::from_secs(600);
/// A guest that never gave statistics is left alone for this long after its polling began, or after it was first seen: it boots.
/// No scenario pins it.
pub const BOOTS: Span = Span::from_secs(15);
/// A rise is somebody else's command once this part of it is available to the guest.
/// No scenario pins it.
pub const LIFTED_UNUSED: Part = Part::new(3, 4);

// The order, and the payment of grants.

/// The interval of reports: the statistics of managed guests are polled this often, agents report as often, and CPU time is counted over no less.
/// No scenario pins it.
pub const REPORTS_EVERY: Span = Span::from_secs(1);
/// A guest with at least this part of its size available gets nothing from the reserve, whatever it says about stalls.
/// Pinned by: scenarios/found-cache-before-used.toml (halved), scenarios/fault-says-all-available.toml (off).
pub const LITTLE_AVAILABLE: Part = Part::new(3, 8);

// KSM: bursts of scanning.

/// Less new memory than this is not worth a burst. A judgement.
/// No scenario pins it.
pub const KSM_LEAST_NEW: Bytes = Bytes::from_mib(64);
/// The same, as a part of all mergeable memory. A rise smaller than either does not count as growth. A judgement.
/// No scenario pins it.
pub const KSM_NEW_PART: Part = Part::new(1, 50);
/// This much new memory is always worth a burst. A judgement.
/// No scenario pins it.
pub const KSM_MUCH_NEW: Bytes = Bytes::from_mib(1024);
/// Memory counts as new after this time, and after twice as long at the latest. Goal: a late guest is merged within 30 s; a look at the processes each
/// 5 s and a burst of 6.5 s over 2 GiB are part of that.
/// No scenario pins it.
pub const KSM_SETTLES: Span = Span::from_secs(8);
/// New memory waits at most this long: for the rest of it, or after bursts that saved too little. A judgement.
/// No scenario pins it.
pub const KSM_WAITS_AT_MOST: Span = Span::from_secs(300);
/// The fewest passes of a burst: Linux remembers a page on its first pass and merges it on its second (since 6.11).
/// No scenario pins it.
pub const KSM_PASSES: u64 = 2;
/// The time over which `ksm.cpu` is averaged.
/// No scenario pins it.
pub const KSM_CPU_OVER: Span = Span::from_secs(600);
/// A burst begins, and goes on, with at least this much processor time, in microseconds. A judgement.
/// No scenario pins it.
pub const KSM_WAITS_FOR_US: i64 = 500_000;
/// After this much processor time, in microseconds, a third pass has shown whether it is worth it. A judgement: 100,000 pages.
/// No scenario pins it.
pub const KSM_TRIES_FOR_US: i64 = 250_000;
/// A host is busy if tasks wait for a processor for this long in each millisecond, in microseconds. A judgement.
/// No scenario pins it.
pub const KSM_BUSY_US: u64 = 250;
/// Pages that ksmd scans in a second of processor time at least: a third of the 400,000 that were measured.
/// No scenario pins it.
pub const KSM_SPEED: u64 = 133_000;
/// A pass may take this much more processor time than its pages need.
/// No scenario pins it.
pub const KSM_HANGS_AFTER: Span = Span::from_secs(10);
/// The pause after a pass that did not end.
/// No scenario pins it.
pub const KSM_RESTS_FOR: Span = Span::from_secs(3600);
/// The first pause and the longest before memtide looks again although nothing is new. A judgement: two passes over 2 GiB took 3 s.
/// No scenario pins it.
pub const KSM_LOOKS_AFTER: Span = Span::from_secs(15 * 60);
/// See [`KSM_LOOKS_AFTER`].
/// No scenario pins it.
pub const KSM_LONGEST_PAUSE: Span = Span::from_secs(86_400);

// Relations that the rules count on.
const _: () = {
    assert!(TOLERANCE.get() < LEAST_STEP.get() && LEAST_STEP.get() < LEAST_GRANT.get());
    assert!(LEAST_HEADROOM.get() < MOST_HEADROOM.get());
    assert!(SHORTEST_REACTION.as_millis() <= FIRST_REACTION.as_millis());
    assert!(FIRST_REACTION.as_millis() <= LONGEST_REACTION.as_millis());
    // A step is judged once its inflation's scans are over.
    assert!(
        SCANS_SETTLE.as_millis() < WATCHED.as_millis() && WATCHED.as_millis() < WATCHED_BLIND.as_millis()
    );
    assert!(WATCHED_BLIND.as_millis() < NEVER_ARRIVES.as_millis());
    assert!(FIRST_PAUSE.as_millis() < LONGEST_PAUSE.as_millis());
    assert!(HURT_PAUSE.as_millis() < LONGEST_SEARCH_PAUSE.as_millis());
    // An agent is heard before it is asked again.
    assert!(SAID_AFTER.as_millis() < COMPACT_EVERY.as_millis());
    // Cache is granted before comfort.
    assert!(CACHE_WAITS.as_millis() < COMFORT_WAITS.as_millis());
    assert!(KSM_LOOKS_AFTER.as_millis() < KSM_LONGEST_PAUSE.as_millis());
    assert!(KSM_TRIES_FOR_US < KSM_WAITS_FOR_US);
};

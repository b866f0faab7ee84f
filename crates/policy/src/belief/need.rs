//! The memory that a guest needs, in tiers.
//!
//! **Terms.** `used` is memory that the guest cannot do without: actual less the memory that its kernel calls available. `cache`
//! is page cache that can be dropped. `headroom` is room for growth before memtide can react.
//!
//! **Rule.** The tiers of a guest's need, each on top of the one before it:
//!
//! 1. *in use*: used memory and headroom, or more after a stall;
//! 2. *cache* that the guest was seen to need ([`crate::belief::search`]);
//! 3. *growth ahead*: the fastest growth that it has shown before, for the longest reaction time, beyond its present growth.
//!
//! - Statistics can be several ticks older than the balloon's reading. While a balloon moves, used memory is only known to lie
//!   between two values: those for the smallest and the largest actual since the statistics were made. The value nearest to the
//!   last one is taken; otherwise the balloon's own pages would look like the guest's need.
//! - Used memory counts at most the memory that the guest has touched: its footprint without the VMM's overhead, with merged and
//!   swapped memory added. For a guest that cannot deflate its own balloon, the free memory that its kernel cannot use counts, too.
//! - headroom: 1/32 of its size within 16 MiB and 512 MiB, plus its present growth within one reaction time, at most a quarter of
//!   its size. For a guest that cannot deflate its own balloon, the reaction time counts as at least 1 s.
//! - A guest that keeps cache also needs the free memory that its kernel keeps for itself, if that is more than its headroom.
//! - A stall (see [`Evidence`]) raises the memory in use at once to 5/4 of held memory, by at least 64 MiB, for 10 s. A raise ends at the
//!   size that the guest's shares alone would give it: beyond that, its word is not enough, and only memory that it uses counts, with the
//!   free memory that its kernel cannot use. Stalls during memtide's own inflation and 2 s after it do not count; OOM kills always do.
//! - Without fresh statistics, the guest needs what it holds: it gains nothing, and gives only memory beyond its share.
//!
//! **Properties.** A quiet guest has a constant need.

use memtide_model::{
    Agent, Balloon, Bytes, Config, DiskReads, GuestSeen, GuestState, GuestStats, Moment, Reading, Span,
};

use crate::belief::evidence::Evidence;
use crate::belief::ledger::Entry;
use crate::belief::{stuck, surge};
use crate::constants::{
    AGE_SLACK, DEAD_BAND, FIRST_REACTION, FOLLOWS, HEADROOM, KERNEL_KEEPS, KERNEL_KEEPS_AT_MOST, LEAST_GRANT,
    LEAST_HEADROOM, LONGEST_REACTION, MEMORY, MOST_GROWTH, MOST_HEADROOM, PIECES, RAISE, REPORTS_EVERY,
    RESET_SETTLES, SAME_WITHIN, STALL_HOLDS,
};

/// A guest's need, in parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// Memory that it cannot do without; `None` without fresh statistics.
    pub used: Option<Bytes>,
    /// Page cache that it holds and can drop.
    pub cache_held: Bytes,
    /// Page cache that its kernel does not call available: about its watermarks. memtide takes it only in an emergency,
    /// or for memory that others use.
    pub cache_beyond: Bytes,
    /// Page cache that it was seen to need.
    pub cache: Bytes,
    /// Page cache that its class keeps in any case.
    pub cache_kept: Bytes,
    /// Headroom for its present growth.
    pub headroom: Bytes,
    /// Free memory that its kernel keeps for itself, unless used memory counts it.
    pub kernel_keeps: Bytes,
    /// Free memory in small pieces: free page reporting does not return it, and a balloon takes it first. What an
    /// inflation for it left is not counted again.
    pub pieces: Bytes,
    /// The growth that it has shown before, for the longest reaction time, beyond its present growth.
    pub ahead: Bytes,
    /// Memory in use with headroom, and the free memory that its kernel cannot use.
    pub uses: Bytes,
    /// The size that it must have because it stalled.
    pub raised: Bytes,
    /// Whether it stalled since the last decision.
    pub stalls: bool,
    /// Evidence of its want; `None` without new fresh statistics.
    pub evidence: Option<Evidence>,
}

impl Need {
    /// Memory in use with headroom: it cannot wait.
    #[must_use]
    pub fn in_use(&self) -> Bytes {
        self.used.unwrap_or_default().saturating_add(self.headroom).max(self.raised)
    }

    /// The same, and `cache`. To keep cache, a kernel needs its own free memory, too.
    #[must_use]
    pub fn with(&self, cache: Bytes) -> Bytes {
        let free = if cache.is_zero() { self.headroom } else { self.headroom.max(self.kernel_keeps) };
        Bytes::sum([self.used.unwrap_or_default(), free, cache]).max(self.raised)
    }

    /// The whole need, without a limit.
    #[must_use]
    pub fn total(&self) -> Bytes {
        self.unraised().max(self.raised)
    }

    /// The same without the raise of a stall.
    #[must_use]
    pub fn unraised(&self) -> Bytes {
        Self { raised: Bytes::ZERO, ..*self }.with(self.cache).saturating_add(self.ahead)
    }

    /// The same of a guest that uses `more`, which lies in its tier.
    #[must_use]
    pub fn and_in_tier(self, more: Bytes) -> Self {
        let used = self.used.map(|used| used.saturating_add(more));
        Self { used, uses: self.uses.saturating_add(more), ..self }
    }

    /// Whether there is evidence of want.
    #[must_use]
    pub fn is_in_want(&self) -> bool {
        self.evidence.is_some_and(|evidence| evidence.kills || evidence.is_squeal())
    }

    /// Whether evidence would show allocations that wait.
    #[must_use]
    pub fn shows_stalls(&self) -> bool {
        self.evidence.is_some_and(|evidence| evidence.shows_stalls)
    }

    /// Whether evidence would show that page cache is missed.
    #[must_use]
    pub fn shows_refaults(&self) -> bool {
        self.evidence.is_some_and(|evidence| evidence.shows_refaults)
    }
}

/// What a guest's need depends on besides what was seen of it.
#[derive(Clone, Copy, Debug)]
pub struct Around {
    /// The size that its shares alone would give it.
    pub by_shares: Bytes,
    /// The reaction time.
    pub reaction: Span,
    /// Whether its kernel swaps memory that it uses to its tier.
    pub swaps: bool,
    /// Now.
    pub now: Moment,
}

/// A guest's need, without the cache that it was seen to need. Updates the state to remember in `next`.
#[must_use]
pub fn estimate(
    seen: &GuestSeen,
    entry: &Entry,
    around: Around,
    before: &GuestState,
    next: &mut GuestState,
) -> Need {
    let Around { by_shares, reaction, swaps, now } = around;
    let fresh = seen.told.stats.fresh().and_then(|stats| stats.available.map(|available| (stats, available)));
    let Some((stats, available)) = fresh.filter(|_| seen.has_driver()) else {
        return Need { raised: entry.held, ..Need::default() };
    };
    let made_within = age_of(&seen.told.stats);
    next.sizes.retain(|(ended, _)| now.since(*ended) <= made_within);
    let told = used(entry, before, &next.sizes, available);
    // A kernel cannot use its free memory below the watermarks, so the host never sees it touched.
    let unusable = stats.free.unwrap_or_default().saturating_sub(available).min(kernel_keeps(seen.told.full));
    let touched = touched(seen, entry, stats);
    // A guest that cannot deflate its own balloon would kill a program for want of it.
    let counted =
        if seen.deflates_itself() { Bytes::ZERO } else { unusable.min(told.saturating_sub(touched)) };
    let touched = touched.saturating_add(counted);
    let used = told.min(touched);
    if before.counters.is_some() && moved(entry, before) {
        next.sizes.push((now, before.actual));
    }
    let (cache_held, cache_beyond) = page_cache(stats, seen.told.full);
    let elapsed = since_the_last(&seen.told.stats, stats, before, next, now);
    // A guest that cannot deflate its own balloon kills a program where another one would stall.
    let reaction = if seen.deflates_itself() { reaction } else { reaction.max(FIRST_REACTION) };
    note_growth(used, elapsed, before, next, reaction);
    let evidence = hear(seen, stats, elapsed.unwrap_or_default(), before, next, now);
    let reset_lately = before.reset_at.is_some_and(|at| now.since(at) < RESET_SETTLES);
    let self_deflated = !reset_lately && deflated_itself(seen, entry, before);
    let excused = next.inflating_at.is_some_and(|at| now.since(at) < FOLLOWS);
    if self_deflated || keeps_more(seen, entry, used) {
        next.deflated_at = Some(now);
    }
    let stalls = evidence.kills || self_deflated || ((evidence.is_stalled() || swaps) && !excused);
    if stalls {
        next.stalled = Some(raise(seen.told.full, entry, before, now));
    } else if next.stalled.is_some_and(|(_, until)| until <= now) {
        next.stalled = None;
    }
    (next.counters, next.used) = (Some(stats.into()), used);
    next.told_since = next.told_since.or(Some(now));
    let most = MOST_GROWTH.of(seen.told.full);
    let present = next.growth.recent.min(most);
    let ahead = next.growth.peak.mul_div(LONGEST_REACTION.as_millis(), reaction.as_millis());
    let headroom = headroom_floor(seen.told.full).saturating_add(present);
    let raised = next.stalled.map_or(Bytes::ZERO, |(size, _)| size);
    let uses = told.min(touched.saturating_add(unusable.saturating_sub(counted))).saturating_add(headroom);
    Need {
        used: Some(used),
        cache_held,
        cache_beyond,
        cache: Bytes::ZERO,
        cache_kept: Bytes::ZERO,
        headroom,
        kernel_keeps: kernel_keeps(seen.told.full).saturating_sub(counted),
        pieces: pieces(seen, entry, stats, before, next),
        ahead: ahead.min(most).saturating_sub(present),
        uses,
        raised: raised.min(by_shares.max(uses)),
        stalls,
        evidence: Some(evidence),
    }
}

/// The page cache of a guest that can be dropped, and what its kernel does not call available of the rest.
fn page_cache(stats: &GuestStats, full: Bytes) -> (Bytes, Bytes) {
    let held = stats.droppable_cache();
    let beyond = stats.disk_caches.unwrap_or_default().saturating_sub(held);
    (held, beyond.min(kernel_keeps(full)))
}

/// Remembers how much more is used than at the last report, which came `elapsed` earlier; `None` if there is no new one. All that was touched in the
/// decisions between counts.
fn note_growth(
    used: Bytes,
    elapsed: Option<Span>,
    before: &GuestState,
    next: &mut GuestState,
    reaction: Span,
) {
    if let Some(elapsed) = elapsed {
        // The first statistics after a reset are of another kernel: what it uses is no growth.
        let growth = before.told_since.map_or(Bytes::ZERO, |_| used.saturating_sub(before.used_then));
        next.growth = surge::observe(before.growth, growth, elapsed, reaction, MEMORY);
    }
    if next.stats_of != before.stats_of {
        next.used_then = used;
    }
}

/// The evidence of all sources: statistics made `elapsed` after the last ones, disks, agent.
fn hear(
    seen: &GuestSeen,
    stats: &GuestStats,
    elapsed: Span,
    before: &GuestState,
    next: &mut GuestState,
    now: Moment,
) -> Evidence {
    let is_full = is_full(stats, seen.told.full);
    let has_tier = !seen.cost.tier.is_unsupported();
    let stats = if has_tier { &stats.without_swap() } else { stats };
    let evidence = Evidence::of_balloon(before.counters.as_ref(), stats, elapsed, is_full);
    let evidence = hear_disks(evidence, &seen.told.disks, is_full, before, next, now);
    hear_agent(evidence, &seen.told.agent, has_tier, before, next, now)
}

/// The evidence with what the guest reads from its disks.
fn hear_disks(
    evidence: Evidence,
    disks: &Reading<DiskReads>,
    is_full: bool,
    before: &GuestState,
    next: &mut GuestState,
    now: Moment,
) -> Evidence {
    let Reading::Fresh { value, age } = disks else { return evidence };
    let made = now.before(*age);
    // A program that starts within a tick is no rate.
    let last = before.disks.filter(|(_, at)| made.since(*at) >= REPORTS_EVERY);
    if last.is_some() || before.disks.is_none() {
        next.disks = Some((*value, made));
    }
    let elapsed = last.map_or(Span::ZERO, |(_, at)| made.since(at));
    evidence.with_disks(last.as_ref().map(|(reads, _)| reads), value, elapsed, is_full)
}

/// The evidence with that of the guest's agent.
fn hear_agent(
    evidence: Evidence,
    agent: &Reading<Agent>,
    has_tier: bool,
    before: &GuestState,
    next: &mut GuestState,
    now: Moment,
) -> Evidence {
    let Reading::Fresh { value, age } = agent else { return evidence };
    let made = now.before(*age);
    let waits = value.stalls.unwrap_or_default().io_some_us;
    let Some((counters, waited, at)) = before.agent.told else {
        next.agent.told = Some((value.counters, waits, made));
        return evidence.with_agent(None, value, has_tier, Span::ZERO);
    };
    if made.since(at) <= SAME_WITHIN {
        return evidence.with_agent(None, value, has_tier, Span::ZERO);
    }
    next.agent.told = Some((value.counters, waits, made));
    // An agent is silent while nothing changes: what changed did so within the last interval.
    evidence.with_agent(Some((&counters, waited)), value, has_tier, made.since(at).min(REPORTS_EVERY))
}

/// The most memory that a guest can be using: the memory that it has touched, here or in the host's swap. No kernel runs with less than
/// [`Config::LEAST_TARGET`]: a smaller footprint does not hold the guest's memory (huge pages of hugetlbfs are not resident), and tells
/// nothing.
///
/// An instance that can neither take memory nor return it by itself kills a program if it gets none. So what its kernel has reserved at boot, and may
/// have touched only in part, counts for it, too: `MemTotal` is that much less than its size. Where guests return freed memory by themselves, a host
/// may fit only because nobody counts that.
fn touched(seen: &GuestSeen, entry: &Entry, stats: &GuestStats) -> Bytes {
    if seen.cost.footprint.fresh().is_none() {
        return Bytes::MAX;
    }
    let touched = entry.touched().saturating_add(seen.cost.not_in_footprint());
    let moves = |balloon: &Balloon| balloon.deflate_on_oom || balloon.free_page_reporting;
    let by_itself = seen.told.balloon.fresh().is_some_and(moves);
    let total = stats.total.filter(|_| !by_itself).unwrap_or(entry.actual);
    let reserved = entry.actual.saturating_sub(total).min(kernel_keeps(seen.told.full));
    let most = touched.saturating_add(reserved);
    if touched < Config::LEAST_TARGET { Bytes::MAX } else { most }
}

/// Free memory in small pieces, without what an inflation left: as an agent counts it, else the free memory that the host backs. More than
/// [`PIECES`] of the guest's size is on its way back by itself. While the statistics can be older than the balloon's size, they tell nothing.
fn pieces(
    seen: &GuestSeen,
    entry: &Entry,
    stats: &GuestStats,
    before: &GuestState,
    next: &mut GuestState,
) -> Bytes {
    if !next.sizes.is_empty() {
        return Bytes::ZERO;
    }
    let not_free = entry.actual.saturating_sub(stats.free.unwrap_or_default());
    let backed = entry.touched().saturating_sub(not_free);
    let agent = seen.told.agent.fresh();
    if agent.is_some_and(|agent| agent.pieces_return) {
        return Bytes::ZERO;
    }
    let pieces = agent.map_or(backed, Agent::free_pieces).min(PIECES.of(seen.told.full));
    if before.agent.pieces_since.is_some() {
        // What reporting has returned of them is still in pieces.
        next.pieces_stay = pieces;
        return Bytes::ZERO;
    }
    next.pieces_stay = if gave_pieces(entry, before) { pieces } else { before.pieces_stay.min(pieces) };
    pieces.saturating_sub(next.pieces_stay)
}

/// Whether the first statistics have come of the size that an inflation for pieces left.
fn gave_pieces(entry: &Entry, before: &GuestState) -> bool {
    before.took_pieces && stuck::at_target(entry) && !before.sizes.is_empty()
}

/// The time between these statistics and the last ones. `None` for the first ones, and for those of the last decision: a quiet guest
/// is not asked at each tick, and a count over two seconds is no rate over a quarter of a second.
fn since_the_last(
    reading: &Reading<GuestStats>,
    stats: &GuestStats,
    before: &GuestState,
    next: &mut GuestState,
    now: Moment,
) -> Option<Span> {
    let age = match reading {
        Reading::Fresh { age, .. } => *age,
        _ => Span::ZERO,
    };
    let made = now.before(age);
    let Some(last) = before.stats_of else {
        next.stats_of = Some(made);
        return None;
    };
    let same = before.counters == Some(stats.into());
    if same && made.since(last) <= SAME_WITHIN {
        return None;
    }
    next.stats_of = Some(made);
    Some(made.since(last))
}

/// Used memory; `sizes` are sizes before the last one that the statistics can refer to.
fn used(entry: &Entry, before: &GuestState, sizes: &[(Moment, Bytes)], available: Bytes) -> Bytes {
    if before.counters.is_none() {
        return entry.actual.saturating_sub(available);
    }
    let (least, most) = sizes
        .iter()
        .map(|(_, actual)| *actual)
        .chain([before.actual])
        .fold((entry.actual, entry.actual), |(least, most), actual| (least.min(actual), most.max(actual)));
    before.used.clamp(least.saturating_sub(available), most.saturating_sub(available))
}

/// The age of a reading plus its possible error.
fn age_of<T>(reading: &Reading<T>) -> Span {
    match reading {
        Reading::Fresh { age, .. } | Reading::Stale { age, .. } => {
            Span::from_millis(age.as_millis() + AGE_SLACK.as_millis())
        }
        Reading::Absent { .. } => Span::ZERO,
    }
}

/// Whether the balloon moved since the last decision.
fn moved(entry: &Entry, before: &GuestState) -> bool {
    entry.actual != before.actual
}

/// Whether the guest deflated its balloon beyond its target by itself since the last decision. A size that was not told before is no deflation.
#[must_use]
pub fn deflated_itself(seen: &GuestSeen, entry: &Entry, before: &GuestState) -> bool {
    let may = seen.told.balloon.fresh().is_some_and(|balloon| balloon.deflate_on_oom);
    may && before.gain.full == seen.told.full
        && before.target.is_some_and(|target| {
            entry.actual > before.actual.max(target).saturating_add(dead_band(seen.told.full))
        })
}

/// Whether a guest holds more than its target and uses it: what it took by itself does not come back.
fn keeps_more(seen: &GuestSeen, entry: &Entry, used: Bytes) -> bool {
    let is_beyond = entry.actual > entry.target.saturating_add(dead_band(seen.told.full));
    seen.deflates_itself() && is_beyond && used > entry.target
}

/// The size after a stall. A raise that is not granted yet is not raised again.
fn raise(full: Bytes, entry: &Entry, before: &GuestState, now: Moment) -> (Bytes, Moment) {
    let size = match before.stalled {
        Some((size, _)) if entry.actual.saturating_add(dead_band(full)) < size => size,
        _ => entry.held.saturating_add(RAISE.of(entry.held).max(LEAST_GRANT)),
    };
    (size, now.after(STALL_HOLDS))
}

/// The headroom of a guest that does not grow: 1/32 of its size within 16 MiB and 512 MiB.
#[must_use]
pub fn headroom_floor(full: Bytes) -> Bytes {
    HEADROOM.of(full).clamp(LEAST_HEADROOM, MOST_HEADROOM)
}

/// Free memory that a guest's kernel keeps for itself (watermarks, per-CPU lists): 5/64 of its size, at most 160 MiB. Guests of 1 GiB under
/// pressure had 57 to 75 MiB free. No balloon brings it back without taking cache.
#[must_use]
pub fn kernel_keeps(full: Bytes) -> Bytes {
    KERNEL_KEEPS.of(full).min(KERNEL_KEEPS_AT_MOST)
}

/// Whether a guest's free memory is filled: little more is free than its kernel keeps.
#[must_use]
pub fn is_full(stats: &GuestStats, full: Bytes) -> bool {
    stats.free.is_none_or(|free| free <= kernel_keeps(full).saturating_add(dead_band(full)))
}

/// A smaller change of a target is not worth making: half of the headroom of a guest that does not grow.
#[must_use]
pub fn dead_band(full: Bytes) -> Bytes {
    DEAD_BAND.of(headroom_floor(full))
}

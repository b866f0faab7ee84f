//! KSM in bursts: when the kernel looks for equal pages, and when it stops.
//!
//! **Problem.** At its default pace, KSM takes hours to find what it could find in seconds. At full speed it finds it in seconds, and then burns
//! a processor forever.
//!
//! **Rule.**
//! - Memory is *new* if no burst has seen it: mergeable memory beyond that of the last burst, as far as it has been there for some seconds. What takes the place of a
//!   process that has left is new, too.
//!   Once enough of it is there and it does not grow any more, a burst begins: the kernel scans at full speed.
//! - A burst makes at least two complete passes, because Linux (since 6.11) only remembers a page on its first one. Then it ends as soon as
//!   the present pass saves less than `ksm.worth` for each second of processor time.
//! - Memory that comes and goes is new each time. So a burst for new memory that saved too little is followed by a pause, which doubles each time up to
//!   five minutes.
//! - Contents can become equal later. So a burst also begins after a long pause, which doubles each time that this was not worth it. Its passes leave no
//!   page out: two old pages of which the kernel skips one at each pass would never meet.
//! - The kernel gets `ksm.cpu` of one processor on average, and at most what ten minutes give at once. On a busy host it gets a quarter of that. A burst
//!   that has used it up waits, in the middle of its pass.
//! - If the processor time of the kernel's thread cannot be read, it counts as a whole processor while the kernel scans.
//! - A pass that takes far more processor time than its pages need is stopped: the kernel walks through holes.
//! - If the settings are not those that memtide wrote, somebody else sets KSM. memtide then only observes.
//!
//! **Property.** Without new memory, the processor time of all bursts in a day is bounded by the pauses, and always by `ksm.cpu`.

pub mod sharing;

use memtide_model::{
    Action, BackOff, Bytes, Config, KsmBurst, KsmLeast, KsmMark, KsmOrder, KsmReason, KsmReport, KsmRun,
    KsmSeen, KsmState, KsmVerdict, Moment, Plan, Reading, Reason, Request, Share, Span,
};

use crate::constants::{
    FIRST_PAUSE, KSM_BUSY_US, KSM_CPU_OVER, KSM_HANGS_AFTER, KSM_LEAST_NEW, KSM_LONGEST_PAUSE,
    KSM_LOOKS_AFTER, KSM_MUCH_NEW, KSM_NEW_PART, KSM_PASSES, KSM_RESTS_FOR, KSM_SETTLES, KSM_SPEED,
    KSM_TRIES_FOR_US, KSM_WAITS_AT_MOST, KSM_WAITS_FOR_US,
};

/// Decides about KSM, and adds its order to the plan. Returns what it remembers, and its part of the report. No burst begins while guests `must_come_apart`.
#[must_use]
pub fn decide(
    config: &Config,
    before: &KsmState,
    seen: &Reading<KsmSeen>,
    must_come_apart: bool,
    now: Moment,
    plan: &mut Plan,
) -> (KsmState, Option<KsmReport>) {
    let mut next = before.clone();
    if !config.governs_ksm() {
        // An operator who lets memtide govern again has told it otherwise.
        (next.found, next.written, next.tried) = (None, None, None);
        (next.burst, next.foreign_since) = (None, None);
    }
    // What cannot be read is as it was.
    let Some(seen) = seen.fresh() else { return (next, None) };
    let Governed { next, order, verdict } = govern(config, next, seen, must_come_apart, now);
    if let Some((order, reason)) = order {
        plan.actions.push(Action::of_host(Request::Merge(order), Reason::Ksm(reason)));
    }
    let mut seen = seen.clone();
    seen.settings = order.map_or(seen.settings, |(order, _)| order.after(seen.settings));
    let report = KsmReport {
        verdict,
        seen,
        found: next.found,
        burst_ended_with: next.burst_ended_with,
        allowance: Span::from_millis(u64::try_from(next.allowance_us / 1_000).unwrap_or_default()),
        last_reason: next.last_reason,
    };
    (next, Some(report))
}

/// What the governor does now.
struct Governed {
    /// What it remembers.
    next: KsmState,
    /// What it asks for.
    order: Option<(KsmOrder, KsmReason)>,
    /// What it is doing.
    verdict: KsmVerdict,
}

/// Decides about KSM as it was `seen` at `now`.
fn govern(
    config: &Config,
    mut next: KsmState,
    seen: &KsmSeen,
    must_come_apart: bool,
    now: Moment,
) -> Governed {
    let mark = mark(&next, seen, now);
    next.allowance_us = allowance_us(config.ksm.cpu, &next, seen, mark);
    let last = next.last.replace(mark);
    next.told_cpu_time = seen.cpu_time;
    let left = last.map_or(Bytes::ZERO, |last| seen.left.saturating_sub(last.left));
    next.scanned = next.scanned.saturating_sub(left).min(seen.mergeable);
    next.least = match last {
        Some(_) => least(next.least, seen.mergeable, now),
        // What is there at the beginning has been there before.
        None => KsmLeast { before: seen.mergeable, now: seen.mergeable, since: now },
    };
    let rise = last.map_or(Bytes::ZERO, |last| seen.saved_in_all().saturating_sub(last.saved));
    if let Some(burst) = &mut next.burst {
        burst.gained = burst.gained.saturating_add(rise);
        burst.gained_in_pass = burst.gained_in_pass.saturating_add(rise);
    }
    if next.tried.is_some_and(|tried| tried.are(seen.settings)) {
        // An order of which nobody knew was carried out.
        next.written = next.tried.take();
    }
    if last.is_none() && !next.written.is_some_and(|written| written.are(seen.settings)) {
        // The settings of a former run were put back.
        (next.found, next.written, next.tried) = (None, None, None);
    }
    if !config.governs_ksm() {
        return Governed { next, order: None, verdict: KsmVerdict::Observes };
    }
    if is_foreign(&next, seen) {
        next.foreign_since = Some(next.foreign_since.unwrap_or(now));
        next.burst = None;
        return Governed { next, order: None, verdict: KsmVerdict::Foreign };
    }
    if next.rests_until.is_some_and(|until| now < until) {
        let verdict = if next.tried.is_some() { KsmVerdict::Retries } else { KsmVerdict::Rests };
        return Governed { next, order: None, verdict };
    }
    let (order, verdict) = match next.burst {
        Some(burst) => go_on(config.ksm.worth, &mut next, burst, seen, mark),
        None if must_come_apart && seen.settings.run != KsmRun::Scanning => (None, KsmVerdict::Separates),
        None => begin(&mut next, seen, mark),
    };
    if let Some((order, reason)) = order {
        next.found = Some(next.found.unwrap_or(seen.settings.to_put_back()));
        (next.written, next.tried) = (Some(order.after(seen.settings)), None);
        next.last_reason = Some((now, reason));
    }
    Governed { next, order, verdict }
}

/// The least mergeable memory of late.
fn least(before: KsmLeast, mergeable: Bytes, now: Moment) -> KsmLeast {
    if now.since(before.since) < KSM_SETTLES {
        KsmLeast { now: before.now.min(mergeable), ..before }
    } else {
        KsmLeast { before: before.now, now: mergeable, since: now }
    }
}

/// Whether somebody else sets KSM: a program is known to, or the settings are not those that memtide wrote.
fn is_foreign(state: &KsmState, seen: &KsmSeen) -> bool {
    let was_changed = match state.written {
        Some(written) => !written.are(seen.settings),
        None => !seen.others.is_empty(),
    };
    state.foreign_since.is_some() || was_changed
}

/// Processor time that the kernel may spend now, in microseconds. What it spends on somebody else's order does not count.
fn allowance_us(cpu: Share, before: &KsmState, seen: &KsmSeen, mark: KsmMark) -> i64 {
    let most = part_us(cpu, KSM_CPU_OVER);
    let Some(last) = before.last else { return most };
    let elapsed = mark.at.since(last.at);
    let earned = part_us(cpu, elapsed) / if is_busy(last, seen, elapsed) { 4 } else { 1 };
    let spent = match before.burst {
        Some(_) => us(mark.cpu_time.saturating_sub(last.cpu_time)),
        None => 0,
    };
    before.allowance_us.saturating_add(earned).min(most).saturating_sub(spent)
}

/// Whether tasks have waited for a processor for much of the time.
fn is_busy(last: KsmMark, seen: &KsmSeen, elapsed: Span) -> bool {
    let waited = last.waited_us.zip(seen.waited_us).map(|(before, after)| after.saturating_sub(before));
    waited.is_some_and(|waited| waited > KSM_BUSY_US.saturating_mul(elapsed.as_millis()))
}

/// This share of a time, in microseconds.
fn part_us(share: Share, of: Span) -> i64 {
    us(of).saturating_mul(i64::from(share.basis_points())) / 10_000
}

fn us(span: Span) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX).saturating_mul(1_000)
}

fn mark(before: &KsmState, seen: &KsmSeen, now: Moment) -> KsmMark {
    let cpu_time = match before.last {
        Some(last) => last.cpu_time.plus(spent(before, last, seen, now)),
        None => Span::ZERO,
    };
    KsmMark {
        at: now,
        full_scans: seen.full_scans,
        saved: seen.saved_in_all(),
        cpu_time,
        waited_us: seen.waited_us,
        left: seen.left,
    }
}

/// Processor time of the kernel's thread since the `last` decision.
fn spent(before: &KsmState, last: KsmMark, seen: &KsmSeen, now: Moment) -> Span {
    match (before.told_cpu_time, seen.cpu_time) {
        (Some(before), Some(after)) => after.saturating_sub(before),
        _ if before.burst.is_some_and(|burst| !burst.waits) => now.since(last.at),
        _ => Span::ZERO,
    }
}

type Decided = (Option<(KsmOrder, KsmReason)>, KsmVerdict);

/// Begins a burst if there is a reason.
fn begin(next: &mut KsmState, seen: &KsmSeen, began: KsmMark) -> Decided {
    let now = began.at;
    if seen.settings.run == KsmRun::Scanning {
        return (Some((KsmOrder::Stop, KsmReason::TakenOver)), KsmVerdict::Sleeps);
    }
    let steady = next.least.before.min(next.least.now);
    let new = steady.saturating_sub(next.scanned);
    let grows = seen.mergeable > steady.saturating_add(KSM_LEAST_NEW.max(KSM_NEW_PART.of(steady)));
    let is_much = new >= KSM_LEAST_NEW.max(KSM_NEW_PART.of(seen.mergeable).min(KSM_MUCH_NEW));
    next.new_since = if is_much { Some(next.new_since.unwrap_or(now)) } else { None };
    let waited = next.new_since.map_or(Span::ZERO, |since| now.since(since));
    let reason = if is_much {
        // Some memory never rests. The rest of the new memory does not wait for it.
        if grows && waited < KSM_WAITS_AT_MOST {
            return (None, KsmVerdict::Settles { new });
        }
        if next.in_vain.lasts(now) {
            return (None, KsmVerdict::InVain { new });
        }
        KsmReason::NewMemory { new }
    } else {
        let is_due = next.looks_again.until.is_some() && !next.looks_again.lasts(now);
        if !is_due || seen.mergeable < KSM_LEAST_NEW {
            return (None, KsmVerdict::Sleeps);
        }
        KsmReason::LooksAgain { mergeable: seen.mergeable }
    };
    if next.allowance_us < KSM_WAITS_FOR_US {
        return (None, KsmVerdict::Waits);
    }
    let smart = is_much;
    // The last scan has stopped in the middle of a pass, and new processes are not in the rest of it.
    let is_first = seen.full_scans == 0 && next.written.is_none();
    let least_passes = if is_first { KSM_PASSES } else { KSM_PASSES + 1 };
    next.new_since = None;
    next.burst = Some(KsmBurst {
        began,
        mergeable: seen.mergeable,
        pass: began,
        least_passes,
        gained: Bytes::ZERO,
        gained_in_pass: Bytes::ZERO,
        smart,
        waits: false,
    });
    (Some((KsmOrder::Scan { smart }, reason)), KsmVerdict::Bursts { passes: 0 })
}

/// Goes on with a burst, or ends it.
fn go_on(worth: Bytes, next: &mut KsmState, mut burst: KsmBurst, seen: &KsmSeen, mark: KsmMark) -> Decided {
    let now = mark.at;
    let cpu_time = mark.cpu_time.saturating_sub(burst.pass.cpu_time);
    let passes = seen.full_scans.saturating_sub(burst.began.full_scans);
    let verdict = KsmVerdict::Bursts { passes };
    if seen.mergeable < KSM_LEAST_NEW {
        // Its processes have left. Without any, no pass comes to an end, and nobody knows what it was worth.
        rest(next, burst, seen, BackOff::default(), now);
        let reason = KsmReason::NotWorthIt { saved: Bytes::ZERO, cpu_time };
        return ((!burst.waits).then_some((KsmOrder::Stop, reason)), KsmVerdict::Sleeps);
    }
    if burst.waits {
        if next.allowance_us < KSM_WAITS_FOR_US {
            return (None, KsmVerdict::Waits);
        }
        next.burst = Some(KsmBurst { waits: false, ..burst });
        return (Some((KsmOrder::Scan { smart: burst.smart }, KsmReason::GoesOn)), verdict);
    }
    let is_end_of_pass = seen.full_scans > burst.pass.full_scans;
    let is_tried = is_end_of_pass
        || (burst.pass.full_scans > burst.began.full_scans && us(cpu_time) >= KSM_TRIES_FOR_US);
    if passes >= burst.least_passes && is_tried && !is_worth(burst.gained_in_pass, cpu_time, worth) {
        end(worth, next, burst, seen, mark);
        let reason = KsmReason::NotWorthIt { saved: burst.gained_in_pass, cpu_time };
        return (Some((KsmOrder::Stop, reason)), KsmVerdict::Sleeps);
    }
    if is_end_of_pass {
        burst.pass = mark;
        burst.gained_in_pass = Bytes::ZERO;
        next.burst = Some(burst);
        return (None, verdict);
    }
    let pages = seen.mergeable.get() >> 12;
    let longest = Span::from_millis(pages.saturating_mul(1_000) / KSM_SPEED).plus(KSM_HANGS_AFTER);
    if cpu_time > longest {
        next.burst = None;
        next.burst_ended_with = Some(seen.saved_in_all());
        next.scanned = seen.mergeable;
        next.looks_again = next.looks_again.again(now, KSM_RESTS_FOR, KSM_LONGEST_PAUSE);
        next.rests_until = Some(now.after(KSM_RESTS_FOR));
        return (Some((KsmOrder::Stop, KsmReason::Hangs { cpu_time })), KsmVerdict::Rests);
    }
    if next.allowance_us <= 0 {
        next.burst = Some(KsmBurst { waits: true, ..burst });
        return (Some((KsmOrder::Stop, KsmReason::NoCpuTime)), KsmVerdict::Waits);
    }
    (None, verdict)
}

/// Ends a burst, and chooses the pauses by what it was worth.
fn end(worth: Bytes, next: &mut KsmState, burst: KsmBurst, seen: &KsmSeen, mark: KsmMark) {
    let now = mark.at;
    let cpu_time = mark.cpu_time.saturating_sub(burst.began.cpu_time);
    let is_worth = is_worth(burst.gained, cpu_time, worth);
    let looked_in_vain = !burst.smart && !is_worth;
    let pause = if looked_in_vain { next.looks_again } else { BackOff::default() };
    rest(next, burst, seen, pause, now);
    if is_worth {
        next.in_vain = BackOff::default();
    } else if burst.smart {
        next.in_vain = next.in_vain.again(now, FIRST_PAUSE, KSM_WAITS_AT_MOST);
    }
}

/// What a burst has seen is not new any more, and memtide looks again after a pause that follows `pause`.
fn rest(next: &mut KsmState, burst: KsmBurst, seen: &KsmSeen, pause: BackOff, now: Moment) {
    next.looks_again = pause.again(now, KSM_LOOKS_AFTER, KSM_LONGEST_PAUSE);
    let left = seen.left.saturating_sub(burst.began.left);
    next.scanned = burst.mergeable.saturating_sub(left).min(seen.mergeable);
    next.burst_ended_with = Some(seen.saved_in_all());
    next.burst = None;
}

/// Whether a saving is worth its processor time.
fn is_worth(saved: Bytes, cpu_time: Span, worth: Bytes) -> bool {
    saved.mul_div(1_000, 1) >= worth.mul_div(cpu_time.as_millis(), 1) && !saved.is_zero()
}

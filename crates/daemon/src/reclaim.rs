//! `POST /v1/reclaims`: the guest's agent drops page cache, its balloon takes free memory in small pieces, and the answer waits until the host has it
//! back.
//!
//! **Rule.** The agent is asked for at most 1 GiB at a time, and again as long as the host gets what it frees; then the balloon is asked once.
//! A guest is reclaimed by one client at a time; one that hangs up ends it.

use std::sync::Arc;
use std::time::Duration;

use memtide_api::reclaim::{LONGEST, Offer, ReclaimAnswer, ReclaimRequest, Reclaimed, droppable};
use memtide_api::view::{CgroupReclaimRequest, GuestDetail, HoldRequest, Wanted};
use memtide_engine::Published;
use memtide_model::{Bytes, Mode, Moment};
use tokio::sync::broadcast::Receiver;
use tokio::time::{Instant, timeout};

use crate::bounded::Lease;
use crate::operator::{Means, Refusal, hold, take};
use crate::sources::Sources;

/// Free page reporting returns freed memory within 2 to 8 s. After this time without any, no more is expected.
const SETTLES: Duration = Duration::from_secs(10);
/// The longest wait for one order.
const ONE_ORDER: Duration = Duration::from_secs(30);
/// The longest time between two looks at the guest.
const LOOKS: Duration = Duration::from_millis(500);
/// Less is not worth waiting for.
const LITTLE: Bytes = Bytes::from_mib(4);

/// A guest whose memory is being reclaimed.
struct Job<'a> {
    sources: &'a Sources,
    lease: Option<Lease>,
    guest: GuestDetail,
    ticks: Receiver<Arc<Published>>,
    /// The least that the guest has cost the host so far.
    least: Bytes,
    ends: Instant,
}

/// Reclaims what the request asks for.
pub(crate) async fn reclaim(
    sources: &Sources,
    lease: Option<Lease>,
    request: &ReclaimRequest,
) -> Result<ReclaimAnswer, Refusal> {
    let name = &request.guest;
    let guest = find(sources, name).ok_or(Refusal::NoSuchGuest)?;
    let unknown = |what| Refusal::NotNow(format!("{name}: {what}"));
    let cost = guest.status.report.footprint.ok_or_else(|| unknown("nobody knows what it costs the host"))?;
    let offer = Offer::of(&guest.seen.told).ok_or_else(|| {
        unknown("neither an agent nor its balloon's statistics tell what it has; `memtide doctor` says why")
    })?;
    let wanted = match (request.by, request.to) {
        (Some(by), _) => by,
        (None, Some(to)) => cost.saturating_sub(to),
        (None, None) => offer.in_all(),
    };
    let no_agent = guest.seen.told.agent.why_not().map(|why| why.to_string());
    let answer = ReclaimAnswer { guest: name.clone(), cost, wanted, offer, no_agent, done: None, held: None };
    if request.dry_run {
        return Ok(answer);
    }
    if guest.mode == Mode::Observe {
        return Err(unknown("this memtide only observes"));
    }
    let id = guest.seen.id.clone();
    let _turn =
        sources.orders.turn_at(&id)?.ok_or_else(|| unknown("somebody else is reclaiming its memory"))?;
    let ticks = sources.events.subscribe();
    let ends = Instant::now() + LONGEST;
    let mut job = Job { sources, lease, guest, ticks, least: cost, ends };
    let done = job.run(&answer, request.by.is_none() && request.to.is_none()).await?;
    let held = match request.hold {
        Some(span) => {
            let request = HoldRequest { guest: Some(name.clone()), hold: Wanted::Hold, for_span: Some(span) };
            Some(hold(sources, &request).await?)
        }
        None => None,
    };
    Ok(ReclaimAnswer { done: Some(done), held, ..answer })
}

fn find(sources: &Sources, name: &str) -> Option<GuestDetail> {
    GuestDetail::find(&sources.board.latest(), &sources.history, name)
}

impl Job<'_> {
    /// Page cache first, then free memory.
    async fn run(&mut self, asked: &ReclaimAnswer, for_all: bool) -> Result<Reclaimed, Refusal> {
        let begun = Instant::now();
        // No more can come back than it costs.
        let wanted = asked.wanted.min(asked.cost);
        let of_cache = if for_all { asked.offer.cache } else { wanted };
        let (dropped, failed) = self.drop_cache(of_cache).await?;
        let fetched = self.fetch(wanted.saturating_sub(asked.cost.saturating_sub(self.least))).await?;
        let back = asked.cost.saturating_sub(self.least);
        // Without an amount, what came back is what could be had.
        let enough = back.saturating_add(LITTLE) >= wanted || (for_all && back >= LITTLE);
        let took = begun.elapsed().into();
        Ok(Reclaimed { dropped, fetched, back, cost: self.least, took, enough, failed })
    }

    /// Gives orders until the agent has dropped what is wanted, or the host gets little more. Returns what it dropped, and why not more.
    async fn drop_cache(&mut self, wanted: Bytes) -> Result<(Bytes, Option<String>), Refusal> {
        let mut dropped = Bytes::ZERO;
        loop {
            let agent = self.guest.seen.told.agent.latest().cloned().unwrap_or_default();
            let missing = wanted.saturating_sub(dropped);
            let bytes = missing.min(droppable(&agent)).min(CgroupReclaimRequest::MOST);
            if bytes.is_zero() || (bytes < LITTLE && !dropped.is_zero()) || Instant::now() >= self.ends {
                return Ok((dropped, None));
            }
            let asked_at = match self.order(Means::Agent, bytes).await? {
                Ok(at) => at,
                Err(why) => return Ok((dropped, Some(why))),
            };
            let before = self.least;
            // It may end an earlier request first, for example a limit that memtide has just told it.
            let ended = |guest: &GuestDetail| {
                let now = guest.seen.told.agent.latest().filter(|_| guest.now > asked_at)?;
                (now.ended > agent.ended && !now.busy).then_some(now.freed)
            };
            let freed = self.wait(ended).await?;
            dropped = dropped.saturating_add(freed);
            // An agent's word is not enough: the host must have got something.
            if freed < bytes.mul_div(1, 4) || before.saturating_sub(self.least) < LITTLE {
                return Ok((dropped, None));
            }
        }
    }

    /// Lets the guest's balloon take free memory, if much is `missing`. Returns what it was asked to take. It is asked once: what it leaves is little, and
    /// takes as long.
    async fn fetch(&mut self, missing: Bytes) -> Result<Bytes, Refusal> {
        let free = Offer::of(&self.guest.seen.told).map_or(Bytes::ZERO, |offer| offer.free);
        let bytes = free.min(missing).min(CgroupReclaimRequest::MOST);
        // Page cache that is back is worth more than a complaint about the rest.
        if bytes < LITTLE || Instant::now() >= self.ends || self.order(Means::Balloon, bytes).await?.is_err()
        {
            return Ok(Bytes::ZERO);
        }
        self.wait(|_| Some(bytes)).await?;
        Ok(bytes)
    }

    /// Gives an order. Returns when it was carried out, or why it was not.
    async fn order(&self, means: Means, bytes: Bytes) -> Result<Result<Moment, String>, Refusal> {
        let status = &self.guest.status;
        self.extend_lease();
        Ok(match take(self.sources, (&self.guest.seen.id, &status.name), means, bytes).await? {
            None => {
                Err(format!("not asked so far ({}); check `memtide explain {}`", status.state, status.name))
            }
            Some(tried) => tried.failed.map_or(Ok(tried.at), Err),
        })
    }

    /// Waits until the host has the memory back, or gets no more of it. `freed` is the memory that became free, once that is known.
    async fn wait(&mut self, freed: impl Fn(&GuestDetail) -> Option<Bytes>) -> Result<Bytes, Refusal> {
        let (begun, before) = (Instant::now(), self.least);
        let (mut known, mut fell_at) = (None, begun);
        loop {
            self.extend_lease();
            // Ticks that were missed do not matter: the latest one is looked at.
            let _ = timeout(LOOKS, self.ticks.recv()).await;
            let name = &self.guest.status.name;
            self.guest = find(self.sources, name)
                .filter(|now| now.seen.id == self.guest.seen.id)
                .ok_or_else(|| Refusal::NotNow(format!("{name}: it has ended")))?;
            known = known.or_else(|| freed(&self.guest));
            let now = self.guest.status.report.footprint.unwrap_or(self.least);
            if now.saturating_add(LITTLE) <= self.least {
                fell_at = Instant::now();
            }
            self.least = self.least.min(now);
            let is_back = |freed| before.saturating_sub(self.least).saturating_add(LITTLE) >= freed;
            let settled = known.is_some_and(|freed| is_back(freed) || fell_at.elapsed() >= SETTLES);
            if settled || begun.elapsed() >= ONE_ORDER || Instant::now() >= self.ends {
                return Ok(known.unwrap_or_default());
            }
        }
    }

    /// The client's connection lasts until the next look, and longer than the wait for a decision.
    fn extend_lease(&self) {
        if let Some(lease) = &self.lease {
            lease.extend(ONE_ORDER);
        }
    }
}

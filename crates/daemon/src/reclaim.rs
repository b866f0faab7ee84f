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

use crate::bounded::Client;
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
    client: Client,
    guest: GuestDetail,
    ticks: Receiver<Arc<Published>>,
    /// The least that the guest has cost the host so far.
    least: Bytes,
    ends: Instant,
}

/// Reclaims what the request asks for.
pub(crate) async fn reclaim(
    sources: &Sources,
    client: Client,
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
    let turn = sources.orders.turn_at(client.user, &id)?;
    let _turn = turn.ok_or_else(|| unknown("somebody else is reclaiming its memory"))?;
    let ticks = sources.events.subscribe();
    let ends = Instant::now() + LONGEST;
    let user = client.user;
    let mut job = Job { sources, client, guest, ticks, least: cost, ends };
    let done = job.run(&answer, request.by.is_none() && request.to.is_none()).await?;
    let held = match request.hold {
        Some(span) => {
            let request = HoldRequest { guest: Some(name.clone()), hold: Wanted::Hold, for_span: Some(span) };
            Some(hold(sources, user, &request).await?)
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
        Ok(
            match take(self.sources, self.client.user, (&self.guest.seen.id, &status.name), (means, bytes))
                .await?
            {
                None => Err(format!(
                    "not asked so far ({}); check `memtide explain {}`",
                    status.state, status.name
                )),
                Some(tried) => tried.failed.map_or(Ok(tried.at), Err),
            },
        )
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
        self.client.lease.extend(ONE_ORDER);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use memtide_api::history::History;
    use memtide_engine::{Applied, ApplyError, Asking, Engine, Wake, World};
    use memtide_model::{
        Absence, Action, Agent, AgentMemory, Answer, Backend, Balloon, Capabilities, Config, Cost, Deed,
        GuestId, GuestSeen, HostSeen, Polling, Reading, Request, Snapshot, Span, Told, WallClock,
    };

    use super::*;
    use crate::bounded::Lease;
    use crate::orders::Orders;

    const GUEST: Bytes = Bytes::from_mib(64 << 10);
    const CACHE: Bytes = Bytes::from_mib(40 << 10);
    const TICKS: Span = Span::from_millis(500);
    /// What the host gets back between two ticks: 1 GiB takes 26 s.
    const BACK: Bytes = Bytes::from_mib(20);

    /// A host with a guest whose agent drops all that it is asked to drop at once, and whose VMM returns it slowly.
    struct Slow {
        now: Moment,
        id: GuestId,
        orders: Orders,
        history: History,
        cache: Bytes,
        cost: Bytes,
        ended: u64,
        freed: Bytes,
        /// What happens once it was asked to drop page cache.
        then: Then,
    }

    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Then {
        Stays,
        Ends,
        /// Another guest has its name.
        StartsAgain,
    }

    impl Slow {
        fn told(&self) -> Told {
            let balloon = Balloon { actual: GUEST, deflate_on_oom: true, free_page_reporting: true };
            let memory = AgentMemory {
                total: GUEST,
                available: self.cache,
                unmapped_cache: self.cache,
                ..AgentMemory::default()
            };
            let agent =
                Agent { memory, trims: true, ended: self.ended, freed: self.freed, ..Agent::default() };
            Told {
                balloon: Reading::now(balloon),
                agent: Reading::now(agent),
                polling: Polling::Every(Span::from_secs(1)),
                ..Told::nothing(GUEST, Absence::NotYet)
            }
        }
    }

    impl World for Slow {
        fn observe(&mut self, _: &mut Asking) -> Snapshot {
            let due =
                CACHE.saturating_sub(self.cache).min(GUEST.saturating_sub(self.cost).saturating_add(BACK));
            self.cost = GUEST.saturating_sub(due);
            let is_here = self.ended == 0 || self.then != Then::Ends;
            if self.ended > 0 && self.then == Then::StartsAgain {
                self.id = GuestId::new("web1", 2, "boot");
            }
            let cost = Reading::now(self.cost);
            let guest = GuestSeen {
                id: self.id.clone(),
                pid: 7,
                user: None,
                backend: Backend::new("slow"),
                capabilities: Capabilities::BALLOON,
                cost: Cost::of(cost, Bytes::ZERO, Bytes::from_mib(60), &Absence::Unsupported),
                tmpfs: None,
                withheld: None,
                told: self.told(),
            };
            let host = HostSeen::of(Bytes::from_mib(128 << 10), Bytes::ZERO);
            Snapshot {
                taken_at: self.now,
                wall: WallClock(self.now.as_millis()),
                host,
                guests: if is_here { vec![guest] } else { Vec::new() },
                tmpfs: Vec::new(),
                orders: self.orders.take(self.now),
            }
        }

        fn look(&mut self, _: &[GuestId]) -> Vec<(GuestId, Told)> {
            Vec::new()
        }

        fn apply(&mut self, action: &Action) -> Result<Applied, ApplyError> {
            if let Request::Agent(Deed::Trim(bytes)) = action.request {
                (self.ended, self.freed) = (self.ended + 1, bytes);
                self.cache = self.cache.saturating_sub(bytes);
            }
            self.history.add(action, self.now, WallClock(self.now.as_millis()), &Answer::Accepted);
            Ok(Applied::Accepted)
        }

        fn wait(&mut self, _: Duration) -> Wake {
            Wake::Timeout
        }

        fn now(&self) -> Moment {
            self.now
        }
    }

    /// Reclaims all that the guest can spare. The engine decides every half second of a clock that need not be waited for.
    async fn reclaimed(then: Then) -> Result<ReclaimAnswer, Refusal> {
        let (wake, _woken) = mpsc::channel();
        let (history, orders) = (History::default(), Orders::new(wake));
        let slow = Slow {
            now: Moment::from_millis(1_000),
            id: GuestId::new("web1", 1, "boot"),
            orders: orders.clone(),
            history: history.clone(),
            cache: CACHE,
            cost: GUEST,
            ended: 0,
            freed: Bytes::ZERO,
            then,
        };
        let mut engine = Engine::new(slow, Config { mode: Mode::Manage, ..Config::default() });
        let sources = Sources::new(engine.board(), history, orders, Vec::new());
        engine.tick();
        let decides = async {
            loop {
                tokio::time::sleep(TICKS.into()).await;
                let now = engine.world_mut().now;
                engine.world_mut().now = now.after(TICKS);
                engine.tick();
            }
        };
        let request = ReclaimRequest { guest: "web1".to_owned(), ..ReclaimRequest::default() };
        let client = Client { user: 0, lease: Lease::until(Instant::now()) };
        tokio::select! {
            answer = reclaim(&sources, client, &request) => answer,
            () = decides => unreachable!("it decides forever"),
        }
    }

    #[tokio::test(flavor = "current_thread", start_paused = true)]
    async fn a_reclaim_ends_after_ten_minutes_and_says_what_it_has() {
        let answer = reclaimed(Then::Stays).await.unwrap();
        let done = answer.done.unwrap();
        assert_eq!(answer.wanted, CACHE);
        let took = Duration::from(done.took);
        assert!(took >= LONGEST && took < LONGEST + ONE_ORDER, "{took:?}");
        assert!(done.back >= Bytes::from_mib(20 << 10) && done.back < CACHE, "{done:?}");
        assert!(done.dropped >= done.back && done.dropped < CACHE, "{done:?}");
    }

    #[tokio::test(flavor = "current_thread", start_paused = true)]
    async fn a_guest_that_ends_meanwhile_ends_its_reclaim() {
        for then in [Then::Ends, Then::StartsAgain] {
            match reclaimed(then).await {
                Err(Refusal::NotNow(why)) => assert_eq!(why, "web1: it has ended"),
                answer => panic!("{answer:?}"),
            }
        }
    }
}

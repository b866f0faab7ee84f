//! `memtide reclaim GUEST`, with `--by SIZE` or `--to SIZE` or neither: the guest's agent drops page cache, its balloon takes free memory in small
//! pieces, and the command waits until the host has it back.

use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use memtide_api::Client;
use memtide_api::view::{GuestDetail, ReclaimFrom, ReclaimRequest, Wanted};
use memtide_model::{Agent, Bytes, Can, Mode, Span, Told};

use crate::explain::no_such_guest;
use crate::hold;

/// Free page reporting returns freed memory within 2 to 8 s. After this time without any, no more is expected.
const SETTLES: Duration = Duration::from_secs(10);
/// The longest wait.
const LONGEST: Duration = Duration::from_secs(30);
/// The time between two looks.
const LOOKS: Duration = Duration::from_millis(500);
/// Less is not worth waiting for.
const LITTLE: Bytes = Bytes::from_mib(4);

/// The command's options. With neither `by` nor `to`, all that can be had.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    /// How much should come back.
    pub by: Option<Bytes>,
    /// What the guest should cost the host.
    pub to: Option<Bytes>,
    /// Only show it.
    pub dry_run: bool,
    /// How long the guest is left alone then.
    pub hold: Option<Duration>,
}

/// Gives the order, waits, and prints the result.
pub fn command(socket: &Path, guest: &str, wish: Wish) -> Result<ExitCode> {
    let client = Client::at(socket);
    let Some(detail) = client.guest(guest)? else { return no_such_guest(&client, guest) };
    let name = &detail.status.name;
    let Some(cost) = detail.status.report.footprint else {
        bail!("{name}: nobody knows what it costs the host")
    };
    let Some(had) = Had::of(&detail.seen.told) else {
        bail!(
            "{name}: neither an agent nor its balloon's statistics tell what it has; `memtide doctor` says why"
        )
    };
    let available = had.in_all();
    let asked_for_all = wish.by.is_none() && wish.to.is_none();
    let wanted = match (wish.by, wish.to) {
        (Some(by), _) => by,
        (None, Some(to)) => cost.saturating_sub(to),
        (None, None) => available,
    };
    if wish.dry_run {
        print!("{}", offer((name, &detail.seen.told), cost, wanted, had));
        return Ok(ExitCode::SUCCESS);
    }
    if detail.mode == Mode::Observe {
        bail!("{name}: this memtide only observes");
    }
    let is_done = if wish.to.is_some() && wanted.is_zero() {
        println!("{name}: costs the host {cost} already");
        true
    } else {
        let begun = Instant::now();
        let wanted = wanted.min(cost);
        if let Some(why) = no_agent(&detail.seen.told) {
            println!("{name}: {why}");
        }
        let of_cache = if asked_for_all { had.cache } else { wanted };
        let (freed, least) = drop_all(&client, detail.clone(), (cost, of_cache))?;
        let (fetched, least) = fetch(&client, guest, (cost, least, wanted))?;
        let back = cost.saturating_sub(least);
        println!(
            "{guest}: {}; the host has {back} back after {:.1} s; it costs the host {least}",
            done(freed, fetched),
            begun.elapsed().as_secs_f32()
        );
        // Without an amount, what came back is what could be had.
        let is_enough = back.saturating_add(LITTLE) >= wanted;
        is_enough || (asked_for_all && (back >= LITTLE || available < LITTLE))
    };
    let held = match wish.hold {
        Some(time) => hold::command(socket, Some(guest.to_owned()), Wanted::Hold, Some(time))?,
        None => ExitCode::SUCCESS,
    };
    Ok(if is_done { held } else { ExitCode::FAILURE })
}

/// What was done: the page cache that the agent dropped, and the free memory that the balloon was asked for.
fn done(freed: Bytes, fetched: Bytes) -> String {
    let dropped = format!("its agent dropped {freed} of page cache");
    let asked = format!("its balloon was asked for {fetched} of free memory");
    match (freed.is_zero(), fetched.is_zero()) {
        (_, true) => dropped,
        (true, false) => asked,
        (false, false) => format!("{dropped}, {asked}"),
    }
}

/// What can be had from a guest.
#[derive(Clone, Copy, Debug)]
struct Had {
    /// Page cache that its agent drops.
    cache: Bytes,
    /// Free memory that its balloon takes: with an agent, that in small pieces; without one, all of it, since nobody knows how much of it free page
    /// reporting has returned.
    free: Bytes,
}

impl Had {
    /// `None` if the guest does not tell.
    fn of(told: &Told) -> Option<Self> {
        match (told.agent.fresh(), told.stats.fresh()) {
            (Some(agent), _) => Some(Self { cache: droppable(agent), free: agent.free_pieces() }),
            (None, Some(stats)) => Some(Self { cache: Bytes::ZERO, free: stats.free? }),
            (None, None) => None,
        }
    }

    fn in_all(self) -> Bytes {
        self.cache.saturating_add(self.free)
    }
}

/// That no agent answers, and what follows.
fn no_agent(told: &Told) -> Option<String> {
    let why = told.agent.why_not()?;
    Some(format!(
        "no agent answers in the guest ({why}): its page cache stays, its balloon takes free memory; `memtide doctor` shows how to add an agent"
    ))
}

/// Page cache that the agent drops if it is asked to.
fn droppable(agent: &Agent) -> Bytes {
    if agent.trims { agent.droppable() } else { Bytes::ZERO }
}

/// Gives orders until the agent has dropped what is wanted, or the host gets little more. Returns what it dropped, and the guest's least cost.
fn drop_all(
    client: &Client,
    mut detail: GuestDetail,
    (cost, wanted): (Bytes, Bytes),
) -> Result<(Bytes, Bytes)> {
    let (mut dropped, mut least) = (Bytes::ZERO, cost);
    loop {
        let guest = detail.status.name.clone();
        let agent = detail.seen.told.agent.latest().cloned().unwrap_or_default();
        let bytes = wanted.saturating_sub(dropped).min(droppable(&agent)).min(ReclaimRequest::MOST);
        if bytes.is_zero() || (bytes < LITTLE && !dropped.is_zero()) {
            return Ok((dropped, least));
        }
        let order = ReclaimRequest { guest: guest.clone(), bytes, from: ReclaimFrom::Agent };
        let Some(answer) = client.reclaim(&order)? else { bail!("{guest}: it has ended") };
        match answer.tried {
            None => {
                bail!("{guest}: not asked so far ({}); check `memtide explain {guest}`", answer.guest.state)
            }
            Some(tried) if tried.failed.is_some() => bail!("{guest}: {}", tried.failed.unwrap_or_default()),
            Some(_) => {}
        }
        let (freed, now_least, after) = wait(client, &guest, least, |detail| {
            detail.seen.told.agent.latest().filter(|now| now.ended > agent.ended).map(|now| now.freed)
        })?;
        dropped = dropped.saturating_add(freed);
        let fell = least.saturating_sub(now_least);
        least = now_least;
        detail = after;
        // An agent's word is not enough: the host must have got something.
        if freed < bytes.mul_div(1, 4) || fell < LITTLE {
            return Ok((dropped, least));
        }
    }
}

/// Lets the guest's balloon take the free memory that can be had, if not all that is `wanted` is back yet. Returns what it was
/// asked to take, and the guest's least cost. It is asked once: what it leaves is little, and takes as long.
fn fetch(
    client: &Client,
    guest: &str,
    (cost, least, wanted): (Bytes, Bytes, Bytes),
) -> Result<(Bytes, Bytes)> {
    let Some(detail) = client.guest(guest)? else { bail!("{guest}: it has ended") };
    let pieces = Had::of(&detail.seen.told).map_or(Bytes::ZERO, |had| had.free);
    let missing = wanted.saturating_sub(cost.saturating_sub(least));
    let bytes = pieces.min(missing).min(ReclaimRequest::MOST);
    if bytes < LITTLE {
        return Ok((Bytes::ZERO, least));
    }
    let order = ReclaimRequest { guest: guest.to_owned(), bytes, from: ReclaimFrom::Balloon };
    let Some(answer) = client.reclaim(&order)? else { bail!("{guest}: it has ended") };
    // Page cache that is back is worth more than a complaint about the rest.
    if answer.tried.is_none_or(|tried| tried.failed.is_some()) {
        return Ok((Bytes::ZERO, least));
    }
    let (_, least, _) = wait(client, guest, least, |_| Some(bytes))?;
    Ok((bytes, least))
}

/// What can be had, and at which cost.
fn offer((name, told): (&str, &Told), cost: Bytes, wanted: Bytes, had: Had) -> String {
    let mut out = format!("{name}: costs the host {cost}\n");
    let mut row = |name: &str, text: String| out.push_str(&format!("  {name:<17}{text}\n"));
    let Had { cache, free } = had;
    match told.agent.fresh() {
        Some(agent) => {
            let memory = &agent.memory;
            row(
                "page cache",
                format!("{cache} can be dropped: cold pages first; what is read again comes from the disk"),
            );
            row("goes first", goes_first(agent));
            let (dirty, least) = (memory.dirty, agent.least_cache);
            row("stays", format!("{least} at least (the guest's administrator), {dirty} not yet on disk"));
            row("free memory", format!("{} in the guest, {free} of it in small pieces", memory.free));
        }
        None => {
            row("page cache", no_agent(told).unwrap_or_default());
            row(
                "free memory",
                format!("{free} in the guest; free page reporting may have returned a part of it"),
            );
        }
    }
    let all = had.in_all();
    out.push_str(&match wanted > all {
        true => format!("  of {wanted}, up to {all} can be had\n"),
        false => format!("  up to {wanted} can be had\n"),
    });
    out
}

/// What the guest's kernel holds for cold.
fn goes_first(agent: &Agent) -> String {
    let [minute, ten] = [60, 600].map(|seconds| agent.old_files(Span::from_secs(seconds)));
    match (minute, ten) {
        (Some(minute), Some(ten)) => format!(
            "{minute} in generations of a minute ago or earlier, {ten} of ten (a page that was read once counts as old)"
        ),
        _ => {
            let why = agent.cannot.get(&Can::Ages).map_or("not reported yet", String::as_str);
            format!("what its kernel holds for cold; how much that is, the agent does not tell: {why}")
        }
    }
}

/// Waits until the host has the memory back, or gets no more of it. `freed` is the memory that became free, once that is known. Returns it, the
/// least cost, and the guest then.
fn wait(
    client: &Client,
    guest: &str,
    cost: Bytes,
    freed: impl Fn(&GuestDetail) -> Option<Bytes>,
) -> Result<(Bytes, Bytes, GuestDetail)> {
    let begun = Instant::now();
    let (mut known, mut least, mut fell_at) = (None, cost, begun);
    loop {
        thread::sleep(LOOKS);
        let Some(detail) = client.guest(guest)? else { bail!("{guest}: it has ended") };
        known = known.or_else(|| freed(&detail));
        let now = detail.status.report.footprint.unwrap_or(least);
        if now.saturating_add(LITTLE) <= least {
            fell_at = Instant::now();
        }
        least = least.min(now);
        let is_back = |freed| cost.saturating_sub(least).saturating_add(LITTLE) >= freed;
        let settled = known.is_some_and(|freed| is_back(freed) || fell_at.elapsed() >= SETTLES);
        if settled || begun.elapsed() >= LONGEST {
            return Ok((known.unwrap_or_default(), least, detail));
        }
    }
}

#[cfg(test)]
mod tests {
    use memtide_model::{Absence, AgentAge, AgentMemory, GuestStats, Reading};

    use super::*;

    /// A guest with 80 MiB of free memory, and with this agent, if any.
    fn told(agent: Option<Agent>) -> Told {
        let stats = GuestStats { free: Some(Bytes::from_mib(80)), ..GuestStats::default() };
        Told {
            stats: Reading::now(stats),
            agent: agent.map_or_else(Reading::unsupported, Reading::now),
            ..Told::nothing(Bytes::from_mib(1024), Absence::NotYet)
        }
    }

    #[test]
    fn an_offer_names_what_can_be_had_and_what_stays() {
        let mib = Bytes::from_mib;
        let memory = AgentMemory {
            free: mib(80),
            free_blocks: mib(50),
            unmapped_cache: mib(300),
            dirty: mib(2),
            ..AgentMemory::default()
        };
        let agent = Agent { memory, trims: true, least_cache: mib(64), ..Agent::default() };
        let told = told(Some(agent));
        let offered = |wanted| offer(("web1", &told), mib(700), mib(wanted), Had::of(&told).unwrap());
        for text in [
            "costs the host 700 MiB",
            "236 MiB can be dropped",
            "does not tell: not reported yet",
            "30 MiB of it",
            "of 500 MiB, up to 266 MiB can be had",
        ] {
            assert!(offered(500).contains(text), "{text}: {}", offered(500));
        }
        assert!(offered(100).contains("  up to 100 MiB can be had"));
    }

    #[test]
    fn without_an_agent_free_memory_can_be_had() {
        let told = told(None);
        let had = Had::of(&told).unwrap();
        assert_eq!((had.cache, had.free), (Bytes::ZERO, Bytes::from_mib(80)));
        let offered = offer(("web1", &told), Bytes::from_mib(700), Bytes::from_mib(500), had);
        assert!(offered.contains("its page cache stays") && offered.contains("up to 80 MiB"), "{offered}");
        assert!(Had::of(&Told { stats: Reading::unsupported(), ..told }).is_none());
    }

    #[test]
    fn an_offer_says_what_goes_first_or_why_that_is_not_known() {
        let age = |since_ms, file| AgentAge { since_ms, file: Bytes::from_mib(file), anon: Bytes::ZERO };
        let agent = Agent { ages: vec![age(0, 7), age(60_000, 20), age(600_000, 100)], ..Agent::default() };
        assert!(
            goes_first(&agent)
                .starts_with("120 MiB in generations of a minute ago or earlier, 100 MiB of ten")
        );
        let why = [(Can::Ages, "no debugfs".to_owned())];
        let agent = Agent { cannot: why.into(), ..Agent::default() };
        assert!(goes_first(&agent).ends_with("does not tell: no debugfs"), "{}", goes_first(&agent));
    }
}

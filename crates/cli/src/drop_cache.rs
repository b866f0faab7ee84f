//! `memtide reclaim GUEST`, with `--by SIZE` or `--to SIZE` or neither: the guest's agent drops page cache, its balloon takes free memory in small
//! pieces, and the command waits until the host has it back.

use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use memtide_api::Client;
use memtide_api::view::{GuestDetail, ReclaimFrom, ReclaimRequest, Wanted};
use memtide_model::{Agent, Bytes, Mode};

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
    let Some(agent) = detail.seen.told.agent.fresh() else {
        let why = detail.seen.told.agent.why_not().map(ToString::to_string).unwrap_or_default();
        bail!("{name}: no agent answers in the guest ({why}); `memtide doctor` shows how to add one");
    };
    let available = droppable(agent).saturating_add(agent.free_pieces());
    let asked_for_all = wish.by.is_none() && wish.to.is_none();
    let wanted = match (wish.by, wish.to) {
        (Some(by), _) => by,
        (None, Some(to)) => cost.saturating_sub(to),
        (None, None) => available,
    };
    if wish.dry_run {
        print!("{}", offer(name, cost, agent, wanted));
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
        let of_cache = if asked_for_all { droppable(agent) } else { wanted };
        let (freed, least) = drop_all(&client, detail.clone(), (cost, of_cache))?;
        let (fetched, least) = fetch(&client, guest, (cost, least, wanted))?;
        let back = cost.saturating_sub(least);
        let pieces = match fetched.is_zero() {
            true => String::new(),
            false => format!(", its balloon was asked for {fetched} of free memory in small pieces"),
        };
        println!(
            "{guest}: its agent dropped {freed} of page cache{pieces}; the host has {back} back after {:.1} s; it costs the host {least}",
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

/// Lets the guest's balloon take the free memory in small pieces that the agent tells of, if not all that is `wanted` is back yet. Returns what it was
/// asked to take, and the guest's least cost. It is asked once: what it leaves is little, and takes as long.
fn fetch(
    client: &Client,
    guest: &str,
    (cost, least, wanted): (Bytes, Bytes, Bytes),
) -> Result<(Bytes, Bytes)> {
    let Some(detail) = client.guest(guest)? else { bail!("{guest}: it has ended") };
    let pieces = detail.seen.told.agent.latest().map_or(Bytes::ZERO, Agent::free_pieces);
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
fn offer(name: &str, cost: Bytes, agent: &Agent, wanted: Bytes) -> String {
    let droppable = droppable(agent);
    let memory = &agent.memory;
    let mut out = format!("{name}: costs the host {cost}\n");
    out.push_str(&format!(
        "  page cache       {droppable} can be dropped: cold pages first; what is read again comes from the disk\n"
    ));
    let (dirty, least) = (memory.dirty, agent.least_cache);
    out.push_str(&format!(
        "  stays            {least} at least (the guest's administrator), {dirty} not yet on disk\n"
    ));
    let pieces = agent.free_pieces();
    out.push_str(&format!(
        "  free memory      {} in the guest, {pieces} of it in small pieces\n",
        memory.free
    ));
    let available = droppable.saturating_add(pieces);
    let had = wanted.min(available);
    match wanted > available {
        true => out.push_str(&format!("  of {wanted}, up to {had} can be had\n")),
        false => out.push_str(&format!("  up to {had} can be had\n")),
    }
    out
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
    use memtide_model::AgentMemory;

    use super::*;

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
        let offered = offer("web1", mib(700), &agent, mib(500));
        for text in [
            "costs the host 700 MiB",
            "236 MiB can be dropped",
            "30 MiB of it",
            "of 500 MiB, up to 266 MiB can be had",
        ] {
            assert!(offered.contains(text), "{text}: {offered}");
        }
        assert!(offer("web1", mib(700), &agent, mib(100)).contains("  up to 100 MiB can be had"));
    }
}

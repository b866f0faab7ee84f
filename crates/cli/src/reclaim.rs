//! `memtide reclaim GUEST`, with `--by SIZE` or `--to SIZE` or neither: the guest's agent drops page cache, its balloon takes free memory in small
//! pieces, and the command waits until the host has it back.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use memtide_api::Client;
use memtide_api::reclaim::{Offer, ReclaimAnswer, ReclaimRequest, Reclaimed};
use memtide_api::view::Wanted;
use memtide_model::{Agent, Can, Span, Told};

use crate::explain::no_such_guest;
use crate::hold;

/// Gives the order, waits, and prints the result.
pub fn command(socket: &Path, request: &ReclaimRequest) -> Result<ExitCode> {
    let client = Client::at(socket);
    let Some(answer) = client.reclaim(request)? else { return no_such_guest(&client, &request.guest) };
    let Some(done) = &answer.done else {
        let Some(detail) = client.guest(&request.guest)? else {
            return no_such_guest(&client, &request.guest);
        };
        print!("{}", offer(&answer, &detail.seen.told));
        return Ok(ExitCode::SUCCESS);
    };
    print!("{}", render(request, &answer, done));
    let held = answer.held.as_ref().is_none_or(|held| {
        print!("{}", hold::render(held, Wanted::Hold));
        hold::is_done(held, Wanted::Hold)
    });
    Ok(if done.enough && held { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What was done, as text.
pub fn render(request: &ReclaimRequest, answer: &ReclaimAnswer, done: &Reclaimed) -> String {
    let ReclaimAnswer { guest, cost, .. } = answer;
    if answer.wanted.is_zero() && request.to.is_some() {
        return format!("{guest}: costs the host {cost} already\n");
    }
    let mut out = String::new();
    let problems = [no_agent(answer), done.failed.clone()];
    problems.iter().flatten().for_each(|why| out.push_str(&format!("{guest}: {why}\n")));
    let Reclaimed { back, took, cost, .. } = done;
    if answer.offer.in_all().is_zero() && done.dropped.is_zero() && done.fetched.is_zero() {
        let cache = if answer.no_agent.is_some() { "" } else { "no page cache that its agent may drop, " };
        out.push_str(&format!(
            "{guest}: has nothing to give: {cache}no free memory that its balloon can take; it costs the host {cost}\n"
        ));
        return out;
    }
    let seconds = Duration::from(*took).as_secs_f32();
    out.push_str(&format!(
        "{guest}: {}; the host has {back} back after {seconds:.1} s; it costs the host {cost}\n",
        in_words(done)
    ));
    out
}

/// What was done: the page cache that the agent dropped, and the free memory that the balloon was asked for.
fn in_words(done: &Reclaimed) -> String {
    let dropped = format!("its agent dropped {} of page cache", done.dropped);
    let asked = format!("its balloon was asked for {} of free memory", done.fetched);
    match (done.dropped.is_zero(), done.fetched.is_zero()) {
        (_, true) => dropped,
        (true, false) => asked,
        (false, false) => format!("{dropped}, {asked}"),
    }
}

/// That no agent answers, and what follows.
fn no_agent(answer: &ReclaimAnswer) -> Option<String> {
    let why = answer.no_agent.as_ref()?;
    Some(format!(
        "no agent answers in the guest ({why}): its page cache stays, its balloon takes free memory; `memtide doctor` shows how to add an agent"
    ))
}

/// What can be had, and at which cost.
pub fn offer(answer: &ReclaimAnswer, told: &Told) -> String {
    let ReclaimAnswer { guest, cost, wanted, offer, .. } = answer;
    let mut out = format!("{guest}: costs the host {cost}\n");
    let mut row = |name: &str, text: String| out.push_str(&format!("  {name:<17}{text}\n"));
    let Offer { cache, free } = offer;
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
            row("page cache", no_agent(answer).unwrap_or_default());
            row(
                "free memory",
                format!("{free} in the guest; free page reporting may have returned a part of it"),
            );
        }
    }
    let all = offer.in_all();
    out.push_str(&match *wanted > all {
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

#[cfg(test)]
mod tests {
    use memtide_model::{Absence, AgentAge, AgentMemory, Bytes, GuestStats, Reading};

    use super::*;

    /// The answer about a guest with this agent, if any, that is asked for so much.
    fn answer(told: &Told, wanted: u64) -> ReclaimAnswer {
        ReclaimAnswer {
            guest: "web1".to_owned(),
            cost: Bytes::from_mib(700),
            wanted: Bytes::from_mib(wanted),
            offer: Offer::of(told).unwrap(),
            no_agent: told.agent.why_not().map(|why| why.to_string()),
            done: None,
            held: None,
        }
    }

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
        let offered = |wanted| offer(&answer(&told, wanted), &told);
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
        let offered = offer(&answer(&told, 500), &told);
        assert!(offered.contains("its page cache stays") && offered.contains("up to 80 MiB"), "{offered}");
    }

    #[test]
    fn a_result_says_who_gave_what_and_what_went_wrong() {
        let mib = Bytes::from_mib;
        let done = |dropped, fetched, failed: Option<&str>| Reclaimed {
            dropped: mib(dropped),
            fetched: mib(fetched),
            back: mib(60),
            cost: mib(640),
            took: Span::from_millis(1_250),
            enough: true,
            failed: failed.map(str::to_owned),
        };
        let request = ReclaimRequest::default();
        let memory = AgentMemory { free: mib(80), ..AgentMemory::default() };
        let told = told(Some(Agent { memory, ..Agent::default() }));
        let said = |done: Reclaimed, wanted| render(&request, &answer(&told, wanted), &done);
        let end = "the host has 60 MiB back after 1.2 s; it costs the host 640 MiB\n";
        assert_eq!(
            said(done(64, 16, None), 100),
            format!(
                "web1: its agent dropped 64 MiB of page cache, its balloon was asked for 16 MiB of free memory; {end}"
            )
        );
        assert_eq!(
            said(done(0, 16, Some("the agent is busy")), 100),
            format!("web1: the agent is busy\nweb1: its balloon was asked for 16 MiB of free memory; {end}")
        );
    }

    #[test]
    fn a_guest_with_nothing_to_give_is_no_guest_that_costs_little_enough() {
        let mib = Bytes::from_mib;
        let done = Reclaimed { cost: mib(700), enough: true, ..Reclaimed::default() };
        let said = |request: &ReclaimRequest, agent: Option<Agent>, wanted| {
            let mut told = told(agent);
            told.stats = Reading::now(GuestStats { free: Some(Bytes::ZERO), ..GuestStats::default() });
            render(request, &answer(&told, wanted), &done)
        };
        let (all, agent) = (ReclaimRequest::default(), Some(Agent::default()));
        let to = ReclaimRequest { to: Some(mib(900)), ..ReclaimRequest::default() };
        assert_eq!(said(&to, agent.clone(), 0), "web1: costs the host 700 MiB already\n");
        let nothing = "no free memory that its balloon can take; it costs the host 700 MiB\n";
        let with_agent =
            format!("web1: has nothing to give: no page cache that its agent may drop, {nothing}");
        assert_eq!(said(&all, agent.clone(), 0), with_agent);
        assert_eq!(said(&to, agent, 50), with_agent, "it costs more than was asked for");
        let without = said(&all, None, 0);
        assert!(without.contains("no agent answers"), "{without}");
        assert!(without.ends_with(&format!("\nweb1: has nothing to give: {nothing}")), "{without}");
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

//! What the daemon costs, and how fast it answers: the real program, managing many guests of which a third change all the time.
//!
//! ```text
//! cargo bench -p memtide --bench daemon -- [--guests 100] [--agents] [--stalls 60] [--seed 1] [--log FILE]
//! ```
//!
//! `target/bench/daemon.json` holds, after a run:
//!
//! ```json
//! {
//!   "schema": 1, "guests": …, "agents": …, "stalls": …, "unanswered_stalls": …, "seconds": …,
//!   "cpu_seconds_per_minute": …, "resident_mib": …, "anonymous_mib": …,
//!   "reaction_p50_seconds": …, "reaction_p95_seconds": …, "reaction_max_seconds": …, "enough_p95_seconds": …,
//!   "reaction_p95_seconds_of_changing": …, "reaction_p95_seconds_of_resting": …,
//!   "event_p50_seconds": …, "event_p95_seconds": …,
//!   "queries_per_guest_minute": …, "connections_per_guest_minute": …, "tick_interval_seconds": …,
//!   "changes_per_minute": …, "stand_ins_cpu_seconds_per_minute": …
//! }
//! ```
//!
//! **Guests.** Each is a stand-in in a process of its own (`memtide_stand_in::qemu`), found and asked like a QEMU: 1 GiB, of
//! which it uses 150 to 350 MiB; a third of them use up to 200 MiB more and less within 20 to 60 s, forever. Their processes
//! have a few megabytes resident, far less than the guests use. That changes nothing of what is measured: a strict commitment
//! counts the guests' worst case, and that is their memory.
//!
//! **Host.** It has 500 MiB for each guest and what else a strict commitment keeps free; this machine need not have so much.
//! Bench, daemon and stand-ins live in a mount namespace of their own, in which /proc/meminfo names that much more memory than
//! there is. Nothing of this machine is changed.
//!
//! **Reaction.** One guest at a time wants 64 MiB more than it keeps, at a random moment. Its reaction is the time from that moment
//! to the command that raises its target, both taken in its own process. A stall that is not answered within 10 s counts as 10 s.
//!
//! **Agents.** With `--agents`, each guest has one: it reports each second what has changed, and says within 20 ms that its guest stalls.
//! *Event* is the time from a stall of a guest that rests otherwise to the first decision that knows of it; zeros without agents.
//!
//! **Cost.** Processor time and resident memory are the kernel's counts of the daemon's process, over the same minutes.

mod events;
mod host;
mod outside;
mod run;

use std::error::Error;
use std::path::PathBuf;

use memtide_stand_in::qemu::process;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// What the command line asks for.
struct Options {
    guests: u64,
    /// Whether they have agents.
    agents: bool,
    stalls: u64,
    seed: u64,
    /// Where the daemon's log goes.
    log: Option<PathBuf>,
}

impl Options {
    fn parse() -> Outcome<Self> {
        let mut options = Self { guests: 100, agents: false, stalls: 60, seed: 1, log: None };
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg}: a value is missing"));
            match arg.as_str() {
                "--guests" => options.guests = value()?.parse()?,
                "--agents" => options.agents = true,
                "--stalls" => options.stalls = value()?.parse()?,
                "--seed" => options.seed = value()?.parse()?,
                "--log" => options.log = Some(value()?.into()),
                // What cargo adds.
                "--bench" => {}
                _ => {
                    return Err(format!(
                        "unknown argument {arg}: --guests, --agents, --stalls, --seed or --log"
                    )
                    .into());
                }
            }
        }
        match options.guests {
            0 => Err("--guests: at least one".into()),
            _ => Ok(options),
        }
    }
}

fn main() -> Outcome<()> {
    if process::is_stand_in() {
        return Ok(process::run()?);
    }
    let options = Options::parse()?;
    match host::is_ours() {
        true => run::run(&options),
        false => host::enter(options.guests),
    }
}

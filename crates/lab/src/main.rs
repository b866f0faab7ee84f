//! `memtide-lab`: the demo and the experiments, on real guests.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};
use memtide_lab::demo::{self, Options};
use memtide_lab::error::LabError;
use memtide_lab::lab::Lab;
use memtide_lab::live::Live;
use memtide_lab::wait;

const AFTER: &str = "\
Exit codes: 0 done, and with memtide every guest lived and all work was done; 1 an error; 2 a mistake in the command \
line; 3 done, but with memtide a guest was killed or work was lost; 4 this machine lacks something that is needed; \
130 interrupted.";

/// Real guests: the demo, and what it needs.
#[derive(Parser)]
#[command(version, after_help = AFTER)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Four guests of 1 GiB in a host of 2 GiB, without memtide and with it (about four minutes; root)
    Demo {
        /// One round of work instead of two
        #[arg(long)]
        quick: bool,
        /// How often each arm is run; results.json holds the medians
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=100))]
        runs: u8,
        /// Only this arm: unmanaged or managed
        #[arg(long = "arm", value_name = "ARM")]
        only: Vec<String>,
    },
    /// Install and build what the guests need, and try whether they may use KVM
    Prepare,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let live = Live::new();
    match run(&arguments.command, &live) {
        Ok(code) => code,
        Err(error) => {
            live.clear();
            eprintln!("memtide-lab: {error:#}");
            ExitCode::from(match error.downcast_ref::<LabError>() {
                Some(LabError::Interrupted) => 130,
                Some(LabError::Missing(_) | LabError::NoSmallHost(_)) => 4,
                _ => 1,
            })
        }
    }
}

fn run(command: &Command, live: &Live) -> anyhow::Result<ExitCode> {
    wait::catch_interrupts().context("the handlers of Ctrl-C and SIGTERM")?;
    let say = |text: &str| live.say(text);
    match command {
        Command::Prepare => {
            let lab = Lab::prepare(&say)?;
            println!(
                "ready: QEMU {}, guests with Linux {}, {}",
                lab.tools().qemu_version,
                lab.kernel().release,
                lab.accel().argument()
            );
            Ok(ExitCode::SUCCESS)
        }
        Command::Demo { quick, runs, only } => {
            // What is missing is said before minutes have passed.
            let mut managers = demo::managers(only)?;
            let lab = Lab::prepare(&say)?;
            let options = Options {
                quick: *quick,
                runs: usize::from(*runs),
                command: std::env::args().collect::<Vec<_>>().join(" "),
            };
            let outcome = demo::run(&lab, &options, &mut managers, live)?;
            println!("\n{}\nreport: {}", outcome.table.plain(), outcome.report.display());
            Ok(if outcome.managed_kept_all == Some(false) { ExitCode::from(3) } else { ExitCode::SUCCESS })
        }
    }
}

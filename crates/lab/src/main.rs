//! `memtide-lab`: the demo and the experiments, on real guests, and random hosts by the thousand, simulated.

#![forbid(unsafe_code)]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Parser, Subcommand, ValueEnum};
use memtide_lab::calibrate;
use memtide_lab::error::LabError;
use memtide_lab::experiments;
use memtide_lab::experiments::experiment::{Effort, Entry, Options};
use memtide_lab::guest::probe;
use memtide_lab::machine::lab::{ForQemu, Lab};
use memtide_lab::machine::places;
use memtide_lab::output::print;
use memtide_lab::output::screen::Screen;
use memtide_lab::{search, seeds, wait};

const AFTER: &str = "\
Exit codes: 0 done, and memtide kept what it promises; 1 an error; 2 a mistake in the command line; 3 done, but memtide \
did not keep what it promises; 4 this machine lacks something that is needed; 130 interrupted (`seeds` and `search`: 0 or 3, for what they found so far).";

/// The demo and experiments on real guests, and simulations of random hosts.
#[derive(Parser)]
#[command(version, after_help = AFTER)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Four guests of 1 GiB in a host of 2 GiB, without memtide and with it: `run demo` (about three minutes, and more the first
    /// time, when it downloads what the guests need; root)
    Demo(Choices),
    /// Show the experiments, their arms, and how long they take
    List,
    /// Run an experiment and write its report into target/lab/NAME
    Run {
        /// Which: see `memtide-lab list`
        name: String,
        #[command(flatten)]
        choices: Choices,
    },
    /// Simulate recorded lab runs, and show how far the simulation lies from them (seconds; no guests, no root)
    Calibrate {
        /// Where plots and tables go [default: target/lab/calibration]
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
    /// Simulate random hosts with faults, one for each seed, and report memtide's mistakes (minutes; no guests, no root)
    Seeds {
        /// The first seed
        #[arg(long, value_name = "N", default_value_t = 0)]
        first: u64,
        /// The number of seeds
        #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
        count: u64,
        /// Print everything as JSON: times in milliseconds
        #[arg(long)]
        json: bool,
        /// Write each failed host into this directory, as a scenario that is as small as possible
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
    /// Search for hosts that memtide manages worse than the best other manager, and write each as a scenario that is as small as
    /// possible (no guests, no root)
    Search {
        /// The seed of all choices
        #[arg(long, value_name = "N", default_value_t = 0)]
        seed: u64,
        /// The number of hosts that it begins with
        #[arg(long, value_name = "N", default_value_t = 400, value_parser = clap::value_parser!(u64).range(1..))]
        starts: u64,
        /// How many minutes it looks for hosts before it makes them smaller
        #[arg(long, value_name = "M", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=10_000))]
        minutes: u64,
        /// The directory for the scenarios
        #[arg(long, value_name = "DIR", default_value = ".")]
        out: PathBuf,
    },
    /// Install and build what the guests need, and try whether they may use KVM
    Prepare,
}

#[derive(Args)]
struct Choices {
    /// What runs the guests
    #[arg(long, value_enum, default_value_t)]
    vmm: Vmm,
    /// Who starts QEMU's guests: the lab, or a libvirtd of the lab's own (demo, density, react)
    #[arg(long, value_enum, default_value_t)]
    via: Via,
    /// The least that shows the effect
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// All arms
    #[arg(long)]
    full: bool,
    /// Only this arm, once or more
    #[arg(long = "arm", value_name = "ARM")]
    only: Vec<String>,
    /// How often each arm is run; results.json holds the medians [default: what the experiment says]
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=100))]
    runs: Option<u8>,
    /// Where all that is random begins
    #[arg(long, default_value_t = 1)]
    seed: u32,
}

/// The end of the names of experiments with UML: `density-uml` is `density --vmm uml`.
const OF_UML: &str = "-uml";

/// What runs the guests.
#[derive(Clone, Copy, Default, ValueEnum)]
enum Vmm {
    /// QEMU
    #[default]
    Qemu,
    /// User Mode Linux
    Uml,
}

/// Who starts QEMU's guests.
#[derive(Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Via {
    /// The lab
    #[default]
    Lab,
    /// libvirt
    Libvirt,
}

/// The experiments whose guests libvirt can start.
const VIA_LIBVIRT: [&str; 3] = ["demo", "density", "react"];

impl Choices {
    const fn effort(&self) -> Effort {
        match (self.quick, self.full) {
            (true, _) => Effort::Quick,
            (_, true) => Effort::Full,
            _ => Effort::Usual,
        }
    }

    fn options(&self) -> Options {
        Options {
            effort: self.effort(),
            runs: self.runs.map(usize::from),
            seed: u64::from(self.seed),
            only: self.only.clone(),
            command: std::env::args().collect::<Vec<_>>().join(" "),
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let screen = Screen::new();
    match run(&arguments.command, &screen) {
        Ok(code) => code,
        Err(error) => {
            screen.clear();
            eprintln!("memtide-lab: {error:#}");
            ExitCode::from(match error.downcast_ref::<LabError>() {
                Some(LabError::Interrupted) => 130,
                Some(LabError::Usage(_)) => 2,
                Some(LabError::Missing(_) | LabError::NoSmallHost(_)) => 4,
                _ => 1,
            })
        }
    }
}

fn run(command: &Command, screen: &Screen) -> anyhow::Result<ExitCode> {
    wait::catch_interrupts().context("the handlers of Ctrl-C and SIGTERM")?;
    match command {
        Command::Prepare => {
            let lab = probe::prepare(&|text| screen.say(text))?;
            let ForQemu { program, kernel, accel, .. } = lab.qemu()?;
            let (version, kernel, accel) = (&program.version, &kernel.release, accel.argument());
            println!("ready: QEMU {version}, guests with Linux {kernel}, {accel}");
            Ok(ExitCode::SUCCESS)
        }
        Command::List => {
            print(&experiments::ALL.iter().map(list).collect::<String>())?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Calibrate { out } => calibrate(out.as_deref()),
        Command::Seeds { first, count, json, out } => {
            let right = seeds::command(*first..first.saturating_add(*count), *json, out.as_deref())?;
            Ok(exit_code(right))
        }
        Command::Search { seed, starts, minutes, out } => {
            let most = Duration::from_secs(minutes * 60);
            Ok(exit_code(search::command(*seed, *starts, most, out)?))
        }
        Command::Demo(choices) => conduct("demo", choices, screen),
        Command::Run { name, choices } => conduct(name, choices, screen),
    }
}

fn conduct(name: &str, choices: &Choices, screen: &Screen) -> anyhow::Result<ExitCode> {
    let name = &match choices.vmm {
        Vmm::Qemu => name.to_owned(),
        Vmm::Uml => format!("{name}{OF_UML}"),
    };
    let experiment = experiments::find(name).ok_or_else(|| {
        let names: Vec<&str> = experiments::ALL.iter().map(|entry| entry.name).collect();
        LabError::Usage(format!("there is no experiment `{name}`: {}", names.join(", ")))
    })?;
    let options = choices.options();
    // Report mistakes in the command line before anything is installed.
    let arms = (experiment.choose)(&options)?;
    let say = |text: &str| screen.say(text);
    let via_libvirt = choices.via == Via::Libvirt;
    if via_libvirt && !VIA_LIBVIRT.contains(&name.as_str()) {
        let names = VIA_LIBVIRT.join(", ");
        return Err(LabError::Usage(format!("--via libvirt is for guests of QEMU in {names}")).into());
    }
    let lab = match name.ends_with(OF_UML) {
        true => Lab::for_uml(&say)?,
        false if via_libvirt => probe::prepare(&say)?.with_libvirt(&say)?,
        false => probe::prepare(&say)?,
    };
    let outcome = (experiment.conduct)(&lab, &options, arms, screen)?;
    for table in &outcome.tables {
        println!("\n{}", table.plain());
    }
    println!("report: {}", outcome.report.display());
    for failure in &outcome.failures {
        eprintln!("memtide-lab: {failure}");
    }
    Ok(exit_code(outcome.failures.is_empty()))
}

/// The exit code: whether memtide kept what it promises.
fn exit_code(is_kept: bool) -> ExitCode {
    if is_kept { ExitCode::SUCCESS } else { ExitCode::from(3) }
}

fn calibrate(out: Option<&Path>) -> anyhow::Result<ExitCode> {
    let dir = out.map_or_else(|| places::target().join("lab/calibration"), Path::to_owned);
    let all = calibrate::compare()?;
    calibrate::write(&all, &dir)?;
    println!("{}", calibrate::table(&all).plain());
    println!("plots: {}", dir.display());
    let too_far = all.iter().any(|one| one.error.median > calibrate::MOST_MEDIAN);
    Ok(exit_code(!too_far))
}

/// The efforts of an experiment, for people.
fn list(experiment: &Entry) -> String {
    let mut text = format!("{:<12} {}\n", experiment.name, experiment.about);
    for (name, effort) in [("--quick", Effort::Quick), ("", Effort::Usual), ("--full", Effort::Full)] {
        let minutes = experiment.minutes(effort);
        let arms: Vec<String> = (experiment.arms)(effort).into_iter().map(|arm| arm.key).collect();
        let _ = writeln!(text, "  {name:<8} about {minutes:>2} min: {}", arms.join(", "));
    }
    text
}

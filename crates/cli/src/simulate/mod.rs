//! `memtide simulate`: a host and its guests under memtide and other managers.
//!
//! `runs` simulates each manager on its own thread, `told` prints the results, `several` those of several scenarios together.

mod explain;
mod runs;
mod several;
mod told;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use memtide_config::Settings;
use memtide_model::{Amount, Bytes, Config, Share, Span};
use memtide_sim::scenario::{Judged, judged};
use memtide_sim::{Manager, Options, Scenario, from_journal, json, report};

use crate::overwrite;

/// Exit code: a bound is broken, or a known failure no longer fails.
const UNEXPECTED: u8 = 6;

/// The options of `memtide simulate`.
#[derive(Args)]
#[command(override_usage = "memtide simulate [OPTIONS] <SCENARIO>...
       memtide simulate [OPTIONS] --from <JOURNAL>")]
pub struct Simulate {
    /// The scenario; docs/simulator.md says how to write one. Of several scenarios, one table shows what each manager reached on all.
    #[arg(required_unless_present = "from", conflicts_with = "from")]
    scenario: Vec<PathBuf>,
    /// Simulate the guests of a recorded run instead: a journal's directory, or one file of it.
    #[arg(long, value_name = "JOURNAL")]
    from: Option<PathBuf>,
    /// The managers to compare, separated by commas: memtide (with each commitment of the scenario), strict or elastic (memtide with
    /// this commitment), mom, proxmox, squeezed or qubes (their rules), fixed (a static partition), none (no manager), or all
    /// [default: memtide,none]
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = Who::parse)]
    policy: Vec<Who>,
    /// memtide's commitment, whatever the scenario says. With --policy all, memtide is shown only with this one.
    #[arg(long, value_enum)]
    commitment: Option<CommitmentName>,
    /// memtide's reserve, as in `5%` or `2 GiB`, whatever the scenario says.
    #[arg(long, value_name = "SIZE", value_parser = parse_reserve)]
    reserve: Option<Amount>,
    /// Take `reserve`, `self_deflations`, `self_deflation_within`, `growth_prior`, `squeeze_every`, `ksm`, `states`, the classes and, if it is set there, `commitment` from this configuration file
    /// of the daemon. They replace those of the scenario. All other keys are ignored.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Give each guest an agent, whatever the scenario says.
    #[arg(long)]
    agents: bool,
    /// Use this seed for all randomness.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    seed: Option<u64>,
    /// Simulate this many hours, as in 24 or 0.5.
    #[arg(long, value_name = "H", value_parser = parse_hours)]
    hours: Option<Span>,
    /// Let memtide decide at this interval, as in `2s`, instead of at its own pace.
    #[arg(long, value_name = "TIME", value_parser = parse_tick)]
    tick: Option<Span>,
    /// Print everything as JSON: sizes in bytes, times in milliseconds.
    #[arg(long)]
    json: bool,
    /// Write an HTML page with tables and plots.
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// Show why memtide gave a guest its memory at a time, as in `web1@90s`.
    #[arg(long, value_name = "GUEST@TIME", conflicts_with_all = ["json", "report"], value_parser = parse_explain)]
    explain: Option<(String, Span)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CommitmentName {
    Strict,
    Elastic,
}

/// A value of `--policy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Memtide,
    All,
    One(Manager),
}

impl Who {
    const fn is_commitment(&self) -> bool {
        matches!(self, Self::One(Manager::Memtide(_)))
    }

    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "memtide" => Ok(Self::Memtide),
            "all" => Ok(Self::All),
            _ => text.parse().map(Self::One).map_err(|_| {
                "write memtide, strict, elastic, mom, proxmox, squeezed, qubes, fixed, none or all".to_owned()
            }),
        }
    }
}

/// The simulated scenario, and its source.
struct Subject {
    title: String,
    source: Option<String>,
    scenario: Scenario,
}

impl Simulate {
    pub fn execute(self) -> Result<ExitCode> {
        if let (Some(_), Some(Who::One(named))) =
            (self.commitment, self.policy.iter().find(|who| who.is_commitment()))
        {
            bail!(
                "--commitment and --policy {named} both name a commitment: use one of them, or --policy memtide"
            );
        }
        if self.scenario.len() > 1 {
            return self.several();
        }
        if let Some(path) = &self.report {
            overwrite::refuse(
                "--report",
                path,
                &[self.scenario.first().map(PathBuf::as_path), self.from.as_deref(), self.config.as_deref()],
            )?;
        }
        let mut subject = self.subject()?;
        self.adjust(&mut subject.scenario)?;
        let options = self.options();
        let managers = self.managers(&subject.scenario);
        if let Some((guest, at)) = &self.explain {
            return explain::command(&subject.scenario.setup, &managers, &options, guest, *at);
        }
        let runs = runs::all(&subject.scenario.setup, &managers, &options);
        let scenario = &subject.scenario;
        let names: Vec<&str> = scenario.setup.guests.iter().map(|guest| guest.name.as_str()).collect();
        let judged = judged(scenario, &runs);
        if let Some(path) = &self.report {
            let page = report::Page {
                title: &subject.title,
                about: &scenario.about,
                source: subject.source.as_deref(),
                what: &told::what(&scenario.setup),
                bounds: &judged,
                capacity: scenario.setup.host.memory,
                names: &names,
            };
            fs::write(path, report::html(page, &runs))
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        if self.json {
            let text = serde_json::to_string(&json::json(&subject.title, scenario, &runs))?;
            told::print(&format!("{text}\n"))?;
        } else {
            told::all(&subject.title, scenario, &names, &runs, &judged)?;
        }
        if let Some(path) = self.report.as_ref().filter(|_| !self.json) {
            told::print(&format!("report: {}\n", path.display()))?;
        }
        // Bounds are about the scenario as it is written.
        let unexpected = judged.iter().any(Judged::is_unexpected);
        Ok(if unexpected && !self.changes_the_scenario() {
            ExitCode::from(UNEXPECTED)
        } else {
            ExitCode::SUCCESS
        })
    }

    const fn changes_the_scenario(&self) -> bool {
        self.seed.is_some()
            || self.hours.is_some()
            || self.config.is_some()
            || self.reserve.is_some()
            || self.commitment.is_some()
            || self.agents
            || self.tick.is_some()
    }

    fn subject(&self) -> Result<Subject> {
        if let Some(journal) = &self.from {
            let setup = from_journal(journal, self.seed.unwrap_or(0))?;
            let commitments = vec![Manager::Memtide(setup.config.commitment)];
            let about = "The guests of a recorded run, with their recorded memory use.".to_owned();
            let scenario = Scenario { about, setup, commitments, bounds: Vec::new() };
            return Ok(Subject { title: journal.display().to_string(), source: None, scenario });
        }
        let Some(path) = self.scenario.first() else { bail!("name a scenario, or a journal with --from") };
        let scenario = Scenario::read(path)?;
        let source = fs::read_to_string(path).ok();
        Ok(Subject { title: path.display().to_string(), source, scenario })
    }

    fn options(&self) -> Options {
        Options { tick: self.tick, explain: self.explain.clone() }
    }

    /// Applies the options of the command line to the scenario.
    fn adjust(&self, scenario: &mut Scenario) -> Result<()> {
        let setup = &mut scenario.setup;
        if let Some(path) = &self.config {
            let config = Settings::load(Some(path))?.config;
            setup.config = Config { budget: setup.config.budget, ..config };
            if Settings::is_set(path, "commitment")? {
                scenario.commitments = vec![Manager::Memtide(setup.config.commitment)];
            }
        }
        if let Some(reserve) = self.reserve {
            setup.config.reserve = reserve;
        }
        if self.agents {
            setup.guests.iter_mut().for_each(|guest| Arc::make_mut(&mut guest.spec).agent = true);
        }
        setup.seed = self.seed.unwrap_or(setup.seed);
        setup.lasts = self.hours.unwrap_or(setup.lasts);
        match self.commitment {
            Some(CommitmentName::Strict) => scenario.commitments = vec![Manager::STRICT],
            Some(CommitmentName::Elastic) => scenario.commitments = vec![Manager::ELASTIC],
            None => {}
        }
        Ok(())
    }

    /// All managers; of memtide's commitments only the one that was asked for, if one was.
    fn everybody(&self, scenario: &Scenario) -> Vec<Manager> {
        let is_wanted = |manager: &Manager| {
            self.commitment.is_none()
                || !matches!(manager, Manager::Memtide(_))
                || scenario.commitments.contains(manager)
        };
        Manager::all().into_iter().filter(is_wanted).collect()
    }

    fn managers(&self, scenario: &Scenario) -> Vec<Manager> {
        let mut managers: Vec<Manager> = Vec::new();
        let asked: &[Who] = match self.policy.as_slice() {
            [] if self.explain.is_some() => &[Who::Memtide],
            [] => &[Who::Memtide, Who::One(Manager::Nobody)],
            asked => asked,
        };
        for who in asked {
            let these = match who {
                Who::Memtide => scenario.commitments.clone(),
                Who::All => self.everybody(scenario),
                Who::One(manager) => vec![*manager],
            };
            managers.extend(these);
        }
        let mut seen = Vec::new();
        managers.retain(|manager| {
            !seen.contains(manager) && {
                seen.push(*manager);
                true
            }
        });
        managers
    }
}

fn parse_hours(text: &str) -> Result<Span, String> {
    let wrong = || "write a number of hours between 0.001 and 8784, as in 24 or 0.5".to_owned();
    let hours: f64 = text.parse().map_err(|_| wrong())?;
    if !(0.001..=8_784.0).contains(&hours) {
        return Err(wrong());
    }
    Ok(Duration::from_secs_f64(hours * 3_600.0).into())
}

fn parse_tick(text: &str) -> Result<Span, String> {
    let time = humantime::parse_duration(text).map_err(|_| "write a time such as 250ms or 2s".to_owned())?;
    match Span::from(time) {
        tick if (50..=600_000).contains(&tick.as_millis()) => Ok(tick),
        _ => Err("write a time between 50ms and 10m".to_owned()),
    }
}

fn parse_reserve(text: &str) -> Result<Amount, String> {
    match text.ends_with('%') {
        true => text.parse::<Share>().map(Amount::Share).map_err(|error| error.to_string()),
        false => Bytes::with_unit(text).map(Amount::Bytes).map_err(|error| error.to_string()),
    }
}

fn parse_explain(text: &str) -> Result<(String, Span), String> {
    let wrong = || "write a guest and a time, as in web1@90s or web1@2h".to_owned();
    let (guest, at) = text.rsplit_once('@').ok_or_else(wrong)?;
    let at = humantime::parse_duration(at).map_err(|_| wrong())?;
    if guest.is_empty() { Err(wrong()) } else { Ok((guest.to_owned(), at.into())) }
}

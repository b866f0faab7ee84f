//! `cargo xtask prepush | tidy | dashboards | golden`: reads the arguments, runs the chore, prints the findings.
#![forbid(unsafe_code)]

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use xtask::golden::{self, Mode};
use xtask::prepush::{self, Extent};
use xtask::tidy;

const USAGE: &str = "\
usage: cargo xtask CHORE

  prepush [--quick | --checks]
                      all that continuous integration checks; --quick leaves out the tests with real guests, --checks all tests
  tidy                rules of style that neither rustfmt nor clippy knows
  dashboards          writes the dashboard, the rules and the table of metrics from the list of metrics
  golden [--check]    records what the policy decides on each trace; --check compares instead and shows the changes";

/// Whether the chore found no problem.
type Clean = bool;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let chore = match words.as_slice() {
        ["prepush"] => prepush(Extent::Full),
        ["prepush", "--quick"] => prepush(Extent::Quick),
        ["prepush", "--checks"] => prepush(Extent::Checks),
        ["tidy"] => tidy(),
        ["dashboards"] => dashboards(),
        ["golden"] => golden(Mode::Record),
        ["golden", "--check"] => golden(Mode::Check),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match chore {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error}");
            let mut source = error.source();
            while let Some(cause) = source {
                eprintln!("  because: {cause}");
                source = cause.source();
            }
            ExitCode::FAILURE
        }
    }
}

fn prepush(extent: Extent) -> Result<Clean, Box<dyn Error>> {
    prepush::run(&root()?, extent)?;
    Ok(true)
}

fn tidy() -> Result<Clean, Box<dyn Error>> {
    let findings = tidy::run(&root()?)?;
    for finding in &findings {
        println!("{finding}");
    }
    if !findings.is_empty() {
        eprintln!("tidy: {} to be put right", findings.len());
    }
    Ok(findings.is_empty())
}

/// Writes what memtide-dashboards makes. Its own test says when that is necessary.
fn dashboards() -> Result<Clean, Box<dyn Error>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = std::process::Command::new(cargo);
    command.args(["run", "--quiet", "--package", "memtide-dashboards", "--", "."]).current_dir(root()?);
    Ok(command.status()?.success())
}

fn golden(mode: Mode) -> Result<Clean, Box<dyn Error>> {
    let changes = golden::run(&root()?, mode)?;
    for change in &changes {
        print!("{}", change.diff);
    }
    if mode == Mode::Check && !changes.is_empty() {
        eprintln!("golden: {} decided differently; if that is meant: cargo xtask golden", changes.len());
        return Ok(false);
    }
    Ok(true)
}

/// The directory of the workspace: the parent of this crate's directory, which cargo gives to the programs that it runs.
fn root() -> Result<PathBuf, Box<dyn Error>> {
    let own = std::env::var_os("CARGO_MANIFEST_DIR").ok_or("run this as `cargo xtask`")?;
    let root = PathBuf::from(own).parent().map(PathBuf::from);
    Ok(root.ok_or("the crate xtask has no directory above its own")?)
}

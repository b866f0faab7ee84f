//! `memtide libvirt set`: the terms of a guest, kept in the metadata of its domain.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use memtide_config::Settings;
use memtide_daemon::backends;
use memtide_model::{TermError, Terms, printable};
use memtide_vmm::libvirt;

/// `memtide libvirt`.
#[derive(Args)]
pub struct Libvirt {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Set terms for a libvirt guest; they override its class. libvirt stores them in the domain; in manage mode, memtide applies them at once.
    #[command(
        after_help = "The terms are class, shares, reservation and limit, as in\n\n    memtide libvirt set web-1 shares=2000 limit=2GiB\n\n\
        To remove a term, leave its value empty (shares=); the class then applies again."
    )]
    Set {
        /// The domain, as `virsh list` shows it.
        domain: String,
        /// A term and its value.
        #[arg(required = true, value_name = "TERM=VALUE", value_parser = change)]
        changes: Vec<Change>,
        /// The configuration file that names further daemons of libvirt.
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
}

/// A term and its new value; `None` removes it.
type Change = (String, Option<String>);

fn change(text: &str) -> Result<Change, String> {
    let (key, value) = text.split_once('=').ok_or("write a term and its value, as in shares=2000")?;
    if !Terms::KEYS.contains(&key) {
        return Err(TermError::Unknown(printable(key)).to_string());
    }
    Ok((key.to_owned(), Some(value.to_owned()).filter(|value| !value.is_empty())))
}

impl Libvirt {
    /// Runs the command.
    pub fn execute(self) -> Result<ExitCode> {
        let Command::Set { domain, changes, config } = self.command;
        let settings = Settings::load(config.as_deref())?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("cannot start to talk to libvirt")?;
        let daemons = backends::libvirt_daemons(&settings);
        let terms = runtime.block_on(libvirt::set_terms(daemons, &domain, &changes))?;
        let domain = printable(&domain);
        match terms.are_none() {
            true => println!("{domain}: no terms of its own; its class applies"),
            false => println!("{domain}: {}", printable(&terms.in_words())),
        }
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_a_known_term_with_a_value_or_none() {
        assert_eq!(change("shares=2000"), Ok(("shares".to_owned(), Some("2000".to_owned()))));
        assert_eq!(change("limit="), Ok(("limit".to_owned(), None)));
        assert_eq!(
            change("weight=1").unwrap_err(),
            "there is no term `weight`: write class, shares, reservation or limit"
        );
        assert!(change("shares").is_err());
    }
}

//! `memtide reclaim GUEST SIZE`: the operator's order to reclaim memory from a guest's cgroup.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use memtide_api::Client;
use memtide_api::view::{CgroupReclaimAnswer, CgroupReclaimRequest, GuestStatus};
use memtide_model::{Bytes, Mode};

use crate::explain::no_such_guest;

/// Gives the order, and prints the result.
pub fn command(socket: &Path, guest: String, bytes: Bytes) -> Result<ExitCode> {
    let client = Client::at(socket);
    let request = CgroupReclaimRequest { guest: guest.clone(), bytes };
    let Some(answer) = client.reclaim_from_cgroup(&request)? else {
        return no_such_guest(&client, &guest);
    };
    let (text, is_done) = render(&answer, bytes);
    println!("{}: {text}", answer.guest.name);
    Ok(if is_done { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The answer as text, and whether memory was reclaimed as ordered.
fn render(answer: &CgroupReclaimAnswer, asked: Bytes) -> (String, bool) {
    let Some(tried) = &answer.tried else {
        let why = match answer.mode {
            Mode::Observe => "nothing reclaimed: this memtide only observes".to_owned(),
            Mode::Manage => {
                let GuestStatus { name, state, .. } = &answer.guest;
                format!("not reclaimed so far ({state}); check `memtide explain {name}`")
            }
        };
        return (why, false);
    };
    match (&tried.failed, tried.yielded) {
        (Some(why), _) => (format!("nothing reclaimed: {why}"), false),
        (None, bytes) => (format!("{} of {asked} came back", bytes.unwrap_or_default()), true),
    }
}

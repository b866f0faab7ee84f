//! `memtide explain GUEST`: demand → entitlement → target, with the numbers, and the last changes with their reasons.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use memtide_api::Client;
use memtide_api::explain::explain;
use memtide_api::view::GuestDetail;

use crate::style::Style;

/// Prints why a guest has this much memory.
pub fn command(socket: &Path, guest: &str, json: bool) -> Result<ExitCode> {
    let client = Client::at(socket);
    let Some(answer) = client.guest_answer(guest)? else { return no_such_guest(&client, guest) };
    let mut out = std::io::stdout().lock();
    if json {
        out.write_all(answer.json())?;
        writeln!(out)?;
    } else {
        out.write_all(render(&answer.read()?, Style::detect()).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Says that there is no guest of this name, and lists the guests.
pub fn no_such_guest(client: &Client, guest: &str) -> Result<ExitCode> {
    let status = client.status()?;
    let names: Vec<&str> = status.guests.iter().map(|guest| guest.name.as_str()).collect();
    let known = if names.is_empty() {
        "there are no guests".to_owned()
    } else {
        format!("the guests are {}", names.join(", "))
    };
    eprintln!("memtide: no guest `{guest}`; {known}");
    Ok(ExitCode::from(5))
}

/// The explanation as text.
pub fn render(detail: &GuestDetail, style: Style) -> String {
    let mut text = String::new();
    for section in explain(detail).sections {
        text.push_str(&style.bold(&section.title));
        text.push('\n');
        section.rows.iter().for_each(|row| text.push_str(&format!("{row}\n")));
    }
    text
}

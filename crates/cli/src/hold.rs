//! `memtide hold`, `release` and `resume`: the operator's orders to leave guests alone, or to manage them again.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use memtide_api::Client;
use memtide_api::view::{GuestStatus, HoldAnswer, HoldRequest, Wanted};
use memtide_model::Mode;

use crate::explain::no_such_guest;

/// Parses the duration of an order.
pub fn parse_time(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text)
        .map_err(|_| "write a number and a unit, as in 90s, 10m or 2h".to_owned())?;
    if time < HoldRequest::SHORTEST.into() {
        return Err("less than a second; `memtide resume` ends a hold".to_owned());
    }
    if time > HoldRequest::LONGEST.into() {
        return Err("more than 100 years; without --for, the order lasts until `memtide resume`".to_owned());
    }
    Ok(time)
}

/// Gives the order, and prints the result.
pub fn command(
    socket: &Path,
    guest: Option<String>,
    hold: Wanted,
    for_span: Option<Duration>,
) -> Result<ExitCode> {
    let request = HoldRequest { guest: guest.clone(), hold, for_span: for_span.map(Into::into) };
    let client = Client::at(socket);
    let Some(answer) = client.hold(&request)? else {
        return no_such_guest(&client, &guest.unwrap_or_default());
    };
    print!("{}", render(&answer, hold));
    Ok(if is_done(&answer, hold) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether the order is carried out: an observer gives no guest memory.
pub fn is_done(answer: &HoldAnswer, wanted: Wanted) -> bool {
    answer.decided && (answer.mode == Mode::Manage || wanted != Wanted::Release)
}

/// The answer as text, one line for each guest.
pub fn render(answer: &HoldAnswer, wanted: Wanted) -> String {
    let mut out = String::new();
    for guest in &answer.guests {
        out.push_str(&format!("{}: {}\n", guest.name, outcome(guest)));
    }
    if answer.guests.is_empty() {
        out.push_str("no guests: nothing to do\n");
    } else if !answer.decided {
        out.push_str("the daemon has not decided on this yet; check `memtide status`\n");
    } else if answer.mode == Mode::Observe && wanted == Wanted::Release {
        out.push_str(
            "this memtide only observes: it changes no guest, and remembers the order until it manages\n",
        );
    } else if answer.mode == Mode::Observe {
        out.push_str("this memtide only observes: it changes no guest anyway\n");
    }
    if !answer.written {
        out.push_str("active, but not yet in the journal: if the daemon ends before it can write the order, the order is lost\n");
    }
    for warning in &answer.warnings {
        out.push_str(&format!("{warning}\n"));
    }
    out
}

fn outcome(guest: &GuestStatus) -> String {
    let report = &guest.report;
    let asked = match report.target {
        Some(target) if target > report.actual => format!(", target {target}"),
        _ => String::new(),
    };
    format!("{}, keeps {} of {}{asked}", guest.state, report.actual, report.full)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_that_changes_nothing_is_not_done() {
        let answer = |mode: Mode, decided: bool| -> HoldAnswer {
            serde_json::from_value(serde_json::json!({
                "mode": mode, "decided": decided, "written": true, "warnings": [], "guests": []
            }))
            .unwrap()
        };
        assert!(is_done(&answer(Mode::Manage, true), Wanted::Release));
        assert!(!is_done(&answer(Mode::Manage, false), Wanted::Release));
        assert!(is_done(&answer(Mode::Observe, true), Wanted::Hold));
        assert!(
            !is_done(&answer(Mode::Observe, true), Wanted::Release),
            "an observer gives no guest anything"
        );
    }

    #[test]
    fn times_have_units() {
        assert_eq!(parse_time("90s"), Ok(Duration::from_secs(90)));
        assert!(parse_time("10").unwrap_err().contains("10m"));
        assert!(parse_time("1ms").unwrap_err().contains("less than a second"));
    }
}

//! `memtide status`: the ledger as a bar and in numbers, and a table of the guests.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use memtide_api::view::{GuestStatus, Status};
use memtide_api::{Client, Event};
use memtide_model::{
    Bytes, Commitment, HostReport, HostState, KsmVerdict, Outsiders, Savings, TmpfsReport, Verdict, counted,
    printable,
};

use crate::style::Style;
use crate::table::{Align, lines};

/// The width of the bar in characters.
const BAR: u64 = 72;
/// How free memory comes back without a balloon.
const REPORTING: &str = "by free page reporting if it is turned on in the remaining guests";
/// Clears a terminal, and begins at its top.
const CLEAR: &str = "\u{1b}[H\u{1b}[2J";

/// Prints the status of the daemon at `socket`.
pub fn command(socket: &Path, json: bool) -> Result<ExitCode> {
    let answer = Client::at(socket).status_answer()?;
    let mut out = std::io::stdout().lock();
    if json {
        out.write_all(answer.json())?;
        writeln!(out)?;
    } else {
        out.write_all(render(&answer.read()?, Style::detect()).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the status after each decision: on a terminal in place, else one below the other; as JSON one a line.
pub fn watch(socket: &Path, json: bool) -> Result<ExitCode> {
    let (style, in_place) = (Style::detect(), std::io::stdout().is_terminal());
    let mut printed = Ok(());
    Client::at(socket).events(|event| {
        let Event::Tick { status, json: line } = event else { return true };
        let text = match (json, in_place) {
            (true, _) => format!("{line}\n"),
            (false, true) => format!("{CLEAR}{}", render(&status, style)),
            (false, false) => format!("{}\n", render(&status, style)),
        };
        let mut out = std::io::stdout().lock();
        printed = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        printed.is_ok()
    })?;
    printed?;
    eprintln!("memtide: the daemon has ended");
    Ok(ExitCode::from(4))
}

/// The status as text.
pub fn render(status: &Status, style: Style) -> String {
    let mut out = String::new();
    headline(&mut out, status, style);
    if status.decided_at.is_none() {
        out.push_str("no decision yet: the daemon has just started\n");
        return out;
    }
    if let Some(sentence) = status.in_a_sentence() {
        line(&mut out, &sentence);
    }
    ledger(&mut out, status, style);
    for warning in &status.warnings {
        line(&mut out, &style.bad(&format!("! {warning}")));
    }
    out.push('\n');
    if status.guests.is_empty() {
        out.push_str("no guests found (memtide ignores guests that `discover` does not match)\n");
    } else {
        table(&mut out, &status.guests, style);
    }
    outsiders(&mut out, &status.outsiders);
    out
}

/// The guests of other users, each with the line that admits it.
fn outsiders(out: &mut String, outsiders: &Outsiders) {
    if outsiders.count == 0 {
        return;
    }
    let told = match outsiders.count {
        1 => "1 guest belongs to a user outside `users` and counts as other programs do; to manage it:"
            .to_owned(),
        count => format!(
            "{count} guests belong to users outside `users` and count as other programs do; to manage them:"
        ),
    };
    line(out, &format!("\n{told}"));
    for outsider in &outsiders.listed {
        let costs = outsider.footprint.map_or_else(String::new, |bytes| format!(", {bytes}"));
        let line_of = outsider.line.as_deref().unwrap_or("its user is not known");
        line(out, &format!("  {outsider}{costs}:  {}", printable(line_of)));
    }
    if outsiders.more() > 0 {
        line(out, &format!("  and {} more", outsiders.more()));
    }
}

fn line(out: &mut String, text: &str) {
    out.push_str(text);
    out.push('\n');
}

fn headline(out: &mut String, status: &Status, style: Style) {
    let (mode, commitment) = (status.mode.in_words(), status.commitment);
    let word = status.host.state.to_string();
    let host = match status.host.state {
        HostState::High => style.good(&word),
        HostState::Soft => style.warn(&word),
        HostState::Hard | HostState::Low => style.bad(&word),
    };
    let name = style.bold(&format!("memtide {}", status.version));
    let late = status.is_late_by().map(|age| style.bad(&format!(", BUT ITS LAST DECISION IS {age} OLD")));
    line(out, &format!("{name}  {mode}, {commitment}, host {host}{}", late.unwrap_or_default()));
}

fn ledger(out: &mut String, status: &Status, style: Style) {
    let host = &status.host;
    let cells = |bytes: Bytes| bytes.mul_div(BAR, host.capacity.get().max(1)).get();
    let guests = cells(host.footprints).min(BAR);
    let torn = cells(host.torn).min(BAR - guests);
    let other = cells(host.other).min(BAR - guests - torn);
    let reserve = cells(host.reserve).min(BAR - guests - torn - other);
    let free = BAR - guests - torn - other - reserve;
    let cell = |count: u64, mark: &str| mark.repeat(usize::try_from(count.min(BAR)).unwrap_or(0));
    let bar = [
        style.guests(&cell(guests, "█")),
        style.warn(&cell(torn, "▒")),
        style.dim(&cell(other, "▓")),
        cell(free, "·"),
        style.dim(&cell(reserve, "░")),
    ];
    line(out, &format!("[{}]", bar.concat()));
    let torn = if host.torn.is_zero() { String::new() } else { format!(" + ▒ torn {}", host.torn) };
    line(
        out,
        &format!(
            "{} = █ guests {}{torn} + ▓ other {} + · free {} + ░ reserve {}",
            host.capacity, host.footprints, host.other, host.free, host.reserve
        ),
    );
    let mut promise = format!("guests' worst case {}", host.reach);
    let _infallible = match status.commitment {
        Commitment::Strict if !host.self_deflation.is_zero() => {
            write!(
                promise,
                ", plus {} for self-deflation{}",
                host.self_deflation,
                which_self_deflations(host)
            )
        }
        Commitment::Strict => Ok(()),
        Commitment::Elastic => {
            write!(promise, "; kept free for growth: {}", host.envelope)
        }
    };
    line(out, &promise);
    for guest in status.guests.iter().filter(|guest| !guest.report.unordered.is_zero()) {
        let took = format!(
            "{} took {} beyond its fair share, which nobody ordered",
            guest.name, guest.report.unordered
        );
        line(out, &style.bad(&format!("{took}; `memtide resume {}` takes it back", guest.name)));
    }
    if !host.breach.is_zero() {
        line(out, &style.bad(&format!("the commitment is not kept: {} missing", host.breach)));
        line(out, &style.dim(&remedy(status)));
    } else if host.unmet > host.room {
        line(out, &style.warn(&format!("guests lack {}; {} can be granted now", host.unmet, host.room)));
    }
    reclaimable(out, &host.savings);
    host.tmpfs.iter().filter(|tmpfs| tmpfs.binds).for_each(|tmpfs| self::tmpfs(out, tmpfs, style));
    ksm(out, host);
    let swap =
        status.swap.map_or("n/a (no swap)".to_owned(), |swap| format!("{} since boot", swap.swapped_in));
    line(out, &style.dim(&format!("host swapped in: {swap}")));
    if !status.confined.is_empty() {
        line(out, &style.dim(&format!("confined: {}", status.confined.join("; "))));
    }
}

/// Of how many guests the ledger counts self-deflations, if it does not count all.
fn which_self_deflations(host: &HostReport) -> String {
    let Some(counts) = host.self_deflations.filter(|counts| counts.guests > counts.at_once) else {
        return String::new();
    };
    let within = counts.within.map_or(String::new(), |within| format!(", up to {within} each"));
    format!(" of {} of {} at a time{within}", counts.at_once, counted(u64::from(counts.guests), "guest"))
}

/// The memory that can come back from guests, by each way. Neither is a part of the other: a balloon leaves a guest its headroom, and takes page cache,
/// too.
fn reclaimable(out: &mut String, savings: &Savings) {
    let ways = [(savings.ballooning, "by ballooning"), (savings.free_page_reporting, REPORTING)];
    let ways = ways.iter().filter(|(bytes, _)| !bytes.is_zero());
    let ways: Vec<String> = ways.map(|(bytes, how)| format!("{bytes} {how}")).collect();
    if !ways.is_empty() {
        line(out, &format!("reclaimable: {}", ways.join(", or ")));
    }
}

/// A tmpfs that has less left than the host.
fn tmpfs(out: &mut String, tmpfs: &TmpfsReport, style: Style) {
    let guests = counted(u64::from(tmpfs.guests), "guest");
    let holds = format!("{}: {}, with the memory of {guests}", tmpfs.at, tmpfs.space);
    if tmpfs.breach.is_zero() {
        return line(out, &format!("{holds}; {} can be granted there", tmpfs.room));
    }
    line(out, &style.bad(&format!("{holds}: {} missing for the commitment", tmpfs.breach)));
    line(out, &style.dim("when it is full, guests in it are killed: make it larger"));
}

/// What KSM saves, if it saves something or memtide governs it.
fn ksm(out: &mut String, host: &HostReport) {
    let Some(ksm) = &host.ksm else { return };
    let saved = ksm.seen.saved_in_all();
    if ksm.verdict != KsmVerdict::Observes || !saved.is_zero() {
        line(out, &format!("KSM saves {saved} (`memtide ksm`): {}", ksm.verdict));
    }
}

/// Why the commitment is not kept, and how to fix it.
fn remedy(status: &Status) -> String {
    let host = &status.host;
    let gives = |guest: &GuestStatus| {
        guest.report.target.map_or(Bytes::ZERO, |target| guest.report.actual.saturating_sub(target))
    };
    let under_way = Bytes::sum(status.guests.iter().map(gives));
    if !under_way.is_zero() && under_way >= host.breach {
        return format!("guests are giving {under_way}: that fixes it");
    }
    let fix = match status.commitment {
        Commitment::Elastic => {
            "guests may take more than the free memory: stop or move a guest, or raise `budget` if it is less than the host has"
        }
        Commitment::Strict if host.self_deflation.is_zero() || host.breach > host.self_deflation => {
            "the guests' worst case does not fit beside the reserve and everything else: lower `reserve`, stop or move a guest, use an \
             elastic commitment, or raise `budget` if it is less than the host has"
        }
        Commitment::Strict => {
            "the guests fit until one deflates its own balloon: lower `reserve`, use fewer `self_deflations` or an elastic commitment, \
             or raise `budget` if it is less than the host has"
        }
    };
    fix.to_owned()
}

fn table(out: &mut String, guests: &[GuestStatus], style: Style) {
    const HEADS: [(&str, Align); 8] = [
        ("GUEST", Align::Left),
        ("RESIDENT", Align::Right),
        ("TARGET", Align::Right),
        ("ACTUAL", Align::Right),
        ("USED", Align::Right),
        ("NEEDS", Align::Right),
        ("STATE", Align::Left),
        ("LAST CHANGE", Align::Left),
    ];
    let rows: Vec<[String; 8]> = guests.iter().map(row).collect();
    let mut lines = lines(HEADS, &rows).into_iter();
    lines.next().iter().for_each(|heads| line(out, &style.bold(heads)));
    for (text, guest) in lines.zip(guests) {
        line(out, &paint(&text, &guest.report.verdict, style));
    }
}

fn paint(text: &str, verdict: &Verdict, style: Style) -> String {
    match verdict {
        Verdict::Stuck { .. } | Verdict::WaitsForMemory { .. } | Verdict::Withheld(_) => style.warn(text),
        Verdict::NotManaged | Verdict::NoBalloon(_) | Verdict::NoStats(_) => style.dim(text),
        _ => text.to_owned(),
    }
}

fn row(guest: &GuestStatus) -> [String; 8] {
    let report = &guest.report;
    let or_dash = |bytes: Option<Bytes>| bytes.map_or("-".to_owned(), |bytes| bytes.to_string());
    let last = match (&guest.last_reason, guest.last_change) {
        (Some(reason), Some(ago)) => format!("{ago} ago: {reason}"),
        _ => "-".to_owned(),
    };
    let share = if guest.cannot_share { "; cannot share" } else { "" };
    [
        guest.name.clone(),
        or_dash(report.footprint),
        or_dash(report.target),
        format!("{} of {}", report.actual, report.full),
        or_dash(report.used),
        if report.used.is_some() { report.demand.to_string() } else { "-".to_owned() },
        format!("{}{share}", guest.state),
        last,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use memtide_engine::Counters;
    use memtide_model::{
        Backend, GuestId, GuestReport, HostReport, Mode, Moment, Names, Outsider, Polling, SelfDeflations,
        Space, Span, TmpfsId, Users,
    };

    fn guest(name: &str, used: Option<u64>, verdict: Verdict) -> GuestStatus {
        let mib = Bytes::from_mib;
        let report = GuestReport {
            id: GuestId::new(name, 1, "boot"),
            class: "default".into(),
            footprint: Some(mib(260)),
            merged: None,
            reach: mib(520),
            actual: mib(420),
            full: mib(1024),
            used: used.map(mib),
            cache: mib(40),
            headroom: mib(32),
            demand: mib(310),
            entitlement: mib(400),
            target: used.map(|_| mib(400)),
            unordered: Bytes::ZERO,
            bound_by: None,
            verdict: verdict.clone(),
        };
        GuestStatus {
            name: name.to_owned(),
            pid: 7,
            backend: Backend::new("QEMU"),
            polling: Polling::Every(Span::from_secs(1)),
            report,
            parts: None,
            stalled: memtide_api::view::Stalled::default(),
            matter: None,
            state: verdict.in_words(&Names::default(), Moment::default()),
            last_reason: used.map(|_| "220 MiB idle (needs 180 MiB); 64 MiB needed elsewhere".to_owned()),
            last_change: used.map(|_| Span::from_millis(4_200)),
            cannot_share: name == "uml-1",
        }
    }

    fn tmpfs_of(guests: u32, room: Bytes, breach: Bytes) -> TmpfsReport {
        let space = Space { size: Bytes::from_mib(512), free: Bytes::from_mib(40) };
        let at = format!("/tmp/{guests}");
        TmpfsReport { id: TmpfsId(u64::from(guests)), at, space, guests, binds: true, room, breach }
    }

    fn outsider(name: &str, user: Option<u32>) -> Outsider {
        Outsider {
            name: name.to_owned(),
            pid: 42,
            user,
            user_name: user.map(|_| "alice".to_owned()),
            footprint: user.map(|_| Bytes::from_mib(4)),
            line: user.map(|_| Users::default().line_with("alice")),
        }
    }

    fn some_outsiders() -> Outsiders {
        Outsiders { listed: vec![outsider("web1", Some(1001)), outsider("\u{1b}c", None)], count: 12 }
    }

    #[test]
    fn the_status_is_for_people() {
        let mib = Bytes::from_mib;
        let host = HostReport {
            capacity: mib(2048),
            reserve: mib(102),
            footprints: mib(1040),
            torn: mib(100),
            other: mib(60),
            free: mib(746),
            reach: mib(1500),
            self_deflation: mib(604),
            self_deflations: Some(SelfDeflations { at_once: 2, guests: 3, within: Some(mib(512)) }),
            unmet: mib(64),
            room: mib(20),
            savings: Savings { free_page_reporting: mib(120), ballooning: mib(300) },
            tmpfs: vec![tmpfs_of(1, mib(30), mib(0)), tmpfs_of(2, mib(0), mib(70))],
            ..HostReport::default()
        };
        let status = Status {
            version: "0.1.0".to_owned(),
            mode: Mode::Manage,
            commitment: Commitment::Strict,
            sentence: None,
            warnings: vec!["the journal cannot be written: no space left".to_owned()],
            confined: vec!["capabilities none".to_owned()],
            counters: Counters::default(),
            unwritten: None,
            decided_at: Some(Moment::default()),
            age: Some(Span::from_millis(700)),
            took: Span::ZERO,
            host,
            swap: None,
            pressure: None,
            guests: vec![
                guest("db-1", Some(210), Verdict::Shrunk),
                guest("uml-1", Some(210), Verdict::Steady),
                guest("a-guest-without-balloon", None, Verdict::NoBalloon(memtide_model::Absence::NoBalloon)),
            ],
            outsiders: some_outsiders(),
        };
        insta::assert_snapshot!(render(&status, Style::plain()), @r#"
        memtide 0.1.0  managing, strict, host high
        3 guests of 1 GiB run in 1.02 GiB; 1 is giving memory; nobody waits for memory
        [████████████████████████████████████▒▒▒▓▓····························░░░]
        2 GiB = █ guests 1.02 GiB + ▒ torn 100 MiB + ▓ other 60 MiB + · free 746 MiB + ░ reserve 102 MiB
        guests' worst case 1.46 GiB, plus 604 MiB for self-deflation of 2 of 3 guests at a time, up to 512 MiB each
        guests lack 64 MiB; 20 MiB can be granted now
        reclaimable: 300 MiB by ballooning, or 120 MiB by free page reporting if it is turned on in the remaining guests
        /tmp/1: 40 MiB of 512 MiB free, with the memory of 1 guest; 30 MiB can be granted there
        /tmp/2: 40 MiB of 512 MiB free, with the memory of 2 guests: 70 MiB missing for the commitment
        when it is full, guests in it are killed: make it larger
        host swapped in: n/a (no swap)
        confined: capabilities none
        ! the journal cannot be written: no space left

        GUEST                    RESIDENT   TARGET            ACTUAL     USED    NEEDS  STATE                 LAST CHANGE
        db-1                      260 MiB  400 MiB  420 MiB of 1 GiB  210 MiB  310 MiB  shrinking             4.2 s ago: 220 MiB idle (needs 180 MiB); 64 MiB needed elsewhere
        uml-1                     260 MiB  400 MiB  420 MiB of 1 GiB  210 MiB  310 MiB  steady; cannot share  4.2 s ago: 220 MiB idle (needs 180 MiB); 64 MiB needed elsewhere
        a-guest-without-balloon   260 MiB        -  420 MiB of 1 GiB        -        -  no balloon device     -

        12 guests belong to users outside `users` and count as other programs do; to manage them:
          web1 (process 42 of alice), 4 MiB:  users = ["system", "alice"]
          \u{1b}c (process 42 of an unknown user):  its user is not known
          and 10 more
        "#);
        let late = Status { age: Some(Span::from_secs(43)), ..status };
        let first = render(&late, Style::plain()).lines().next().unwrap().to_owned();
        assert_eq!(first, "memtide 0.1.0  managing, strict, host high, BUT ITS LAST DECISION IS 43.0 s OLD");
    }

    #[test]
    fn free_memory_that_the_balloon_leaves_to_guests_is_no_part_of_what_it_returns() {
        let told = |ballooning: u64, free_page_reporting: u64| {
            let [ballooning, free_page_reporting] = [ballooning, free_page_reporting].map(Bytes::from_mib);
            let savings = Savings { free_page_reporting, ballooning };
            let mut out = String::new();
            reclaimable(&mut out, &savings);
            out
        };
        let reporting = "by free page reporting if it is turned on in the remaining guests\n";
        assert_eq!(told(50, 200), format!("reclaimable: 50 MiB by ballooning, or 200 MiB {reporting}"));
        assert_eq!(told(0, 200), format!("reclaimable: 200 MiB {reporting}"));
        assert_eq!((told(50, 0).as_str(), told(0, 0).as_str()), ("reclaimable: 50 MiB by ballooning\n", ""));
    }

    #[test]
    fn one_outsider_is_no_plural() {
        let mut out = String::new();
        outsiders(&mut out, &Outsiders { listed: vec![outsider("web1", Some(1001))], count: 1 });
        insta::assert_snapshot!(out, @r#"

        1 guest belongs to a user outside `users` and counts as other programs do; to manage it:
          web1 (process 42 of alice), 4 MiB:  users = ["system", "alice"]
        "#);
    }
}

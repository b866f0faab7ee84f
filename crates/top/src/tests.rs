//! The screen as people see it: goldens, and what keys do.

use std::sync::Arc;

use jiff::tz::TimeZone;
use memtide_api::view::{Status, Wanted};
use memtide_model::{Bytes, HostState, Verdict};
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers, MouseButton, MouseEvent, MouseEventKind};
use ratatui::layout::{Rect, Size};
use ratatui::style::Modifier;

use crate::app::orders::{Answer, Order, What, Wish};
use crate::app::{App, Event};
use crate::draw::draw;
use crate::draw::theme::Theme;
use crate::frame::Frame;
use crate::live::Live;
use crate::past::Past;
use crate::sample;
use crate::source::{Entry, Kind, Link};

const NORMAL: Size = Size { width: 80, height: 24 };

/// A screen after this number of seconds of a host.
fn screen(size: Size, seconds: u64, host: impl Fn(u64) -> Status) -> App {
    let mut past = Past::default();
    for second in 0..seconds {
        let frame = Frame::of(&host(second), sample::wall(second), past.newest().map(AsRef::as_ref));
        past.push(frame);
        if second % 60 == 30 {
            past.log_entry(Entry {
                at: sample::moment(second),
                wall: sample::wall(second),
                kind: Kind::Change,
                guest: Some("web-1".into()),
                says: "is to keep 420 MiB: 220 MiB idle (needs 180 MiB); 64 MiB needed elsewhere".to_owned(),
            });
        }
    }
    App::new(Box::new(Live::made(past, Link::Live)), TimeZone::UTC, size)
}

/// A host with four guests, of which one grows and one gives.
fn normal(second: u64) -> Status {
    let guests = vec![
        sample::guest("db-1", (300, 520, 760), Verdict::Grown),
        sample::guest("mail", (180, 1024, 1024), Verdict::Steady),
        sample::guest("web-1", (150, 640, 420), Verdict::Shrunk),
        sample::guest("web-2", (150, 400, 400), Verdict::Steady),
    ];
    sample::host(guests, second, (1200 + second * 3, 2200 - second * 3))
}

#[test]
fn a_size_under_way_has_a_direction() {
    let says = |actual, target| sample::guest("a", (150, actual, target), Verdict::UnderWay).state;
    assert_eq!([says(500, 400), says(400, 500), says(400, 401)], ["shrinking", "growing", "under way"]);
}

/// The same host when a guest waits, and little is free.
fn in_need(second: u64) -> Status {
    let mut status = normal(second);
    if second >= 100 {
        let waits = Verdict::WaitsForMemory { lacks: Bytes::from_mib(96) };
        status.guests[3] = sample::guest("web-2", (250, 402, 402), waits);
        status.host.state = HostState::Hard;
        status.warnings = vec!["the journal cannot be written: no space left".to_owned()];
    }
    status
}

fn picture(app: &App) -> String {
    let mut buffer = Buffer::empty(Rect::new(0, 0, app.size.width, app.size.height));
    draw(app, Theme::Plain, &mut buffer);
    let line = |y| {
        let mut line = String::new();
        let mut skip = 0;
        for x in 0..app.size.width {
            let symbol = buffer[(x, y)].symbol();
            if skip == 0 {
                line.push_str(symbol);
            }
            skip = crate::text::width(symbol).max(skip).saturating_sub(1);
        }
        line.trim_end().to_owned()
    };
    (0..app.size.height).map(line).collect::<Vec<_>>().join("\n")
}

fn press(app: &mut App, code: KeyCode) -> Vec<Wish> {
    app.update(Event::Key(KeyEvent::new(code, KeyModifiers::NONE)))
}

/// Types these characters.
fn types(app: &mut App, text: &str) -> Vec<Wish> {
    text.chars().flat_map(|c| press(app, KeyCode::Char(c))).collect()
}

#[test]
fn a_normal_host() {
    insta::assert_snapshot!(picture(&screen(NORMAL, 300, normal)), @r"
    memtide 0.1.0  managing, elastic, host high                        14:36:59 live
    4 guests of 1 GiB run in 2.05 GiB; 1 is giving memory, 1 is getting more; nobody
    waits for memory
    █ guests 2.05 GiB ▒ torn 40 MiB ▓ other 452 MiB · free 1.27 GiB ░ reserve 204 M…
    4 GiB
                                                                               ▓▓▓
                                            ▓▓▓▓▓▓█▓▓▓██████████████████████████████
                                            ████████████████████████████████████████
    14:26                                14:31                                 14:36
    GUEST             COST    KEEPS OF ITS SIZE        STALLS STATE
    db-1           490 MiB  520 MiB █████▓▒▒·░░░░░░░░░      0 growing
    web-1          340 MiB  640 MiB ███▓▒······░░░░░░░      0 shrinking
    mail           370 MiB    1 GiB ███▓▒▒············      0 steady
    web-2          340 MiB  400 MiB ███▓▒··░░░░░░░░░░░      0 steady
    ── █ in use ▓ needed cache ▒ cold cache · free ░ given away ────────────────────
    14:32:30 web-1 is to keep 420 MiB: 220 MiB idle (needs 180 MiB); 64 MiB needed …
    14:33:30 web-1 is to keep 420 MiB: 220 MiB idle (needs 180 MiB); 64 MiB needed …
    14:34:30 web-1 is to keep 420 MiB: 220 MiB idle (needs 180 MiB); 64 MiB needed …
    14:35:30 web-1 is to keep 420 MiB: 220 MiB idle (needs 180 MiB); 64 MiB needed …
    14:36:30 web-1 is to keep 420 MiB: 220 MiB idle (needs 180 MiB); 64 MiB needed …



    ? help q quit Enter explain w why s sort / filter h hold l let go m resume
    ");
}

#[test]
fn a_host_in_need() {
    insta::assert_snapshot!(picture(&screen(NORMAL, 300, in_need)), @r"
    memtide 0.1.0  managing, elastic, host hard                        14:36:59 live
    4 guests of 1 GiB run in 2.05 GiB; 1 is giving memory, 1 is getting more; 1
    waits for memory
    ! the journal cannot be written: no space left
    █ guests 2.05 GiB ▒ torn 40 MiB ▓ other 452 MiB · free 1.27 GiB ░ reserve 204 M…
    4 GiB
                                                                               ▓▓▓
                                            ▓▓▓▓▓▓█▓▓▓██████████████████████████████
                                            ████████████████████████████████████████
    14:26                                14:31                                 14:36
    GUEST             COST    KEEPS OF ITS SIZE        STALLS STATE
    web-2          440 MiB  402 MiB ████▓▒▒·░░░░░░░░░░      0 waits for 96 MiB
    db-1           490 MiB  520 MiB █████▓▒▒·░░░░░░░░░      0 growing
    web-1          340 MiB  640 MiB ███▓▒······░░░░░░░      0 shrinking
    mail           370 MiB    1 GiB ███▓▒▒············      0 steady
    ── █ in use ▓ needed cache ▒ cold cache · free ░ given away ────────────────────
    14:32:30 web-1 is to keep 420 MiB: 220 MiB idle (needs 180 MiB); 64 MiB needed …
    14:33:30 web-1 is to keep 420 MiB: 220 MiB idle (needs 180 MiB); 64 MiB needed …
    14:33:40 web-2 waits for 96 MiB
    14:33:40 the host is short of memory (hard)
    14:34:30 web-1 is to keep 420 MiB: 220 MiB idle (needs 180 MiB); 64 MiB needed …
    14:35:30 web-1 is to keep 420 MiB: 220 MiB idle (needs 180 MiB); 64 MiB needed …
    14:36:30 web-1 is to keep 420 MiB: 220 MiB idle (needs 180 MiB); 64 MiB needed …
    ? help q quit Enter explain w why s sort / filter h hold l let go m resume
    ");
}

#[test]
fn a_wide_screen_shows_more_of_each_guest() {
    let app = screen(Size { width: 120, height: 40 }, 300, in_need);
    insta::assert_snapshot!(picture(&app), @r"
    memtide 0.1.0  managing, elastic, host hard                                                                14:36:59 live
    4 guests of 1 GiB run in 2.05 GiB; 1 is giving memory, 1 is getting more; 1 waits for memory
    ! the journal cannot be written: no space left
    4 GiB = █ guests 2.05 GiB + ▒ torn 40 MiB + ▓ other 452 MiB + · free 1.27 GiB + ░ reserve 204 MiB
    4 GiB

                                                                                                           ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓
                                                                ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓█▓▓██████████████████████████
                                                                ████████████████████████████████████████████████████████████
                                                                ████████████████████████████████████████████████████████████
    14:26                  14:28                  14:30                  14:32                  14:34                  14:36
    GUEST                     COST    KEEPS    NEEDS OF ITS SIZE                  STALLS STATE
    web-2                  440 MiB  402 MiB  342 MiB ███████▓▒▒▒·░░░░░░░░░░░░░░░░      0 waits for 96 MiB
    db-1                   490 MiB  520 MiB  392 MiB ████████▓▓▒▒··░░░░░░░░░░░░░░      0 growing
    web-1                  340 MiB  640 MiB  242 MiB ████▓▓▒▒··········░░░░░░░░░░      0 shrinking
    mail                   370 MiB    1 GiB  272 MiB █████▓▓▒▒···················      0 steady
    ── █ in use ▓ needed cache ▒ cold cache · free ░ given away ────────────────────────────────────────────────────────────
    14:32:30 web-1 is to keep 420 MiB: 220 MiB idle (needs 180 MiB); 64 MiB needed elsewhere
    14:33:30 web-1 is to keep 420 MiB: 220 MiB idle (needs 180 MiB); 64 MiB needed elsewhere
    14:33:40 web-2 waits for 96 MiB
    14:33:40 the host is short of memory (hard)
    14:34:30 web-1 is to keep 420 MiB: 220 MiB idle (needs 180 MiB); 64 MiB needed elsewhere
    14:35:30 web-1 is to keep 420 MiB: 220 MiB idle (needs 180 MiB); 64 MiB needed elsewhere
    14:36:30 web-1 is to keep 420 MiB: 220 MiB idle (needs 180 MiB); 64 MiB needed elsewhere















    ? help q quit Enter explain w why s sort / filter h hold l let go m resume c reclaim space pause
    ");
}

#[test]
fn no_guests() {
    insta::assert_snapshot!(picture(&screen(NORMAL, 1, |second| sample::status(0, second))), @r"
    memtide 0.1.0  managing, elastic, host high                        14:32:00 live
    no guests
    █ guests 1.17 GiB ▒ torn 40 MiB ▓ other 852 MiB · free 1.76 GiB ░ reserve 204 M…
    4 GiB

                                                                                   ▓
                                                                                   █
    14:22                                14:27                                 14:32
    GUEST             COST    KEEPS OF ITS SIZE        STALLS STATE
    no guests found (memtide ignores guests that `discover` does not match)
    ── █ in use ▓ needed cache ▒ cold cache · free ░ given away ────────────────────
    nothing has happened since this screen was opened











    ? help q quit Enter explain w why s sort / filter h hold l let go m resume
    ");
}

#[test]
fn a_thousand_guests() {
    let mut app = screen(NORMAL, 2, |second| sample::status(1000, second));
    press(&mut app, KeyCode::End);
    insta::assert_snapshot!(picture(&app), @r"
    memtide 0.1.0  managing, elastic, host high                        14:32:01 live
    1000 guests of 1 GiB run in 1.17 GiB; 1 is getting more; nobody waits for memory
    █ guests 1.17 GiB ▒ torn 40 MiB ▓ other 852 MiB · free 1.76 GiB ░ reserve 204 M…
    4 GiB

                                                                                   ▓
                                                                                   █
    14:22                                14:27                                 14:32
    GUEST             COST    KEEPS OF ITS SIZE        STALLS STATE
    guest-0991     370 MiB  420 MiB ███▓▒▒·░░░░░░░░░░░      0 steady
    guest-0992     370 MiB  420 MiB ███▓▒▒·░░░░░░░░░░░      0 steady
    guest-0993     370 MiB  420 MiB ███▓▒▒·░░░░░░░░░░░      0 steady
    guest-0994     370 MiB  420 MiB ███▓▒▒·░░░░░░░░░░░      0 steady
    guest-0995     370 MiB  420 MiB ███▓▒▒·░░░░░░░░░░░      0 steady
    guest-0996     370 MiB  420 MiB ███▓▒▒·░░░░░░░░░░░      0 steady
    guest-0997     370 MiB  420 MiB ███▓▒▒·░░░░░░░░░░░      0 steady
    guest-0998     370 MiB  420 MiB ███▓▒▒·░░░░░░░░░░░      0 steady
    guest-0999     370 MiB  420 MiB ███▓▒▒·░░░░░░░░░░░      0 steady
    ── 992–1000 of 1000 █ in use ▓ needed cache ▒ cold cache · free ░ given away ───
    nothing has happened since this screen was opened



    ? help q quit Enter explain w why s sort / filter h hold l let go m resume
    ");
}

#[test]
fn a_small_screen_shows_the_guests() {
    insta::assert_snapshot!(picture(&screen(Size { width: 40, height: 10 }, 300, in_need)), @r"
    memtide 0.1.0  managing, … 14:36:59 live
    4 guests of 1 GiB run in 2.05 GiB; 1 is
    giving memory, 1 is getting more; 1
    GUEST      COST    KEEPS STALLS STATE
    web-2   440 MiB  402 MiB      0 waits f…
    db-1    490 MiB  520 MiB      0 growing
    web-1   340 MiB  640 MiB      0 shrinki…
    mail    370 MiB    1 GiB      0 steady

    small: graph from 60×16  ? help q quit
    ");
    assert_eq!(picture(&screen(Size { width: 15, height: 3 }, 1, normal)).trim_end(), "too small");
}

#[test]
fn the_reason_of_each_guest_after_one_key() {
    let mut app = screen(NORMAL, 300, normal);
    types(&mut app, "w");
    insta::assert_snapshot!(picture(&app), @r"
    memtide 0.1.0  managing, elastic, host high                        14:36:59 live
    4 guests of 1 GiB run in 2.05 GiB; 1 is giving memory, 1 is getting more; nobody
    waits for memory
    db-1             ███▓▒·░░░░ 520 MiB of 1 GiB, needs 392 MiB: growing
      4.2 s ago: 220 MiB idle (needs 180 MiB); 64 MiB needed elsewhere
    web-1            █▓▒···░░░░ 640 MiB of 1 GiB, needs 242 MiB: shrinking
      4.2 s ago: 220 MiB idle (needs 180 MiB); 64 MiB needed elsewhere
    mail             ██▓▒······ all of 1 GiB, needs 272 MiB: steady
      4.2 s ago: 220 MiB idle (needs 180 MiB); 64 MiB needed elsewhere
    web-2            █▓▒·░░░░░░ 400 MiB of 1 GiB, needs 242 MiB: steady
      4.2 s ago: 220 MiB idle (needs 180 MiB); 64 MiB needed elsewhere












    ? help q quit Enter explain w why s sort / filter h hold l let go m resume
    ");
}

#[test]
fn an_explanation() {
    let mut app = screen(NORMAL, 300, normal);
    let guest: Arc<str> = "db-1".into();
    assert_eq!(press(&mut app, KeyCode::Enter), [Wish::Explain(Arc::clone(&guest))]);
    let text =
        Ok("db-1: growing\n  keeps          520 MiB of 1 GiB\n  \u{1b}[31mtarget 760 MiB\n".to_owned());
    app.update(Event::Answered(Answer::Explained { guest: Arc::clone(&guest), text }));
    insta::assert_snapshot!(picture(&app), @r"
    memtide 0.1.0  managing, elastic, host high                        14:36:59 live
    ┌─ why db-1 has its memory ────────────────────────────────────────────────────┐
    │ db-1: growing                                                                │
    │   keeps          520 MiB of 1 GiB                                            │
    │   \u{1b}[31mtarget 760 MiB                                                   │
    │                                                                              │
    │                                                                              │
    │                                                                              │
    │                                                                              │
    │                                                                              │
    │                                                                              │
    │                                                                              │
    │                                                                              │
    │                                                                              │
    │                                                                              │
    │                                                                              │
    │                                                                              │
    │                                                                              │
    │                                                                              │
    │                                                                              │
    │                                                                              │
    │                                                                              │
    └──────────────────────────────────────────────────────────────────────────────┘
    ? help q quit Enter explain w why s sort / filter h hold l let go m resume
    ");
    assert_eq!(app.update(Event::Arrived), [Wish::Explain(guest)], "it stays up to date");
}

#[test]
fn an_explanation_of_the_past_is_made_of_what_is_kept() {
    let mut app = screen(NORMAL, 300, normal);
    press(&mut app, KeyCode::Char(' '));
    types(&mut app, "/web-1");
    press(&mut app, KeyCode::Enter);
    assert_eq!(press(&mut app, KeyCode::Enter), [], "the daemon knows only the present");
    insta::assert_snapshot!(picture(&app), @r"
    memtide 0.1.0  managing, elastic, host high           14:36:59 PAUSED (Esc: now)
    ┌─ why web-1 has its memory ───────────────────────────────────────────────────┐
    │ web-1: shrinking                                                             │
    │   at             14:36:59                                                    │
    │   keeps          640 MiB of 1 GiB                                            │
    │   its size       1 GiB = 150 MiB in use + 60 MiB page cache that it needs +  │
    │     90 MiB cold page cache + 340 MiB free + 384 MiB given away               │
    │   its cost       340 MiB = 310 MiB RAM + 30 MiB VMM                          │
    │   demand         242 MiB                                                     │
    │   entitlement    500 MiB   its fair share                                    │
    │   target         420 MiB                                                     │
    │   last change    14:36:54: 220 MiB idle (needs 180 MiB); 64 MiB needed       │
    │     elsewhere                                                                │
    │ what happened before, the newest first                                       │
    │   14:36:30 is to keep 420 MiB: 220 MiB idle (needs 180 MiB); 64 MiB needed   │
    │     elsewhere                                                                │
    │   14:35:30 is to keep 420 MiB: 220 MiB idle (needs 180 MiB); 64 MiB needed   │
    │     elsewhere                                                                │
    │   14:34:30 is to keep 420 MiB: 220 MiB idle (needs 180 MiB); 64 MiB needed   │
    │     elsewhere                                                                │
    │   14:33:30 is to keep 420 MiB: 220 MiB idle (needs 180 MiB); 64 MiB needed   │
    │     elsewhere                                                                │
    └─ 1–20 of 22 ─────────────────────────────────────────────────────────────────┘
    /web-1 ? help q quit Enter explain w why s sort / filter h hold l let go
    ");
}

#[test]
fn help() {
    let mut app = screen(NORMAL, 300, normal);
    types(&mut app, "?");
    insta::assert_snapshot!(picture(&app), @r"
    memtide 0.1.0  managing, elastic, host high                        14:36:59 live
    ┌─ keys ───────────────────────────────────────────────────────────────────────┐
    │ guests                                                                       │
    │   ↑ ↓ j k      previous, next guest; also the wheel, and a click             │
    │   PgUp PgDn    a page up or down; Home and End: the first and the last       │
    │   Enter e      why this guest has its memory (stays up to date)              │
    │   w            why each guest has its memory, in place of graph and log      │
    │   v            the log in place of graph and guests                          │
    │   s            sort: what matters now, name, cost, memory in use, stalls     │
    │   /            show only guests whose names contain what you type; Esc: all  │
    │ time                                                                         │
    │   space        pause, or follow the newest again                             │
    │                a journal: play, or pause; + - play faster, slower            │
    │   ← →          one step back, one step forward                               │
    │   [ ]          a minute back, a minute forward; or click on the graph        │
    │   n N          next, previous event; t chooses the kind of events            │
    │   1432         four digits go to 14:32                                       │
    │   Esc          back to the present, or to the end of a journal               │
    │ orders (a question comes first)                                              │
    │   h            hold: leave the guest alone at its present size               │
    │   l            let go: release it to its limit, then leave it alone          │
    │   m            manage it again: ends both                                    │
    └─ 1–20 of 31 ─────────────────────────────────────────────────────────────────┘
    ? help q quit Enter explain w why s sort / filter h hold l let go m resume
    ");
}

#[test]
fn an_order_needs_a_confirmation() {
    let mut app = screen(NORMAL, 300, normal);
    assert_eq!(types(&mut app, "h"), []);
    insta::assert_snapshot!(picture(&app), @r"
    memtide 0.1.0  managing, elastic, host high                        14:36:59 live
    4 guests of 1 GiB run in 2.05 GiB; 1 is giving memory, 1 is getting more; nobody
    waits for memory
    █ guests 2.05 GiB ▒ torn 40 MiB ▓ other 452 MiB · free 1.27 GiB ░ reserve 204 M…
    4 GiB
                                                                               ▓▓▓
                                            ▓▓▓▓▓▓█▓▓▓██████████████████████████████
                                            ████████████████████████████████████████
    14:26                                14:31                                 14:36
    ┌─ hold db-1? ─────────────────────────────────────────────────────────────────┐
    │ db-1 keeps its present 520 MiB of 1 GiB. memtide neither takes memory from   │
    │   it nor gives it any until you resume it.                                   │
    │                                                                              │
    │ y or Enter: yes     n or Esc: no                                             │
    └──────────────────────────────────────────────────────────────────────────────┘
    14:32:30 web-1 is to keep 420 MiB: 220 MiB idle (needs 180 MiB); 64 MiB needed …
    14:33:30 web-1 is to keep 420 MiB: 220 MiB idle (needs 180 MiB); 64 MiB needed …
    14:34:30 web-1 is to keep 420 MiB: 220 MiB idle (needs 180 MiB); 64 MiB needed …
    14:35:30 web-1 is to keep 420 MiB: 220 MiB idle (needs 180 MiB); 64 MiB needed …
    14:36:30 web-1 is to keep 420 MiB: 220 MiB idle (needs 180 MiB); 64 MiB needed …



    ? help q quit Enter explain w why s sort / filter h hold l let go m resume
    ");
    let order = Order { guest: "db-1".into(), what: What::Hold(Wanted::Hold) };
    assert_eq!(types(&mut app, "y"), [Wish::Order(order.clone())]);
    let text = Ok("db-1: held, keeps 520 MiB of 1 GiB".to_owned());
    app.update(Event::Answered(Answer::Done { order, text }));
    assert!(picture(&app).ends_with("db-1: held, keeps 520 MiB of 1 GiB"));
    assert_eq!(types(&mut app, "ln"), [], "no is no");
}

#[test]
fn a_reclaim_is_asked_for_after_its_preview() {
    let mut app = screen(NORMAL, 300, normal);
    let guest: Arc<str> = "db-1".into();
    assert_eq!(types(&mut app, "c"), [Wish::Preview(Arc::clone(&guest))]);
    assert_eq!(types(&mut app, "y"), [], "nobody knows yet what would happen");
    let text = Ok("db-1: costs the host 490 MiB\n  up to 120 MiB can be had".to_owned());
    app.update(Event::Answered(Answer::Previewed { guest: Arc::clone(&guest), text }));
    insta::assert_snapshot!(picture(&app), @r"
    memtide 0.1.0  managing, elastic, host high                        14:36:59 live
    4 guests of 1 GiB run in 2.05 GiB; 1 is giving memory, 1 is getting more; nobody
    waits for memory
    █ guests 2.05 GiB ▒ torn 40 MiB ▓ other 452 MiB · free 1.27 GiB ░ reserve 204 M…
    4 GiB
                                                                               ▓▓▓
                                            ▓▓▓▓▓▓█▓▓▓██████████████████████████████
    ┌─ reclaim from db-1? ─────────────────────────────────────────────────────────┐
    │ The agent in db-1 drops page cache, and its balloon takes free memory. Page  │
    │   cache that is read again then comes from the disk.                         │
    │                                                                              │
    │ db-1: costs the host 490 MiB                                                 │
    │   up to 120 MiB can be had                                                   │
    │                                                                              │
    │ y or Enter: yes     n or Esc: no                                             │
    └──────────────────────────────────────────────────────────────────────────────┘
    14:33:30 web-1 is to keep 420 MiB: 220 MiB idle (needs 180 MiB); 64 MiB needed …
    14:34:30 web-1 is to keep 420 MiB: 220 MiB idle (needs 180 MiB); 64 MiB needed …
    14:35:30 web-1 is to keep 420 MiB: 220 MiB idle (needs 180 MiB); 64 MiB needed …
    14:36:30 web-1 is to keep 420 MiB: 220 MiB idle (needs 180 MiB); 64 MiB needed …



    ? help q quit Enter explain w why s sort / filter h hold l let go m resume
    ");
    assert_eq!(types(&mut app, "y"), [Wish::Order(Order { guest, what: What::Reclaim })]);
}

#[test]
fn the_past_takes_no_orders() {
    let mut app = screen(NORMAL, 300, normal);
    press(&mut app, KeyCode::Left);
    assert_eq!(types(&mut app, "hy"), []);
    assert!(picture(&app).contains("PAUSED"), "{}", picture(&app));
    types(&mut app, "h");
    assert!(picture(&app).ends_with("orders change the present: press Esc first"));
    press(&mut app, KeyCode::Esc);
    assert!(picture(&app).contains("14:36:59 live"));
}

#[test]
fn four_digits_go_to_a_time_of_day() {
    let mut app = screen(NORMAL, 300, in_need);
    types(&mut app, "1433");
    insta::assert_snapshot!(picture(&app), @r"
    memtide 0.1.0  managing, elastic, host high           14:33:00 PAUSED (Esc: now)
    4 guests of 1 GiB run in 1.35 GiB; 1 is giving memory, 1 is getting more; nobody
    waits for memory
    █ guests 1.35 GiB ▒ torn 40 MiB ▓ other 452 MiB · free 1.97 GiB ░ reserve 204 M…
    4 GiB
                                                                               ▓▓▓
                                            ▓▓▓▓▓▓█▓▓▓██████████████████████████████
                                            ████████████████████████████████████████
    14:26                                14:31      ▲                          14:36
    GUEST             COST    KEEPS OF ITS SIZE        STALLS STATE
    db-1           490 MiB  520 MiB █████▓▒▒·░░░░░░░░░      0 growing
    web-1          340 MiB  640 MiB ███▓▒······░░░░░░░      0 shrinking
    mail           370 MiB    1 GiB ███▓▒▒············      0 steady
    web-2          340 MiB  400 MiB ███▓▒··░░░░░░░░░░░      0 steady
    ── █ in use ▓ needed cache ▒ cold cache · free ░ given away ────────────────────
    14:32:30▶web-1 is to keep 420 MiB: 220 MiB idle (needs 180 MiB); 64 MiB needed …
    14:33:30 web-1 is to keep 420 MiB: 220 MiB idle (needs 180 MiB); 64 MiB needed …
    14:33:40 web-2 waits for 96 MiB
    14:33:40 the host is short of memory (hard)
    14:34:30 web-1 is to keep 420 MiB: 220 MiB idle (needs 180 MiB); 64 MiB needed …
    14:35:30 web-1 is to keep 420 MiB: 220 MiB idle (needs 180 MiB); 64 MiB needed …
    14:36:30 web-1 is to keep 420 MiB: 220 MiB idle (needs 180 MiB); 64 MiB needed …

    ? help q quit Enter explain w why s sort / filter h hold l let go m resume
    ");
    types(&mut app, "1500");
    assert!(picture(&app).ends_with("15:00 is not in what is kept: from 14:32:00 to 14:36:59"));
}

#[test]
fn events_are_found_by_their_kind() {
    let mut app = screen(NORMAL, 300, in_need);
    types(&mut app, "N");
    assert!(picture(&app).contains("14:36:30 PAUSED"));
    types(&mut app, "tN");
    assert!(picture(&app).contains("14:33:40 PAUSED"), "the guest began to wait");
    assert_eq!(app.cursor.as_deref(), Some("web-2"));
    types(&mut app, "N");
    assert!(picture(&app).ends_with("no earlier waits and stalls are kept"));
    press(&mut app, KeyCode::Right);
    assert!(picture(&app).contains("14:33:41 PAUSED"));
}

#[test]
fn guests_are_sorted_filtered_and_chosen() {
    let mut app = screen(NORMAL, 3, normal);
    let order = |app: &App| app.shown.list.iter().map(|row| row.name.to_string()).collect::<Vec<_>>();
    assert_eq!(order(&app), ["db-1", "web-1", "mail", "web-2"], "those that move come first");
    types(&mut app, "s");
    assert_eq!(order(&app), ["db-1", "mail", "web-1", "web-2"]);
    types(&mut app, "/web");
    assert_eq!(
        (order(&app), app.cursor.as_deref()),
        (vec!["web-1".to_owned(), "web-2".to_owned()], Some("web-1"))
    );
    press(&mut app, KeyCode::Enter);
    types(&mut app, "j");
    assert_eq!(app.cursor.as_deref(), Some("web-2"));
    press(&mut app, KeyCode::Esc);
    assert_eq!(order(&app).len(), 4);
    let click = |row| MouseEvent {
        kind: MouseEventKind::Down(MouseButton::Left),
        column: 5,
        row,
        modifiers: KeyModifiers::NONE,
    };
    let first = app.layout().guests.y;
    assert_eq!(app.update(Event::Mouse(click(first + 1))), []);
    assert_eq!(app.cursor.as_deref(), Some("mail"));
    assert_eq!(app.update(Event::Mouse(click(first + 1))), [Wish::Explain("mail".into())]);
}

#[test]
fn no_name_reaches_the_terminal_as_a_command() {
    let host = |second| {
        let mut status = normal(second);
        status.guests[0].name = "\u{1b}]0;evil\u{7}\u{202e}db".to_owned();
        status.guests[0].state = "grow\u{9b}2Jing".to_owned();
        status.guests[0].last_reason = Some("a\nb".to_owned());
        status.warnings = vec!["\u{1b}c".to_owned()];
        status
    };
    for keys in ["", "w", "v", "e", "h", "?", "!", "N", " e"] {
        let mut app = screen(NORMAL, 3, host);
        types(&mut app, keys);
        let seen = picture(&app);
        assert!(seen.chars().all(|c| c == '\n' || memtide_model::stays_in_line(c)), "{keys}: {seen:?}");
    }
    let mut app = screen(NORMAL, 3, host);
    let wishes = types(&mut app, "hy");
    let Some(Wish::Order(order)) = wishes.first() else { panic!("{wishes:?}") };
    assert!(order.guest.starts_with('\u{1b}'), "the order names the guest as the daemon does");
}

#[test]
fn any_size_any_number_of_guests_and_any_keys_draw() {
    let keys = "w?jv!1j234 hn/x\u{8}sssss[]nNt";
    for (width, height) in [(0, 0), (1, 1), (20, 5), (39, 10), (60, 16), (80, 24), (200, 60)] {
        for guests in [0, 1, 100] {
            let mut app = screen(Size { width, height }, 3, |second| sample::status(guests, second));
            for key in keys.chars() {
                press(&mut app, KeyCode::Char(key));
                picture(&app);
            }
            for code in [KeyCode::PageUp, KeyCode::End, KeyCode::Enter, KeyCode::PageDown, KeyCode::Esc] {
                press(&mut app, code);
                picture(&app);
            }
            app.update(Event::Resized(NORMAL));
            picture(&app);
        }
    }
}

#[test]
fn a_lost_daemon_is_named_and_the_past_stays() {
    let mut past = Past::default();
    past.push(Frame::of(&normal(0), sample::wall(0), None));
    let link = Link::Lost("no daemon answers here".to_owned());
    let mut app = App::new(Box::new(Live::made(past, link.clone())), TimeZone::UTC, NORMAL);
    assert!(picture(&app).contains("NO DAEMON, asking again"));
    types(&mut app, "h");
    assert!(picture(&app).ends_with("no daemon answers, so none takes orders"));
    let app = App::new(Box::new(Live::made(Past::default(), link)), TimeZone::UTC, NORMAL);
    assert!(picture(&app).contains("no daemon answers here"));
}

fn screen_of_a_journal() -> App {
    let trace = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces/demo-elastic.mtj");
    let journal = crate::journal::Journal::open(&trace, |_| String::new()).unwrap();
    App::new(Box::new(journal), TimeZone::UTC, NORMAL)
}

#[test]
fn a_journal_answers_why_after_two_keys_and_what_happened_after_four() {
    let mut app = screen_of_a_journal();
    types(&mut app, "w");
    insta::assert_snapshot!(picture(&app), @r"
    memtide 0.1.0  managing, elastic, host high          2026-11-23 00:08:57 journal
    4 guests of 1 GiB run in 1.65 GiB; nothing moves; nobody waits for memory
    demo-2           ██····░░░░ 572 MiB of 1 GiB, needs 471 MiB: stuck for 7.7 s
      719 ms ago: deflated its own balloon from 263 MiB to 572 MiB
    demo-3           ██·░░░░░░░ 233 MiB of 1 GiB, needs 479 MiB: stuck for 5.8 s
      808 ms ago: no progress towards 302 MiB for 5.2 s; stays at 233 MiB
    demo-1           ██··░░░░░░ 417 MiB of 1 GiB, needs 521 MiB: held: somebody els…
      47.4 s ago: deflated its own balloon from 434 MiB to 562 MiB
    demo-4           ████·····░ 979 MiB of 1 GiB, needs 729 MiB: held: somebody els…
      76.6 s ago: needs 1.01 GiB (uses 748 MiB), entitled to 861 MiB













    ? help q quit Enter explain w why s sort / filter space play n next event
    ");
    types(&mut app, "wh");
    assert!(picture(&app).ends_with("a journal takes no orders: this is the past"));
    let frame = app.shown.frame.clone().unwrap();
    let time = crate::clock::time(frame.wall, &TimeZone::UTC);
    types(&mut app, &format!("{}{}", &time[..2], &time[3..5]));
    insta::assert_snapshot!(picture(&app), @r"
    memtide 0.1.0  managing, elastic, host hard          2026-11-23 00:07:59 journal
    4 guests of 1 GiB run in 1.85 GiB; nothing moves; nobody waits for memory
    █ guests 1.85 GiB ▓ other 19.3 MiB · free 26.9 MiB ░ reserve 102 MiB
    2 GiB
                                                                                   █
                                                                                   █
                                                                                   █
    23:58                                00:03                              ▲  00:08
    GUEST             COST    KEEPS OF ITS SIZE        STALLS STATE
    demo-2         324 MiB  307 MiB ████▒·░░░░░░░░░░░░      0 stuck for 9.4 s
    demo-1         963 MiB  898 MiB ██████████████▒·░░      0 next squeeze in 88.5 s
    demo-3         347 MiB  401 MiB ████▓··░░░░░░░░░░░      0 held: somebody else m…
    demo-4         265 MiB  543 MiB ███·······░░░░░░░░      0 held: somebody else m…
    ── █ in use ▓ needed cache ▒ cold cache · free ░ given away ────────────────────
    00:07:58 the host went from soft to hard, with 79.3 MiB free
    00:07:59▶demo-2 is to keep 307 MiB, in 12 steps from 371 MiB since 00:07:58: no…
    00:08:00 demo-2 is to keep 284 MiB, in 4 steps from 303 MiB since 00:08:00: no …






    ? help q quit Enter explain w why s sort / filter space play n next event
    ");
}

#[test]
fn a_journal_is_played_to_its_end() {
    let mut app = screen_of_a_journal();
    let end = app.shown.frame.clone().unwrap().at;
    app.go_to(end.before(memtide_model::Span::from_secs(60)));
    types(&mut app, " ");
    types(&mut app, " ");
    press(&mut app, KeyCode::Esc);
    assert_eq!(app.at, None, "Esc goes to the end of a journal");
    app.go_to(end.before(memtide_model::Span::from_secs(60)));
    types(&mut app, " +");
    let begun = app.at.unwrap();
    app.update(Event::Beat(memtide_model::Span::from_millis(500)));
    assert_eq!(app.at, Some(begun.after(memtide_model::Span::from_secs(1))));
    assert!(picture(&app).contains("playing 2×"));
    app.update(Event::Beat(memtide_model::Span::from_secs(600)));
    assert!(!app.plays && app.at.is_none());
}

#[test]
fn colours_are_those_of_the_parts() {
    let app = screen(NORMAL, 300, normal);
    let mut buffer = Buffer::empty(Rect::new(0, 0, 80, 24));
    draw(&app, Theme::Sixteen, &mut buffer);
    let colour_of = |mark: &str, y: u16| {
        let x = (0..80).find(|x| buffer[(*x, y)].symbol() == mark).unwrap();
        buffer[(x, y)].fg
    };
    use memtide_model::{HostPart, SizePart};
    let ledger = app.layout().ledger.y;
    assert_eq!(Some(colour_of("█", ledger)), Theme::Sixteen.colour(HostPart::Guests.colour()));
    let rule = app.layout().rule.y;
    assert_eq!(Some(colour_of("▓", rule)), Theme::Sixteen.colour(SizePart::NeededCache.colour()));
}

#[test]
fn the_chosen_guest_stands_out_and_its_bar_keeps_its_meaning() {
    for size in [NORMAL, Size { width: 160, height: 40 }] {
        let mut app = screen(size, 300, normal);
        press(&mut app, KeyCode::Home);
        let mut buffer = Buffer::empty(Rect::new(0, 0, size.width, size.height));
        draw(&app, Theme::Sixteen, &mut buffer);
        let y = app.layout().guests.y;
        let is_reversed = |x: u16| buffer[(x, y)].modifier.contains(Modifier::REVERSED);
        assert!(is_reversed(0), "{size:?}: its name");
        let bar = (0..size.width).filter(|x| ["█", "░"].contains(&buffer[(*x, y)].symbol()));
        let bar: Vec<u16> = bar.collect();
        assert!(bar.len() > 5 && bar.iter().all(|x| !is_reversed(*x)), "{size:?}: {bar:?}");
    }
}

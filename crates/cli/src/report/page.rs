//! The page of a report.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use jiff::tz::TimeZone;
use memtide_engine::EventKind;
use memtide_model::{
    Bytes, CostPart, CostParts, HostPart, Parts as GuestParts, SizePart, Span, WallClock, counted,
};
use memtide_top::clock::zoned;

use super::draw::{self, Scale};
use super::gather::{Gathered, Guest, Moved};
use super::html::{Cell, Memory, Text, content_security_policy, table};
use super::look::{self, SCRIPT};
use super::stalls::Stall;
use crate::when;

/// The most rows of the table beside the figure of the host.
const ROWS: usize = 24;
/// The most changes that are shown of one guest, and of all.
const OF_A_GUEST: usize = 20;
const OF_ALL_GUESTS: usize = 4_000;
/// The slowest stalls that are shown.
const SLOWEST: usize = 20;
/// The most marks of kills in a figure.
const MARKS: usize = 200;

/// What the page says about its journal.
#[derive(Debug)]
pub struct About<'a> {
    /// Where it is.
    pub from: String,
    /// What could not be read, a sentence each.
    pub unread: Vec<String>,
    /// The zone of all times.
    pub zone: &'a TimeZone,
}

/// A page under construction.
struct Page<'a> {
    out: String,
    gathered: &'a Gathered,
    about: &'a About<'a>,
    /// The guests by their names.
    guests: Vec<&'a Guest>,
}

/// The page of what was gathered.
pub fn html(gathered: &Gathered, about: &About<'_>) -> String {
    let style = look::style();
    let policy = content_security_policy(&style, SCRIPT);
    let mut guests: Vec<&Guest> = gathered.guests.values().collect();
    guests.sort_by(|a, b| in_order(&a.name).cmp(&in_order(&b.name)));
    let mut page = Page { out: String::new(), gathered, about, guests };
    let _ = write!(
        page.out,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><meta name=\"referrer\" content=\"no-referrer\">\n\
         <title>memtide report</title>\n<style>{style}</style></head>\n<body>"
    );
    page.head();
    page.out.push_str("<main>\n");
    page.numbers();
    page.ledger();
    page.guests();
    page.moves();
    page.stalls();
    page.log();
    page.each_guest();
    page.gaps();
    let _ = writeln!(
        page.out,
        "</main>\n<footer><p>Made by memtide {} from {}.</p></footer>\n<script>{SCRIPT}</script></body></html>",
        env!("CARGO_PKG_VERSION"),
        Text(&about.from)
    );
    page.out
}

impl Page<'_> {
    /// A time that programs can read, too.
    fn time(&self, wall: WallClock) -> String {
        let moment = zoned(wall, self.about.zone);
        let day = zoned(self.gathered.times.0, self.about.zone).date();
        let last = zoned(self.gathered.times.1, self.about.zone).date();
        let shown = if day == last { "%H:%M:%S" } else { "%m-%d %H:%M:%S" };
        format!(
            "<time datetime=\"{}\">{}</time>",
            moment.strftime("%Y-%m-%dT%H:%M:%S%:z"),
            moment.strftime(shown)
        )
    }

    fn head(&mut self) {
        let (first, last) = self.gathered.times;
        let (from, to) = (when::in_words(first, self.about.zone), when::in_words(last, self.about.zone));
        let zone = zoned(last, self.about.zone).strftime("%:z").to_string();
        let spans = Span::from_millis(last.0.saturating_sub(first.0));
        let decisions = counted(self.gathered.decisions, "decision");
        let _ = writeln!(
            self.out,
            "<header><h1>memtide report</h1><p class=\"soft\">{from} to {to} (UTC{zone}), {spans}, {decisions}</p>"
        );
        if let Some(sentence) = &self.gathered.sentence {
            let _ = writeln!(self.out, "<p class=\"lead\">At the end: {}.</p>", Text(sentence));
        }
        for differs in &self.gathered.differs {
            let _ = writeln!(self.out, "<p class=\"warn\">{}.</p>", Text(differs));
        }
        self.out.push_str("</header>\n");
    }

    fn numbers(&mut self) {
        let gathered = self.gathered;
        let count = |kind| gathered.counts.get(&kind).copied().unwrap_or(0);
        let mut cards: Vec<(&str, String, String)> = Vec::new();
        if let Some((promised, cost)) = gathered.means() {
            let saved = promised.saturating_sub(cost);
            let small = format!("on average: guests of {promised} ran in {cost}");
            cards.push(("saved, against every guest at its full size", saved.to_string(), small));
        }
        let guests = gathered.guests.len() as u64;
        let came = format!("{} came, {} went", count(EventKind::Came), count(EventKind::Went));
        cards.push(("guests", guests.to_string(), came));
        let full =
            gathered.stalls.over.iter().filter(|stall| stall.was_full && stall.answered.is_none()).count();
        let mut answered = match gathered.stalls.times(|stall| stall.answered) {
            Some((answered, [median, ..])) => format!("{answered} answered, after {median} (median)"),
            None if gathered.stalls.count == 0 => "no guest stalled for lack of memory".to_owned(),
            None => "none answered".to_owned(),
        };
        if full > 0 {
            let _ = write!(answered, "; {full} of guests that had their full size");
        }
        cards.push(("stalls", gathered.stalls.count.to_string(), answered));
        let kills = count(EventKind::Kill);
        let what =
            if kills == 0 { "nothing was killed for lack of memory" } else { "see “What happened”" };
        cards.push(("kills", kills.to_string(), what.to_owned()));
        let failed = count(EventKind::Failure);
        cards.push((
            "changes",
            (count(EventKind::Grant) + count(EventKind::Change)).to_string(),
            format!("{failed} failed or refused"),
        ));
        self.out.push_str("<dl class=\"key\">");
        for (name, value, small) in cards {
            let (name, value, small) = (Text(name), Text(&value), Text(&small));
            let _ = write!(self.out, "<div><dt>{name}</dt><dd>{value}<small>{small}</small></dd></div>");
        }
        self.out.push_str("</dl>\n");
    }

    fn ledger(&mut self) {
        let points = self.gathered.host.points();
        let times = (self.gathered.times.0.0, self.gathered.times.1.0);
        let tallest = points.iter().map(|point| Bytes::sum(point.what.parts).max(point.what.promised)).max();
        let scale = Scale { times, most: tallest.unwrap_or_default() };
        let (events, _) = self.gathered.events();
        let kills: Vec<u64> = events
            .iter()
            .filter(|event| event.kind == EventKind::Kill)
            .map(|event| event.wall.0)
            .take(MARKS)
            .collect();
        let _ = write!(
            self.out,
            "<section aria-labelledby=\"host\"><h2 id=\"host\">The host’s memory</h2>\n<figure><div class=\"plot\">\
             <div class=\"axis y\" aria-hidden=\"true\"><span>{}</span><span>{}</span><span>0</span></div>{}{}</div>",
            scale.most,
            scale.most.mul_div(1, 2),
            draw::ledger(&points, scale, &kills),
            self.times_below()
        );
        self.out.push_str("<output id=\"ledger-told\" aria-live=\"polite\"></output>");
        let parts = HostPart::ALL.map(|part| (look::host_class(part), part.name()));
        self.out.push_str(&draw::legend(&parts));
        let _ = writeln!(
            self.out,
            "<figcaption id=\"ledger-caption\">Where the host’s {} went, from {} to {}. The dashed line is the sum of the guests’ full sizes{}.</figcaption>\
             </figure>",
            self.gathered.capacity,
            self.time(self.gathered.times.0),
            self.time(self.gathered.times.1),
            if kills.is_empty() { "" } else { "; red marks at the top are kills" }
        );
        let json: Vec<serde_json::Value> = points
            .iter()
            .map(|point| {
                let mib = |bytes: Bytes| serde_json::Value::from(bytes.get() >> 20);
                let x = scale.at(point.at).parse::<f64>().unwrap_or_default();
                let time = when::in_words(WallClock(point.at), self.about.zone);
                let first = [serde_json::Value::from(x), time.into()];
                let values = point.what.parts.iter().copied().chain([point.what.promised]).map(mib);
                serde_json::Value::Array(first.into_iter().chain(values).collect())
            })
            .collect();
        let mut names: Vec<&str> = HostPart::ALL.iter().map(|part| part.name()).collect();
        names.push("full sizes");
        // Only numbers, times and our own words: nothing in it can end the element.
        let data = serde_json::json!({ "names": names, "points": json });
        let _ = write!(
            self.out,
            "<script type=\"application/json\" id=\"ledger-data\">{data}</script>\n<details><summary>The same as a table</summary>"
        );
        let every = points.len().div_ceil(ROWS).max(1);
        let rows: Vec<Vec<Cell>> = points
            .iter()
            .step_by(every)
            .map(|point| {
                let cells = point.what.parts.iter().chain([&point.what.promised]);
                let time = Cell::Head(self.time(WallClock(point.at)));
                [time].into_iter().chain(cells.map(|bytes| Cell::Right(Memory(*bytes).to_string()))).collect()
            })
            .collect();
        let names = names.iter().map(|name| format!(">{name}"));
        let heads: Vec<String> = ["time".to_owned()].into_iter().chain(names).collect();
        let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
        table(&mut self.out, "The host’s memory at some moments", &heads, rows);
        self.out.push_str("</details></section>\n");
    }

    /// The first and the last time, under a figure.
    fn times_below(&self) -> String {
        let (first, last) = self.gathered.times;
        let middle = WallClock(first.0 + last.0.saturating_sub(first.0) / 2);
        let [first, middle, last] = [first, middle, last].map(|wall| self.time(wall));
        format!(
            "<div class=\"axis x\" aria-hidden=\"true\"><span>{first}</span><span>{middle}</span><span>{last}</span></div>"
        )
    }

    fn guests(&mut self) {
        let cost = |guest: &Guest| guest.parts.cost.map_or(Bytes::ZERO, |cost| cost.sum());
        let most = self.guests.iter().map(|guest| guest.full.max(cost(guest))).max().unwrap_or_default();
        self.out.push_str("<section aria-labelledby=\"guests\"><h2 id=\"guests\">The guests</h2>\n<p>Each guest when it was last seen. Both bars have one scale.</p>\n");
        let sizes = SizePart::ALL.map(|part| (look::size_class(part), part.name()));
        self.out.push_str(&draw::legend(&sizes));
        let costs = CostPart::ALL.map(|part| (look::cost_class(part), part.name()));
        self.out.push_str(&draw::legend(&costs));
        let row = |guest: &&Guest| {
            let GuestParts { size, cost } = &guest.parts;
            let size_bar = draw::size_bar(size, most);
            let (cost_bar, cost) = match cost {
                Some(cost) => (draw::cost_bar(cost, most), Memory(cost.sum()).to_string()),
                None => (String::new(), "unknown".to_owned()),
            };
            let gone = guest.last_seen < self.gathered.times.1;
            let state = match gone {
                true => format!("last seen {}", self.time(guest.last_seen)),
                false => Text(&guest.state).to_string(),
            };
            vec![
                Cell::Head(Text(&guest.name).to_string()),
                Cell::Left(format!("{size_bar}{cost_bar}")),
                Cell::Right(Memory(guest.full).to_string()),
                Cell::Right(cost),
                Cell::Left(state),
            ]
        };
        let rows: Vec<Vec<Cell>> = self.guests.iter().map(row).collect();
        let heads = ["guest", "parts of its size, and of its cost", ">size", ">cost", "state"];
        table(&mut self.out, "The size of each guest, and what it costs the host", &heads, rows);
        if self.gathered.leaves_out {
            let _ = write!(self.out, "<p>Only the first {} guests are shown.</p>", self.guests.len());
        }
        self.out.push_str("</section>\n");
    }

    fn moves(&mut self) {
        self.out.push_str("<section aria-labelledby=\"moves\"><h2 id=\"moves\">Who got what, and why</h2>\n");
        let mut all = BTreeMap::<&str, (Moved, u64)>::new();
        let mut rows: Vec<Vec<Cell>> = Vec::new();
        for guest in &self.guests {
            for (why, moved) in &guest.moved {
                let (sum, guests) = all.entry(why).or_default();
                sum.times += moved.times;
                sum.granted = sum.granted.saturating_add(moved.granted);
                sum.asked = sum.asked.saturating_add(moved.asked);
                *guests += 1;
                let head = [Cell::Head(Text(&guest.name).to_string()), Cell::Left((*why).to_owned())];
                rows.push(head.into_iter().chain(moved_cells(moved)).collect());
            }
        }
        if rows.is_empty() {
            self.out.push_str("<p>No guest’s size was changed.</p>\n");
        } else {
            let mut all: Vec<_> = all.into_iter().collect();
            all.sort_by_key(|(_, (moved, _))| {
                std::cmp::Reverse((moved.granted.max(moved.asked), moved.times))
            });
            let all = all.into_iter().map(|(why, (moved, guests))| {
                let head = [Cell::Head(why.to_owned()), Cell::Right(guests.to_string())];
                head.into_iter().chain(moved_cells(&moved)).collect()
            });
            let heads = ["reason", ">guests", ">changes", ">granted", ">asked back"];
            table(
                &mut self.out,
                "Accepted changes of all guests’ sizes, by their reasons",
                &heads,
                all.collect::<Vec<_>>(),
            );
            self.out.push_str("<details><summary>The same for each guest</summary>");
            let heads = ["guest", "reason", ">changes", ">granted", ">asked back"];
            table(&mut self.out, "Accepted changes of each guest’s size, by their reasons", &heads, rows);
            self.out.push_str("</details>\n");
        }
        self.out.push_str("</section>\n");
    }

    fn stalls(&mut self) {
        self.out.push_str("<section aria-labelledby=\"stalls\"><h2 id=\"stalls\">Stalls</h2>\n");
        let stalls = &self.gathered.stalls;
        if stalls.count == 0 {
            self.out.push_str("<p>No guest stalled for lack of memory.</p></section>\n");
            return;
        }
        self.out.push_str(
            "<p>A stall is seen with the guest’s next statistics. From then on its times count.</p>\n",
        );
        let rows = [
            ("more was granted", stalls.times(|stall| stall.granted)),
            ("the guest had it", stalls.times(|stall| stall.answered)),
        ];
        let rows = rows.into_iter().map(|(what, times)| {
            let (count, times) = times.map_or((0, ["–"; 3].map(str::to_owned)), |(count, times)| {
                (count, times.map(|span| span.to_string()))
            });
            let head =
                [Cell::Head(what.to_owned()), Cell::Right(format!("{count} of {}", stalls.over.len()))];
            head.into_iter().chain(times.map(Cell::Right)).collect()
        });
        table(
            &mut self.out,
            "How long until stalls were answered",
            &["until", ">stalls", ">median", ">p95", ">worst"],
            rows.collect::<Vec<_>>(),
        );
        let mut slowest: Vec<&Stall> = stalls.over.iter().collect();
        slowest
            .sort_by_key(|stall| (std::cmp::Reverse((stall.answered.is_none(), stall.answered)), stall.wall));
        let rows: Vec<Vec<Cell>> = slowest
            .iter()
            .take(SLOWEST)
            .map(|stall| {
                let span =
                    |span: Option<Span>| span.map_or_else(|| "never".to_owned(), |span| span.to_string());
                let state = match stall {
                    Stall { answered: Some(_), .. } => String::new(),
                    Stall { was_full: true, .. } => "had its full size".to_owned(),
                    _ => Text(&stall.state).to_string(),
                };
                vec![
                    Cell::Head(Text(&stall.guest).to_string()),
                    Cell::Left(self.time(stall.wall)),
                    Cell::Right(Memory(stall.had).to_string()),
                    Cell::Right(span(stall.granted)),
                    Cell::Right(span(stall.answered)),
                    Cell::Left(state),
                ]
            })
            .collect();
        table(
            &mut self.out,
            "The slowest answers",
            &["guest", "seen", ">it had", ">granted after", ">had it after", "its state meanwhile"],
            rows,
        );
        self.out.push_str("</section>\n");
    }

    fn log(&mut self) {
        let (events, dropped) = self.gathered.events();
        self.out.push_str("<section aria-labelledby=\"what\"><h2 id=\"what\">What happened</h2>\n<div class=\"controls\" id=\"log-controls\" hidden><div><label for=\"log-kind\">kind</label><select id=\"log-kind\"><option value=\"\">all</option>");
        for kind in EventKind::ALL.iter().filter(|kind| self.gathered.counts.contains_key(kind)) {
            let _ = write!(self.out, "<option>{kind}</option>");
        }
        self.out.push_str("</select></div><div><label for=\"log-words\">guest or words</label><input id=\"log-words\" type=\"search\"></div><output id=\"log-count\" aria-live=\"polite\"></output></div>\n<div id=\"log\">");
        let rows: Vec<Vec<Cell>> = events
            .iter()
            .map(|event| {
                let said = format!("<span class=\"k-{}\">{}</span>", event.kind, event.kind);
                let guest = event.guest.as_deref().unwrap_or("host");
                vec![
                    Cell::Left(self.time(event.wall)),
                    Cell::Left(said),
                    Cell::Head(Text(guest).to_string()),
                    Cell::Left(Text(&event.text).to_string()),
                ]
            })
            .collect();
        table(&mut self.out, "Events, the oldest first", &["time", "kind", "guest", "what"], rows);
        self.out.push_str("</div>");
        if dropped > 0 {
            let _ = write!(
                self.out,
                "<p>{} older or less grave are left out: use <code>--since</code> and <code>--until</code> to see them.</p>",
                counted(dropped, "event")
            );
        }
        self.out.push_str("</section>\n");
    }

    fn each_guest(&mut self) {
        self.out.push_str("<section aria-labelledby=\"each\"><h2 id=\"each\">Each guest</h2>\n");
        let (events, _) = self.gathered.events();
        let shown = (OF_ALL_GUESTS / self.guests.len().max(1)).clamp(1, OF_A_GUEST);
        for guest in self.guests.clone() {
            let name = Text(&guest.name);
            let _ = writeln!(
                self.out,
                "<details><summary><strong>{name}</strong> <span class=\"soft\">{}, class {}</span></summary>",
                guest.full,
                Text(&guest.class)
            );
            let points = guest.course.points();
            let most =
                points.iter().map(|point| point.what.actual.max(point.what.cost.unwrap_or_default())).max();
            let scale = Scale {
                times: (self.gathered.times.0.0, self.gathered.times.1.0),
                most: most.unwrap_or_default().max(guest.full),
            };
            let label = format!("What {name} keeps, uses and costs over time");
            let _ = write!(
                self.out,
                "<figure><div class=\"plot small\"><div class=\"axis y\" aria-hidden=\"true\"><span>{}</span><span>0</span></div>{}{}</div>",
                scale.most,
                draw::course(&points, scale, &label),
                self.times_below()
            );
            self.out.push_str("<figcaption>Black or white: what it keeps. Blue: what it uses. Dashed: what it costs the host.</figcaption></figure>\n<div class=\"two\">");
            let size = &guest.parts.size;
            let rows = SizePart::ALL.iter().map(|part| {
                vec![Cell::Head(part.name().to_owned()), Cell::Right(Memory(size.of_part(*part)).to_string())]
            });
            let sum =
                vec![Cell::Head("its full size".to_owned()), Cell::Right(Memory(size.sum()).to_string())];
            table(&mut self.out, "The parts of its size", &["part", ">memory"], rows.chain([sum]));
            if let Some(cost) = &guest.parts.cost {
                table(&mut self.out, "The parts of its cost", &["part", ">memory"], cost_rows(cost));
            }
            self.out.push_str("</div>");
            let of_guest =
                events.iter().rev().filter(|event| event.guest.as_deref() == Some(guest.name.as_str()));
            let rows: Vec<Vec<Cell>> = of_guest
                .take(shown)
                .map(|event| {
                    vec![Cell::Left(self.time(event.wall)), Cell::Left(Text(&event.text).to_string())]
                })
                .collect();
            if !rows.is_empty() {
                table(&mut self.out, "Its last events, the newest first", &["time", "what"], rows);
            }
            self.out.push_str("</details>\n");
        }
        self.out.push_str("</section>\n");
    }

    fn gaps(&mut self) {
        let (gathered, about) = (self.gathered, self.about);
        self.out.push_str(
            "<section aria-labelledby=\"gaps\"><h2 id=\"gaps\">What this report cannot show</h2>\n<ul>",
        );
        for (wall, silence) in &gathered.silences {
            let _ =
                write!(self.out, "<li>Nothing was recorded for {silence} before {}.</li>", self.time(*wall));
        }
        for unread in about.unread.iter().chain(&gathered.unread) {
            let _ = write!(self.out, "<li>{}.</li>", Text(unread));
        }
        let versions: Vec<String> =
            gathered.versions.iter().map(|version| Text(version).to_string()).collect();
        let _ = writeln!(
            self.out,
            "<li>A journal has what was seen, decided and answered by memtide {}. How long a decision took, what the daemon gave up at its start, \
             and who was connected are not in it.</li></ul></section>",
            versions.join(", ")
        );
    }
}

/// The rows of what a guest costs, with their sum.
fn cost_rows(cost: &CostParts) -> Vec<Vec<Cell>> {
    let row = |name: &str, html: String| vec![Cell::Head(name.to_owned()), Cell::Right(html)];
    let mut rows: Vec<Vec<Cell>> =
        CostPart::ALL.iter().map(|part| row(part.name(), Memory(cost.of_part(*part)).to_string())).collect();
    if !cost.merged.is_zero() {
        rows.push(row("merged by KSM", format!("−{}", Memory(cost.merged))));
    }
    rows.push(row("its cost", Memory(cost.sum()).to_string()));
    rows
}

/// How often targets changed, and by how much.
fn moved_cells(moved: &Moved) -> [Cell; 3] {
    let memory = |bytes: Bytes| {
        Cell::Right(if bytes.is_zero() { "–".to_owned() } else { Memory(bytes).to_string() })
    };
    [Cell::Right(moved.times.to_string()), memory(moved.granted), memory(moved.asked)]
}

/// By the letters of a name, and then by the number at its end: `web-2` comes before `web-10`.
fn in_order(name: &str) -> (&str, usize, &str) {
    let letters = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let number = name[letters.len()..].trim_start_matches('0');
    (letters, number.len(), number)
}

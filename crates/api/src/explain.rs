//! Why a guest has its memory, in words: demand → entitlement → target, with the numbers, and the last changes with their reasons.

use std::fmt;

use memtide_model::{
    Agent, Bytes, Capabilities, Commits, Cost, GuestStats, Keeps, Mode, Offers, Polling, Span, Tier,
    TmpfsReport, Verdict,
};
use serde::{Deserialize, Serialize};

use crate::view::{GuestDetail, quality};

/// Why a guest has its memory: `GET /v1/guests/NAME/explanation`, and the text of `memtide explain`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// The sections. The first one's title names the guest and its state.
    pub sections: Vec<Section>,
}

/// Rows about one thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Section {
    /// What they are about.
    pub title: String,
    /// The rows.
    pub rows: Vec<Row>,
}

/// A row of a section.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// Its name; `None` if the row is a sentence of its own.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    /// What it says.
    pub says: String,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "  {name:<15} {}", self.says),
            None => write!(f, "  {}", self.says),
        }
    }
}

impl Explanation {
    fn heading(&mut self, title: &str) {
        self.sections.push(Section { title: title.to_owned(), rows: Vec::new() });
    }

    fn row(&mut self, name: &str, says: &str) {
        self.push(Some(name.to_owned()), says);
    }

    fn plain(&mut self, says: &str) {
        self.push(None, says);
    }

    fn push(&mut self, name: Option<String>, says: &str) {
        if let Some(section) = self.sections.last_mut() {
            section.rows.push(Row { name, says: says.to_owned() });
        }
    }
}

/// Explains a guest.
#[must_use]
pub fn explain(detail: &GuestDetail) -> Explanation {
    let mut out = Explanation::default();
    let status = &detail.status;
    let report = &status.report;
    let mode = match detail.mode {
        Mode::Observe => " (memtide only observes)",
        Mode::Manage => "",
    };
    out.heading(&format!("{}: {}{mode}", status.name, status.state));
    out.row("runs as", &format!("{}, process {}, class {}", status.backend, status.pid, report.class));
    out.row("its VMM can", &abilities(detail.seen.capabilities));
    let costs = match report.footprint {
        Some(footprint) => format!("{footprint}, worst case {}", report.reach),
        None => format!(
            "unknown ({}): counted at its worst case, {}",
            quality(&detail.seen.cost.footprint),
            report.reach
        ),
    };
    out.row("costs the host", &costs);
    if let Some(uncounted) = uncounted(&detail.seen.cost) {
        out.row("beside it", &uncounted);
    }
    if let Some(tier) = detail.seen.cost.tier.latest() {
        out.row("tier", &in_tier(tier));
    }
    if let Some(tmpfs) = &detail.tmpfs {
        out.row("lies in", &lies_in(tmpfs));
    }
    if status.cannot_share {
        out.row("shares", "nothing, although `share` of its class is true: KSM merges no memory of a file");
    }
    if detail.seen.told.merges.latest() == Some(&true) {
        out.row("shares", "its VMM lets KSM merge its memory with others'");
    }
    out.row("keeps", &format!("{} of {}", report.actual, report.full));
    if let Some(parts) = &status.parts {
        out.row("its size", &parts.size.to_string());
        if let Some(cost) = &parts.cost {
            out.row("its cost", &cost.to_string());
        }
        if let Some(free) = parts.free_on_host().filter(|free| !free.is_zero()) {
            out.row("in between", &format!("at least {free} is free in the guest and still on the host"));
        }
    }
    demand(&mut out, detail);
    let bounds = format!("between {} and {}, {} shares", detail.reservation, detail.limit, detail.shares);
    out.row("entitlement", &format!("{}   its fair share {bounds}", report.entitlement));
    if let Verdict::Held(hold) = report.verdict {
        out.row(
            "held",
            &format!("{}; `memtide resume {}` manages it again", held_by(hold.keeps), status.name),
        );
    }
    match report.target {
        Some(target) => out.row("target", &target.to_string()),
        None => out.row("target", "none: memtide has set no target"),
    }
    for asked in &detail.under_way {
        out.row("under way", &format!("{asked} within {}", detail.now.since(asked.since)));
    }
    readings(&mut out, detail);
    offers(&mut out, detail);
    known(&mut out, detail);
    changes(&mut out, detail);
    out
}

/// What the guest could give, and why it is not taken.
fn offers(out: &mut Explanation, detail: &GuestDetail) {
    let Some(Offers { wanted, spared, offers }) = &detail.offers else { return };
    out.heading("what it could give");
    let wanted = if wanted.is_zero() { "nothing".to_owned() } else { wanted.to_string() };
    out.row("wanted", &format!("{wanted} by others and the host"));
    if let Some(why) = spared {
        out.row("asked for", &format!("nothing: {why}"));
    }
    if offers.is_empty() {
        out.row("offers", "none that is worth a change");
    }
    for offer in offers {
        let why = offer.why.filter(|_| spared.is_none()).map(|why| format!(": {why}"));
        let bought = (!offer.bought.is_zero()).then(|| format!(": {} of it is wanted", offer.bought));
        out.row(&offer.frees.to_string(), &format!("{offer}{}", why.or(bought).unwrap_or_default()));
    }
}

/// What is known of the guest, and from where.
fn known(out: &mut Explanation, detail: &GuestDetail) {
    if !detail.facts.is_empty() {
        out.heading("what is known of it");
    }
    for fact in &detail.facts {
        out.row(&fact.about.to_string(), &format!("{} ({})", fact.says, fact.source));
    }
}

fn changes(out: &mut Explanation, detail: &GuestDetail) {
    out.heading("last changes, the newest first");
    if detail.changes.is_empty() {
        out.plain("none since the daemon started");
    }
    for change in detail.changes.iter().rev() {
        let ago = detail.now.since(change.at);
        let answer = match (&change.failed, change.yielded) {
            (Some(why), _) => format!(" (failed: {why})"),
            (None, Some(bytes)) => format!(" ({bytes} came back)"),
            (None, None) => String::new(),
        };
        out.plain(&format!("{ago} ago: {}: {}{answer}", change.change, change.reason));
    }
}

/// The tmpfs of the guest's memory file, or its NUMA node, in words.
fn lies_in(tmpfs: &TmpfsReport) -> String {
    let kind = if tmpfs.id.node().is_some() { "" } else { "the tmpfs " };
    let space = format!("{kind}{}, {}", tmpfs.at, tmpfs.space);
    match (tmpfs.binds, tmpfs.breach) {
        (false, _) => space,
        (true, Bytes::ZERO) => format!("{space}, less than of the host: {} can be granted there", tmpfs.room),
        (true, breach) => format!("{space}, less than of the host: its guests must give {breach}"),
    }
}

/// What the VMM can do, in words.
fn abilities(can: Capabilities) -> String {
    let size = format!("set its size in steps of {}", can.step.bytes());
    let abilities = [
        (can.can_be_set && !can.plugs, size.as_str()),
        (can.can_be_set && can.plugs, "remove memory and plug it back"),
        (can.pauses, "pause it"),
        (can.reports_freed, "return freed pages"),
        (can.commits == Commits::WhenGranted, "grant only memory that the host pays for at once"),
    ];
    let abilities: Vec<&str> = abilities.iter().filter(|(can, _)| *can).map(|(_, what)| *what).collect();
    if abilities.is_empty() { "do nothing that memtide needs".to_owned() } else { abilities.join(", ") }
}

/// What lies in a guest's tier, in words.
fn in_tier(tier: &Tier) -> String {
    let Tier { stored, held, limit, read, .. } = tier;
    let back = if read.is_zero() { String::new() } else { format!("; {read} read back so far") };
    format!("{stored} of its memory, compressed to {held} (at most {limit}){back}")
}

/// The guest's memory that its footprint does not count, in words; `None` if there is none.
fn uncounted(cost: &Cost) -> Option<String> {
    let parts = [
        (&cost.merged, "merged by KSM"),
        (&cost.swapped, "in the host's swap"),
        (&cost.torn, "given back by the guest, but still held in torn huge pages"),
    ];
    let parts = parts.iter().filter_map(|(part, what)| {
        let bytes = part.latest().filter(|bytes| !bytes.is_zero())?;
        Some(format!("{bytes} {what}"))
    });
    Some(parts.collect::<Vec<_>>().join(", ")).filter(|text| !text.is_empty())
}

fn held_by(keeps: Keeps) -> String {
    match keeps {
        Keeps::Size => "by the operator, at its present size".to_owned(),
        Keeps::Limit => "by the operator, at its limit".to_owned(),
        Keeps::Foreign { from, .. } => {
            format!(
                "because its balloon moved away from {from} without a request from memtide: somebody else sets its size. This ends when \
                 another guest lacks memory that it uses"
            )
        }
    }
}

fn demand(out: &mut Explanation, detail: &GuestDetail) {
    let report = &detail.status.report;
    let Some(used) = report.used else {
        out.row(
            "demand",
            "unknown without fresh statistics: it gains nothing, and gives only memory beyond its fair share",
        );
        return;
    };
    let parts = Bytes::sum([used, report.cache, report.headroom]);
    let raised = match report.demand.cmp(&parts) {
        std::cmp::Ordering::Greater => "   raised: it stalled",
        std::cmp::Ordering::Less => "   cut to its limit",
        std::cmp::Ordering::Equal => "",
    };
    out.row(
        "demand",
        &format!(
            "{} = used {used} + page cache {} + headroom {}{raised}",
            report.demand, report.cache, report.headroom
        ),
    );
}

fn readings(out: &mut Explanation, detail: &GuestDetail) {
    let (seen, report) = (&detail.seen, &detail.status.report);
    let balloon = match seen.told.balloon.latest() {
        Some(balloon) => {
            let yes = |flag: bool| if flag { "on" } else { "off" };
            let held = report.target.unwrap_or_default().max(report.actual);
            let own = if balloon.deflate_on_oom && held < report.full {
                format!(" (it can take back {} itself)", report.full.saturating_sub(held))
            } else {
                String::new()
            };
            format!(
                "deflate-on-oom {}{own}, free page reporting {}; {}",
                yes(balloon.deflate_on_oom),
                yes(balloon.free_page_reporting),
                quality(&seen.told.balloon)
            )
        }
        None => quality(&seen.told.balloon),
    };
    if seen.capabilities.plugs {
        let removed = report.full.saturating_sub(report.actual);
        let unplugged =
            format!("{removed} removed; only memtide gives it back; {}", quality(&seen.told.balloon));
        out.row("memory", &unplugged);
    } else {
        out.row("balloon", &balloon);
    }
    let polling = match seen.told.polling {
        _ if seen.capabilities.plugs => "read from its console".to_owned(),
        Polling::Unknown => "polling unknown".to_owned(),
        Polling::Off if detail.mode == Mode::Manage => "nobody polls them".to_owned(),
        Polling::Off => "nobody polls them; `memtide run --manage` would".to_owned(),
        Polling::Every(span) => format!("polled every {span}"),
    };
    out.row("statistics", &format!("{polling}; {}", quality(&seen.told.stats)));
    match seen.told.agent.latest() {
        Some(agent) => {
            out.row("agent", &format!("{}; {}", agent_says(agent), quality(&seen.told.agent)));
            let cannot: Vec<String> =
                agent.cannot.iter().map(|(can, why)| format!("{} ({why})", can.word())).collect();
            if !cannot.is_empty() {
                out.row("it cannot", &cannot.join(", "));
            }
            if let Some(old) = agent.old_files(Span::from_secs(600)) {
                let text = "of files in generations that the kernel began 10 min ago or earlier: it evicts them first";
                out.row("old cache", &format!("{old} {text}"));
            }
        }
        None if seen.told.agent.is_unsupported() => {}
        None => out.row("agent", &quality(&seen.told.agent)),
    }
    if let Some(stats) = seen.told.stats.latest() {
        out.row("guest says", &guest_says(stats));
        let is_of_libvirt = seen.backend.to_string() == "QEMU of libvirt";
        let disks = seen.told.disks.latest();
        if let Some(missing) = does_not_say(stats, disks.is_some(), is_of_libvirt) {
            out.row("does not say", &missing);
        }
        if let Some(disks) = disks {
            out.row("disk reads", &format!("{}; {}", disks.bytes, quality(&seen.told.disks)));
        }
    }
}

fn agent_says(agent: &Agent) -> String {
    let deeds = [
        (agent.trims, "trim"),
        (agent.compacts, "compact"),
        (agent.reports_pieces, "report small pieces"),
        (agent.counts_refaults, "count refaults"),
    ];
    let able: Vec<&str> = deeds.into_iter().filter(|(is_able, _)| *is_able).map(|(_, deed)| deed).collect();
    let able =
        if able.is_empty() { "can do nothing here".to_owned() } else { format!("can {}", able.join(", ")) };
    let limit = agent.cache_limit.map(|share| format!(", limits page cache to {share}")).unwrap_or_default();
    let pieces = if agent.pieces_return { ", reports small pieces of free memory" } else { "" };
    format!("{able}; could drop {} of page cache{limit}{pieces}", agent.droppable())
}

/// The counters that decisions use and this guest lacks, and the consequence; `None` if no counter is missing.
fn does_not_say(stats: &GuestStats, counts_disks: bool, is_of_libvirt: bool) -> Option<String> {
    let wanted = [
        ("available", stats.available.is_some()),
        ("allocation stalls", stats.alloc_stalls.is_some()),
        ("page scans", stats.async_scans.is_some()),
        ("OOM kills", stats.oom_kills.is_some()),
    ];
    let missing: Vec<&str> = wanted.iter().filter(|(_, told)| !told).map(|(name, _)| *name).collect();
    if missing.is_empty() {
        return None;
    }
    let follows = if stats.available.is_none() {
        "its need is unknown: it gains nothing, and gives only memory beyond its fair share"
    } else if stats.async_scans.is_none() && counts_disks {
        "whether it misses page cache is judged by what it reads from its disks"
    } else if stats.alloc_stalls.is_none() || stats.async_scans.is_none() {
        "its page cache is taken only for memory that others use, since a shortage would not show"
    } else {
        "OOM kills in it go unnoticed"
    };
    let why = match is_of_libvirt {
        true => "libvirt does not carry them: see docs/libvirt.md, \"Stalls\"",
        false => "its VMM or its kernel is too old",
    };
    Some(format!("{} ({why}): {follows}", missing.join(", ")))
}

fn guest_says(stats: &GuestStats) -> String {
    let sizes = [("available", stats.available), ("free", stats.free), ("page cache", stats.disk_caches)];
    let counts = [
        ("allocation stalls", stats.alloc_stalls),
        ("OOM kills", stats.oom_kills),
        ("major faults", stats.major_faults),
    ];
    let sizes = sizes.iter().filter_map(|(name, value)| value.map(|value| format!("{name} {value}")));
    let counts = counts.iter().filter_map(|(name, value)| value.map(|value| format!("{name} {value}")));
    sizes.chain(counts).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_guest_does_not_count_is_said_with_what_follows() {
        let count = Some(0);
        let all = GuestStats {
            available: Some(Bytes::ZERO),
            alloc_stalls: count,
            async_scans: count,
            oom_kills: count,
            ..GuestStats::default()
        };
        assert_eq!(does_not_say(&all, false, false), None);
        let of_linux_6_1 = GuestStats { alloc_stalls: None, async_scans: None, oom_kills: None, ..all };
        assert_eq!(
            does_not_say(&of_linux_6_1, false, false).unwrap(),
            "allocation stalls, page scans, OOM kills (its VMM or its kernel is too old): its page cache is taken only \
             for memory that others use, since a shortage would not show"
        );
        let text = does_not_say(&of_linux_6_1, true, true).unwrap();
        assert!(
            text.contains("libvirt does not carry them") && text.ends_with("reads from its disks"),
            "{text}"
        );
        let text = does_not_say(&GuestStats { oom_kills: None, ..all }, false, false).unwrap();
        assert!(text.starts_with("OOM kills (") && text.ends_with("go unnoticed"), "{text}");
        let text = does_not_say(&GuestStats::default(), false, false).unwrap();
        assert!(text.starts_with("available, ") && text.contains("its need is unknown"), "{text}");
    }
}

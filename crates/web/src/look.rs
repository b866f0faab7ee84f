//! The names and the colours of all parts, from the palette: as style for HTML and SVG, and as data for the page's script.

use std::fmt::Write as _;

use memtide_api::orders;
use memtide_api::view::Matter;
use memtide_engine::EventKind;
use memtide_model::{Colour, CostPart, HostPart, SizePart};
use serde_json::json;

/// The class of a part, in style and SVG.
#[must_use]
pub const fn host_class(part: HostPart) -> &'static str {
    match part {
        HostPart::Guests => "h-guests",
        HostPart::Torn => "h-torn",
        HostPart::Other => "h-other",
        HostPart::Free => "h-free",
        HostPart::Reserve => "h-reserve",
    }
}

/// The same for a part of a size.
#[must_use]
pub const fn size_class(part: SizePart) -> &'static str {
    match part {
        SizePart::Used => "s-used",
        SizePart::NeededCache => "s-needed",
        SizePart::ColdCache => "s-cold",
        SizePart::Free => "s-free",
        SizePart::Untold => "s-untold",
        SizePart::Given => "s-given",
    }
}

/// The same for a part of a cost.
#[must_use]
pub const fn cost_class(part: CostPart) -> &'static str {
    match part {
        CostPart::Ram => "c-ram",
        CostPart::Vmm => "c-vmm",
        CostPart::Tier => "c-tier",
        CostPart::Torn => "c-torn",
        CostPart::Swapped => "c-swapped",
    }
}

/// The name of a part of the host in the daemon's JSON. Those of the other parts are their keys.
const fn host_key(part: HostPart) -> &'static str {
    match part {
        HostPart::Guests => "footprints",
        HostPart::Torn | HostPart::Other | HostPart::Free | HostPart::Reserve => part.key(),
    }
}

/// The style that this page and a report have in common.
pub const BASE: &str = include_str!("../page/base.css");

/// A rule for each part, with its colour.
#[must_use]
pub fn style() -> String {
    let mut style = String::new();
    let mut rule = |class: &str, colour: Colour| {
        let _ = writeln!(style, ".{class}{{fill:{colour};stroke:{colour}}}");
    };
    HostPart::ALL.iter().for_each(|part| rule(host_class(*part), part.colour()));
    SizePart::ALL.iter().for_each(|part| rule(size_class(*part), part.colour()));
    CostPart::ALL.iter().for_each(|part| rule(cost_class(*part), part.colour()));
    style
}

/// The script that tells the page the parts, the kinds of events, and the version.
#[must_use]
pub fn names() -> String {
    let part = |key: &str, class: &str, name: &str, short: &str| json!({ "key": key, "class": class, "name": name, "short": short });
    let size = SizePart::ALL.map(|it| part(it.key(), size_class(it), it.name(), it.short()));
    let cost = CostPart::ALL.map(|it| part(it.key(), cost_class(it), it.name(), it.name()));
    let host = HostPart::ALL.map(|it| part(host_key(it), host_class(it), it.name(), it.name()));
    let orders = json!({
        "hold": orders::HOLD,
        "release": orders::RELEASE,
        "resume": orders::RESUME,
        "reclaim": orders::RECLAIM,
        "refuses": orders::REFUSES,
        "remembers": orders::REMEMBERS,
    });
    let matters = Matter::ALL;
    let kinds = EventKind::ALL.map(|kind| kind.to_string());
    let mut script = "// Written by memtide from its palette.\n".to_owned();
    for (name, value) in [
        ("SIZE", json!(size)),
        ("COST", json!(cost)),
        ("HOST", json!(host)),
        ("KINDS", json!(kinds)),
        ("MATTERS", json!(matters)),
        ("ORDERS", orders),
        ("VERSION", json!(env!("CARGO_PKG_VERSION"))),
    ] {
        let _ = writeln!(script, "export const {name} = {value};");
    }
    script
}

#[cfg(test)]
mod tests {
    use memtide_model::{CostParts, HostReport, SizeParts};

    use super::*;

    #[test]
    fn the_page_reads_the_parts_under_the_names_that_the_daemon_writes() {
        let size = serde_json::to_value(SizeParts::default()).unwrap();
        let cost = serde_json::to_value(CostParts::default()).unwrap();
        let host = serde_json::to_value(HostReport::default()).unwrap();
        assert!(SizePart::ALL.iter().all(|part| size.get(part.key()).is_some()));
        assert!(CostPart::ALL.iter().all(|part| cost.get(part.key()).is_some()));
        assert!(HostPart::ALL.iter().all(|part| host.get(host_key(*part)).is_some()));
        assert!(style().contains(&format!(".s-used{{fill:{}", SizePart::Used.colour())));
        assert!(names().contains("\"key\":\"needed_cache\",\"name\":\"page cache that it needs\""));
    }
}

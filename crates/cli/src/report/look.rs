//! The style of a page, and its script: the page works without the script.

use std::fmt::Write as _;

use memtide_model::{Colour, CostPart, HostPart, SizePart};

const STYLE: &str = include_str!("page.css");

/// Hover and arrow keys tell the numbers of a moment; the log can be filtered.
pub const SCRIPT: &str = include_str!("page.js");

/// The class of a part, in style and SVG.
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
pub const fn cost_class(part: CostPart) -> &'static str {
    match part {
        CostPart::Ram => "c-ram",
        CostPart::Vmm => "c-vmm",
        CostPart::Torn => "c-torn",
        CostPart::Swapped => "c-swapped",
    }
}

/// The style, with the colours of the palette.
pub fn style() -> String {
    let mut style = STYLE.to_owned();
    let mut rule = |class: &str, colour: Colour| {
        let _ = writeln!(style, ".{class}{{fill:{colour};stroke:{colour}}}");
    };
    HostPart::ALL.iter().for_each(|part| rule(host_class(*part), part.colour()));
    SizePart::ALL.iter().for_each(|part| rule(size_class(*part), part.colour()));
    CostPart::ALL.iter().for_each(|part| rule(cost_class(*part), part.colour()));
    style.push_str("path,rect{stroke:none}path.stroke{fill:none}\n");
    HostPart::ALL.iter().for_each(|part| {
        let _ = writeln!(style, "path.stroke.{}{{stroke:{}}}", host_class(*part), part.colour());
    });
    let _ = writeln!(
        style,
        "path.stroke.s-used{{stroke:{}}}path.stroke.keeps{{stroke:var(--text)}}path.stroke.costs{{stroke:var(--soft);stroke-dasharray:5 4}}",
        SizePart::Used.colour()
    );
    style
}

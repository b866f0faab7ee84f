//! The style of a page, and its script: the page works without the script.

use std::fmt::Write as _;

use memtide_model::{HostPart, SizePart};
use memtide_web::look::{self, BASE};
pub use memtide_web::look::{cost_class, host_class, size_class};

/// Hover and arrow keys tell the numbers of a moment; the log can be filtered.
pub const SCRIPT: &str = include_str!("page.js");

/// The style, with the colours of the palette.
pub fn style() -> String {
    let mut style = format!("{BASE}{}", look::style());
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

//! The figures of a page, as SVG without text: words and numbers stand beside them, so they stay readable on any screen.

use std::fmt::Write as _;

use memtide_model::{Bytes, CostPart, CostParts, HostPart, SizePart, SizeParts};

use super::gather::{GuestPoint, HostPoint};
use super::look::{cost_class, host_class, size_class};
use super::thinned::Point;

/// The width and the height of a figure in its own units.
const WIDTH: u64 = 1_000;
const HEIGHT: u64 = 300;

/// Where values stand in a figure.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// The first and the last moment.
    pub times: (u64, u64),
    /// The greatest value.
    pub most: Bytes,
}

impl Scale {
    /// The place of a moment, in tenths.
    fn x(self, at: u64) -> u64 {
        let (first, last) = self.times;
        part(at.saturating_sub(first), last.saturating_sub(first), 10 * WIDTH)
    }

    /// The place of a value, in tenths from the top.
    fn y(self, value: Bytes) -> u64 {
        10 * HEIGHT - part(value.get(), self.most.get(), 10 * HEIGHT)
    }

    /// The place of a moment, as SVG takes it.
    pub fn at(self, at: u64) -> String {
        tenths(self.x(at))
    }
}

/// `whole` in the ratio of `value` to `most`, and no more.
fn part(value: u64, most: u64, whole: u64) -> u64 {
    let scaled = u128::from(value) * u128::from(whole) / u128::from(most.max(1));
    u64::try_from(scaled).unwrap_or(whole).min(whole)
}

fn tenths(value: u64) -> String {
    if value.is_multiple_of(10) { (value / 10).to_string() } else { format!("{}.{}", value / 10, value % 10) }
}

/// The points of each run.
fn runs<T>(points: &[Point<T>]) -> impl Iterator<Item = &[Point<T>]> {
    points.chunk_by(|a, b| a.run == b.run)
}

fn line<T>(out: &mut String, scale: Scale, points: &[Point<T>], value: impl Fn(&T) -> Option<Bytes>) {
    let mut is_on = false;
    for point in points {
        let Some(value) = value(&point.what) else {
            is_on = false;
            continue;
        };
        let (x, y) = (tenths(scale.x(point.at)), tenths(scale.y(value)));
        let _ = write!(out, "{}{x} {y}", if is_on { "L" } else { "M" });
        is_on = true;
    }
}

/// The host's memory over time as a stack, with a line for what its guests were promised and a mark for each of `kills`.
pub fn ledger(points: &[Point<HostPoint>], scale: Scale, kills: &[u64]) -> String {
    let mut svg = format!(
        "<svg id=\"ledger\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" tabindex=\"0\" "
    );
    svg.push_str("aria-labelledby=\"ledger-caption\">\n");
    for (place, part) in HostPart::ALL.iter().enumerate() {
        let _ = write!(svg, "<path class=\"{}\" d=\"", host_class(*part));
        let below = |point: &HostPoint| Bytes::sum(point.parts[..place].iter().copied());
        let above = |point: &HostPoint| Bytes::sum(point.parts[..=place].iter().copied());
        for run in runs(points) {
            line(&mut svg, scale, run, |point| Some(above(point)));
            for point in run.iter().rev() {
                let _ = write!(svg, "L{} {}", tenths(scale.x(point.at)), tenths(scale.y(below(&point.what))));
            }
            svg.push('Z');
        }
        svg.push_str("\"/>\n");
    }
    svg.push_str("<path class=\"stroke promised\" d=\"");
    runs(points).for_each(|run| line(&mut svg, scale, run, |point| Some(point.promised)));
    svg.push_str("\"/>\n");
    for kill in kills {
        let x = scale.at(*kill);
        let _ = writeln!(svg, "<line class=\"kill\" x1=\"{x}\" x2=\"{x}\" y1=\"0\" y2=\"24\"/>");
    }
    let _ = write!(
        svg,
        "<line class=\"cursor\" visibility=\"hidden\" x1=\"0\" x2=\"0\" y1=\"0\" y2=\"{HEIGHT}\"/></svg>"
    );
    svg
}

/// A guest's memory over time: what it keeps, what it uses, and what it costs the host.
pub fn course(points: &[Point<GuestPoint>], scale: Scale, label: &str) -> String {
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{label}\">"
    );
    type Value = fn(&GuestPoint) -> Option<Bytes>;
    let lines: [(&str, Value); 3] = [
        ("keeps", |point| Some(point.actual)),
        ("s-used", |point| point.used),
        ("costs", |point| point.cost),
    ];
    for (class, value) in lines {
        let _ = write!(svg, "<path class=\"stroke {class}\" d=\"");
        runs(points).for_each(|run| line(&mut svg, scale, run, value));
        svg.push_str("\"/>");
    }
    svg.push_str("</svg>");
    svg
}

/// The bar of a guest's full size, as wide as `most`.
pub fn size_bar(parts: &SizeParts, most: Bytes) -> String {
    let parts = SizePart::ALL.map(|part| (size_class(part), part.name(), parts.of_part(part)));
    bar(&parts, most)
}

/// The bar of its cost. What KSM merged is taken off its RAM.
pub fn cost_bar(parts: &CostParts, most: Bytes) -> String {
    let own = CostParts { ram: parts.ram.saturating_sub(parts.merged), ..*parts };
    let parts = CostPart::ALL.map(|part| (cost_class(part), part.name(), own.of_part(part)));
    bar(&parts, most)
}

fn bar(parts: &[(&str, &str, Bytes)], most: Bytes) -> String {
    let there: Vec<_> = parts.iter().filter(|(_, _, bytes)| !bytes.is_zero()).collect();
    let words: Vec<String> = there.iter().map(|(_, name, bytes)| format!("{bytes} {name}")).collect();
    let mut svg = format!(
        "<svg class=\"bar\" viewBox=\"0 0 {WIDTH} 16\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{}\">",
        words.join(", ")
    );
    let mut before = Bytes::ZERO;
    for (class, name, bytes) in there {
        let begin = part(before.get(), most.get(), 10 * WIDTH);
        before = before.saturating_add(*bytes);
        let end = part(before.get(), most.get(), 10 * WIDTH);
        let (x, width) = (tenths(begin), tenths(end - begin));
        let _ = write!(
            svg,
            "<rect class=\"{class}\" x=\"{x}\" y=\"0\" width=\"{width}\" height=\"16\"><title>{bytes} {name}</title></rect>"
        );
    }
    svg.push_str("</svg>");
    svg
}

/// What the colours mean.
pub fn legend(parts: &[(&str, &str)]) -> String {
    let item = |(class, name): &(&str, &str)| {
        format!(
            "<li><svg viewBox=\"0 0 12 12\" aria-hidden=\"true\"><rect class=\"{class}\" width=\"12\" height=\"12\"/></svg>{name}</li>"
        )
    };
    format!("<ul class=\"legend\">{}</ul>", parts.iter().map(item).collect::<String>())
}

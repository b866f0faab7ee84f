//! Plots as SVG: [`bars`], [`lines`], and memory as a [`stack`].
//!
//! The lab's reports, the simulator's pages and the documentation draw with this crate. It has the neutral colours, and those of series, such as guests and
//! arms. The parts of memory have the colours of the model's palette.
//!
//! - [`canvas`]: lines, areas and text; [`axes`]: scales with even steps.

pub mod axes;
pub mod bars;
pub mod canvas;
pub mod lines;
pub mod stack;

use canvas::{Canvas, Letters, Rgb};

/// The width of a picture in its own units.
pub const WIDTH: f64 = 1200.0;
/// The font of all text. A renderer of the SVG needs this font.
pub const FONT: &str = "DejaVu Sans";

/// Text and frames.
pub const INK: Rgb = [0x22, 0x2b, 0x33];
/// Numbers beside scales, and secondary text.
pub const QUIET: Rgb = [0x6b, 0x76, 0x80];
/// Lines across a plot.
pub const GRID: Rgb = [0xe6, 0xe9, 0xec];
/// What must not be missed, such as a killed guest.
pub const ALARM: Rgb = [0xb8, 0x32, 0x2a];
/// On areas in the colour of a series.
pub const PAPER: Rgb = [0xff, 0xff, 0xff];
/// Guests, arms and other series, in their order.
pub const SERIES: [Rgb; 6] = [
    [0x2f, 0x5d, 0x7c],
    [0x5b, 0x97, 0x9b],
    [0xc2, 0x9b, 0x5a],
    [0x7d, 0x6b, 0x91],
    [0x8a, 0xa3, 0x6a],
    [0xa8, 0x77, 0x66],
];

const MARGIN: f64 = 28.0;
/// The space for the title, without the text below it.
const TITLE: f64 = 64.0;
/// The height of a line of the text below the title, and the letters that fit into it.
const SUBTITLE_LINE: f64 = 20.0;
const SUBTITLE_LETTERS: usize = 150;

/// The colour of the series with this number.
#[must_use]
pub const fn series(nth: usize) -> Rgb {
    SERIES[nth % SERIES.len()]
}

/// A picture with a title, `subtitle` in as many lines as it needs, and below them a body `height` units high: `draw` gets the place at which it begins.
/// `shown` scales the displayed size: 0.5 shows the picture at half its size.
fn picture(
    title: &str,
    subtitle: &str,
    shown: f64,
    height: f64,
    draw: impl FnOnce(&mut Canvas, f64),
) -> String {
    let lines = wrapped(subtitle);
    let header = lines.iter().fold(TITLE, |top, _| top + SUBTITLE_LINE);
    let height = header + height + MARGIN / 2.0;
    let mut canvas = Canvas::new(WIDTH, height, FONT, shown);
    canvas.rectangle((0.0, 0.0), (WIDTH, height), PAPER);
    canvas.text((MARGIN, MARGIN - 6.0), title, Letters::of(24.0, INK).bold());
    let mut top = MARGIN + 28.0;
    for line in &lines {
        canvas.text((MARGIN, top), line, Letters::of(14.0, QUIET));
        top += SUBTITLE_LINE;
    }
    draw(&mut canvas, header);
    canvas.svg()
}

/// The text in lines that fit below the title.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= SUBTITLE_LETTERS => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_go_into_several_lines() {
        let word = "a".repeat(SUBTITLE_LETTERS / 2);
        assert_eq!(wrapped(&format!("{word} b {word}")), [format!("{word} b"), word]);
        assert_eq!(wrapped(""), [""; 0]);
    }
}

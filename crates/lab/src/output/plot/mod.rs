//! The plots of experiments.
//!
//! They are drawn as SVG, and converted to PNG with the same embedded font. Without a font, the renderer silently draws no
//! text.

use std::sync::{Arc, OnceLock};

use plotters::prelude::*;
use plotters::style::{FontStyle, RGBColor, TextStyle, register_font};
use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{self, fontdb};

use crate::error::LabError;

pub mod bars;
pub mod lines;
pub mod stack;

/// The picture's width in units of the SVG.
pub const WIDTH: u32 = 1200;
/// Pixels of the PNG for each unit of the SVG.
const PIXELS: u16 = 2;
const MARGIN: i32 = 28;
/// The height of a line of the text below the title, and the letters that fit into it.
const SUBTITLE_LINE: i32 = 20;
const SUBTITLE_LETTERS: usize = 150;
/// The space for the title, without the text below it.
const TITLE: i32 = 64;

/// The font of all text.
const FONT: &str = "DejaVu Sans";
const REGULAR: &[u8] = include_bytes!("../../../assets/DejaVuSans.subset.ttf");
const BOLD: &[u8] = include_bytes!("../../../assets/DejaVuSans-Bold.subset.ttf");

const INK: RGBColor = RGBColor(0x22, 0x2b, 0x33);
const QUIET: RGBColor = RGBColor(0x6b, 0x76, 0x80);
const GRID: RGBColor = RGBColor(0xe6, 0xe9, 0xec);
const ALARM: RGBColor = RGBColor(0xb8, 0x32, 0x2a);
const COLORS: [RGBColor; 6] = [
    RGBColor(0x2f, 0x5d, 0x7c),
    RGBColor(0x5b, 0x97, 0x9b),
    RGBColor(0xc2, 0x9b, 0x5a),
    RGBColor(0x7d, 0x6b, 0x91),
    RGBColor(0x8a, 0xa3, 0x6a),
    RGBColor(0xa8, 0x77, 0x66),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// Draws a picture with a title, and `body` of the given height below it.
fn picture(
    title: &str,
    subtitle: &str,
    height: i32,
    body: impl FnOnce(&Area<'_>) -> Result<(), LabError>,
) -> Result<String, LabError> {
    register_fonts()?;
    let lines = wrapped(subtitle);
    let below = MARGIN + 28;
    let header = TITLE + SUBTITLE_LINE * i32::try_from(lines.len()).map_err(error)?;
    let height = u32::try_from(header + height + MARGIN / 2).map_err(error)?;
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (WIDTH, height)).into_drawing_area();
        root.fill(&WHITE).map_err(error)?;
        let place = (MARGIN, MARGIN - 6);
        root.draw_text(title, &style(24, FontStyle::Bold, INK), place).map_err(error)?;
        for (line, top) in lines.iter().zip((below..).step_by(20)) {
            root.draw_text(line, &style(14, FontStyle::Normal, QUIET), (MARGIN, top)).map_err(error)?;
        }
        body(&root.split_vertically(header).1)?;
        root.present().map_err(error)?;
    }
    Ok(text)
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

/// Converts a picture to PNG, using only the embedded font.
///
/// # Errors
/// If `svg` is not an SVG.
pub fn png(svg: &str) -> Result<Vec<u8>, LabError> {
    let mut fonts = fontdb::Database::new();
    fonts.load_font_data(REGULAR.to_vec());
    fonts.load_font_data(BOLD.to_vec());
    fonts.set_sans_serif_family(FONT);
    let options =
        usvg::Options { fontdb: Arc::new(fonts), font_family: FONT.to_owned(), ..Default::default() };
    let tree = usvg::Tree::from_str(svg, &options).map_err(error)?;
    let size = tree.size().to_int_size();
    let pixels = u32::from(PIXELS);
    let mut pixmap = Pixmap::new(size.width() * pixels, size.height() * pixels)
        .ok_or_else(|| LabError::Plot("an empty picture".to_owned()))?;
    let scale = f32::from(PIXELS);
    resvg::render(&tree, Transform::from_scale(scale, scale), &mut pixmap.as_mut());
    pixmap.encode_png().map_err(error)
}

fn register_fonts() -> Result<(), LabError> {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    let registered = *REGISTERED.get_or_init(|| {
        [(FontStyle::Normal, REGULAR), (FontStyle::Bold, BOLD)]
            .into_iter()
            .all(|(style, bytes)| register_font(FONT, style, bytes).is_ok())
    });
    if registered { Ok(()) } else { Err(LabError::Plot("the embedded font is broken".to_owned())) }
}

fn error(e: impl std::fmt::Display) -> LabError {
    LabError::Plot(e.to_string())
}

fn style(size: u32, weight: FontStyle, color: RGBColor) -> TextStyle<'static> {
    let mut style = (FONT, size, weight).into_text_style(&(WIDTH, WIDTH));
    style.color = color.to_backend_color();
    style
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

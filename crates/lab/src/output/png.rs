//! Pictures as PNG, with an embedded font: without a font, the renderer silently draws no text.

use std::sync::Arc;

use memtide_plot::FONT;
use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{self, fontdb};

use crate::error::LabError;

/// Pixels of the PNG for each unit of the SVG.
const PIXELS: u16 = 2;
const REGULAR: &[u8] = include_bytes!("../../assets/DejaVuSans.subset.ttf");
const BOLD: &[u8] = include_bytes!("../../assets/DejaVuSans-Bold.subset.ttf");

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
        .ok_or_else(|| error("an empty picture"))?;
    let scale = f32::from(PIXELS);
    resvg::render(&tree, Transform::from_scale(scale, scale), &mut pixmap.as_mut());
    pixmap.encode_png().map_err(error)
}

fn error(e: impl std::fmt::Display) -> LabError {
    LabError::Plot(e.to_string())
}

#[cfg(test)]
mod tests {
    use memtide_plot::lines::{self, Curve, Meaning};
    use memtide_plot::stack::{self, Panel};
    use memtide_plot::{WIDTH, bars};

    use super::*;

    fn panel() -> Panel {
        Panel {
            title: "without memtide".to_owned(),
            note: "3 of 4 guests alive".to_owned(),
            end: "nothing left to do",
            names: (1..=4).map(|nth| format!("g{nth}")).collect(),
            points: (0..60).map(|at| (f64::from(at), vec![220.0 + f64::from(at) * 5.0; 4])).collect(),
            kills: vec![(40.0, 1)],
        }
    }

    /// Pixels darker than a shade of grey in a rectangle of the SVG's units.
    fn dark_pixels(picture: &Pixmap, (left, top): (u32, u32), (width, height): (u32, u32)) -> usize {
        let pixels = u32::from(PIXELS);
        let range = |start: u32, length: u32| start * pixels..(start + length) * pixels;
        let points = range(top, height).flat_map(|y| range(left, width).map(move |x| (x, y)));
        points.filter(|&(x, y)| picture.pixel(x, y).is_some_and(|pixel| pixel.red() < 0x90)).count()
    }

    #[test]
    fn text_is_really_drawn() {
        let drawn = stack::svg("A title", "and what it is about", 2048.0, &[panel(), panel()]);
        let picture = Pixmap::decode_png(&png(&drawn).unwrap()).unwrap();
        assert!((f64::from(picture.width()) - WIDTH * f64::from(PIXELS)).abs() < 1.0);
        // The title, the subtitle, a panel's title and its note; nothing else there is dark.
        for place in [(28, 20), (28, 54), (28, 88), (1000, 90)] {
            assert!(dark_pixels(&picture, place, (90, 22)) > 100, "no text at {place:?}");
        }
        assert_eq!(dark_pixels(&picture, (600, 20), (500, 30)), 0);
    }

    #[test]
    fn nothing_to_draw_is_still_a_picture() {
        let points = (0..50).map(|at| (f64::from(at), f64::from(at * at))).collect();
        let curve = Curve { name: "measured".to_owned(), points, ..Curve::default() };
        let line = Some((2_000.0, "the host has 2000 MiB".to_owned()));
        let meaning = Meaning { x: "memory in MiB", y: "seconds", marks: true };
        let full = lines::Panel { meaning, curves: vec![curve], line, ..lines::Panel::default() };
        let drawn = [
            lines::svg("curves", "", &[full, lines::Panel { meaning, ..lines::Panel::default() }]),
            lines::svg("empty", "", &[lines::Panel::default()]),
            stack::svg("empty", "", 2048.0, &[Panel::default()]),
            bars::svg("empty", "", &[bars::Bars::default()]),
        ];
        for svg in drawn {
            assert!(png(&svg).unwrap().starts_with(b"\x89PNG"), "{svg}");
        }
    }
}

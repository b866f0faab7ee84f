//! A drawing area that writes SVG.

use std::fmt::Write as _;

/// A place in units of the picture, from its top left corner.
pub type Place = (f64, f64);

/// Red, green and blue.
pub type Rgb = [u8; 3];

/// A line's look.
#[derive(Clone, Copy, Debug)]
pub struct Stroke {
    /// Its colour.
    pub colour: Rgb,
    /// In units of the picture.
    pub width: f64,
    /// Whether it is dashed.
    pub is_dashed: bool,
}

impl Stroke {
    /// A line without gaps.
    #[must_use]
    pub const fn of(colour: Rgb, width: f64) -> Self {
        Self { colour, width, is_dashed: false }
    }

    /// The same with gaps.
    #[must_use]
    pub const fn dashed(self) -> Self {
        Self { is_dashed: true, ..self }
    }
}

/// On which side of its place a text lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// It begins there.
    Right,
    /// Its middle is there.
    Middle,
    /// It ends there.
    Left,
}

/// Where the place is in a line of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Height {
    /// At its top.
    Top,
    /// At half of the height of its letters.
    Middle,
    /// At the bottom of its letters.
    Bottom,
}

/// The look of a text, and where it lies.
#[derive(Clone, Copy, Debug)]
pub struct Letters {
    /// The size of the font in units of the picture.
    pub size: f64,
    /// Whether it is bold.
    pub is_bold: bool,
    /// Its colour.
    pub colour: Rgb,
    /// Where it lies from its place.
    pub side: Side,
    /// Where its place is.
    pub height: Height,
}

impl Letters {
    /// Text whose top left corner is at its place.
    #[must_use]
    pub const fn of(size: f64, colour: Rgb) -> Self {
        Self { size, is_bold: false, colour, side: Side::Right, height: Height::Top }
    }

    /// The same in bold.
    #[must_use]
    pub const fn bold(self) -> Self {
        Self { is_bold: true, ..self }
    }

    /// The same on this side of its place, and at this height.
    #[must_use]
    pub const fn at(self, side: Side, height: Height) -> Self {
        Self { side, height, ..self }
    }

    /// About how wide `text` is: sans-serif letters are 0.58 of their size wide on average.
    #[must_use]
    pub fn width(self, text: &str) -> f64 {
        let letters: f64 = text.chars().map(|_| 1.0).sum();
        letters * self.size * if self.is_bold { 0.65 } else { 0.58 }
    }
}

/// A drawing area. What is drawn later covers what was drawn before.
#[derive(Clone, Debug)]
pub struct Canvas {
    svg: String,
}

impl Canvas {
    /// An empty area of this size. `font` is for all text; `shown` is the part of its size at which it is displayed.
    #[must_use]
    pub fn new(width: f64, height: f64, font: &str, shown: f64) -> Self {
        let (wide, high) = (width * shown, height * shown);
        Self {
            svg: format!(
                "<svg width=\"{wide:.0}\" height=\"{high:.0}\" viewBox=\"0 0 {width:.0} {height:.0}\" \
                 xmlns=\"http://www.w3.org/2000/svg\" font-family=\"{}\">\n",
                escape(font)
            ),
        }
    }

    /// The whole picture.
    #[must_use]
    pub fn svg(mut self) -> String {
        self.svg.push_str("</svg>\n");
        self.svg
    }

    /// A line through `points`. A `None` leaves a gap.
    pub fn line(&mut self, points: impl IntoIterator<Item = Option<Place>>, stroke: Stroke) {
        let mut path = String::new();
        let mut pen = 'M';
        for point in points {
            let Some((x, y)) = point else {
                pen = 'M';
                continue;
            };
            let _ = write!(path, "{pen}{x:.1} {y:.1}");
            pen = 'L';
        }
        let Stroke { colour, width, is_dashed } = stroke;
        let colour = hex(colour);
        let dashes = if is_dashed { " stroke-dasharray=\"6 4\"" } else { "" };
        let _ = writeln!(
            self.svg,
            "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\"{dashes}/>"
        );
    }

    /// A straight line.
    pub fn rule(&mut self, from: Place, to: Place, stroke: Stroke) {
        self.line([Some(from), Some(to)], stroke);
    }

    /// A filled area within `outline`.
    pub fn area(&mut self, outline: impl IntoIterator<Item = Place>, colour: Rgb) {
        let mut points = String::new();
        for (x, y) in outline {
            let _ = write!(points, "{x:.1},{y:.1} ");
        }
        let _ = writeln!(self.svg, "<polygon points=\"{}\" fill=\"{}\"/>", points.trim_end(), hex(colour));
    }

    /// A filled rectangle between two corners.
    pub fn rectangle(&mut self, (left, top): Place, (right, bottom): Place, colour: Rgb) {
        self.area([(left, top), (right, top), (right, bottom), (left, bottom)], colour);
    }

    /// A filled circle.
    pub fn dot(&mut self, (x, y): Place, radius: f64, colour: Rgb) {
        let fill = hex(colour);
        let _ = writeln!(self.svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\" fill=\"{fill}\"/>");
    }

    /// A line of text.
    pub fn text(&mut self, at: Place, text: &str, letters: Letters) {
        self.write(at, text, letters, "");
    }

    /// A line of text that reads upwards. The place is in the middle of it.
    pub fn text_upwards(&mut self, (x, y): Place, text: &str, letters: Letters) {
        let turned = format!(" transform=\"rotate(-90 {x:.1} {y:.1})\"");
        self.write((x, y), text, letters.at(Side::Middle, letters.height), &turned);
    }

    fn write(&mut self, (x, y): Place, text: &str, letters: Letters, more: &str) {
        let Letters { size, is_bold, colour, side, height } = letters;
        let anchor = match side {
            Side::Right => "start",
            Side::Middle => "middle",
            Side::Left => "end",
        };
        // The height of capital letters is about 0.73 of the font's size, and the top of a line lies above them.
        let y = y + size
            * match height {
                Height::Top => 0.93,
                Height::Middle => 0.36,
                Height::Bottom => 0.0,
            };
        let fill = hex(colour);
        let weight = if is_bold { " font-weight=\"bold\"" } else { "" };
        let _ = writeln!(
            self.svg,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\"{weight} fill=\"{fill}\" text-anchor=\"{anchor}\"{more}>{}</text>",
            escape(text)
        );
    }
}

/// The colour as in `#2e86ab`.
#[must_use]
pub fn hex([red, green, blue]: Rgb) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// `text` for a place between or within tags.
#[must_use]
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_interrupted_where_there_is_no_point() {
        let mut canvas = Canvas::new(10.0, 10.0, "sans-serif", 1.0);
        canvas.line([Some((0.0, 1.0)), Some((1.0, 2.0)), None, Some((3.0, 4.0))], Stroke::of([0; 3], 1.0));
        assert!(canvas.svg().contains("d=\"M0.0 1.0L1.0 2.0M3.0 4.0\""));
    }

    #[test]
    fn text_stays_text() {
        let mut canvas = Canvas::new(10.0, 10.0, "\"><script>", 1.0);
        canvas.text((0.0, 0.0), "<b> & \"c\"", Letters::of(10.0, [0; 3]));
        let svg = canvas.svg();
        assert!(svg.contains("&lt;b&gt; &amp; &quot;c&quot;</text>") && !svg.contains("<script>"), "{svg}");
    }
}

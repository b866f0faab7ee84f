//! Lines of bounded length from pieces of any length.

use crate::wire::MAX_LINE;

/// A line, or what was left of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// A whole line without its line feed.
    Whole(Vec<u8>),
    /// A line longer than [`MAX_LINE`]: its content is gone.
    TooLong,
}

/// Collects lines. It never holds more than [`MAX_LINE`] bytes of an unfinished line, whatever it is given.
#[derive(Debug, Default)]
pub struct Lines {
    unfinished: Vec<u8>,
    skips: bool,
}

impl Lines {
    /// Takes a piece, and calls `each` for each line that ends in it.
    pub fn take(&mut self, piece: &[u8], mut each: impl FnMut(Line)) {
        let mut rest = piece;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            self.add(&rest[..end]);
            rest = &rest[end + 1..];
            let line = std::mem::take(&mut self.unfinished);
            match std::mem::take(&mut self.skips) {
                true => each(Line::TooLong),
                false => each(Line::Whole(line)),
            }
        }
        self.add(rest);
    }

    /// Forgets an unfinished line: the other end has gone.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    fn add(&mut self, piece: &[u8]) {
        if self.skips || self.unfinished.len() + piece.len() >= MAX_LINE {
            self.skips = true;
            self.unfinished = Vec::new();
        } else {
            self.unfinished.extend_from_slice(piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lines(pieces: &[&[u8]]) -> Vec<Line> {
        let (mut lines, mut found) = (Lines::default(), Vec::new());
        for piece in pieces {
            lines.take(piece, |line| found.push(line));
        }
        found
    }

    #[test]
    fn lines_are_joined_from_pieces() {
        let whole = |text: &str| Line::Whole(text.as_bytes().to_vec());
        assert_eq!(lines(&[b"on", b"e\n\ntw", b"o\nrest"]), [whole("one"), whole(""), whole("two")]);
    }

    #[test]
    fn a_line_that_is_too_long_is_skipped_up_to_its_end() {
        let long = vec![b'x'; MAX_LINE];
        assert_eq!(lines(&[&long, &long, b"x\nnext\n"]), [Line::TooLong, Line::Whole(b"next".to_vec())]);
    }

    #[test]
    fn a_torn_line_is_forgotten() {
        let (mut lines, mut found) = (Lines::default(), Vec::new());
        lines.take(b"half", |line| found.push(line));
        lines.clear();
        lines.take(b"whole\n", |line| found.push(line));
        assert_eq!(found, [Line::Whole(b"whole".to_vec())]);
    }

    proptest! {
        #[test]
        fn the_cuts_do_not_matter(
            text in proptest::collection::vec(prop_oneof![Just(b'\n'), any::<u8>()], 0..400),
            cut in 0_usize..400,
        ) {
            let cut = cut.min(text.len());
            prop_assert_eq!(lines(&[&text]), lines(&[&text[..cut], &text[cut..]]));
        }
    }
}

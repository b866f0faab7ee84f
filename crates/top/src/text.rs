//! Texts in columns of a terminal: their width, their end, and their lines.

use memtide_model::printable;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// A text of several lines, each of which a terminal may show.
#[must_use]
pub fn printable_lines(text: &str) -> String {
    text.lines().map(printable).collect::<Vec<_>>().join("\n")
}

/// The number of columns.
#[must_use]
pub fn width(text: &str) -> usize {
    text.width()
}

/// The text in at most this number of columns; what is cut off becomes `…`.
#[must_use]
pub fn fit(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.to_owned();
    }
    let (mut out, mut used) = (String::new(), 0);
    for c in text.chars() {
        let wide = c.width().unwrap_or(0);
        if used + wide + 1 > columns {
            break;
        }
        out.push(c);
        used += wide;
    }
    if columns > 0 {
        out.push('…');
    }
    out
}

/// The text in exactly this number of columns, at the left.
#[must_use]
pub fn left(text: &str, columns: usize) -> String {
    let text = fit(text, columns);
    let rest = columns.saturating_sub(text.width());
    text + &" ".repeat(rest)
}

/// The text in exactly this number of columns, at the right.
#[must_use]
pub fn right(text: &str, columns: usize) -> String {
    let text = fit(text, columns);
    " ".repeat(columns.saturating_sub(text.width())) + &text
}

/// The text in lines of at most this number of columns. The rest of a long line stands below its beginning, a little further in.
#[must_use]
pub fn wrap(text: &str, columns: usize) -> Vec<String> {
    text.lines().flat_map(|line| wrap_line(line, columns.max(8))).collect()
}

fn wrap_line(line: &str, columns: usize) -> Vec<String> {
    let blank = line.chars().take_while(|c| *c == ' ').count();
    let indent = " ".repeat((blank + 2).min(columns / 2));
    let (mut lines, mut now) = (Vec::new(), " ".repeat(blank.min(columns / 2)));
    let mut is_new = true;
    for word in line.trim_start().split(' ') {
        let gap = usize::from(!is_new);
        if !is_new && now.width() + gap + word.width() > columns {
            lines.push(std::mem::replace(&mut now, indent.clone()));
        } else if gap == 1 {
            now.push(' ');
        }
        is_new = false;
        for c in word.chars() {
            if now.width() + c.width().unwrap_or(0) > columns {
                lines.push(std::mem::replace(&mut now, indent.clone()));
            }
            now.push(c);
        }
    }
    lines.push(now);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_fit_whatever_is_in_them() {
        assert_eq!(fit("web-1", 5), "web-1");
        assert_eq!(fit("web-12", 5), "web-…");
        assert_eq!(fit("客客客", 5), "客客…");
        assert_eq!(fit("a", 0), "");
        assert_eq!(left("客", 4), "客  ");
        assert_eq!(right("1 GiB", 7), "  1 GiB");
    }

    #[test]
    fn long_lines_go_on_below() {
        let lines = wrap("  demand   300 MiB = used 200\nx", 16);
        assert_eq!(lines, ["  demand   300", "    MiB = used", "    200", "x"]);
        assert_eq!(wrap("aaaaaaaaaaaa", 8), ["aaaaaaaa", "  aaaa"]);
        assert!(wrap(&"客 ".repeat(99), 9).iter().all(|line| width(line) <= 9));
    }
}

//! The small parts of a page: escaped texts, tables, and a policy that lets nothing in from elsewhere.

use std::fmt::{self, Write as _};

use memtide_model::{Bytes, printable};
use sha2::{Digest as _, Sha256};

/// A text as HTML: whatever it contains stays text.
pub struct Text<'a>(pub &'a str);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in printable(self.0).chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}

/// A quantity of memory, with its exact number of bytes for programs.
pub struct Memory(pub Bytes);

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<data value=\"{}\">{}</data>", self.0.get(), self.0)
    }
}

/// A cell of a table.
pub enum Cell {
    /// HTML that stands left.
    Left(String),
    /// HTML that stands right, such as sizes and counts.
    Right(String),
    /// The name of its row.
    Head(String),
}

/// A table that scrolls by itself if it is wider than the screen. `caption` and `heads` are texts, cells are HTML. The heads of cells that stand
/// right begin with `>`.
pub fn table(out: &mut String, caption: &str, heads: &[&str], rows: impl IntoIterator<Item = Vec<Cell>>) {
    let caption = Text(caption);
    let _ = write!(
        out,
        "<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"{caption}\"><table><caption>{caption}</caption><thead><tr>"
    );
    for head in heads {
        let (class, head) = head.strip_prefix('>').map_or(("", *head), |head| (" class=\"n\"", head));
        let _ = write!(out, "<th scope=\"col\"{class}>{}</th>", Text(head));
    }
    out.push_str("</tr></thead><tbody>\n");
    for row in rows {
        out.push_str("<tr>");
        for cell in row {
            let _ = match cell {
                Cell::Left(html) => write!(out, "<td>{html}</td>"),
                Cell::Right(html) => write!(out, "<td class=\"n\">{html}</td>"),
                Cell::Head(html) => write!(out, "<th scope=\"row\">{html}</th>"),
            };
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
}

/// The policy of a page with this style and this script: they and nothing else.
pub fn content_security_policy(style: &str, script: &str) -> String {
    let (style, script) = (hash(style), hash(script));
    format!(
        "default-src 'none'; style-src '{style}'; script-src '{script}'; base-uri 'none'; form-action 'none'"
    )
}

/// As a policy names it.
fn hash(text: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digest = Sha256::digest(text.as_bytes());
    let mut out = String::from("sha256-");
    for three in digest.chunks(3) {
        let bits = three.iter().fold(0, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        for digit in 0..4 {
            let value = (bits >> (18 - 6 * digit)) & 63;
            out.push(if digit <= three.len() { char::from(DIGITS[value as usize]) } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_in_a_text_stays_text() {
        let text = Text("<img src=x onerror='a()'>\"&\u{202e}").to_string();
        assert_eq!(text, "&lt;img src=x onerror=&#39;a()&#39;&gt;&quot;&amp;\\u{202e}");
    }

    #[test]
    fn a_policy_names_the_hash_as_browsers_compute_it() {
        // `printf '' | openssl dgst -sha256 -binary | base64`
        assert_eq!(hash(""), "sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=");
    }
}

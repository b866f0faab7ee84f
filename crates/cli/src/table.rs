//! Tables as text: each column is as wide as its widest cell.

/// Where the cells of a column stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// For words.
    Left,
    /// For sizes.
    Right,
}

/// The lines of a table, its heads first, without spaces at their ends.
pub fn lines<const N: usize>(heads: [(&str, Align); N], rows: &[[String; N]]) -> Vec<String> {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([heads[column].0.chars().count()]).max().unwrap_or(0)
    };
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |cells: [&str; N]| {
        let padded = cells.iter().zip(widths).zip(heads).map(|((cell, width), (_, align))| match align {
            Align::Left => format!("{cell:<width$}"),
            Align::Right => format!("{cell:>width$}"),
        });
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let body = rows.iter().map(|row| line(std::array::from_fn(|column| row[column].as_str())));
    std::iter::once(line(heads.map(|(head, _)| head))).chain(body).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_stand_right_and_words_left() {
        let rows = [["wéb", "1 MiB", "-"], ["database", "-", "calm"]].map(|row| row.map(str::to_owned));
        let heads = [("GUEST", Align::Left), ("RESIDENT", Align::Right), ("STATE", Align::Left)];
        let expected = ["GUEST     RESIDENT  STATE", "wéb          1 MiB  -", "database         -  calm"];
        assert_eq!(lines(heads, &rows), expected);
    }
}

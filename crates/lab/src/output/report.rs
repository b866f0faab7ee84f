//! The report of an experiment: one HTML file with all content, beside the data.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use memtide_plot::canvas::escape;

use crate::error::LabError;
use crate::machine::accel::Accel;
use crate::machine::facts::QemuFacts;
use crate::machine::places::write_whole;
use crate::output::png::png;
use crate::output::results::Results;

/// The content of the report.
#[derive(Clone, Debug)]
pub struct Report<'a> {
    /// The page's title.
    pub title: &'a str,
    /// The method, in one paragraph.
    pub about: &'a str,
    /// The plots. The first one stands before the tables, the others after them.
    pub figures: &'a [Figure],
    /// The tables.
    pub tables: &'a [Table],
    /// The data.
    pub results: &'a Results,
}

/// A plot.
#[derive(Clone, Debug)]
pub struct Figure {
    /// The name of its files, without the extension.
    pub name: String,
    /// The plot as SVG.
    pub svg: String,
}

/// Rows of cells; the first row and the first column are headings.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// The text above it; nothing if it is empty.
    pub caption: String,
    /// The rows.
    pub rows: Vec<Vec<String>>,
}

/// A row of a table about `T`: its name and its cell.
pub type Row<T> = (&'static str, fn(&T) -> String);

impl Table {
    /// One column for each of `columns`, with its title, and one line for each of `rows`.
    #[must_use]
    pub fn of<T>(caption: &str, columns: &[(&str, &T)], rows: &[Row<T>]) -> Self {
        let head = std::iter::once(String::new()).chain(columns.iter().map(|(title, _)| (*title).to_owned()));
        let lines = rows.iter().map(|(name, cell)| {
            std::iter::once((*name).to_owned()).chain(columns.iter().map(|(_, of)| cell(of))).collect()
        });
        Self { caption: caption.to_owned(), rows: std::iter::once(head.collect()).chain(lines).collect() }
    }

    /// The table for a terminal: aligned columns, the first one to the left.
    #[must_use]
    pub fn plain(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let cell = |row: &[String], column: usize| row.get(column).cloned().unwrap_or_default();
        let width = |column| self.rows.iter().map(|row| cell(row, column).chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        if !self.caption.is_empty() {
            text = format!("{}\n", self.caption);
        }
        for row in &self.rows {
            let cells: Vec<String> = (0..columns)
                .map(|column| match column {
                    0 => format!("{:<1$}", cell(row, column), widths[column]),
                    _ => format!("{:>1$}", cell(row, column), widths[column]),
                })
                .collect();
            text.push_str(cells.join("   ").trim_end());
            text.push('\n');
        }
        text
    }

    fn html(&self) -> String {
        let mut text = "<table>\n".to_owned();
        if !self.caption.is_empty() {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "<caption>{}</caption>", escape(&self.caption));
        }
        for (nth, row) in self.rows.iter().enumerate() {
            text.push_str("<tr>");
            for (column, cell) in row.iter().enumerate() {
                let tag = if nth == 0 || column == 0 { "th" } else { "td" };
                // Writing to a string cannot fail.
                let _ = write!(text, "<{tag}>{}</{tag}>", escape(cell));
            }
            text.push_str("</tr>\n");
        }
        text + "</table>\n"
    }
}

impl Report<'_> {
    /// Writes report.html, results.json, results.csv, each list in the results as CSV and each plot as SVG and PNG into
    /// `dir`. Returns the path of the report.
    ///
    /// # Errors
    /// If a file cannot be written or the picture cannot be converted to PNG.
    pub fn write(&self, dir: &Path) -> Result<PathBuf, LabError> {
        let json = dir.join("results.json");
        let data = serde_json::to_string_pretty(self.results).map_err(|e| LabError::file(&json)(e.into()))?;
        write_whole(&json, format!("{data}\n").as_bytes())?;
        write_whole(&dir.join("results.csv"), self.results.csv().as_bytes())?;
        for (name, csv) in self.results.lists() {
            write_whole(&dir.join(format!("{name}.csv")), csv.as_bytes())?;
        }
        for Figure { name, svg } in self.figures {
            write_whole(&dir.join(format!("{name}.svg")), svg.as_bytes())?;
            write_whole(&dir.join(format!("{name}.png")), &png(svg)?)?;
        }
        let page = dir.join("report.html");
        write_whole(&page, self.html(&data).as_bytes())?;
        Ok(page)
    }

    fn html(&self, data: &str) -> String {
        let machine = self.results.machine();
        let swap = if machine.swap { "with swap" } else { "without swap" };
        let figures: Vec<String> =
            self.figures.iter().map(|figure| format!("<figure>{}</figure>\n", figure.svg)).collect();
        let (first, others) = figures.split_at(figures.len().min(1));
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>\n\
             <style>{STYLE}</style>\n<h1>{title}</h1>\n<p>{about}</p>\n{first}{tables}{others}\
             <h2>Where this was measured</h2>\n<p>{cpu}, {cores} cores, {memory}, {swap}; Linux {kernel}; \
             {vmm}.</p>\n<p>Repeat it: <code>{command}</code></p>\n\
             <details><summary>results.json</summary><pre>{data}</pre></details>\n</html>\n",
            title = escape(self.title),
            about = escape(self.about),
            first = first.concat(),
            others = others.concat(),
            tables = self.tables.iter().map(Table::html).collect::<String>(),
            cpu = escape(&machine.cpu),
            cores = machine.cores,
            memory = machine.memory_bytes,
            kernel = escape(&machine.kernel),
            vmm = machine.qemu.as_ref().map_or_else(|| "User Mode Linux".to_owned(), qemu),
            command = escape(self.results.command()),
            data = escape(data),
        )
    }
}

/// QEMU and its guests.
fn qemu(QemuFacts { qemu, accelerator, guest_kernel }: &QemuFacts) -> String {
    let accelerator = match accelerator {
        Accel::Kvm => "KVM",
        Accel::Tcg => "software emulation",
    };
    format!("QEMU {} ({accelerator}), guests with Linux {}", escape(qemu), escape(guest_kernel))
}

const STYLE: &str = "
body { font: 16px/1.5 'DejaVu Sans', system-ui, sans-serif; color: #222b33; max-width: 1200px; margin: 2rem auto;
  padding: 0 1rem; }
figure { margin: 1.5rem 0; } figure svg { width: 100%; height: auto; }
table { border-collapse: collapse; margin: 1.5rem 0; } caption { text-align: left; font-weight: bold; }
th, td { padding: .35rem 1.2rem .35rem 0; border-bottom: 1px solid #e6e9ec; text-align: right; font-weight: normal; }
th:first-child { text-align: left; } tr:first-child th { font-weight: bold; }
code, pre { font-size: 14px; background: #f4f6f7; padding: .1rem .3rem; } pre { padding: 1rem; overflow: auto; }
";

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let row = |cells: &[&str]| cells.iter().map(|&cell| cell.to_owned()).collect();
        let rows = vec![row(&["", "without", "with"]), row(&["guests alive", "3 of 4", "4 of 4"])];
        Table { caption: String::new(), rows }
    }

    #[test]
    fn a_table_is_aligned_for_a_terminal() {
        assert_eq!(table().plain(), "               without     with\nguests alive    3 of 4   4 of 4\n");
    }

    #[test]
    fn cells_cannot_bring_in_markup() {
        let mut table = table();
        table.rows[1][1] = "<script>".to_owned();
        assert!(table.html().contains("<td>&lt;script&gt;</td>"));
    }
}

//! Reports of recorded runs.

use std::io;
use std::path::{Path, PathBuf};

use memtide_engine::journal::{Reader, encode, header};
use memtide_model::{GuestId, Record};

use super::*;

fn trace(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces").join(name)
}

fn page(path: &Path, since: Option<&str>, until: Option<&str>) -> Result<String> {
    let when = |text: Option<&str>| text.map(|text| text.parse::<When>().unwrap());
    page_of(
        &mut Recorded::open(path).unwrap(),
        Path::new("JOURNAL"),
        (when(since), when(until)),
        &TimeZone::UTC,
    )
}

/// The texts of these elements, in the order of the page.
fn outline(page: &str, elements: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for element in elements {
        for (at, _) in page.match_indices(&format!("<{element}")) {
            let rest = &page[at + 1 + element.len()..];
            if !rest.starts_with(['>', ' ']) {
                continue;
            }
            let begin = rest.find('>').unwrap() + 1;
            let text = &rest[begin..begin + rest[begin..].find(&format!("</{element}>")).unwrap()];
            found.push((at, format!("{element}: {text}")));
        }
    }
    found.sort();
    found.into_iter().map(|(_, text)| text).collect()
}

#[test]
fn a_report_has_all_that_it_promises_and_is_the_same_each_time() {
    let journal = trace("demo-elastic.mtj");
    let whole = page(&journal, None, None).unwrap();
    assert_eq!(whole, page(&journal, None, None).unwrap());
    let above_each_guest = &whole[..whole.find("<h2 id=\"each\">").unwrap()];
    let expected = [
        "h1: memtide report",
        "dt: saved, against every guest at its full size",
        "dt: guests",
        "dt: stalls",
        "dt: kills",
        "dt: changes",
        "h2: The host’s memory",
        "summary: The same as a table",
        "caption: The host’s memory at some moments",
        "h2: The guests",
        "caption: The size of each guest, and what it costs the host",
        "h2: Who got what, and why",
        "caption: Accepted changes of all guests’ sizes, by their reasons",
        "summary: The same for each guest",
        "caption: Accepted changes of each guest’s size, by their reasons",
        "h2: Stalls",
        "caption: How long until stalls were answered",
        "caption: The slowest answers",
        "h2: What happened",
        "caption: Events, the oldest first",
    ];
    assert_eq!(outline(above_each_guest, &["h1", "h2", "dt", "caption", "summary"]), expected);
    for says in [
        "2026-11-23 00:06:43 to 2026-11-23 00:08:57 (UTC+00:00), 2 min, 673 decisions",
        "At the end: 4 guests of 1 GiB run in ",
        "<td>memtide 0.1.0 begins, mode manage</td>",
        "<th scope=\"row\">demo-3</th>",
    ] {
        assert!(whole.contains(says), "{says}");
    }
    // Nothing comes from elsewhere, and nothing is allowed to.
    assert!(whole.contains("default-src 'none'"));
    for foreign in ["http:", "https:", "src=", "href=", "@import", " style=", "onclick"] {
        assert!(!whole.contains(foreign), "{foreign}");
    }
    assert_eq!(whole.matches("<section").count(), whole.matches("</section>").count());
    assert_eq!(whole.matches("<details").count(), whole.matches("</details>").count());
}

#[test]
fn the_parts_of_each_guest_add_up() {
    let whole = page(&trace("density-elastic.mtj"), None, None).unwrap();
    let tables: Vec<&str> = whole.split("<caption>The parts of its ").skip(1).collect();
    assert!(tables.len() >= 4, "{}", tables.len());
    for table in tables {
        let table = &table[..table.find("</table>").unwrap()];
        let row = |row: &str| {
            let value = row.split("<data value=\"").nth(1)?.split('"').next()?.parse::<i64>().ok()?;
            Some(if row.contains('−') { -value } else { value })
        };
        let mut values: Vec<i64> = table.split("<tr>").filter_map(row).collect();
        let sum = values.pop().unwrap();
        assert_eq!(values.iter().sum::<i64>(), sum, "{table}");
    }
}

#[test]
fn a_report_is_of_the_times_that_were_asked_for() {
    let journal = trace("demo-elastic.mtj");
    for (since, until, says) in [
        (Some("+60s"), None, "2026-11-23 00:07:43 to 2026-11-23 00:08:57"),
        (Some("00:07"), Some("00:08"), "2026-11-23 00:07:00 to 2026-11-23 00:07:59"),
        (Some("-10s"), None, "2026-11-23 00:08:47 to 2026-11-23 00:08:57"),
        (Some("2020-01-01"), Some("2030-01-01"), "2026-11-23 00:06:43 to 2026-11-23 00:08:57"),
    ] {
        let page = page(&journal, since, until).unwrap();
        assert!(page.contains(says), "{since:?} {until:?}: {:?}", outline(&page, &["header"]));
    }
    for (since, until) in
        [(Some("2030-01-01"), None), (None, Some("2020-01-01")), (Some("00:08"), Some("00:07"))]
    {
        let error = page(&journal, since, until).unwrap_err().to_string();
        assert!(error.contains("it goes from 2026-11-23 00:06:43 to 2026-11-23 00:08:57"), "{error}");
    }
}

#[test]
fn a_name_with_markup_stays_text() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("markup.mtj");
    let evil = "</script><img src=x onerror=alert(1)>&\"'";
    let mut bytes = header().to_vec();
    for record in Reader::open(&trace("react-halve.mtj")).unwrap() {
        let mut record = record.unwrap();
        if let Record::Tick(tick) = &mut record {
            for guest in &mut tick.seen.guests {
                guest.id = GuestId::new(evil, guest.id.start(), "boot");
            }
            tick.seen.guests.sort_by(|a, b| a.id.cmp(&b.id));
        }
        encode(&record, &mut bytes).unwrap();
    }
    fs::write(&file, bytes).unwrap();
    let page = page(&file, None, None).unwrap();
    assert!(page.contains("&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;&amp;&quot;&#39;"));
    assert!(!page.contains("<img") && page.matches("</script>").count() == 2);
    // These decisions are not those of the journal, and the page says so.
    assert!(page.contains("wrote this journal, and memtide"));
}

#[test]
fn what_to_do_about_a_journal_that_cannot_be_read_is_said() {
    let from = Path::new("/var/lib/memtide/journal");
    let error =
        |kind| JournalError::Io { doing: "list", path: from.to_owned(), source: io::Error::from(kind) };
    let denied = advised(error(ErrorKind::PermissionDenied), from).to_string();
    let expected = "only root and memtide’s own user may read the journal in /var/lib/memtide/journal: run `sudo memtide ";
    assert!(denied.starts_with(expected), "{denied}");
    let missing = advised(error(ErrorKind::NotFound), from).to_string();
    assert!(
        missing.starts_with("there is no journal in /var/lib/memtide/journal: ")
            && missing.ends_with("--from"),
        "{missing}"
    );
    assert_eq!(
        (quoted("--since"), quoted("30 s"), quoted("it's")),
        ("--since".into(), "'30 s'".into(), r"'it'\''s'".into())
    );
    let empty = tempfile::tempdir().unwrap();
    assert!(
        page(empty.path(), None, None)
            .unwrap_err()
            .to_string()
            .contains("there is no decision in this journal")
    );
}

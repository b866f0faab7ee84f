//! How KSM is set: reads and writes `/sys/kernel/mm/ksm`.
//!
//! **Rules of the kernel** (Linux 6.8 to 6.18).
//! - Writing `run` waits, without an end by a signal, until the pages of one turn are scanned. So turns must be short.
//! - While the advisor is on, `pages_to_scan` cannot be written. Switching it on or off sets `pages_to_scan` to a default.

use std::fs;
use std::path::{Path, PathBuf};

use memtide_model::{KsmRun, KsmSettings};

use crate::source::parse_once;
use crate::text::only;
use crate::{HostError, ParseError, Root};

/// The advisor's words in `advisor_mode`.
const ADVISOR: [&str; 2] = ["none", "scan-time"];

/// The directory of KSM in this tree.
pub(super) fn directory(root: &Root) -> PathBuf {
    root.sys("kernel/mm/ksm")
}

/// How KSM is set.
///
/// # Errors
/// If this kernel has no KSM, or its files cannot be read.
pub fn read(root: &Root) -> Result<KsmSettings, HostError> {
    let file = |name: &str| directory(root).join(name);
    let count = |name: &'static str| parse_once(file(name), |text| only(name, text));
    Ok(KsmSettings {
        run: parse_once(file("run"), run)?,
        pages_to_scan: count("pages_to_scan")?,
        sleep_millisecs: count("sleep_millisecs")?,
        smart_scan: optional(parse_once(file("smart_scan"), |text| only("smart_scan", text)))?
            .map(|on| on != 0),
        advisor: optional(parse_once(file("advisor_mode"), advisor))?,
    })
}

/// A file that older kernels do not have.
pub(super) fn optional<T>(read: Result<T, HostError>) -> Result<Option<T>, HostError> {
    match read {
        Err(error) if error.is_unsupported() => Ok(None),
        read => read.map(Some),
    }
}

/// Parses `run`.
pub(super) fn run(text: &str) -> Result<KsmRun, ParseError> {
    KsmRun::of(only("run", text)?).ok_or(ParseError::Missing("run"))
}

/// Parses `advisor_mode`, as in `[none] scan-time`: whether the advisor is on.
pub(super) fn advisor(text: &str) -> Result<bool, ParseError> {
    let chosen = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    chosen.map(|(word, _)| word != ADVISOR[0]).ok_or(ParseError::Missing("advisor_mode"))
}

/// Sets KSM to `wanted`. Writes only what differs: scanning stops first, and begins last.
///
/// # Errors
/// If a file cannot be read or written. What was written before stays so.
pub fn write(root: &Root, wanted: KsmSettings) -> Result<(), HostError> {
    write_over(root, read(root)?, wanted)
}

/// Does the same if the present settings are known.
///
/// # Errors
/// If a file cannot be written. What was written before stays so.
pub fn write_over(root: &Root, present: KsmSettings, wanted: KsmSettings) -> Result<(), HostError> {
    writes(present, wanted).into_iter().try_for_each(|(name, value)| {
        let path = directory(root).join(name);
        fs::write(&path, value).map_err(|source| HostError::Write { path, source })
    })
}

/// What is written to which file, in this order. [`KsmSettings::is_between`] knows the order.
fn writes(present: KsmSettings, wanted: KsmSettings) -> Vec<(&'static str, String)> {
    let run = (present.run != wanted.run).then(|| ("run", wanted.run.number().to_string()));
    let (begins, stops) = if wanted.run == KsmRun::Scanning { (run, None) } else { (None, run) };
    let switched =
        |before: Option<bool>, after: Option<bool>| after.filter(|_| before.is_some() && before != after);
    let advisor = switched(present.advisor, wanted.advisor);
    let smart_scan = switched(present.smart_scan, wanted.smart_scan);
    let has_pace = wanted.advisor != Some(true);
    // Switching the advisor sets the pace to a default.
    let paces = has_pace && (advisor.is_some() || present.pages_to_scan != wanted.pages_to_scan);
    let sleeps = present.sleep_millisecs != wanted.sleep_millisecs;
    [
        stops,
        advisor.map(|on| ("advisor_mode", ADVISOR[usize::from(on)].to_owned())),
        paces.then(|| ("pages_to_scan", wanted.pages_to_scan.to_string())),
        sleeps.then(|| ("sleep_millisecs", wanted.sleep_millisecs.to_string())),
        smart_scan.map(|on| ("smart_scan", u8::from(on).to_string())),
        begins,
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Whether this process may set KSM: opens a file for writing, and writes nothing.
///
/// # Errors
/// If this kernel has no KSM, or this process may not.
pub fn can_write(root: &Root) -> Result<(), HostError> {
    let path: &Path = &directory(root).join("run");
    fs::File::options()
        .write(true)
        .open(path)
        .map(drop)
        .map_err(|source| HostError::Write { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree of a kernel with an advisor, stopped.
    fn tree() -> (tempfile::TempDir, Root) {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::at(directory.path());
        let ksm = super::directory(&root);
        fs::create_dir_all(&ksm).unwrap();
        let files = [
            ("run", "0\n"),
            ("pages_to_scan", "100\n"),
            ("sleep_millisecs", "20\n"),
            ("smart_scan", "1\n"),
            ("advisor_mode", "[none] scan-time\n"),
        ];
        for (name, text) in files {
            fs::write(ksm.join(name), text).unwrap();
        }
        (directory, root)
    }

    #[test]
    fn what_was_written_is_read_and_what_was_found_is_put_back() {
        let (_directory, root) = tree();
        let found = read(&root).unwrap();
        let full = KsmSettings {
            run: KsmRun::Scanning,
            pages_to_scan: 20_000,
            sleep_millisecs: 0,
            smart_scan: Some(false),
            ..found
        };
        write(&root, full).unwrap();
        assert_eq!(read(&root).unwrap(), full);
        write(&root, found).unwrap();
        assert_eq!(read(&root).unwrap(), found);
        can_write(&root).unwrap();
    }

    #[test]
    fn each_step_of_a_write_is_known_as_one() {
        let settings = |run, pages_to_scan, sleep_millisecs, smart_scan, advisor| KsmSettings {
            run,
            pages_to_scan,
            sleep_millisecs,
            smart_scan: Some(smart_scan),
            advisor: Some(advisor),
        };
        let all = [
            settings(KsmRun::Stopped, 100, 20, true, false),
            settings(KsmRun::Scanning, 20_000, 0, false, false),
            settings(KsmRun::Stopped, 20_000, 0, false, false),
            settings(KsmRun::Scanning, 300, 20, true, true),
            settings(KsmRun::Unmerged, 100, 20, true, false),
        ];
        for (before, wanted) in all.iter().flat_map(|before| all.iter().map(move |wanted| (*before, *wanted)))
        {
            let (_directory, root) = tree();
            let step = |(name, value): (&str, String)| {
                let write = |name: &str, value: &str| fs::write(directory(&root).join(name), value).unwrap();
                match (name, value.as_str()) {
                    // As the kernel shows it, and with its own pace.
                    ("advisor_mode", "none") => write(name, "[none] scan-time"),
                    ("advisor_mode", _) => write(name, "none [scan-time]"),
                    (_, value) => write(name, value),
                }
                if name == "advisor_mode" {
                    write("pages_to_scan", "777");
                }
                read(&root).unwrap()
            };
            let begun: Vec<KsmSettings> =
                writes(read(&root).unwrap(), before).into_iter().map(step).collect();
            assert!(begun.last().is_none_or(|begun| begun.are(before)), "{begun:?} for {before:?}");
            let steps: Vec<KsmSettings> = writes(before, wanted).into_iter().map(step).collect();
            assert!(
                steps.iter().all(|step| step.is_between(before, wanted)),
                "{steps:?} from {before:?} to {wanted:?}"
            );
            assert!(read(&root).unwrap().are(wanted), "{before:?} to {wanted:?}");
        }
        let others = settings(KsmRun::Scanning, 100, 20, true, false);
        assert!(!others.is_between(all[0], all[1]), "scanning begins last");
    }

    #[test]
    fn an_older_kernel_has_fewer_settings() {
        let (_directory, root) = tree();
        for name in ["smart_scan", "advisor_mode"] {
            fs::remove_file(directory(&root).join(name)).unwrap();
        }
        let found = read(&root).unwrap();
        assert_eq!((found.smart_scan, found.advisor), (None, None));
        write(&root, KsmSettings { pages_to_scan: 7, ..found }).unwrap();
        assert_eq!(read(&root).unwrap().pages_to_scan, 7);
    }

    #[test]
    fn only_the_words_of_the_kernel_are_understood() {
        assert_eq!(advisor("[none] scan-time\n"), Ok(false));
        assert_eq!(advisor("none [scan-time]\n"), Ok(true));
        assert!(advisor("none\n").is_err());
        assert!(run("3\n").is_err() && run("").is_err());
    }

    #[test]
    fn a_kernel_without_ksm_cannot_be_set() {
        let nothing = tempfile::tempdir().unwrap();
        let root = Root::at(nothing.path());
        assert!(read(&root).unwrap_err().is_unsupported());
        assert!(can_write(&root).is_err());
    }
}

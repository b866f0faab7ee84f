//! Tests that cannot run on every machine.
//!
//! `make test` sets [`LIST`] to a file. Each test, or part of a test, that cannot run adds a line to it: its name, a colon, the reason. libtest knows
//! no test that finds out only when it runs that it cannot. It counts such a test as passed, so the sum at the end of `make test` takes it from
//! the passed ones.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::panic::{self, AssertUnwindSafe};
use std::thread;

use libtest_mimic::{Completion, Trial};

/// The variable with the path of the file that lists skipped tests.
const LIST: &str = "MEMTIDE_SKIPPED";

/// Why a test does not run here, on its way out of the test.
#[derive(Debug, PartialEq, Eq)]
struct Skipped(String);

/// Ends this test, which must be a [`trial`]: it cannot run on this machine because of `why`.
pub fn skip(why: &str) -> ! {
    // Not a panic: nothing is printed, and nobody is told to look at a backtrace.
    panic::resume_unwind(Box::new(Skipped(why.to_owned())))
}

/// Says that this test of libtest does not run here, wholly or in part, because of `why`. The caller then returns.
pub fn skipped(why: &str) {
    let thread = thread::current();
    // libtest runs each test in a thread with its name, or in the main thread.
    list("passed", thread.name().unwrap_or("a test"), why);
}

/// Why a confined memtide cannot tell here what guests cost; `None` if it can. root that has given up most of its rights reads the mappings only of
/// processes with no more rights than it has itself, unless it has `CAP_SYS_PTRACE`.
#[must_use]
pub fn cannot_trace() -> Option<&'static str> {
    const SYS_PTRACE: u64 = 1 << 19;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_ascii_whitespace().next().map(str::to_owned)
    };
    let is_root = field("Uid:").is_some_and(|user| user == "0");
    let rights = field("CapEff:").and_then(|set| u64::from_str_radix(&set, 16).ok())?;
    (is_root && rights & SYS_PTRACE == 0)
        .then_some("a confined memtide of root reads the mappings of guests' processes with CAP_SYS_PTRACE, which this system does not give")
}

/// Says it on standard error itself, which no test captures, and in the list. `counted_as` is how the runner counts the test.
fn list(counted_as: &str, name: &str, why: &str) {
    let why = why.replace('\n', " ");
    // There is nobody to tell if standard error is closed.
    let _ = writeln!(std::io::stderr(), "skipped: {name}: {why}");
    let Some(path) = std::env::var_os(LIST) else { return };
    let added = OpenOptions::new().create(true).append(true).open(&path);
    let added = added.and_then(|mut file| writeln!(file, "{counted_as} {name}: {why}"));
    assert!(added.is_ok(), "{}: {added:?}", path.display());
}

/// A trial that fails by panicking, and may [`skip`].
pub fn trial(name: &str, test: impl FnOnce() + Send + 'static) -> Trial {
    let named = name.to_owned();
    Trial::ignorable_test(name, move || {
        Ok(match run(test) {
            Ok(()) => Completion::Completed,
            Err(Skipped(why)) => {
                list("ignored", &named, &why);
                Completion::ignored_with(why)
            }
        })
    })
}

/// Runs a test that may [`skip`]. A panic goes on.
fn run(test: impl FnOnce()) -> Result<(), Skipped> {
    panic::catch_unwind(AssertUnwindSafe(test)).or_else(|payload| match payload.downcast::<Skipped>() {
        Ok(skipped) => Err(*skipped),
        Err(payload) => panic::resume_unwind(payload),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_passes_fails_or_is_skipped_with_its_reason() {
        assert_eq!(run(|| {}), Ok(()));
        assert_eq!(run(|| skip("it rains")), Err(Skipped("it rains".to_owned())));
        assert!(panic::catch_unwind(|| run(|| panic!("on purpose"))).is_err());
    }
}

//! The program `memtide`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    memtide::run()
}

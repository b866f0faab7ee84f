//! Runs a command in the guest's shell.

use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};

use super::wire::Output;

/// The bytes kept of a command's output.
pub const MAX_OUTPUT: u64 = 64 << 10;

/// Starts `cmd` in its own process group. Standard error goes to standard output.
///
/// # Errors
/// If `/bin/sh` is missing or no process can be started.
pub fn start(cmd: &str) -> io::Result<Child> {
    Command::new("/bin/sh")
        .args(["-c", "exec 2>&1; eval \"$1\"", "sh", cmd])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
}

/// Reads all output of a command and keeps its beginning. Returns the text, and whether it was cut.
///
/// # Errors
/// If reading fails.
pub fn collect(mut from: impl Read) -> io::Result<(String, bool)> {
    let mut kept = Vec::new();
    from.by_ref().take(MAX_OUTPUT).read_to_end(&mut kept)?;
    let rest = io::copy(&mut from, &mut io::sink())?;
    Ok((String::from_utf8_lossy(&kept).into_owned(), rest > 0))
}

/// Waits until the command ends.
///
/// # Errors
/// If waiting fails.
pub fn finish(child: &mut Child, (text, cut): (String, bool)) -> io::Result<Output> {
    let status = child.wait()?;
    Ok(Output { code: status.code(), text, cut })
}

/// Kills a command that nobody has waited for yet, and its children.
///
/// # Errors
/// If the kernel refuses.
pub fn kill(child: &Child) -> io::Result<()> {
    match i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        Some(group) => Ok(kill_process_group(group, Signal::KILL)?),
        None => Err(io::Error::new(io::ErrorKind::InvalidInput, "no such process")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(cmd: &str) -> Output {
        let mut child = start(cmd).unwrap();
        let output = collect(child.stdout.take().unwrap()).unwrap();
        finish(&mut child, output).unwrap()
    }

    #[test]
    fn both_outputs_and_the_code_come_back() {
        assert_eq!(
            run("echo out; echo err >&2; exit 3"),
            Output { code: Some(3), text: "out\nerr\n".to_owned(), cut: false }
        );
    }

    #[test]
    fn long_output_is_cut() {
        let output = run("head -c 100000 /dev/zero | tr '\\0' x");
        assert_eq!((output.text.len() as u64, output.cut, output.code), (MAX_OUTPUT, true, Some(0)));
    }
}

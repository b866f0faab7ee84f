//! `memtide-manual DIRECTORY`: writes the man pages of `memtide`, its completions for bash, zsh and fish, and the page for Cockpit.
//!
//! Pages and completions are generated from the program's own command line, so they cannot contradict it. Facts that a command line does not
//! contain (the daemon's files, other pages) are added here. The pages of `memtide-load` and of the configuration are written
//! by hand: `packaging/man`.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Arg, Command};
use clap_complete::Shell;
use clap_mangen::Man;
use memtide_web::files::{self, Way};

const PROGRAM: &str = "memtide";

/// The date of the last review of the pages. The handwritten ones (`packaging/man`) have a date, too.
const DATE: &str = "2026-11-24";

const SIGNALS: &str = r#".SH SIGNALS
The daemon handles these signals:
.TP
.B SIGHUP
The daemon reads the configuration again.
If the file is wrong, the old configuration stays active; the log and
.B memtide status
say why.
.BR memtide.toml (5)
says which keys are read only at the start.
.TP
.BR SIGTERM ", " SIGINT
The daemon ends. Guests keep their memory, or get their limit
.RB ( on_exit ).
.PP
You can kill the daemon with
.B SIGKILL
at any moment: guests keep their memory, and the next daemon continues from the journal.
"#;

const ORDERS: &str = r#".SH ORDERS
The operator can tell memtide to leave a guest alone, and to manage it again:
.TP
.BR memtide\-hold (1)
The guest keeps its present size.
.TP
.BR memtide\-release (1)
The guest gets its limit as soon as the host has room, and is then left alone. Other guests give up memory for it first.
.TP
.BR memtide\-resume (1)
Ends both. It also ends the hold that follows if somebody else moves the balloon.
.PP
Orders need a running daemon. They last for the time of
.BR \-\-for ,
or until
.BR resume ,
and survive a restart of the daemon, and its death. A daemon that only observes remembers orders and changes nothing.
"#;

const FILES: &str = "\
.SH FILES
.TP
.I /etc/memtide/memtide.toml
The configuration, see
.BR memtide.toml (5).
.TP
.I /run/memtide/memtide.sock
The daemon's socket: HTTP, for its owner and its group.
.TP
.I /var/lib/memtide/journal
The decisions of the daemon with their reasons.
";

/// Sections that the first page shows, and so do the pages of these commands.
const SECTIONS: [(&str, &[&str]); 3] =
    [(ORDERS, &["hold", "release", "resume"]), (SIGNALS, &["run"]), (FILES, &["run"])];

fn main() -> Result<()> {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let [directory] = arguments.as_slice() else { bail!("usage: memtide-manual DIRECTORY") };
    write_all(Path::new(directory)).with_context(|| format!("{}", Path::new(directory).display()))
}

/// Writes all files into `directory`, and creates it if it is missing.
fn write_all(directory: &Path) -> Result<()> {
    fs::create_dir_all(directory)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut memtide::command_line(), PROGRAM, directory)?;
    }
    let mut command = memtide::command_line().disable_help_subcommand(true);
    command.build();
    let others: Vec<Command> = shown(&command).cloned().collect();
    for command in others.into_iter().chain([command]) {
        let path = directory.join(page_name(&command));
        fs::write(&path, page(&command)?).with_context(|| format!("{}", path.display()))?;
    }
    let cockpit = directory.join("cockpit");
    fs::create_dir_all(&cockpit)?;
    for file in files::of(Way::Cockpit) {
        fs::write(cockpit.join(file.name), file.text)?;
    }
    Ok(())
}

/// The subcommands that `--help` shows.
fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set())
}

/// `memtide-status.1` for `memtide status`.
fn page_name(command: &Command) -> PathBuf {
    PathBuf::from(format!("{}.1", command.get_display_name().unwrap_or(PROGRAM)))
}

/// The page of one command.
fn page(command: &Command) -> io::Result<Vec<u8>> {
    let man = Man::new(command.clone());
    let title = page_name(command).with_extension("").display().to_string().to_uppercase();
    let version = env!("CARGO_PKG_VERSION");
    let mut page = Vec::new();
    writeln!(page, ".TH {title} 1 {DATE} \"{PROGRAM} {version}\" \"memtide manual\"")?;
    man.render_name_section(&mut page)?;
    writeln!(page, ".SH SYNOPSIS\n{}", synopsis(command))?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    let is_whole = shown(command).next().is_some();
    if is_whole {
        man.render_subcommands_section(&mut page)?;
    }
    if let Some(text) = command.get_after_help() {
        write_verbatim(&mut page, &text.to_string())?;
    }
    for (section, commands) in SECTIONS {
        if is_whole || commands.contains(&command.get_name()) {
            page.write_all(section.as_bytes())?;
        }
    }
    let other = if is_whole { r"memtide\-load" } else { PROGRAM };
    writeln!(page, ".SH \"SEE ALSO\"\n.BR {other} (1),\n.BR memtide.toml (5)")?;
    Ok(page)
}

/// The command with its options and arguments, each with its values.
fn synopsis(command: &Command) -> String {
    let name = command.get_bin_name().unwrap_or(PROGRAM);
    let arguments = command.get_arguments().filter(|argument| !argument.is_hide_set());
    let mut words = vec![format!("\\fB{}\\fR", escaped(name))];
    words.extend(arguments.map(argument));
    if command.has_subcommands() {
        words.push("\\fICOMMAND\\fR [\\fIoptions\\fR]".to_owned());
    }
    words.join(" ")
}

/// An option or argument in a synopsis.
fn argument(argument: &Arg) -> String {
    let short = argument.get_short().map(|short| format!("\\fB\\-{short}\\fR"));
    let long = argument.get_long().map(|long| format!("\\fB\\-\\-{}\\fR", escaped(long)));
    let flags: Vec<String> = short.into_iter().chain(long).collect();
    let takes = argument.get_action().takes_values();
    let values = argument.get_value_names().filter(|_| takes).unwrap_or_default();
    let values = values.iter().map(|value| format!("\\fI{}\\fR", escaped(value)));
    let text =
        (!flags.is_empty()).then(|| flags.join("|")).into_iter().chain(values).collect::<Vec<_>>().join(" ");
    if argument.is_required_set() { text } else { format!("[{text}]") }
}

/// Escapes hyphens, so that they stay hyphens to type.
fn escaped(text: &str) -> String {
    text.replace('-', "\\-")
}

/// Writes the text at the end of a command's help. Its first line is the heading; the others keep their layout.
fn write_verbatim(page: &mut Vec<u8>, text: &str) -> io::Result<()> {
    let (heading, lines) = text.split_once('\n').unwrap_or(("Notes", text));
    writeln!(page, ".SH \"{}\"\n.nf", heading.trim_end_matches(':').to_uppercase())?;
    for line in lines.lines() {
        // A leading dot or apostrophe would be a request, and a backslash an escape.
        writeln!(page, "\\&{}", line.replace('\\', "\\e").replace('-', "\\-"))?;
    }
    writeln!(page, ".fi")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written() -> (tempfile::TempDir, impl Fn(&str) -> String) {
        let directory = tempfile::tempdir().unwrap();
        write_all(directory.path()).unwrap();
        let path = directory.path().to_owned();
        let read =
            move |name: &str| fs::read_to_string(path.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        (directory, read)
    }

    #[test]
    fn every_command_and_option_is_in_a_page_and_in_each_completion() {
        let (_directory, read) = written();
        let completions = ["memtide.bash", "_memtide", "memtide.fish"].map(&read);
        let command = memtide::command_line();
        assert!(shown(&command).count() > 3);
        for subcommand in shown(&command) {
            let name = subcommand.get_name();
            let page = read(&format!("memtide-{name}.1"));
            assert!(read("memtide.1").contains(&format!(r"memtide\-{name}(1)")), "{name}");
            let options = subcommand.get_opts().filter(|option| !option.is_hide_set());
            for option in options.filter_map(|option| option.get_long()) {
                let escaped = option.replace('-', "\\-");
                assert!(page.contains(&format!("\\-\\-{escaped}")), "{name} --{option}: {page}");
                for completion in &completions {
                    assert!(completion.contains(option), "{name} --{option}");
                }
            }
        }
    }

    #[test]
    fn the_first_page_tells_of_orders_signals_exit_codes_files_and_the_other_pages() {
        let (_directory, read) = written();
        let page = read("memtide.1");
        for text in [
            ".TH MEMTIDE 1 2026-11-24 \"memtide ",
            ".SH ORDERS",
            ".BR memtide\\-release (1)",
            ".SH SIGNALS",
            ".B SIGHUP",
            ".SH \"EXIT CODES\"",
            "no daemon answers",
            "/etc/memtide/memtide.toml",
            ".BR memtide\\-load (1)",
        ] {
            assert!(page.contains(text), "{text}: {page}");
        }
        let page = read("memtide-run.1");
        assert!(page.starts_with(".TH MEMTIDE-RUN 1") && page.contains(".BR memtide (1)"), "{page}");
        assert!(page.contains(".B SIGHUP") && !page.contains(".SH ORDERS"), "{page}");
        assert!(read("memtide-hold.1").contains(".SH ORDERS"));
    }

    #[test]
    fn a_synopsis_names_what_options_and_commands_take() {
        let (_directory, read) = written();
        for (page, words) in [
            ("memtide", "\\fICOMMAND\\fR"),
            ("memtide-run", "[\\fB\\-\\-config\\fR \\fIFILE\\fR]"),
            ("memtide-run", "[\\fB\\-v\\fR|\\fB\\-\\-verbose\\fR]"),
            ("memtide-journal", "[\\fB\\-\\-redecide\\fR \\fIOUT\\fR]"),
            ("memtide-journal", "journal\\fR \\fIFILE\\fR "),
            ("memtide-replay", "replay\\fR \\fIFILE\\fR "),
            ("memtide-release", "release\\fR [\\fIGUEST\\fR] "),
        ] {
            let text = read(&format!("{page}.1"));
            assert!(text.contains(words), "{page}: {words}: {text}");
        }
    }

    #[test]
    fn pages_that_are_written_by_hand_have_the_same_date() {
        for page in [
            include_str!("../../../packaging/man/memtide-load.1"),
            include_str!("../../../packaging/man/memtide.toml.5"),
        ] {
            assert!(page.starts_with(".Dd November 24, 2026\n") && DATE == "2026-11-24", "{DATE}");
        }
    }

    #[test]
    fn a_line_that_looks_like_a_request_is_text() {
        let mut page = Vec::new();
        write_verbatim(&mut page, "Notes:\n.so /etc/passwd\n'x a\\b").unwrap();
        assert_eq!(
            String::from_utf8(page).unwrap(),
            ".SH \"NOTES\"\n.nf\n\\&.so /etc/passwd\n\\&'x a\\eb\n.fi\n"
        );
    }
}

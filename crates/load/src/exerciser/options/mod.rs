//! The command line of the exerciser.

mod values;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use lexopt::{Arg, Parser, ValueExt};
use memtide_model::{Bytes, Share};

use self::values::{form, stride, threads, whole};
pub use self::values::{hot, rate, shape, share, size, time};
#[cfg(test)]
use super::content::Form;
use super::content::{Content, PAGE};
use super::memory::Kind;
use super::schedule::{Rate, Shape};
use super::walk::Pattern;

/// The text that `--help` prints.
pub const HELP: &str = "\
memtide-load: uses memory in a way that is known beforehand, at a known rate, and checks what it finds

usage: memtide-load --size SIZE [--rate RATE] [--writes PERCENT] [--duration TIME] [more options]
       memtide-load lab-helper [--control PATH]   obeys the lab from inside a guest

Memory
  --size SIZE             how much, as in 512M or 4GiB
  --kind KIND             anonymous (default: pages of 4 KiB), huge (transparent huge pages), shared,
                          file (mapped; needs --file), cache (read and written through the page cache; needs --file)
  --file PATH             created where it is missing; one that holds something else is refused
  --grow RATE             fill the memory at this rate (or `max`) and begin at once, instead of filling it first; no room
                          is asked for beforehand; without --size: until the kernel refuses or kills
  --free-after TIME       give all memory back then
  --hold [TIME]           keep the memory, untouched, after the end; without TIME until a signal

Touches
  --rate RATE             bytes a second, as in 1GiB; `max` (default): as fast as possible. One touch is one access to one
                          page, and counts as the page's size
  --stride BYTES          a touch counts this much instead: 64 touches and counts cache lines
  --writes PERCENT        how many of the touches write (default 0%)
  --duration TIME         as in 500ms, 10s, 5m, 1h (default: until a signal)
  --passes N              end once everything was touched N times, or after as many touches in another order; 0: once it
                          is filled
  --threads N             size and rate are those of all threads together
  --random                anywhere, instead of one after the other
  --hot PART:TOUCHES      PART of the memory gets TOUCHES of all touches, as in 20%:80%
  --shift TIME            the hot part moves on by its own size each time
  --shape SHAPE           constant (default), square:BUSY:IDLE[:OFFSET], ramp:TIME, or file:PATH with lines of
                          `seconds rate size`, gone through again and again

Content
  --content WHAT          random (default: cannot be compressed), zero, or heap: like the objects of a program
  --compress RATIO        pages can be compressed to 1/RATIO, as in 2.5; a heap (default 2.5) by LZO, and further by zstd
  --seed N                the same seed gives the same content on every machine (default: another one each time)
  --identical PERCENT     the share of pages that are the same in all exercisers with this seed
  --instance N            chooses the others (default: another one each time)

Checks
  --verify                compare each touched page with what was written to it

Output
  --json                  print a summary as JSON at the end, and nothing else
  --lines                 print a JSON object each second and for each event
  --quiet                 print the summary alone
  --control PATH          obey the lines that come through the Unix socket PATH, or `-`: through standard input:
                          rate, writes, size, shape, hot, random, sequential, check, status, free, stop
  --help, --version

Exit codes
  0  done           3  a page was not as it was written
  1  failed         4  the memory is not available
  2  command line   5  the rate was not reached";

/// All options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The size of the memory; `None`: as much as the kernel gives.
    pub size: Option<Bytes>,
    /// The kind of memory.
    pub kind: Kind,
    /// The rate of filling while the memory is touched; `None`: it is filled before the first touch.
    pub grow: Option<Rate>,
    /// The time after which the memory is given back.
    pub free_after: Option<Duration>,
    /// How long the memory is kept after the end.
    pub hold: Hold,
    /// The rate of touches.
    pub rate: Rate,
    /// How the rate changes over time.
    pub shape: Shape,
    /// The bytes that a touch counts as.
    pub stride: u64,
    /// The share of touches that write.
    pub writes: Share,
    /// The time after which the run ends.
    pub duration: Option<Duration>,
    /// The number of rounds after which the run ends.
    pub passes: Option<u64>,
    /// The number of threads.
    pub threads: u64,
    /// The access pattern.
    pub pattern: Pattern,
    /// The content of the pages.
    pub content: Content,
    /// Whether each touched page is checked.
    pub verify: bool,
    /// The form of the output.
    pub output: Output,
    /// The source of commands.
    pub control: Option<PathBuf>,
}

/// What to do with the memory after the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Give it back.
    No,
    /// Keep it for this time.
    For(Duration),
    /// Keep it until a signal or the command `stop`.
    On,
}

/// The form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// A line each second and a summary, for people.
    Text,
    /// The summary alone, for people.
    Quiet,
    /// The summary alone, as JSON.
    Json,
    /// JSON lines, one each second and one for each event.
    Lines,
}

/// The request on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Exercise memory.
    Run(Box<Options>),
    /// Print [`HELP`].
    Help,
    /// Print the version.
    Version,
}

/// Why the command line is wrong.
#[derive(Debug, thiserror::Error)]
pub enum UsageError {
    /// An option or a value is not understood.
    #[error("{0}")]
    Syntax(#[from] lexopt::Error),
    /// A value makes no sense.
    #[error("{option}: {why}")]
    Value {
        /// The option.
        option: &'static str,
        /// The mistake, and what to write.
        why: String,
    },
}

fn wrong(option: &'static str, why: impl ToString) -> UsageError {
    UsageError::Value { option, why: why.to_string() }
}

/// Numbers for options that nobody chose. They differ in each run.
#[derive(Clone, Copy, Debug)]
pub struct Chosen {
    /// For the seed.
    pub seed: u64,
    /// For the instance.
    pub instance: u64,
}

impl Options {
    /// Parses the arguments after the program's name.
    ///
    /// # Errors
    /// If the command line is not understood.
    pub fn parse(arguments: impl IntoIterator<Item = OsString>, chosen: Chosen) -> Result<Asked, UsageError> {
        let mut raw = Raw::new(chosen);
        let mut parser = Parser::from_args(arguments);
        while let Some(argument) = parser.next()? {
            match argument {
                Arg::Long("help") | Arg::Short('h') => return Ok(Asked::Help),
                Arg::Long("version") | Arg::Short('V') => return Ok(Asked::Version),
                Arg::Long(name) => {
                    let name = name.to_owned();
                    raw.take(&name, &mut parser)?;
                }
                other => return Err(other.unexpected().into()),
            }
        }
        raw.finish().map(|options| Asked::Run(Box::new(options)))
    }
}

/// The options so far, and the parts that are put together at the end.
struct Raw {
    options: Options,
    kind: String,
    file: Option<PathBuf>,
    hot: Option<(Share, Share)>,
    shift: Option<Duration>,
    random: bool,
    identical: Option<Share>,
    content: String,
    compress: Option<String>,
}

impl Raw {
    fn new(chosen: Chosen) -> Self {
        let options = Options {
            size: None,
            kind: Kind::Anonymous,
            grow: None,
            free_after: None,
            hold: Hold::No,
            rate: Rate::Unpaced,
            shape: Shape::Constant,
            stride: PAGE as u64,
            writes: Share::default(),
            duration: None,
            passes: None,
            threads: 1,
            pattern: Pattern::Sequential,
            content: Content { instance: chosen.instance, ..Content::of(chosen.seed) },
            verify: false,
            output: Output::Text,
            control: None,
        };
        Self {
            options,
            kind: "anonymous".to_owned(),
            file: None,
            hot: None,
            shift: None,
            random: false,
            identical: None,
            content: "random".to_owned(),
            compress: None,
        }
    }

    fn take(&mut self, name: &str, parser: &mut Parser) -> Result<(), UsageError> {
        let options = &mut self.options;
        match name {
            "size" => options.size = Some(size("--size", &text(parser)?)?),
            "kind" => self.kind = text(parser)?,
            "file" => self.file = Some(parser.value()?.into()),
            "grow" => options.grow = Some(rate("--grow", &text(parser)?)?),
            "free-after" => options.free_after = Some(time("--free-after", &text(parser)?)?),
            "hold" => options.hold = hold(parser)?,
            "rate" => options.rate = rate("--rate", &text(parser)?)?,
            "stride" => options.stride = stride(&text(parser)?)?,
            "writes" => options.writes = share("--writes", &text(parser)?)?,
            "duration" => options.duration = Some(time("--duration", &text(parser)?)?),
            "passes" => options.passes = Some(whole("--passes", &text(parser)?)?),
            "threads" => options.threads = threads(&text(parser)?)?,
            "random" => self.random = true,
            "hot" => self.hot = Some(hot("--hot", &text(parser)?)?),
            "shift" => self.shift = Some(time("--shift", &text(parser)?)?),
            "shape" => options.shape = shape("--shape", &text(parser)?)?,
            "content" => self.content = text(parser)?,
            "compress" => self.compress = Some(text(parser)?),
            "seed" => options.content.seed = whole("--seed", &text(parser)?)?,
            "instance" => options.content.instance = whole("--instance", &text(parser)?)?,
            "identical" => self.identical = Some(share("--identical", &text(parser)?)?),
            "verify" => options.verify = true,
            "json" => self.print(Output::Json)?,
            "lines" => self.print(Output::Lines)?,
            "quiet" => self.print(Output::Quiet)?,
            "control" => options.control = Some(parser.value()?.into()),
            _ => return Err(Arg::Long(name).unexpected().into()),
        }
        Ok(())
    }

    fn print(&mut self, output: Output) -> Result<(), UsageError> {
        if ![Output::Text, output].contains(&self.options.output) {
            return Err(wrong("--json, --lines, --quiet", "one of them"));
        }
        self.options.output = output;
        Ok(())
    }

    fn finish(self) -> Result<Options, UsageError> {
        let mut options = self.options;
        options.kind = kind(&self.kind, self.file)?;
        options.pattern = match (self.hot, self.random) {
            (Some(_), true) => return Err(wrong("--hot", "it does not go with --random")),
            (Some((part, touches)), false) => Pattern::Hot { part, touches, shift: self.shift },
            (None, _) if self.shift.is_some() => return Err(wrong("--shift", "it needs --hot")),
            (None, true) => Pattern::Random,
            (None, false) => Pattern::Sequential,
        };
        options.content.form = form(&self.content, self.compress.as_deref())?;
        options.content.identical = self.identical.unwrap_or(options.content.identical);
        let largest = match &options.shape {
            Shape::Steps(steps) => steps.iter().map(|step| step.size).max(),
            _ => None,
        };
        options.size = largest.or(options.size);
        if options.size.is_none() && options.grow.is_none() {
            return Err(wrong("--size", "say how much memory, as in --size 1G, or let it --grow"));
        }
        if options.size.is_none() && options.kind.path().is_some() {
            return Err(wrong("--size", "a file needs one"));
        }
        if options.size.is_some_and(|size| size.get() / (PAGE as u64) < options.threads) {
            return Err(wrong("--threads", "each needs a page at least"));
        }
        if options.passes.is_some_and(|passes| passes > 0) && options.rate == Rate::PerSecond(Bytes::ZERO) {
            return Err(wrong("--passes", "at a rate of 0 nothing is touched"));
        }
        if options.verify && options.stride != PAGE as u64 {
            return Err(wrong("--verify", "it compares whole pages: leave out --stride"));
        }
        if options.rate == Rate::Unpaced && matches!(options.shape, Shape::Ramp { .. }) {
            return Err(wrong("--shape", "a ramp needs a --rate to rise to"));
        }
        Ok(options)
    }
}

fn text(parser: &mut Parser) -> Result<String, UsageError> {
    Ok(parser.value()?.string()?)
}

fn hold(parser: &mut Parser) -> Result<Hold, UsageError> {
    let given = parser.optional_value().or_else(|| {
        let digit = |value: &OsString| value.to_string_lossy().starts_with(|c: char| c.is_ascii_digit());
        let mut raw = parser.try_raw_args()?;
        raw.next_if(|value| digit(&value.to_owned()))
    });
    match given {
        Some(value) => Ok(Hold::For(time("--hold", &value.string()?)?)),
        None => Ok(Hold::On),
    }
}

fn kind(name: &str, file: Option<PathBuf>) -> Result<Kind, UsageError> {
    let named =
        |file: Option<PathBuf>| file.ok_or_else(|| wrong("--kind", format!("{name} needs --file PATH")));
    match name {
        "file" => named(file).map(Kind::File),
        "cache" => named(file).map(Kind::Cache),
        _ if file.is_some() => Err(wrong("--file", "it goes with --kind file or --kind cache")),
        "anonymous" => Ok(Kind::Anonymous),
        "huge" => Ok(Kind::Huge),
        "shared" => Ok(Kind::Shared),
        _ => Err(wrong("--kind", format!("`{name}` is none of anonymous, huge, shared, file, cache"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manual_page_has_every_option_of_the_help() {
        let page = include_str!("../../../../../packaging/man/memtide-load.1");
        let is_name = |c: char| c.is_ascii_alphabetic() || c == '-';
        for option in HELP.split(|c| !is_name(c)).filter_map(|word| word.strip_prefix("--")) {
            assert!(page.contains(&format!("Fl -{option}")), "--{option} is not in the page");
        }
    }

    fn parse(line: &str) -> Result<Options, String> {
        let arguments = line.split_whitespace().map(OsString::from);
        match Options::parse(arguments, Chosen { seed: 11, instance: 12 }) {
            Ok(Asked::Run(options)) => Ok(*options),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn what_is_not_said_has_a_default() {
        let options = parse("--size 1G").unwrap();
        assert_eq!(options.size, Some(Bytes::from_mib(1024)));
        assert_eq!((options.rate, options.stride, options.threads), (Rate::Unpaced, 4096, 1));
        assert_eq!((options.content.seed, options.content.instance), (11, 12));
        assert_eq!(
            (options.hold, options.output, options.pattern),
            (Hold::No, Output::Text, Pattern::Sequential)
        );
    }

    #[test]
    fn the_wish_can_be_written_down() {
        let options = parse("--size 4GiB --rate 100M/s --writes 30% --duration 90s").unwrap();
        assert_eq!(options.rate, Rate::PerSecond(Bytes::from_mib(100)));
        assert_eq!(
            (options.writes, options.duration),
            (Share::percent(30).unwrap(), Some(Duration::from_secs(90)))
        );
    }

    #[test]
    fn everything_is_understood() {
        let options = parse(
            "--kind file --file /f --size 1M --hot 20%:80% --shift 10s --shape square:10s:20s:5s --stride 64 \
             --threads 3 --compress 2.5 --seed 9 --identical 80 --instance 4 --hold 5m --free-after 500ms --json",
        )
        .unwrap();
        assert_eq!(options.kind, Kind::File("/f".into()));
        let secs = Duration::from_secs;
        assert_eq!(options.shape, Shape::Square { busy: secs(10), idle: secs(20), offset: secs(5) });
        assert_eq!(
            (options.stride, options.threads, options.content.form),
            (64, 3, Form::Random { filled: 205 })
        );
        assert_eq!(
            (options.hold, options.free_after),
            (Hold::For(secs(300)), Some(Duration::from_millis(500)))
        );
        assert!(matches!(options.pattern, Pattern::Hot { shift: Some(every), .. } if every == secs(10)));
        assert_eq!(parse("--size 1M --hold --json").unwrap().hold, Hold::On);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_mend() {
        for (line, message) in [
            ("", "--size: say how much memory"),
            ("--size", "missing argument for option '--size'"),
            ("--size 5MB", "--size: `MB` is not a unit"), // tidy-allow: MB
            ("--size 0", "--size: write 4 KiB or more"),
            ("--size 1M --threads 257", "--threads: each needs a page"),
            ("--size 1G --threads 2000", "--threads: at most"),
            ("--size 1M --json --quiet", "--json, --lines, --quiet: one of them"),
            ("--size 1M --passes 1 --rate 0", "--passes: at a rate of 0"),
            ("--sizes 1G", "invalid option '--sizes'"),
            ("--size 1G --rate fast", "--rate: "),
            ("--size 1G --writes 130%", "--writes: `130%` is no share"),
            ("--size 1G --stride 100", "--stride: write a power of two"),
            ("--size 1G --hot 20%", "--hot: write it as in 20%:80%"),
            ("--size 1G --shift 5s", "--shift: it needs --hot"),
            ("--size 1G --kind cache", "--kind: cache needs --file PATH"),
            ("--size 1G --file /x", "--file: it goes with"),
            ("--size 1G --duration 5d", "--duration: `5d` is no time"),
            ("--size 1G --shape ramp:5s", "--shape: a ramp needs a --rate"),
            ("--size 1G --shape wave", "--shape: `wave` is none of"),
            ("--size 1G --shape file:/nonexistent", "--shape: /nonexistent: No such file"),
            ("--size 1G --content heap --compress 9", "--compress: a heap can have a ratio from 1.25 to 6"),
            ("--size 1G --content zero --compress 2", "--compress: it goes with --content random or heap"),
            ("--size 1G --content text", "--content: `text` is none of"),
            ("--size 1G --compress 100", "--compress: `100` is no ratio"),
            ("--size 1G --verify --stride 64", "--verify: it compares whole pages"),
            ("--size 1G extra", "unexpected argument \"extra\""),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.starts_with(message), "{line}: {error}");
        }
    }

    #[test]
    fn steps_are_read_from_a_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "# a job\n10 1GiB 512M\n\n2.5 0 64M # rest\n").unwrap();
        let options = parse(&format!("--shape file:{}", file.path().display())).unwrap();
        let Shape::Steps(steps) = &options.shape else { panic!("{options:?}") };
        assert_eq!(steps.len(), 2);
        assert_eq!((steps[1].lasts, steps[1].rate), (Duration::from_millis(2500), Bytes::ZERO));
        assert_eq!(options.size, Some(Bytes::from_mib(512)));
        std::fs::write(file.path(), "10 1GiB\n").unwrap();
        let error = parse(&format!("--shape file:{}", file.path().display())).unwrap_err();
        assert!(error.contains(":1: write `seconds rate size`"), "{error}");
    }
}

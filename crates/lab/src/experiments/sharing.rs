//! How often a host holds the pages of one disk image that n UML instances read: the oldest founding text counts 2n copies with an image for
//! each instance, n + 1 with one image and a COW file for each, and one with page cache that they share with the host.
//!
//! A copy is the image's size: the host's page cache of the image files (fincore), and what each instance's memory file grows by while it
//! reads. Each instance checks what it reads.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use memtide_load::helper::wire::{Ask, Output};
use memtide_model::Bytes;
use memtide_plot::bars::{self, Bar, Bars};
use rustix::fs::Advice;
use serde::Serialize;
use serde_json::json;

use crate::error::LabError;
use crate::experiments::experiment::{Arm, ArmSeen, Effort, Experiment, Findings, Options, Repetition, Seen};
use crate::guest::disk::Disk;
use crate::guest::{BOOT, Guest, Vmm};
use crate::machine::lab::Run;
use crate::machine::packages;
use crate::machine::process;
use crate::output::report::{Figure, Table};
use crate::output::sample::Samples;
use crate::output::screen::Screen;
use crate::output::show;
use crate::output::statistics::median;

/// The image's size in MiB, and the seed of its content.
const IMAGE_MIB: u64 = 64;
const DISK_SEED: u64 = 23;
/// The memory of an instance: the image fits into its page cache.
const MEMORY: Bytes = Bytes::from_mib(192);
/// The most instances.
const MOST: usize = 4;
/// The longest time for reading.
const WORK: Duration = Duration::from_secs(120);

/// How instances reach the image.
const WAYS: [(&str, &str); 4] = [
    ("images", "an image for each instance"),
    ("cow", "one image, a COW file for each instance"),
    ("hostfs", "one file through hostfs"),
    ("iomem", "one file mapped as memory (iomem=)"),
];

/// The experiment.
pub struct Sharing {
    image: Disk,
}

/// One run of an arm.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SharingResult {
    /// For each number of instances.
    pub by_instances: Vec<Copies>,
}

/// The copies with this number of instances.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Copies {
    /// The number of instances.
    pub instances: u64,
    /// The host's page cache of the image files.
    pub host_bytes: Bytes,
    /// What all instances together grew by.
    pub instances_bytes: Bytes,
    /// Both, as a multiple of the image.
    pub copies: f64,
}

impl Experiment for Sharing {
    const NAME: &'static str = "sharing-uml";
    const ABOUT: &'static str = "UML instances that read one disk image: how often the host holds its pages";
    type Result = SharingResult;

    fn arms(effort: Effort) -> Vec<Arm> {
        let runs = if effort == Effort::Full { 3 } else { 1 };
        let arm = |(key, title): (&str, &str)| Arm {
            key: key.to_owned(),
            title: title.to_owned(),
            runs,
            takes: Duration::from_secs(20),
        };
        WAYS.into_iter().map(arm).collect()
    }

    fn has_memtide(_: &str) -> bool {
        false
    }

    fn prepare(_: &Options, _: &[Arm], run: &Run, screen: &Screen) -> Result<Self, LabError> {
        packages::ensure_program("fincore", "util-linux", &|text| screen.say(text))?;
        packages::ensure_program("uml_mkcow", "uml-utilities", &|text| screen.say(text))?;
        Ok(Self { image: Disk::ensure(run.lab().cache(), DISK_SEED, IMAGE_MIB)? })
    }

    fn run(&mut self, of: Repetition<'_>, run: &Run, _: &Screen) -> Result<Seen<SharingResult>, LabError> {
        let sum = self.checksum()?;
        let shared = run.path().join("image");
        let mut files: Vec<PathBuf> = Vec::new();
        let (mut instances, mut by_instances, mut grown) = (Vec::new(), Vec::new(), Bytes::ZERO);
        for number in 1..=MOST {
            let image = if of.arm.key == "images" {
                run.path().join(format!("image-{number}"))
            } else {
                shared.clone()
            };
            if !image.exists() {
                self.copy(&image)?;
                files.push(image.clone());
            }
            let name = format!("sharing-{number}");
            let (arguments, before, file) = way(&of.arm.key, &image, &run.path().join(format!("{name}.cow")));
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            let instance =
                Guest::builder(&name).vmm(Vmm::Uml).memory(MEMORY).arguments(&arguments).start(run, None)?;
            instance.wait_up(BOOT)?;
            let cost = instance.private();
            read(&instance, &before, file, &sum)?;
            grown = grown.saturating_add(instance.private().saturating_sub(cost));
            instances.push(instance);
            let host_bytes = cached(&files)?;
            let copies = show::mib(host_bytes.saturating_add(grown)) / show::mib(self.image.size);
            by_instances.push(Copies {
                instances: number as u64,
                host_bytes,
                instances_bytes: grown,
                copies,
            });
        }
        let names = instances.iter().map(|instance| instance.name().to_owned()).collect();
        Ok(Seen { names, samples: Samples::default(), result: SharingResult { by_instances } })
    }

    fn find(&self, arms: &[ArmSeen<SharingResult>]) -> Result<Findings, LabError> {
        let title = "How often the host holds a disk image that UML instances read".to_owned();
        let about = format!(
            "Each instance reads an image of {IMAGE_MIB} MiB. Shown is the host's page cache of the image, and what the instances grew by, as multiples of the image. \
             The founding text counts 2n copies with an image for each, n + 1 with COW files, and 1 with page cache shared with the host."
        );
        let mut rows = vec![
            std::iter::once(String::new()).chain((1..=MOST).map(|n| format!("{n}"))).collect::<Vec<_>>(),
        ];
        let mut bars = Vec::new();
        for seen in arms {
            let copies = |n: usize| {
                median(
                    seen.runs
                        .iter()
                        .filter_map(|run| run.result.by_instances.get(n - 1))
                        .map(|step| step.copies),
                )
            };
            let cells = (1..=MOST)
                .map(|n| copies(n).map_or_else(|| "n/a".to_owned(), |copies| format!("{copies:.2}")));
            rows.push(std::iter::once(seen.arm.title.clone()).chain(cells).collect());
            let value = copies(MOST).unwrap_or_default();
            bars.push(Bar {
                label: seen.arm.title.clone(),
                value,
                interval: None,
                text: format!("{value:.2}"),
            });
        }
        let group = Bars { title: format!("copies with {MOST} instances"), bars, ..Bars::default() };
        Ok(Findings {
            figures: vec![Figure { name: "plot".to_owned(), svg: bars::svg(&title, &about, &[group]) }],
            tables: vec![Table { caption: "copies, by the number of instances".to_owned(), rows }],
            setting: json!({ "image_mib": IMAGE_MIB, "instance_memory_bytes": MEMORY }),
            failures: Vec::new(),
            title,
            about,
        })
    }
}

impl Sharing {
    /// The image's checksum, as md5sum prints it.
    fn checksum(&self) -> Result<String, LabError> {
        let sum = process::run(Command::new("md5sum").arg(&self.image.path))?;
        Ok(sum.split_whitespace().next().unwrap_or_default().to_owned())
    }

    /// Copies the image, without a trace in the host's page cache.
    fn copy(&self, to: &Path) -> Result<(), LabError> {
        let copied = || {
            fs::copy(&self.image.path, to)?;
            let file = fs::File::open(to)?;
            file.sync_all()?;
            rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?;
            Ok(())
        };
        copied().map_err(LabError::file(to))
    }
}

/// The arguments of an instance, the command before it reads, and the file that it reads.
fn way(key: &str, image: &Path, cow: &Path) -> (Vec<String>, String, &'static str) {
    let (image_text, directory) = (image.display(), image.parent().unwrap_or(image).display());
    match key {
        "images" => (vec![format!("ubd0={image_text}")], String::new(), "/dev/ubda"),
        "cow" => (vec![format!("ubd0={},{image_text}", cow.display())], String::new(), "/dev/ubda"),
        "hostfs" => {
            let name = image.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let mount = format!(
                "mkdir -p /host && mount -t hostfs none /host -o {directory} && ln -s /host/{name} /tmp/image && "
            );
            (Vec::new(), mount, "/tmp/image")
        }
        _ => (vec![format!("iomem=mmapper,{image_text}")], String::new(), "/dev/mmapper"),
    }
}

/// Reads the whole image in an instance, checks it, and keeps the file open: the kernel drops a block device's page cache with its last user.
/// The size is given: a read beyond the end of a file that is mapped as memory ends the instance.
fn read(instance: &Guest, before: &str, file: &str, sum: &str) -> Result<(), LabError> {
    let read = format!(
        "{{ {before}exec 3< {file}; dd bs=1M count={IMAGE_MIB} <&3 2> /dev/null | md5sum > /tmp/sum.new; mv /tmp/sum.new /tmp/sum; sleep 100000; }} > /dev/null 2> /tmp/error & \
         until [ -s /tmp/sum ] || [ -s /tmp/error ]; do sleep 0.1; done; cat /tmp/error /tmp/sum"
    );
    let output: Output = instance.ask(Ask::Sh { cmd: read }, WORK)?;
    if output.text.split_whitespace().next() == Some(sum) {
        return Ok(());
    }
    let why = format!("the image is not what it was: {}", output.text.trim());
    Err(LabError::Load { guest: instance.name().to_owned(), why })
}

/// The host's page cache of these files.
fn cached(files: &[PathBuf]) -> Result<Bytes, LabError> {
    let listed = process::run(
        Command::new("fincore").args(["--bytes", "--noheadings", "--output", "RES"]).args(files),
    )?;
    Ok(Bytes::sum(listed.lines().filter_map(|line| line.trim().parse().ok()).map(Bytes::new)))
}

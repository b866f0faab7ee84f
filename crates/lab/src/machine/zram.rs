//! A compressed block device in memory (zram).
//!
//! A device belongs to the whole machine, and its memory is charged to no cgroup. So the lab announces none, and removes each one with its guard: at the
//! end of an arm, after an error, and when a thread panics. Only a lab that is killed leaves one behind.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use memtide_model::Bytes;

use crate::error::LabError;
use crate::machine::process;
use crate::wait::LOOK_EVERY;

const CONTROL: &str = "/sys/class/zram-control";
/// The compression that the kernel has by default since Linux 5.1. Every zram has it.
const ALGORITHM: &str = "lzo-rle";
/// The longest wait for the last user of a device to close it.
const LAST_CLOSE: Duration = Duration::from_secs(5);

/// A zram device. Dropping it removes it with its content.
#[derive(Debug)]
pub struct Zram {
    number: u32,
    node: PathBuf,
    /// Whether the device node is ours.
    made_node: bool,
    size: Bytes,
}

/// The content of a device, as its `mm_stat` tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// The data in it.
    pub stored: Bytes,
    /// The same data, compressed.
    pub compressed: Bytes,
    /// The host's memory that it takes.
    pub used: Bytes,
}

impl Zram {
    /// Adds a device of `size`.
    ///
    /// # Errors
    /// [`LabError::Missing`] if the kernel has no zram or this process may not use it.
    pub fn create(size: Bytes) -> Result<Self, LabError> {
        if !Path::new(CONTROL).exists() {
            // If there is no such module, the next line reports it.
            let _ = process::run(Command::new("modprobe").arg("zram"));
        }
        let add = Path::new(CONTROL).join("hot_add");
        let missing = |why: String| LabError::Missing(format!("no compressed memory: {why}"));
        let number = fs::read_to_string(&add).map_err(|e| missing(format!("{}: {e}", add.display())))?;
        let number: u32 = number.trim().parse().map_err(|e| missing(format!("{number}: {e}")))?;
        let node = PathBuf::from(format!("/dev/zram{number}"));
        let mut zram = Self { number, node, made_node: false, size };
        zram.begin().map_err(|e| missing(e.with_cause()))?;
        Ok(zram)
    }

    fn begin(&mut self) -> Result<(), LabError> {
        let set = |name: &str, value: &str| {
            let file = self.attribute(name);
            fs::write(&file, value).map_err(LabError::file(&file))
        };
        set("comp_algorithm", ALGORITHM)?;
        set("disksize", &self.size.get().to_string())?;
        self.make_node()
    }

    /// Creates the device node if nobody else does (in a container).
    fn make_node(&mut self) -> Result<(), LabError> {
        if self.node.exists() {
            return Ok(());
        }
        let numbers = self.attribute("dev");
        let text = fs::read_to_string(&numbers).map_err(LabError::file(&numbers))?;
        let (major, minor) = text.trim().split_once(':').unwrap_or_default();
        process::run(Command::new("mknod").arg(&self.node).args(["b", major, minor]))?;
        self.made_node = true;
        Ok(())
    }

    fn attribute(&self, name: &str) -> PathBuf {
        Path::new("/sys/block").join(format!("zram{}", self.number)).join(name)
    }

    /// Its device node.
    #[must_use]
    pub fn node(&self) -> &Path {
        &self.node
    }

    /// Its size.
    #[must_use]
    pub const fn size(&self) -> Bytes {
        self.size
    }

    /// The command that removes it.
    #[must_use]
    pub fn by_hand(&self) -> String {
        format!("echo {} > {CONTROL}/hot_remove", self.number)
    }

    /// Its content and the memory that it takes.
    ///
    /// # Errors
    /// If the kernel does not tell.
    pub fn held(&self) -> Result<Held, LabError> {
        let file = self.attribute("mm_stat");
        let text = fs::read_to_string(&file).map_err(LabError::file(&file))?;
        let fields: Vec<Bytes> =
            text.split_whitespace().filter_map(|field| field.parse().ok().map(Bytes::new)).collect();
        match fields[..] {
            [stored, compressed, used, ..] => Ok(Held { stored, compressed, used }),
            _ => Err(LabError::file(&file)(std::io::Error::other(format!("unexpected content: {text}")))),
        }
    }

    fn remove(&self) -> std::io::Result<()> {
        let begun = Instant::now();
        loop {
            // A device that never began has nothing to reset; one that is still open refuses both.
            let _ = fs::write(self.attribute("reset"), "1");
            match fs::write(Path::new(CONTROL).join("hot_remove"), self.number.to_string()) {
                Err(_) if begun.elapsed() < LAST_CLOSE => thread::sleep(LOOK_EVERY),
                removed => return removed,
            }
        }
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        if let Err(why) = self.remove() {
            eprintln!("{} stays ({why}); to remove it: {}", self.node.display(), self.by_hand());
        } else if self.made_node {
            // A node without a device does no harm.
            let _ = fs::remove_file(&self.node);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use memtide_load::exerciser::content::{Content, Form};

    use super::*;

    /// The ratio of the exerciser's pages in a real zram, in thousandths; `None` if this machine has none.
    fn ratio(form: Form) -> Option<u64> {
        let size = Bytes::from_mib(16);
        let zram = match Zram::create(size) {
            Ok(zram) => zram,
            Err(error) => {
                memtide_testing::skipped(&error.to_string());
                return None;
            }
        };
        let mut bytes = vec![0; usize::try_from(size.get()).unwrap()];
        Content { form, ..Content::of(3) }.fill_bytes(0, &mut bytes);
        let device = fs::File::options().write(true).open(zram.node()).unwrap();
        device.write_all_at(&bytes, 0).unwrap();
        device.sync_all().unwrap();
        let held = zram.held().unwrap();
        assert_eq!(held.stored, size);
        assert!(held.used >= held.compressed);
        Some(held.stored.get() * 1_000 / held.compressed.get())
    }

    #[test]
    fn a_heap_compresses_in_a_real_zram_as_was_asked_for() {
        for thousandths in [2_000, 2_500, 4_000] {
            let Some(ratio) = ratio(Form::heap(thousandths).unwrap()) else { return };
            let wanted = thousandths as u64;
            assert!(ratio.abs_diff(wanted) * 10 <= wanted, "{ratio} instead of {wanted}");
        }
    }

    #[test]
    fn a_thread_that_panics_leaves_no_device() {
        let zram = Zram::create(Bytes::from_mib(1));
        let Ok(zram) = zram else { return memtide_testing::skipped("no zram") };
        let place = zram.attribute("");
        assert!(place.exists());
        let panicked = thread::spawn(move || {
            let _zram = zram;
            std::panic::resume_unwind(Box::new("a panic"));
        });
        assert!(panicked.join().is_err());
        assert!(!place.exists());
    }
}

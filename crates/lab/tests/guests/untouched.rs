//! What is not a guest's own is never changed: the template that clones are made from, and an image that guests share with programs of the host. All
//! mechanisms work meanwhile: balloons, an agent, reclaim, and KSM where the test has the machine to itself.

use std::fs;
use std::path::{Path, PathBuf};

use memtide_lab::guest::{Guest, GuestBuilder};
use memtide_lab::managers::daemon::Daemon;
use memtide_lab::work::exercise;
use memtide_model::{Verdict, Withheld};

use crate::{JOB, ksm, mib, prepare, start, unhurt};

/// The memory of each guest.
const MIB: u64 = 256;
/// The size of the shared image.
const IMAGE_MIB: u64 = 32;

/// A file of one byte; removed when it is dropped.
struct Filled {
    path: PathBuf,
    mib: u64,
    byte: u8,
}

impl Filled {
    fn make(directory: &Path, name: &str, mib: u64, byte: u8) -> Self {
        let path = directory.join(format!("{name}-{}", std::process::id()));
        fs::write(&path, vec![byte; usize::try_from(mib << 20).unwrap()]).unwrap();
        Self { path, mib, byte }
    }

    /// Fails if anybody has changed a byte of it, or punched a hole.
    fn is_whole(&self) {
        let content = fs::read(&self.path).unwrap();
        assert_eq!(content.len() as u64, self.mib << 20);
        assert!(content.iter().all(|byte| *byte == self.byte), "{} was changed", self.path.display());
    }

    /// A backend with this file.
    fn backend(&self, id: &str, share: &str) -> String {
        format!(
            "memory-backend-file,id={id},mem-path={},share={share},size={}M",
            self.path.display(),
            self.mib
        )
    }
}

impl Drop for Filled {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

pub fn a_template_and_a_shared_image_are_never_changed() {
    are_whole(false);
}

pub fn nor_are_they_while_ksm_merges() {
    let _host = ksm::taken();
    are_whole(true);
}

fn are_whole(merges: bool) {
    let run = prepare(if merges { "test-untouched-ksm" } else { "test-untouched" });
    let template = Filled::make(Path::new("/dev/shm"), "memtide-template", MIB, 0xaa);
    let image = Filled::make(run.path(), "image", IMAGE_MIB, 0x55);
    let object = |backend: &str| ["-object".to_owned(), backend.to_owned()];
    let clone = |name: &str| -> GuestBuilder {
        let arguments: Vec<String> =
            [object(&template.backend("clone", "off")), object(&image.backend("image", "on"))].concat();
        let more = ["-machine", "memory-backend=clone", "-device", "ivshmem-plain,memdev=image"];
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).chain(more).collect();
        Guest::builder(name).memory(mib(MIB)).deflate_on_oom(true).agent(true).arguments(&arguments)
    };
    let other = Guest::builder("clone-3").memory(mib(512)).deflate_on_oom(true).agent(true);
    let guests = start(&run, [clone("clone-1"), clone("clone-2"), other]);
    // Less than all may cost together: without the template, the clones would give.
    let config = format!(
        "mode = \"manage\"\ndiscover = [\"clone-*\"]\nbudget = \"850 MiB\"\nksm = {{ mode = \"{}\" }}\n\
         [class.default]\nshare = {merges}\ncache_limit = \"5%\"\n",
        if merges { "govern" } else { "off" }
    );
    let daemon = Daemon::start(run.path(), &config).unwrap();
    for name in ["clone-1", "clone-2"] {
        daemon
            .until("a clone that gives nothing", JOB, name, |detail| {
                matches!(detail.status.report.verdict, Verdict::Withheld(Withheld::PrivateFile(_)))
                    .then_some(())
            })
            .unwrap();
    }
    // All use memory, which is equal where KSM may merge it.
    for (guest, size) in guests.iter().zip([60, 60, 250]) {
        guest.run(exercise::fill(3, size, None), JOB).unwrap();
        // Without a cgroup of its own, or where nothing can be reclaimed, this is refused.
        println!("{:?}", daemon.says(&["reclaim", guest.name(), "32M"]));
    }
    daemon
        .until("the other guest gives", JOB, "clone-3", |detail| {
            (detail.status.report.actual < mib(512)).then_some(())
        })
        .unwrap();
    if merges {
        ksm::until_merged(&daemon);
    }
    for guest in &guests[..2] {
        assert_eq!(guest.actual().unwrap(), mib(MIB));
    }
    guests.iter().for_each(unhurt);
    daemon.stop().unwrap();
    drop(guests);
    template.is_whole();
    image.is_whole();
}

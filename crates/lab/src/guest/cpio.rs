//! Archives in cpio's "newc" format, which the kernel unpacks as its first file system.
//!
//! An entry is a header of 110 hexadecimal characters, the name with a NUL, and the content. Name and content are padded to
//! multiples of four bytes. The archive ends with an entry called `TRAILER!!!`. Times are zero, so that the same content
//! gives the same archive.

/// An archive under construction.
#[derive(Debug, Default)]
pub struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;

/// A file that does not fit in the format's 32 bits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is too large for a cpio archive")]
pub struct TooLarge(String);

impl Archive {
    /// Adds a directory.
    pub fn directory(&mut self, name: &str) {
        self.entry(name, DIRECTORY, 0, &[]);
    }

    /// Adds a file that everybody may read and run.
    ///
    /// # Errors
    /// If the file is larger than 4 GiB.
    pub fn file(&mut self, name: &str, content: &[u8]) -> Result<(), TooLarge> {
        let size = u32::try_from(content.len()).map_err(|_| TooLarge(name.to_owned()))?;
        self.entry(name, PROGRAM, size, content);
        Ok(())
    }

    /// The finished archive.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, 0, &[]);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, size: u32, content: &[u8]) {
        self.entries += 1;
        let name_size = u32::try_from(name.len() + 1).expect("names are short constants and module names");
        // inode, mode, uid, gid, links, mtime, size, device and rdevice (major, minor), name's size, checksum
        let fields = [self.entries, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend_from_slice(content);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use memtide_testing::Mortal;

    use super::*;

    fn sample() -> Vec<u8> {
        let mut archive = Archive::default();
        archive.directory("bin");
        archive.file("bin/hello", b"hello\n").unwrap();
        archive.finish()
    }

    #[test]
    fn entries_are_aligned_and_the_archive_ends_properly() {
        let bytes = sample();
        assert_eq!(bytes.len() % 4, 0);
        assert_eq!(bytes.windows(6).filter(|window| window == b"070701").count(), 3);
        assert_eq!(sample(), bytes);
    }

    #[test]
    fn busybox_reads_the_archive() {
        if crate::machine::process::find("busybox").is_none() {
            memtide_testing::skipped("there is no busybox");
            return;
        }
        let mut command = Command::new("busybox");
        command.args(["cpio", "-t"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = Mortal::start(&mut command);
        child.stdin.take().unwrap().write_all(&sample()).unwrap();
        let output = child.output(std::time::Duration::from_secs(60));
        assert_eq!(String::from_utf8_lossy(&output.stdout), "bin\nbin/hello\n");
    }
}

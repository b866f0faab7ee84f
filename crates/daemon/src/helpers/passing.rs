//! Open files that come with the answers of a helper (`SCM_RIGHTS`).

use std::io::{self, IoSlice, IoSliceMut, Read, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

/// A stream with which open files may come. Only the last one is kept.
#[derive(Debug)]
pub(super) struct Passed {
    stream: UnixStream,
    file: Option<OwnedFd>,
}

impl Passed {
    pub(super) const fn new(stream: UnixStream) -> Self {
        Self { stream, file: None }
    }

    pub(super) const fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// The last file that has come.
    pub(super) const fn take(&mut self) -> Option<OwnedFd> {
        self.file.take()
    }
}

impl Read for Passed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let parts = &mut [IoSliceMut::new(buffer)];
        let read = recvmsg(self.stream.as_fd(), parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                self.file = files.last().or(self.file.take());
            }
        }
        Ok(read.bytes)
    }
}

/// Sends `line`, and `file` with its first byte.
///
/// # Errors
/// If the other end is gone.
pub(super) fn send(mut stream: &UnixStream, line: &[u8], file: Option<&OwnedFd>) -> io::Result<()> {
    let Some(file) = file else { return stream.write_all(line) };
    let files = [file.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&files)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let sent = sendmsg(stream.as_fd(), &[IoSlice::new(line)], &mut control, SendFlags::NOSIGNAL)?;
    stream.write_all(&line[sent..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{BufRead as _, BufReader};

    #[test]
    fn a_file_comes_with_the_line_that_it_was_sent_with() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut stream = BufReader::new(Passed::new(theirs));
        let line = |stream: &mut BufReader<Passed>| {
            let mut line = String::new();
            stream.read_line(&mut line).unwrap();
            (line, stream.get_mut().take())
        };
        send(&ours, b"one\n", None).unwrap();
        let (one, none) = line(&mut stream);
        assert_eq!((one.as_str(), none.is_none()), ("one\n", true));
        let file = OwnedFd::from(File::open("/proc/self/stat").unwrap());
        send(&ours, b"two\n", Some(&file)).unwrap();
        let (two, file) = line(&mut stream);
        assert_eq!(two, "two\n");
        let mut text = String::new();
        File::from(file.unwrap()).read_to_string(&mut text).unwrap();
        assert!(text.starts_with(&std::process::id().to_string()));
    }
}

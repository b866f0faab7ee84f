//! The wire of mconsole: one datagram per request, one or more per answer.
//!
//! Requests and replies have a header of three 32-bit words in the host's byte order and up to 512 bytes of text
//! (`arch/um/drivers/mconsole.h` in Linux). An answer that is longer than one reply comes in several; each but the last says that more follow.
//! Nothing in a reply names its request: a late reply cannot be told from the answer to the next request.

use std::mem;

/// `MCONSOLE_MAGIC`.
const MAGIC: u32 = 0xcafe_babe;
/// `MCONSOLE_VERSION`.
const VERSION: u32 = 2;
/// `MCONSOLE_MAX_DATA`: the text of a request or a reply, with a NUL at its end.
const TEXT: usize = 512;
/// The header: magic, version and length of a request; error, "more" and length of a reply.
const HEADER: usize = 3 * size_of::<u32>();
/// The longest datagram of either direction, in bytes.
pub const LONGEST: usize = HEADER + TEXT;
/// The longest accepted answer in bytes. `proc vmstat` has some 3 KiB.
const LONGEST_ANSWER: usize = 64 << 10;
/// The most replies of one answer: the kernel sends `proc` files in small pieces.
const MOST_REPLIES: u32 = 256;

/// The datagram of a request; `None` if the command is empty, too long, or has more than one line.
#[must_use]
pub fn request(command: &str) -> Option<Vec<u8>> {
    let fits = !command.is_empty() && command.len() < TEXT && !command.contains(['\0', '\n']);
    let length = u32::try_from(command.len()).ok().filter(|_| fits)?;
    let mut datagram = Vec::with_capacity(LONGEST);
    for word in [MAGIC, VERSION, length] {
        datagram.extend_from_slice(&word.to_ne_bytes());
    }
    datagram.extend_from_slice(command.as_bytes());
    datagram.resize(LONGEST, 0);
    Some(datagram)
}

/// The command of a request; `None` if the datagram is not a request of this version. For stand-ins of a console.
#[must_use]
pub fn command(datagram: &[u8]) -> Option<&str> {
    let [magic, version, length] = header(datagram)?;
    let text = datagram.get(HEADER..)?.get(..usize::try_from(length).ok()?)?;
    (magic == MAGIC && version <= VERSION).then_some(text).and_then(|text| str::from_utf8(text).ok())
}

/// The replies of an answer. For stand-ins of a console.
#[must_use]
pub fn replies(text: &str, is_error: bool) -> Vec<Vec<u8>> {
    let pieces: Vec<&[u8]> = text.as_bytes().chunks(TEXT - 1).collect();
    let pieces = if pieces.is_empty() { vec![&[][..]] } else { pieces };
    let last = pieces.len() - 1;
    let reply = |(number, piece): (usize, &[u8])| {
        let length = u32::try_from(piece.len() + 1).unwrap_or_default();
        let words = [u32::from(is_error), u32::from(number < last), length];
        let mut datagram: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        datagram.extend_from_slice(piece);
        datagram.resize(LONGEST, 0);
        datagram
    };
    pieces.into_iter().enumerate().map(reply).collect()
}

/// An answer under way.
#[derive(Debug, Default)]
pub struct Answer {
    text: Vec<u8>,
    replies: u32,
}

/// An answer that is complete: its text, which is the console's error message if it refused.
pub type Complete = Result<String, String>;

/// A datagram that is no reply, or one reply too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl Answer {
    /// Takes the next reply. Returns the answer when it is complete.
    ///
    /// # Errors
    /// If the datagram is not a reply, or if the answer is longer than any that a console sends.
    pub fn add(&mut self, datagram: &[u8]) -> Result<Option<Complete>, Malformed> {
        let [error, more, length] = header(datagram).ok_or(Malformed)?;
        let length = usize::try_from(length).map_err(|_| Malformed)?;
        let text = datagram.get(HEADER..).and_then(|text| text.get(..length)).ok_or(Malformed)?;
        // The kernel counts a NUL at the end of each piece.
        self.text.extend(text.iter().filter(|byte| **byte != 0));
        self.replies += 1;
        if self.text.len() > LONGEST_ANSWER || self.replies > MOST_REPLIES || more > 1 {
            return Err(Malformed);
        }
        if more == 1 {
            return Ok(None);
        }
        let text = String::from_utf8_lossy(&mem::take(&mut self.text)).into_owned();
        self.replies = 0;
        Ok(Some(if error == 0 { Ok(text) } else { Err(text) }))
    }
}

fn header(datagram: &[u8]) -> Option<[u32; 3]> {
    let mut words = datagram.get(..HEADER)?.chunks_exact(size_of::<u32>());
    let mut word = || words.next()?.try_into().ok().map(u32::from_ne_bytes);
    Some([word()?, word()?, word()?])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_request_is_as_the_kernel_reads_it() {
        let datagram = request("config mem=-32M").unwrap();
        assert_eq!(datagram.len(), 524);
        assert_eq!(
            datagram[..12],
            [0xbe, 0xba, 0xfe, 0xca, 2, 0, 0, 0, 15, 0, 0, 0],
            "on a little-endian host"
        );
        assert_eq!((&datagram[12..27], datagram[27]), (&b"config mem=-32M"[..], 0));
        assert_eq!(command(&datagram), Some("config mem=-32M"));
        for wrong in ["", "a\nb", "a\0b", &"x".repeat(512)] {
            assert_eq!(request(wrong), None);
        }
        assert!(request(&"x".repeat(511)).is_some());
    }

    #[test]
    fn an_answer_comes_in_pieces() {
        let text = "MemTotal: 1 kB\n".repeat(100);
        let mut answer = Answer::default();
        let replies = replies(&text, false);
        assert_eq!(replies.len(), 3);
        assert_eq!(answer.add(&replies[0]), Ok(None));
        assert_eq!(answer.add(&replies[1]), Ok(None));
        assert_eq!(answer.add(&replies[2]), Ok(Some(Ok(text))));
        assert_eq!(answer.add(&super::replies("no", true)[0]), Ok(Some(Err("no".to_owned()))));
    }

    #[test]
    fn nonsense_is_malformed() {
        let reply = |words: [u32; 3], text: &[u8]| {
            let header = words.iter().flat_map(|word| word.to_ne_bytes());
            header.chain(text.iter().copied()).collect::<Vec<u8>>()
        };
        for datagram in [
            vec![],
            vec![1; 11],
            reply([0, 0, 5], b"four"),
            reply([0, 0, u32::MAX], b""),
            reply([0, 2, 1], b"x"),
        ] {
            assert_eq!(Answer::default().add(&datagram), Err(Malformed), "{datagram:?}");
        }
        let mut answer = Answer::default();
        let endless = reply([0, 1, 512], &[b'x'; 512]);
        let given = (0..1000).find_map(|_| answer.add(&endless).err());
        assert_eq!(given, Some(Malformed));
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(datagrams in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..600), 0..20)) {
            let mut answer = Answer::default();
            for datagram in datagrams {
                let _any = answer.add(&datagram);
                let _any = command(&datagram);
            }
        }
    }
}

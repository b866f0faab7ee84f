//! External Data Representation, as libvirt's messages use it (RFC 4506): everything is big-endian and fills whole words of 4 bytes.

/// The longest text that is read or written, in bytes. (libvirt takes 4 MiB; a domain's description has about 10 KiB.)
const LONGEST_TEXT: u32 = 512 << 10;

/// A message that does not follow the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it does not speak libvirt's protocol")]
pub struct Malformed;

/// Writes the arguments of a call.
#[derive(Debug, Default)]
pub(super) struct Writer(Vec<u8>);

impl Writer {
    pub(super) fn unsigned(mut self, value: u32) -> Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    pub(super) fn signed(mut self, value: i32) -> Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    pub(super) fn hyper(mut self, value: u64) -> Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    /// Bytes whose number both sides know: a multiple of 4.
    pub(super) fn fixed(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// A text of at most [`LONGEST_TEXT`]: the rest is cut off.
    pub(super) fn text(mut self, text: &str) -> Self {
        let length = u32::try_from(text.len()).unwrap_or(u32::MAX).min(LONGEST_TEXT);
        let bytes = &text.as_bytes()[..length as usize];
        self = self.unsigned(length);
        self.0.extend_from_slice(bytes);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// A text that may be missing.
    pub(super) fn optional_text(self, text: Option<&str>) -> Self {
        match text {
            Some(text) => self.unsigned(1).text(text),
            None => self.unsigned(0),
        }
    }

    pub(super) fn done(self) -> Vec<u8> {
        self.0
    }
}

/// Reads what an answer or an event carries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    fn word<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (word, rest) = self.0.split_first_chunk::<N>().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*word)
    }

    pub(super) fn unsigned(&mut self) -> Result<u32, Malformed> {
        self.word().map(u32::from_be_bytes)
    }

    pub(super) fn signed(&mut self) -> Result<i32, Malformed> {
        self.word().map(i32::from_be_bytes)
    }

    pub(super) fn hyper(&mut self) -> Result<u64, Malformed> {
        self.word().map(u64::from_be_bytes)
    }

    /// Bytes whose number both sides know.
    pub(super) fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.word()
    }

    /// A text; what is no UTF-8 in it is replaced.
    pub(super) fn text(&mut self) -> Result<String, Malformed> {
        let length = self.unsigned()?;
        if length > LONGEST_TEXT {
            return Err(Malformed);
        }
        let length = length as usize;
        let padded = length.next_multiple_of(4);
        let (text, rest) = self.0.split_at_checked(padded).ok_or(Malformed)?;
        self.0 = rest;
        Ok(String::from_utf8_lossy(&text[..length]).into_owned())
    }

    /// Passes over a text.
    pub(super) fn skip_text(&mut self) -> Result<(), Malformed> {
        let length = (self.unsigned()? as usize).next_multiple_of(4);
        self.0 = self.0.get(length..).ok_or(Malformed)?;
        Ok(())
    }

    /// A text that may be missing.
    pub(super) fn optional_text(&mut self) -> Result<Option<String>, Malformed> {
        match self.unsigned()? {
            0 => Ok(None),
            1 => self.text().map(Some),
            _ => Err(Malformed),
        }
    }

    /// The number of elements that follow, each of at least `least` bytes: never more than there can be.
    pub(super) fn count(&mut self, least: usize) -> Result<usize, Malformed> {
        let count = self.unsigned()? as usize;
        if count.saturating_mul(least) <= self.0.len() { Ok(count) } else { Err(Malformed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let bytes = Writer::default()
            .unsigned(7)
            .signed(-2)
            .hyper(1 << 40)
            .fixed(&[1, 2, 3, 4])
            .text("web-1")
            .optional_text(None)
            .optional_text(Some("ü"))
            .done();
        assert_eq!(bytes.len() % 4, 0);
        let mut reader = Reader::new(&bytes);
        assert_eq!((reader.unsigned(), reader.signed(), reader.hyper()), (Ok(7), Ok(-2), Ok(1 << 40)));
        assert_eq!(reader.fixed::<4>(), Ok([1, 2, 3, 4]));
        assert_eq!(reader.text().as_deref(), Ok("web-1"));
        assert_eq!(reader.optional_text(), Ok(None));
        assert_eq!(reader.optional_text(), Ok(Some("ü".to_owned())));
        assert_eq!(reader.unsigned(), Err(Malformed));
    }

    #[test]
    fn a_length_beyond_the_message_is_refused() {
        for bytes in [&[0xff; 4][..], &[0, 0, 0, 5, b'a', b'b'], &[0, 0, 0, 5, b'a', b'b', b'c', b'd', b'e']]
        {
            assert_eq!(Reader::new(bytes).text(), Err(Malformed));
        }
        assert_eq!(Reader::new(&[0, 0, 0, 9, 0, 0, 0, 0]).count(4), Err(Malformed));
        assert_eq!(Reader::new(&[0, 0, 0, 1, 0, 0, 0, 0]).count(4), Ok(1));
        assert_eq!(Reader::new(&[0, 0, 0, 2]).optional_text(), Err(Malformed));
    }
}

//! The secret that the printed address carries.

use std::fs::File;
use std::io::{self, Read as _};

/// Bytes of chance in a token.
const BYTES: usize = 32;

/// A secret that nobody can guess. It never appears in a log.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    /// A new one.
    ///
    /// # Errors
    /// If the kernel gives no random bytes.
    pub fn random() -> io::Result<Self> {
        let mut bytes = [0; BYTES];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    /// The token as text, for the address that is printed.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Whether `said` is this token. The time that this takes says nothing about the token.
    #[must_use]
    pub fn is(&self, said: &str) -> bool {
        let differ = self.0.bytes().zip(said.bytes()).fold(0, |differ, (own, said)| differ | (own ^ said));
        self.0.len() == said.len() && differ == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_long_and_never_the_same() {
        let (one, other) = (Token::random().unwrap(), Token::random().unwrap());
        assert_eq!(one.reveal().len(), 2 * BYTES);
        assert!(one.is(one.reveal()) && !one.is(other.reveal()));
        for wrong in ["", &one.reveal()[1..], &format!("{}0", one.reveal())] {
            assert!(!one.is(wrong), "{wrong}");
        }
    }
}

//! What a guest's own description asks for, in place of what its class says: a class, shares, a reservation, a limit.
//!
//! libvirt keeps such terms in a domain's metadata. They are followed if only an administrator of the host can have written them.

use std::collections::BTreeMap;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Bytes;

/// The terms of one guest. What is `None` stays as its class says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Terms {
    /// The class that it belongs to, whatever its name matches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Its weight when memory is scarce; at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shares: Option<u32>,
    /// Guaranteed memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reservation: Option<Bytes>,
    /// The most memory that it may get.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Bytes>,
}

/// A term that nobody can follow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TermError {
    /// There is no such term.
    #[error("there is no term `{0}`: write class, shares, reservation or limit")]
    Unknown(String),
    /// It has another kind of value.
    #[error("{key}: `{value}` is {wanted}")]
    Value {
        /// The term.
        key: String,
        /// Its value.
        value: String,
        /// What it is not.
        wanted: &'static str,
    },
}

impl Terms {
    /// The names of the terms.
    pub const KEYS: [&'static str; 4] = ["class", "shares", "reservation", "limit"];

    /// Reads terms from names and values. Those that nobody can follow are returned beside the others.
    #[must_use]
    pub fn read(texts: &BTreeMap<String, String>) -> (Self, Vec<TermError>) {
        let mut terms = Self::default();
        let errors = texts.iter().filter_map(|(key, value)| terms.set(key, value).err()).collect();
        (terms, errors)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), TermError> {
        let wrong = |wanted| TermError::Value { key: key.to_owned(), value: value.to_owned(), wanted };
        let size = || Bytes::from_str(value).map_err(|_| wrong("not a size such as 2 GiB"));
        match key {
            "class" if value.is_empty() => return Err(wrong("not the name of a class")),
            "class" => self.class = Some(value.to_owned()),
            "shares" => {
                let shares = value.parse().ok().filter(|shares| *shares > 0);
                self.shares = Some(shares.ok_or_else(|| wrong("not a whole number of at least 1"))?);
            }
            "reservation" => self.reservation = Some(size()?),
            "limit" => self.limit = Some(size()?),
            _ => return Err(TermError::Unknown(key.to_owned())),
        }
        Ok(())
    }

    /// In words, for people.
    #[must_use]
    pub fn in_words(&self) -> String {
        let size = |name: &str, size: Option<Bytes>| size.map(|size| format!("{name} {size}"));
        let words = [
            self.class.as_ref().map(|class| format!("class {class}")),
            self.shares.map(|shares| format!("shares {shares}")),
            size("reservation", self.reservation),
            size("limit", self.limit),
        ];
        words.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    /// Whether there are none.
    #[must_use]
    pub fn are_none(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn terms_are_read_and_mistakes_are_told() {
        let (terms, errors) =
            Terms::read(&texts(&[("shares", "2000"), ("limit", "2 GiB"), ("class", "batch")]));
        assert_eq!(errors, []);
        assert_eq!((terms.shares, terms.limit), (Some(2000), Some(Bytes::from_mib(2048))));
        assert_eq!(terms.class.as_deref(), Some("batch"));
        let (terms, errors) = Terms::read(&texts(&[("shares", "0"), ("limit", "much"), ("weight", "1")]));
        assert!(terms.are_none());
        let said: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(
            said,
            [
                "limit: `much` is not a size such as 2 GiB",
                "shares: `0` is not a whole number of at least 1",
                "there is no term `weight`: write class, shares, reservation or limit"
            ]
        );
    }
}

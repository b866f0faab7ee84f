//! Properties of each text for people, since parts of it may come from outside.

use std::error::Error;
use std::fmt;

use serde::{Serialize, de::DeserializeOwned};

/// The longest text of one error that fits into a log, in characters.
const LONGEST: usize = 2000;

/// Checks a text for people: not empty, bounded, one line, nothing that a terminal would obey.
///
/// # Panics
/// If the text breaks a rule.
pub fn is_for_people(text: &str) {
    assert!(!text.is_empty(), "an empty message");
    assert!(text.chars().count() <= LONGEST, "a message of {} bytes", text.len());
    assert!(!text.chars().any(char::is_control), "a message with control characters: {text:?}");
}

/// Checks an error and all its causes in the same way.
///
/// # Panics
/// If one of their texts breaks a rule.
pub fn are_for_people(error: &dyn Error) {
    let mut next = Some(error);
    while let Some(error) = next {
        is_for_people(&error.to_string());
        next = error.source();
    }
}

/// Checks that a value survives being written and read again, as in the journal.
///
/// # Panics
/// If it does not survive.
pub fn survives_json<T: Serialize + DeserializeOwned + PartialEq + fmt::Debug>(value: &T) {
    let text = serde_json::to_string(value).expect("all that is kept can be written");
    match serde_json::from_str::<T>(&text) {
        Ok(read) => assert_eq!(&read, value, "{text}"),
        Err(error) => panic!("{error}: {text}"),
    }
}

//! The configuration file: any text is either understood or refused, and a refusal names the place of the mistake.

use std::path::Path;

use memtide_config::{ConfigError, Settings};
use memtide_model::{Bytes, Config, Limit};

use crate::texts::{is_for_people, survives_json};

/// Reads `bytes` as a configuration file.
///
/// # Panics
/// If a property does not hold.
pub fn run(bytes: &[u8]) {
    let text = &String::from_utf8_lossy(bytes);
    match Settings::parse(Path::new("memtide.toml"), bytes) {
        Ok(settings) => {
            keeps_its_rules(&settings);
            assert_eq!(Settings::parse(Path::new("again.toml"), bytes).ok(), Some(settings));
        }
        Err(error) => {
            is_for_people(&error.to_string());
            if let ConfigError::Parse { line, column, .. } = error {
                is_within(text, line, column);
            }
        }
    }
}

/// Line and column, counted from 1, name a place in the text or directly after its end.
fn is_within(text: &str, line: usize, column: usize) {
    let found = text.split('\n').nth(line.checked_sub(1).expect("lines count from 1"));
    let characters = found.map(|line| line.chars().count());
    let characters = characters.unwrap_or_else(|| panic!("line {line} of {text:?}"));
    assert!((1..=characters + 1).contains(&column), "column {column} in line {line} of {text:?}");
}

/// The promises of settings to their users.
fn keeps_its_rules(settings: &Settings) {
    let Config { classes, states, .. } = &settings.config;
    for (name, class) in classes {
        assert!(class.shares > 0, "{name}");
        if let Limit::At(limit) = class.limit {
            assert!(class.reservation <= limit && limit >= Config::LEAST_TARGET, "{name}");
        }
    }
    assert!(states.soft() >= states.hard() && states.hard() >= states.low());
    assert!(settings.journal.max >= Bytes::from_mib(8));
    assert!(!settings.discover.is_empty());
    assert!(settings.guests.iter().all(|guest| guest.qmp.is_absolute()));
    for name in ["", "web-1", "db-1", "*", "a?b*c"] {
        let _ = settings.config.class_of(name, Some(0));
    }
    survives_json(&settings.config);
}

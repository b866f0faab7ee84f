//! QEMU's option syntax: `value,key=value,flag`, with a comma inside a value written as `,,`, or JSON.

use memtide_model::Bytes;
use serde_json::Value;

/// The parsed argument of one option, or a section of a configuration file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Options {
    pairs: Vec<(String, String)>,
}

impl Options {
    /// Parses `text`. Like in QEMU, a first part without `=` is the value of `implied`. Any other part without `=` is a flag: `key`
    /// means `key=on`, and `nokey` means `key=off`.
    pub(super) fn parse(text: &str, implied: &str) -> Self {
        let mut options = Self::default();
        for (position, part) in split(text).into_iter().enumerate() {
            match (part.split_once('='), part.strip_prefix("no")) {
                (Some((key, value)), _) => options.push(key, value),
                (None, _) if position == 0 && !implied.is_empty() => options.push(implied, &part),
                (None, Some(key)) => options.push(key, "off"),
                (None, None) => options.push(&part, "on"),
            }
        }
        options
    }

    /// Sets `key`, as a later part of the text would.
    pub(super) fn push(&mut self, key: &str, value: &str) {
        self.pairs.push((key.to_owned(), value.to_owned()));
    }

    /// The last value of `key`. In QEMU, too, the last one wins.
    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.pairs.iter().rev().find(|(k, _)| k == key).map(|(_, value)| value.as_str())
    }

    /// Whether `key` is on.
    pub(super) fn is_on(&self, key: &str) -> bool {
        self.get(key).is_some_and(is_on)
    }
}

/// The argument of an option that takes JSON as well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Properties {
    Json(Value),
    Options(Options),
}

impl Default for Properties {
    fn default() -> Self {
        Self::Options(Options::default())
    }
}

impl Properties {
    /// Reads JSON. JSON that cannot be read has no properties.
    pub(super) fn json(text: &str) -> Self {
        serde_json::from_str(text).map_or_else(|_| Self::default(), Self::Json)
    }

    /// The value of `key`. A dot leads into an object of JSON.
    pub(super) fn get(&self, key: &str) -> Option<String> {
        match self {
            Self::Options(options) => options.get(key).map(str::to_owned),
            Self::Json(json) => word(member(json, key)?),
        }
    }

    /// All values of `key`: an array of JSON, or the key written several times, perhaps with numbers (`key.0`, `key.1`).
    pub(super) fn all(&self, key: &str) -> Vec<String> {
        let is_it = |k: &str| k == key || k.strip_prefix(key).is_some_and(|rest| rest.starts_with('.'));
        match self {
            Self::Options(options) => {
                options.pairs.iter().filter(|(k, _)| is_it(k)).map(|(_, value)| value.clone()).collect()
            }
            Self::Json(json) => match member(json, key) {
                Some(Value::Array(items)) => items.iter().filter_map(word).collect(),
                other => other.and_then(word).into_iter().collect(),
            },
        }
    }

    /// Whether `key` is on or off, if it is given.
    pub(super) fn on(&self, key: &str) -> Option<bool> {
        self.get(key).map(|word| is_on(&word))
    }

    /// The size at `key`. A number without a unit counts units of `2^shift` bytes, but bytes in JSON.
    pub(super) fn size(&self, key: &str, shift: u32) -> Option<Bytes> {
        let shift = if matches!(self, Self::Json(_)) { 0 } else { shift };
        size(&self.get(key)?, shift)
    }
}

fn member<'a>(json: &'a Value, key: &str) -> Option<&'a Value> {
    key.split('.').try_fold(json, |value, part| value.get(part))
}

/// A value of JSON as options write it.
fn word(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(on) => Some(if *on { "on" } else { "off" }.to_owned()),
        Value::Number(number) => Some(number.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Whether QEMU takes this word as true.
pub(super) fn is_on(word: &str) -> bool {
    matches!(word, "on" | "yes" | "true" | "y")
}

/// A size as QEMU reads it: `512`, `1.5G`, `0x200`. A number without a unit counts units of `2^shift` bytes.
pub(super) fn size(text: &str, shift: u32) -> Option<Bytes> {
    if let Some(hex) = text.strip_prefix("0x") {
        return u64::from_str_radix(hex, 16).ok()?.checked_mul(1 << shift).map(Bytes::new);
    }
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text.get(number.len()..)?.to_ascii_uppercase().as_str() {
        "" => shift,
        "B" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        "P" => 50,
        "E" => 60,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let are_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || fraction.len() > 9 || !are_digits(whole) || !are_digits(fraction) {
        return None;
    }
    let billionths: u128 = format!("{fraction:0<9}").parse().ok()?;
    let exact =
        (whole.parse::<u64>().map(u128::from).ok()? << shift) + ((billionths << shift) / 1_000_000_000);
    u64::try_from(exact).ok().map(Bytes::new)
}

/// Splits at single commas. A double comma is a comma of the text.
fn split(text: &str) -> Vec<String> {
    let mut parts = Vec::new();
    let mut part = String::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            ',' if chars.peek() == Some(&',') => {
                chars.next();
                part.push(',');
            }
            ',' => parts.push(std::mem::take(&mut part)),
            c => part.push(c),
        }
    }
    parts.push(part);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_double_comma_is_a_comma_of_the_value() {
        let options = Options::parse("unix:/a,,b,server=on,wait=off", "addr");
        assert_eq!(options.get("addr"), Some("unix:/a,b"));
        assert!(options.is_on("server"));
        assert!(!options.is_on("wait"));
    }

    #[test]
    fn flags_come_in_the_old_and_the_new_style() {
        let old = Options::parse("unix:/a,server,nowait", "addr");
        assert!(old.is_on("server") && !old.is_on("wait"));
        assert!(!Options::parse("x,noserver", "addr").is_on("server"));
        assert!(!Options::parse("x,server=off", "addr").is_on("server"));
        assert!(!Options::parse("x", "addr").is_on("server"));
    }

    #[test]
    fn values_keep_their_equal_signs_and_the_last_one_wins() {
        let options = Options::parse("a=1=2,b=x,b=y", "");
        assert_eq!((options.get("a"), options.get("b"), options.get("c")), (Some("1=2"), Some("y"), None));
    }

    #[test]
    fn json_has_the_same_properties() {
        let json = Properties::json(r#"{"a":true,"b":{"c":"x"},"n":[0,2],"size":512}"#);
        let options = Properties::Options(Options::parse("a=on,b.c=x,n=0,n=2,size=512", ""));
        for properties in [&json, &options] {
            assert_eq!((properties.on("a"), properties.get("b.c").as_deref()), (Some(true), Some("x")));
            assert_eq!(
                (properties.all("n"), properties.on("z")),
                (vec!["0".to_owned(), "2".to_owned()], None)
            );
        }
        assert_eq!(options.size("size", 20), Some(Bytes::from_mib(512)));
        assert_eq!(json.size("size", 20), Some(Bytes::new(512)), "JSON counts bytes");
        assert_eq!(Properties::json("{broken"), Properties::default());
    }

    #[test]
    fn sizes_are_read_as_qemu_reads_them() {
        for (text, mib) in [
            ("512", 512),
            ("0x200", 512),
            ("1G", 1024),
            ("1.5g", 1536),
            ("0.5G", 512),
            ("1048576k", 1024),
            ("536870912b", 512),
            ("2t", 2 << 20),
            ("1P", 1 << 30),
        ] {
            assert_eq!(size(text, 20), Some(Bytes::from_mib(mib)), "{text}");
        }
        for text in ["", "x", "-5", "G", ".5G", "1.2.3G", "5Q", "99999999999999999999", "16E", "1 G", "5ü"] {
            assert_eq!(size(text, 20), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn an_escaped_value_reads_back(value in "[a-z,=/ ]{1,20}") {
            let text = format!("k={},other=on", value.replace(',', ",,"));
            let options = Options::parse(&text, "");
            prop_assert_eq!(options.get("k"), Some(value.as_str()));
        }

        #[test]
        fn any_size_is_read_or_refused(text in "(0x)?[0-9.]{0,20}.?", shift in 0_u32..40) {
            let _ = size(&text, shift);
        }
    }
}

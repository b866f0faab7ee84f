//! QEMU's option syntax: `value,key=value,flag`, with a comma inside a value written as `,,`.

/// The parsed argument of one option.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Options {
    pairs: Vec<(String, Option<String>)>,
}

impl Options {
    /// Parses `text`. Like in QEMU, a first part without `=` is the value of `implied`.
    pub(super) fn parse(text: &str, implied: &str) -> Self {
        let mut pairs = Vec::new();
        for (position, part) in split(text).into_iter().enumerate() {
            match part.split_once('=') {
                Some((key, value)) => pairs.push((key.to_owned(), Some(value.to_owned()))),
                None if position == 0 && !implied.is_empty() => pairs.push((implied.to_owned(), Some(part))),
                None => pairs.push((part, None)),
            }
        }
        Self { pairs }
    }

    /// The last value of `key`. In QEMU, too, the last one wins.
    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.pairs.iter().rev().find(|(k, _)| k == key).and_then(|(_, value)| value.as_deref())
    }

    /// How often `key` is given. QEMU takes some keys several times, as a list.
    pub(super) fn count(&self, key: &str) -> usize {
        self.pairs.iter().filter(|(k, _)| k == key).count()
    }

    /// Whether `key` is on: `key=on`, or `key` alone (the old form). `nokey` is off.
    pub(super) fn is_on(&self, key: &str) -> bool {
        self.pairs.iter().rev().find_map(|(k, value)| match value.as_deref() {
            Some(value) if k == key => Some(matches!(value, "on" | "yes" | "true" | "y")),
            None if k == key => Some(true),
            None if k.strip_prefix("no") == Some(key) => Some(false),
            _ => None,
        }) == Some(true)
    }
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

    proptest! {
        #[test]
        fn an_escaped_value_reads_back(value in "[a-z,=/ ]{1,20}") {
            let text = format!("k={},other=on", value.replace(',', ",,"));
            let options = Options::parse(&text, "");
            prop_assert_eq!(options.get("k"), Some(value.as_str()));
        }
    }
}

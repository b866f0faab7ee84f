//! Numbers in words for people.

use memtide_model::Span;

/// A time to the millisecond, in seconds: `305 s`, `0.25 s`.
#[must_use]
pub fn seconds(time: Span) -> String {
    let millis = time.as_millis();
    let text = format!("{}.{:03}", millis / 1_000, millis % 1_000);
    format!("{} s", text.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_as_exact_as_the_time() {
        let text = |millis| seconds(Span::from_millis(millis));
        assert_eq!(
            [text(0), text(250), text(305_000), text(3_600_010)],
            ["0 s", "0.25 s", "305 s", "3600.01 s"]
        );
    }
}

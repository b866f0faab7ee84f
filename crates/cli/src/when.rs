//! Times of a journal, as people type and read them, in the local time zone (`TZ`).

use std::str::FromStr;

use jiff::civil::{Date, DateTime, Time};
use jiff::tz::TimeZone;
use memtide_model::WallClock;
use memtide_top::clock::{last_of_day, wall_of, zoned};

/// A time of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// A time of day, as in `14:32`: the last one that is not after the journal.
    Time(Time),
    /// A day, as in `2026-11-30`: its beginning.
    Day(Date),
    /// A day and a time.
    DateTime(DateTime),
    /// This many milliseconds after the journal's first decision, as in `+90s`.
    After(u64),
    /// This many milliseconds before its last one, as in `-10m`.
    Before(u64),
}

impl FromStr for When {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let span = |text: &str| {
            let span = humantime::parse_duration(text).ok()?;
            u64::try_from(span.as_millis()).ok()
        };
        let text = text.trim();
        let found = match text.split_at_checked(1) {
            Some(("+", after)) => span(after).map(Self::After),
            Some(("-", before)) => span(before).map(Self::Before),
            _ if text.contains(':') && !text.contains('-') => text.parse().ok().map(Self::Time),
            _ if text.contains(':') => text.parse().ok().map(Self::DateTime),
            _ => text.parse().ok().map(Self::Day),
        };
        found.ok_or_else(|| {
            "write a time such as `14:32`, `2026-11-30 14:32:10`, `+90s` (after the journal's first decision) or `-10m` (before its \
             last one)"
                .to_owned()
        })
    }
}

impl When {
    /// The moment that is meant, in a journal from `first` to `last`.
    #[must_use]
    pub fn within(self, (first, last): (WallClock, WallClock), zone: &TimeZone) -> WallClock {
        match self {
            Self::After(span) => WallClock(first.0.saturating_add(span)),
            Self::Before(span) => WallClock(last.0.saturating_sub(span)),
            Self::DateTime(moment) => wall_of(moment, zone),
            Self::Day(day) => wall_of(day.to_datetime(Time::midnight()), zone),
            Self::Time(time) => last_of_day(time, last, zone),
        }
    }
}

/// As in `2026-11-30 14:32:10`.
#[must_use]
pub fn in_words(wall: WallClock, zone: &TimeZone) -> String {
    zoned(wall, zone).strftime("%Y-%m-%d %H:%M:%S").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_in_a_journal() {
        let zone = TimeZone::fixed(jiff::tz::offset(1));
        let wall = |text: &str| {
            let moment: DateTime = text.parse().unwrap();
            WallClock(
                u64::try_from(moment.to_zoned(zone.clone()).unwrap().timestamp().as_millisecond()).unwrap(),
            )
        };
        let journal = (wall("2026-11-29 10:00:00"), wall("2026-11-30 14:30:00"));
        for (text, moment) in [
            ("14:30", "2026-11-30 14:30:00"),
            ("14:32", "2026-11-29 14:32:00"),
            ("14:29:59", "2026-11-30 14:29:59"),
            ("2026-11-30 14:32:10", "2026-11-30 14:32:10"),
            ("2026-11-30T14:32", "2026-11-30 14:32:00"),
            ("2026-11-30", "2026-11-30 00:00:00"),
            ("+90s", "2026-11-29 10:01:30"),
            ("-10m", "2026-11-30 14:20:00"),
        ] {
            let when: When = text.parse().unwrap();
            assert_eq!(in_words(when.within(journal, &zone), &zone), moment, "{text}");
        }
        for text in ["", "noon", "25:00", "+", "-x", "2026-13-01", "14.32"] {
            assert!(text.parse::<When>().unwrap_err().contains("`14:32`"), "{text}");
        }
    }
}

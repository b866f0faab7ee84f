//! Times, as people type and read them.

use jiff::civil::{DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use memtide_model::{Moment, WallClock};

use crate::frame::Frame;

/// A time in a zone. Times that no calendar has become the beginning of 1970.
#[must_use]
pub fn zoned(wall: WallClock, zone: &TimeZone) -> Zoned {
    let millis = i64::try_from(wall.0).unwrap_or_default();
    Timestamp::from_millisecond(millis).unwrap_or_default().to_zoned(zone.clone())
}

/// The wall clock at a day and a time of a zone. Times that it cannot show become its beginning.
#[must_use]
pub fn wall_of(moment: DateTime, zone: &TimeZone) -> WallClock {
    let zoned = moment.to_zoned(zone.clone()).ok();
    let millis = zoned.and_then(|zoned| u64::try_from(zoned.timestamp().as_millisecond()).ok());
    WallClock(millis.unwrap_or_default())
}

/// The last moment with this time of day that is not later than `last`.
#[must_use]
pub fn last_of_day(time: Time, last: WallClock, zone: &TimeZone) -> WallClock {
    let day = zoned(last, zone).date();
    let today = wall_of(day.to_datetime(time), zone);
    if today <= last { today } else { wall_of(day.yesterday().unwrap_or(day).to_datetime(time), zone) }
}

/// As in `14:32:07`.
#[must_use]
pub fn time(wall: WallClock, zone: &TimeZone) -> String {
    zoned(wall, zone).strftime("%H:%M:%S").to_string()
}

/// As in `2026-11-30 `.
#[must_use]
pub fn date(wall: WallClock, zone: &TimeZone) -> String {
    format!("{} ", zoned(wall, zone).date())
}

/// The time of another moment, by the clocks of a frame.
#[must_use]
pub fn at(frame: &Frame, moment: Moment) -> WallClock {
    let later = moment.since(frame.at).as_millis();
    let earlier = frame.at.since(moment).as_millis();
    WallClock(frame.wall.0.saturating_add(later).saturating_sub(earlier))
}

/// The last moment between `first` and `last` at this time of day; `None` if there is none, or no such time.
#[must_use]
pub fn moment_of(
    (hour, minute): (i8, i8),
    frame: &Frame,
    (first, last): (Moment, Moment),
    zone: &TimeZone,
) -> Option<Moment> {
    let WallClock(wall) = last_of_day(Time::new(hour, minute, 0, 0).ok()?, at(frame, last), zone);
    let later = wall.saturating_sub(frame.wall.0);
    let earlier = frame.wall.0.saturating_sub(wall);
    let moment = Moment::from_millis(frame.at.as_millis().saturating_add(later).saturating_sub(earlier));
    // The first frame of that minute is as good.
    let minute = Moment::from_millis(moment.as_millis().saturating_add(59_999));
    (minute >= first && moment <= last).then(|| moment.max(first))
}

#[cfg(test)]
mod tests {
    use memtide_model::Span;

    use super::*;
    use crate::sample;

    #[test]
    fn a_time_of_day_is_the_last_one_that_is_kept() {
        let frame = Frame::of(&sample::status(1, 100), sample::wall(100), None);
        let kept = (sample::moment(0), sample::moment(100));
        let zone = TimeZone::UTC;
        assert_eq!(time(frame.wall, &zone), "14:33:40");
        assert_eq!(moment_of((14, 33), &frame, kept, &zone), Some(sample::moment(60)));
        assert_eq!(moment_of((14, 32), &frame, kept, &zone), Some(sample::moment(0)));
        assert_eq!(moment_of((14, 34), &frame, kept, &zone), None);
        assert_eq!(moment_of((25, 34), &frame, kept, &zone), None);
        let long = (sample::moment(0).before(Span::from_secs(4_000)), sample::moment(100));
        assert_eq!(
            moment_of((14, 0), &frame, long, &zone),
            Some(sample::moment(0).before(Span::from_secs(1_920)))
        );
    }
}

//! Times of day, as people read them.

use jiff::civil::Time;
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use memtide_model::{Moment, WallClock};

use crate::frame::Frame;

/// A day in milliseconds.
const DAY: u64 = 24 * 3600 * 1000;

fn zoned(wall: WallClock, zone: &TimeZone) -> Option<Zoned> {
    let timestamp = Timestamp::from_millisecond(i64::try_from(wall.0).ok()?).ok()?;
    Some(timestamp.to_zoned(zone.clone()))
}

/// As in `14:32:07`.
#[must_use]
pub fn time(wall: WallClock, zone: &TimeZone) -> String {
    let Some(zoned) = zoned(wall, zone) else { return "--:--:--".to_owned() };
    format!("{:02}:{:02}:{:02}", zoned.hour(), zoned.minute(), zoned.second())
}

/// As in `2026-11-30 `.
#[must_use]
pub fn date(wall: WallClock, zone: &TimeZone) -> String {
    zoned(wall, zone).map_or_else(String::new, |zoned| format!("{} ", zoned.date()))
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
    let end = zoned(at(frame, last), zone)?;
    let that = end.date().to_datetime(Time::new(hour, minute, 0, 0).ok()?);
    let mut wall = u64::try_from(that.to_zoned(zone.clone()).ok()?.timestamp().as_millisecond()).ok()?;
    if wall > at(frame, last).0 {
        wall = wall.saturating_sub(DAY);
    }
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

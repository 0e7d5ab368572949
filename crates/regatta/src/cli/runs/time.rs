//! Times of day in UTC, as names of folders and for people.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Time since 1970.
#[expect(clippy::disallowed_methods, reason = "runs are named by the time of day")]
pub(super) fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// `20261118-195203`.
pub(super) fn compact(time: Duration) -> String {
    let ([year, month, day], [hour, minute, second]) = parts(time.as_secs());
    format!("{year:04}{month:02}{day:02}-{hour:02}{minute:02}{second:02}")
}

/// `2026-11-18 19:52:03.250 UTC`: texts in the order of time.
pub(super) fn readable(time: Duration) -> String {
    let ([year, month, day], [hour, minute, second]) = parts(time.as_secs());
    let milliseconds = time.subsec_millis();
    let day = format!("{year:04}-{month:02}-{day:02}");
    format!("{day} {hour:02}:{minute:02}:{second:02}.{milliseconds:03} UTC")
}

/// Date and time of day.
fn parts(seconds: u64) -> ([u64; 3], [u64; 3]) {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Howard Hinnant, "chrono-compatible low-level date algorithms": years begin in March, so that
    // the leap day is the last one.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let leaps = day_of_era / 1460 + day_of_era / 146_096;
    let year_of_era = (day_of_era + day_of_era / 36_524 - leaps) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    ([year, month, day], [rest / 3600, rest / 60 % 60, rest % 60])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `date -u -d ... +%s` says the numbers.
    #[test]
    fn known_moments() {
        for (seconds, text) in [
            (0, "19700101-000000"),
            (951_782_399, "20000228-235959"),
            (951_782_400, "20000229-000000"),
            (951_868_800, "20000301-000000"),
            (1_709_164_800, "20240229-000000"),
            (1_795_031_523, "20261118-195203"),
            (4_102_444_799, "20991231-235959"),
        ] {
            assert_eq!(compact(Duration::from_secs(seconds)), text);
        }
        let time = Duration::from_millis(1_795_031_523_025);
        assert_eq!(readable(time), "2026-11-18 19:52:03.025 UTC");
    }
}

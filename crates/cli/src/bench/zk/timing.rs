//! Medians.

use std::time::{Duration, Instant};

use anyhow::Result;

/// Rounds that always count, however long they take.
const MIN_ROUNDS: usize = 3;

/// No further round begins after this time.
const LONG_ENOUGH: Duration = Duration::from_secs(10);

/// Calls a function and returns its time too.
pub(super) fn timed<R>(work: impl FnOnce() -> R) -> (R, Duration) {
    let start = Instant::now();
    (work(), start.elapsed())
}

/// Returns the median of the times that a function returns. The function is called a number of times, or fewer times if that
/// takes long. No call is left out.
pub(super) fn median_of(rounds: usize, mut time: impl FnMut() -> Result<Duration>) -> Result<Duration> {
    let (start, mut times) = (Instant::now(), Vec::new());
    while times.len() < rounds && (times.len() < MIN_ROUNDS || start.elapsed() < LONG_ENOUGH) {
        times.push(time()?);
    }
    Ok(median(times))
}

/// Returns the median; zero without times.
pub(super) fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    let middle = times.len() / 2;
    match (times.get(middle), times.len() % 2) {
        (Some(&above), 0) => (times[middle - 1] + above) / 2,
        (Some(&exact), _) => exact,
        (None, _) => Duration::ZERO,
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        let seconds = |times: &[u64]| median(times.iter().map(|&time| Duration::from_secs(time)).collect());
        assert_eq!(seconds(&[9, 1, 4]), Duration::from_secs(4));
        assert_eq!(seconds(&[9, 1, 4, 2]), Duration::from_secs(3));
        assert_eq!(seconds(&[7]), Duration::from_secs(7));
        assert_eq!(seconds(&[]), Duration::ZERO);
        let mut calls = 0;
        let counted = || {
            calls += 1;
            Ok(Duration::from_secs(calls))
        };
        assert_eq!(median_of(5, counted).unwrap(), Duration::from_secs(3));
        assert_eq!(calls, 5);
    }
}

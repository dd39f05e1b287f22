//! A progress bar.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::Progress;

/// Shorter runs have no bar.
const SHOWN_AFTER: Duration = Duration::from_secs(1);

/// A bar on the terminal with the rate, the remaining time and the devices' shares. Nothing is drawn if standard error is no
/// terminal.
#[derive(Debug, Default)]
pub(crate) struct Bar {
    bar: Option<ProgressBar>,
}

impl Bar {
    pub(crate) fn show(&mut self, progress: &Progress) {
        if progress.elapsed < SHOWN_AFTER {
            return;
        }
        let bar = self.bar.get_or_insert_with(|| {
            let template = "{wide_bar} {pos}/{len} {msg}";
            let style =
                ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(progress.items).with_style(style)
        });
        bar.set_position(progress.done);
        bar.set_message(message(progress));
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// The rate, the remaining time and the devices' shares.
fn message(progress: &Progress) -> String {
    let shares: Vec<String> =
        progress.shares.iter().map(|(device, share)| format!("{device} {:.0} %", share * 100.0)).collect();
    let left = progress.remaining.map_or("?".into(), |left| format!("{:.0} s", left.as_secs_f64()));
    let waiting = progress.waiting_for.as_ref().map_or(String::new(), |what| format!(", waiting for {what}"));
    format!("{}/s, {left} to go ({}){waiting}", rate(progress.items_per_second), shares.join(", "))
}

/// A rate in the unit that suits it.
fn rate(each_second: f64) -> String {
    let units = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    match units.iter().find(|(unit, _)| each_second >= *unit) {
        Some((unit, name)) => format!("{:.1} {name}", each_second / unit),
        None => format!("{each_second:.1}"),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_bar_tells_the_rate_the_time_to_go_and_the_shares() {
        let items_of = vec![("cuda:0".into(), 3_000_000), ("cpu".into(), 1_000_000)];
        let progress = Progress::new(items_of, 12_000_000, Duration::from_secs(2));
        assert_eq!(message(&progress), "2.0 M/s, 4 s to go (cuda:0 75 %, cpu 25 %)");
        let waiting = Progress { waiting_for: Some("cpu: items 7..8 for 20 s".into()), ..progress };
        assert!(message(&waiting).ends_with("cpu 25 %), waiting for cpu: items 7..8 for 20 s"));
        let nothing = Progress::new(vec![("cpu".into(), 0)], 12, Duration::from_secs(2));
        assert_eq!(message(&nothing), "0.0/s, ? to go (cpu 0 %)");
    }
}

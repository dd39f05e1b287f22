//! Numbers and names for a terminal, as short as columns need them.

use std::borrow::Cow;

use ratatui::text::Span;

use super::look::Look;
use crate::{state::DeviceState, text::single_line};

/// A number with three digits and an SI prefix: `27.5 M`.
pub(super) fn short(number: f64) -> String {
    const UNITS: [&str; 7] = ["", " k", " M", " G", " T", " P", " E"];
    if !number.is_finite() {
        return "-".into();
    }
    let (mut number, mut unit) = (number, 0);
    // What is written as 1000 belongs to the next unit.
    while number >= 999.5 && unit + 1 < UNITS.len() {
        number /= 1e3;
        unit += 1;
    }
    let digits = match number {
        _ if unit == 0 && number.fract() == 0.0 => 0,
        it if it < 9.995 => 2,
        it if it < 99.95 => 1,
        _ => 0,
    };
    format!("{number:.digits$}{}", UNITS[unit])
}

/// A number of items per second.
pub(super) fn rate(per_second: f64) -> String {
    format!("{}/s", short(per_second))
}

/// A time: `120 ms`, `12.3 s`, `4:05`, `1:02:33` or `12 days`.
pub(super) fn time(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    match seconds {
        it if !it.is_finite() => "-".into(),
        it if it < 0.9995 => format!("{:.0} ms", it.max(0.0) * 1e3),
        it if it < 99.95 => format!("{it:.1} s"),
        it if it < 3_600.0 => format!("{}:{:02}", whole / 60, whole % 60),
        it if it < 360_000.0 => format!("{}:{:02}:{:02}", whole / 3_600, whole / 60 % 60, whole % 60),
        _ => format!("{} days", whole / 86_400),
    }
}

/// A part from 0 to 1.
pub(super) fn percent(part: f64) -> String {
    format!("{:.0} %", part.clamp(0.0, 1.0) * 100.0)
}

/// A part from 0 to 1, with a digit more if it is small.
pub(super) fn share(part: f64) -> String {
    if (0.0..0.0995).contains(&part) { format!("{:.1} %", part * 100.0) } else { percent(part) }
}

/// Used and all memory.
pub(super) fn memory(used: u64, all: u64) -> String {
    let gib = |bytes: u64| bytes as f64 / f64::from(1u32 << 30);
    format!("{:.1}/{:.1} GiB", gib(used), gib(all))
}

/// `1 run`, `2 runs`.
pub(super) fn counted(number: usize, one: &str, several: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { several })
}

/// Whether a device gets work, at a time of its run.
pub(super) fn state(state: DeviceState, now_s: f64) -> String {
    match state {
        DeviceState::Healthy => "healthy".into(),
        DeviceState::Quarantined { until_s } if until_s > now_s => {
            format!("quarantined {}", time(until_s - now_s))
        }
        DeviceState::Quarantined { .. } => "tried again".into(),
        DeviceState::Retired => "retired".into(),
    }
}

/// A text of a program, safe for a terminal.
pub(super) fn clean(text: &str) -> Cow<'_, str> {
    single_line(text)
}

/// The number of columns that a text takes.
pub(super) fn width(text: &str) -> usize {
    if text.is_ascii() { text.len() } else { Span::raw(text).width() }
}

/// A text, cut to a number of columns. A cut text ends with a sign that says so.
pub(super) fn fit(text: &str, columns: usize, look: Look) -> Cow<'_, str> {
    if width(text) <= columns {
        return text.into();
    }
    let sign = look.ellipsis();
    let (mut cut, mut left) = (String::new(), columns.saturating_sub(width(sign)));
    for char in text.chars() {
        let columns = width(char.encode_utf8(&mut [0; 4]));
        if columns > left {
            break;
        }
        left -= columns;
        cut.push(char);
    }
    if columns >= width(sign) {
        cut += sign;
    }
    cut.into()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn numbers_are_short_and_never_wider_than_their_columns() {
        let shorts = [0.0, 7.0, 7.25, 999.0, 999.7, 1_500.0, 27_500_000.0, 3e9].map(short);
        assert_eq!(shorts, ["0", "7", "7.25", "999", "1.00 k", "1.50 k", "27.5 M", "3.00 G"]);
        assert_eq!(short(f64::NAN), "-");
        let times = [0.0, 0.12, 0.9999, 12.34, 99.96, 245.0, 3_753.0, 1e6].map(time);
        assert_eq!(times, ["0 ms", "120 ms", "1.0 s", "12.3 s", "1:39", "4:05", "1:02:33", "11 days"]);
        for exponent in 0..60 {
            let number = 1.37f64.powi(exponent);
            assert!(rate(number).len() <= 8 && time(number / 1e3).len() <= 8, "{number}");
        }
        assert_eq!(
            [0.0, 0.0012, 0.0994, 0.0999, 1.0].map(share),
            ["0.0 %", "0.1 %", "9.9 %", "10 %", "100 %"]
        );
        assert_eq!([0.0, 0.994, 1.0, 7.0].map(percent), ["0 %", "99 %", "100 %", "100 %"]);
    }

    #[test]
    fn a_text_that_is_cut_says_so_and_fits() {
        let (unicode, ascii) =
            (Look { unicode: true, colors: false }, Look { unicode: false, colors: false });
        assert_eq!(fit("cuda:0", 6, unicode), "cuda:0");
        assert_eq!((fit("cuda:0", 5, unicode), fit("cuda:0", 5, ascii)), ("cuda…".into(), "cuda~".into()));
        assert_eq!((fit("漢字漢字", 6, unicode), fit("any", 0, unicode)), ("漢字…".into(), "".into()));
        for columns in 0..12 {
            assert!(width(&fit("a漢字 and more", columns, unicode)) <= columns);
        }
    }
}

//! Numbers for people.

/// Formats a time with a suitable unit.
pub fn format_time(seconds: f64) -> String {
    match seconds {
        0.0 => "0".into(),
        _ if seconds < 1e-3 => format!("{:.1} µs", seconds * 1e6),
        _ if seconds < 1.0 => format!("{:.2} ms", seconds * 1e3),
        _ => format!("{seconds:.3} s"),
    }
}

/// Formats a number with thousands separators.
pub fn format_count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a number of things: `1 leaf`, `2 leaves`.
pub fn format_counted(number: u64, one: &str, several: &str) -> String {
    format!("{} {}", format_count(number), if number == 1 { one } else { several })
}

/// Formats a number of bytes with the largest binary unit that it reaches.
pub fn format_bytes(bytes: u64) -> String {
    let units = [(1u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) if bytes.is_multiple_of(*unit) => format!("{} {name}", bytes / unit),
        Some((unit, name)) => format!("{:.2} {name}", bytes as f64 / *unit as f64),
        None => format_counted(bytes, "byte", "bytes"),
    }
}

/// Formats a rate with an SI prefix: `27.5 M`.
pub fn format_rate(per_second: f64) -> String {
    let units = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    match units.iter().find(|(unit, _)| per_second >= *unit) {
        Some((unit, name)) => format!("{:.1} {name}", per_second / unit),
        None => format!("{per_second:.1}"),
    }
}

/// Formats a share as a percentage.
pub fn format_percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn numbers_are_written_for_people() {
        assert_eq!([0, 999, 1000, 1_234_567].map(format_count), ["0", "999", "1,000", "1,234,567"]);
        let bytes = [0, 1, 1023, 2 << 20, 65_536 * 33, (1 << 30) + (1 << 29)].map(format_bytes);
        assert_eq!(bytes, ["0 bytes", "1 byte", "1,023 bytes", "2 MiB", "2.06 MiB", "1.50 GiB"]);
        let leaves = [0, 1, 2].map(|count| format_counted(count, "leaf", "leaves"));
        assert_eq!(leaves, ["0 leaves", "1 leaf", "2 leaves"]);
        assert_eq!([7.0, 1500.0, 2.75e7, 3e9].map(format_rate), ["7.0", "1.5 k", "27.5 M", "3.0 G"]);
        assert_eq!([0.0, 2e-6, 0.5, 61.0].map(format_time), ["0", "2.0 µs", "500.00 ms", "61.000 s"]);
    }
}

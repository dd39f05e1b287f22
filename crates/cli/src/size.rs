//! Sizes on the command line.

/// Parses a number of bytes: `1.5GiB`, `800MB`, `4096`.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 9] = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TiB", 1 << 40),
        ("KB", 1_000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("TB", 1_000_000_000_000),
        ("B", 1),
    ];
    let unit = UNITS.iter().find_map(|&(name, unit)| Some((text.strip_suffix(name)?, unit)));
    let (number, unit) = unit.unwrap_or((text, 1));
    let number: f64 =
        number.trim().parse().map_err(|_| format!("`{text}` is not a size such as 1.5GiB, 800MB or 4096"))?;
    let bytes = number * unit as f64;
    if (0.0..1e18).contains(&bytes) {
        Ok(bytes as u64)
    } else {
        Err(format!("`{text}` is out of range: sizes are from 0 to 1e18 bytes"))
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(parse_bytes("1.5GiB").unwrap(), 3 << 29);
        assert_eq!(parse_bytes("800MB").unwrap(), 800_000_000);
        assert_eq!((parse_bytes("12 B").unwrap(), parse_bytes("7").unwrap()), (12, 7));
    }

    #[test]
    fn what_is_nonsense_is_said() {
        for text in ["", "GiB", "1.5 giraffes", "-1", "1e30", "NaN"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }
}

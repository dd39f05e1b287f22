//! Axes, costs and sizes as they are written on a command line.

/// Axes and their sizes, innermost last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Axes(pub(super) Vec<(String, usize)>);

/// What each layer costs.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Costs(pub(super) Vec<f64>);

/// More layers than this are taken to be a slip of the pen.
const MOST_LAYERS: usize = 4096;

/// Reads `dp=2,ep=2,tp=4`.
pub(super) fn axes(text: &str) -> Result<Axes, String> {
    let axis = |term: &str| {
        let (name, size) = term.split_once('=').ok_or_else(|| format!("`{term}` is not like dp=2"))?;
        let size = size.trim().parse().map_err(|_| format!("`{size}` is no size, in `{term}`"))?;
        Ok((name.trim().to_owned(), size))
    };
    text.split(',').map(axis).collect::<Result<_, String>>().map(Axes)
}

/// Reads `8e9,2e9x30,9e9`.
pub(super) fn costs(text: &str) -> Result<Costs, String> {
    let mut costs = Vec::new();
    for term in text.split(',') {
        let (cost, count) = term.split_once('x').unwrap_or((term, "1"));
        let cost: f64 = cost.trim().parse().map_err(|_| format!("`{cost}` is no cost, in `{term}`"))?;
        let count: usize = count.trim().parse().map_err(|_| format!("`{count}` is no count, in `{term}`"))?;
        if count > MOST_LAYERS || costs.len() + count > MOST_LAYERS {
            return Err(format!("`{term}`: {MOST_LAYERS} layers are the most"));
        }
        costs.extend(std::iter::repeat_n(cost, count));
    }
    Ok(Costs(costs))
}

/// Reads a number of bytes: `1.5GiB`, `800MB`, `4096`.
pub(super) fn bytes(text: &str) -> Result<u64, String> {
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
    let number: f64 = number.trim().parse().map_err(|_| format!("`{text}` is not like 1.5GiB"))?;
    let bytes = number * unit as f64;
    if (0.0..1e18).contains(&bytes) { Ok(bytes as u64) } else { Err(format!("`{text}` is no size")) }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(axes("dp=2, tp=4").unwrap().0, [("dp".to_owned(), 2), ("tp".to_owned(), 4)]);
        assert_eq!(costs("8e9,2x3,1").unwrap().0, [8e9, 2.0, 2.0, 2.0, 1.0]);
        assert_eq!(bytes("1.5GiB").unwrap(), 3 << 29);
        assert_eq!(bytes("800MB").unwrap(), 800_000_000);
        assert_eq!((bytes("12 B").unwrap(), bytes("7").unwrap()), (12, 7));
    }

    #[test]
    fn what_is_nonsense_is_said() {
        for text in ["", "dp", "dp=", "dp=x", "dp=2,"] {
            assert!(axes(text).is_err(), "{text}");
        }
        for text in ["", "a", "1x", "1x5000", "1x4000,1x4000", "1xx3"] {
            assert!(costs(text).is_err(), "{text}");
        }
        for text in ["", "GiB", "1.5 giraffes", "-1", "1e30", "NaN"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }
}

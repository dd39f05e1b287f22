//! Axes and costs on the command line.

/// Axes and their sizes, innermost last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AxesArgument(pub(super) Vec<(String, usize)>);

/// The cost of each layer.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct LayerCosts(pub(super) Vec<f64>);

/// The maximum number of layers.
const MAX_LAYERS: usize = 4096;

/// Parses `dp=2,ep=2,tp=4`.
pub(super) fn axes(text: &str) -> Result<AxesArgument, String> {
    let axis = |term: &str| {
        let (name, size) =
            term.split_once('=').ok_or_else(|| format!("`{term}` is not an axis such as dp=2"))?;
        let size = size.trim().parse().map_err(|_| format!("`{size}` is not a size, in `{term}`"))?;
        Ok((name.trim().to_owned(), size))
    };
    text.split(',').map(axis).collect::<Result<_, String>>().map(AxesArgument)
}

/// Parses `8e9,2e9x30,9e9`.
pub(super) fn costs(text: &str) -> Result<LayerCosts, String> {
    let mut costs = Vec::new();
    for term in text.split(',') {
        let (cost, count) = term.split_once('x').unwrap_or((term, "1"));
        let cost: f64 = cost.trim().parse().map_err(|_| format!("`{cost}` is not a cost, in `{term}`"))?;
        let count: usize =
            count.trim().parse().map_err(|_| format!("`{count}` is not a count, in `{term}`"))?;
        if count > MAX_LAYERS || costs.len() + count > MAX_LAYERS {
            return Err(format!("`{term}`: there can be at most {MAX_LAYERS} layers"));
        }
        costs.extend(std::iter::repeat_n(cost, count));
    }
    Ok(LayerCosts(costs))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(axes("dp=2, tp=4").unwrap().0, [("dp".to_owned(), 2), ("tp".to_owned(), 4)]);
        assert_eq!(costs("8e9,2x3,1").unwrap().0, [8e9, 2.0, 2.0, 2.0, 1.0]);
    }

    #[test]
    fn what_is_nonsense_is_said() {
        for text in ["", "dp", "dp=", "dp=x", "dp=2,"] {
            assert!(axes(text).is_err(), "{text}");
        }
        for text in ["", "a", "1x", "1x5000", "1x4000,1x4000", "1xx3"] {
            assert!(costs(text).is_err(), "{text}");
        }
    }
}

//! The four strategies that divide items between devices.

use std::{fmt, str::FromStr};

use crate::{
    partition::{dynamic, equal, proportional},
    run::Shares,
};

/// How the items of a run are divided between devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Strategy {
    /// Equal shares, the remainder to the first devices: [`equal`].
    Equal,
    /// By score: [`proportional`].
    Proportional,
    /// By score × (1 − utilization) when the run begins: [`dynamic`].
    Dynamic,
    /// No fixed shares: devices pull chunks, whose sizes follow their measured speed.
    #[default]
    Adaptive,
}

impl Strategy {
    /// All strategies.
    pub const ALL: [Strategy; 4] =
        [Strategy::Equal, Strategy::Proportional, Strategy::Dynamic, Strategy::Adaptive];

    /// Its name, as it is read and printed.
    pub fn name(self) -> &'static str {
        match self {
            Strategy::Equal => "equal",
            Strategy::Proportional => "proportional",
            Strategy::Dynamic => "dynamic",
            Strategy::Adaptive => "adaptive",
        }
    }

    /// Divides items between devices, each given by its score and utilization. A device's lanes get equal parts of its share.
    pub(crate) fn shares(self, items: u64, devices: &[(f64, f64)], lanes: &[usize]) -> Shares {
        let of_devices = match self {
            Strategy::Adaptive => return Shares::Pulled,
            Strategy::Equal => equal(items, devices.len()),
            Strategy::Proportional => {
                proportional(items, &devices.iter().map(|device| device.0).collect::<Vec<_>>())
            }
            Strategy::Dynamic => dynamic(items, devices),
        };
        Shares::Fixed(of_devices.iter().zip(lanes).flat_map(|(&share, &lanes)| equal(share, lanes)).collect())
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Strategy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = Strategy::ALL.map(Strategy::name).join(", ");
        let found = Strategy::ALL.into_iter().find(|strategy| strategy.name() == text);
        found.ok_or_else(|| format!("unknown strategy `{text}`: the strategies are {all}"))
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn shares_are_those_of_the_plain_functions_spread_over_the_lanes() {
        let devices = [(95.0, 0.9), (80.0, 0.3)];
        let shares = |strategy: Strategy| strategy.shares(1000, &devices, &[1, 2]);
        assert_eq!(shares(Strategy::Equal), Shares::Fixed(vec![500, 250, 250]));
        assert_eq!(shares(Strategy::Proportional), Shares::Fixed(vec![543, 229, 228]));
        assert_eq!(shares(Strategy::Dynamic), Shares::Fixed(vec![145, 428, 427]));
        assert_eq!(shares(Strategy::Adaptive), Shares::Pulled);
    }

    #[test]
    fn a_strategy_is_read_as_it_is_printed() {
        for strategy in Strategy::ALL {
            assert_eq!(strategy.to_string().parse(), Ok(strategy));
        }
        assert!("fastest".parse::<Strategy>().is_err_and(|why| why.contains("proportional")));
    }
}

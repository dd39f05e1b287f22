//! Follows a device's speed during a run.

use serde::{Deserialize, Serialize};

/// Number of steps after which a device's speed is adjusted.
pub const WINDOW: usize = 8;

/// Relative deviation up to which a window adjusts the speed gently.
const GENTLE: f64 = 0.1;

/// Measured over predicted times of one device, since its last adjustment.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct DriftWindow {
    ratios: Vec<f64>,
    /// Windows in a row that deviated by more than [`GENTLE`].
    beyond: u32,
}

impl DriftWindow {
    /// Adds a step's time. Ignores ratios that are not finite or not above 0. Returns the factor by which to multiply
    /// the device's drift, when a window is full and it asks for one.
    ///
    /// The lower quartile is used, because disturbances make single steps slower and never faster. A window that
    /// deviates by more than a tenth must be followed by another one before it is believed.
    pub fn add(&mut self, measured_s: f64, predicted_s: f64) -> Option<f64> {
        let ratio = measured_s / predicted_s;
        if !(ratio.is_finite() && ratio > 0.0) {
            return None;
        }
        self.ratios.push(ratio);
        if self.ratios.len() < WINDOW {
            return None;
        }
        let quartile = lower_quartile(&mut self.ratios);
        self.ratios.clear();
        if (quartile - 1.0).abs() <= GENTLE {
            self.beyond = 0;
            return Some(quartile.sqrt());
        }
        self.beyond += 1;
        (self.beyond >= 2).then(|| quartile.clamp(0.5, 2.0))
    }

    /// Forgets the steps of the current window, for example because the batch has changed.
    pub fn restart(&mut self) {
        self.ratios.clear();
    }
}

/// Returns the lower quartile, interpolated between neighbours. Sorts the values. NaN is not allowed among them.
pub(super) fn lower_quartile(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let position = (values.len() - 1) as f64 * 0.25;
    let (below, part) = (position as usize, position.fract());
    let above = (below + 1).min(values.len() - 1);
    values[below] + (values[above] - values[below]) * part
}

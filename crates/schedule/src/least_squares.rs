//! The straight line through measured times: time = overhead + items × time per item.

/// Weighted sums of measured times, from which the line is found by least squares.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sums {
    weights: f64,
    items: f64,
    items_squared: f64,
    time: f64,
    items_time: f64,
}

impl Sums {
    /// Adds a measurement: the time of a number of items.
    pub(crate) fn add(&mut self, items: f64, time: f64, weight: f64) {
        self.weights += weight;
        self.items += weight * items;
        self.items_squared += weight * items * items;
        self.time += weight * time;
        self.items_time += weight * items * time;
    }

    /// Pulls the overhead towards zero, with this weight.
    pub(crate) fn pull(&mut self, weight: f64) {
        self.weights += weight;
    }

    /// 1 − the squared correlation of the two unknowns: zero if the times do not determine them.
    fn separation(&self) -> f64 {
        1.0 - self.items / self.weights * (self.items / self.items_squared)
    }

    /// The overhead and the time per item, or `None` if the two are not separated by more than this.
    pub(crate) fn solve(&self, min_separation: f64) -> Option<(f64, f64)> {
        let Sums { weights, items, items_squared, time, items_time } = *self;
        let separation = self.separation();
        (separation > min_separation).then(|| {
            let overhead = (time - items * (items_time / items_squared)) / (weights * separation);
            (overhead, (items_time - items * (time / weights)) / (items_squared * separation))
        })
    }

    /// The time an item, where there is no overhead.
    pub(crate) fn per_item(&self) -> f64 {
        self.items_time / self.items_squared
    }

    /// The overhead, where items take no time.
    pub(crate) fn overhead(&self) -> f64 {
        self.time / self.weights
    }

    /// The factor from the scatter of the times to the standard error of the time per item.
    pub(crate) fn error(&self) -> f64 {
        (self.items_squared * self.separation()).sqrt().recip()
    }

    /// The trade-off between the two values: a line with one second more per item fits the times as well with this many
    /// seconds less overhead.
    pub(crate) fn tilt(&self) -> f64 {
        self.items / self.weights
    }
}

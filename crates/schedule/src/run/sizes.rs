//! How large a lane's next chunk is, and which items it has.

use super::{LaneIndex, Returned, Run, State};

impl Run {
    /// How much a lane's next chunk should cost.
    pub(super) fn size_for(&self, lane: LaneIndex) -> f64 {
        let it = &self.lanes[lane];
        // So small that even a lane a thousand times slower than the others does not hold up the run with it.
        let first = (self.items / 100_000.max(self.lanes.len() as u64 * 4096)).max(1) as f64;
        let Some(rate) = it.rate().filter(|_| !it.on_trial) else { return first };
        let settings = &self.settings;
        let all = self.rate_of_all().max(rate);
        let returned = self.returned.iter().map(|back| self.costs.of(&back.items)).sum::<f64>();
        let left = self.costs.of(&(self.next..self.items)) + returned;
        // Of a run without a known end, what is known and not done yet.
        let whole = if self.open { (self.items - self.done) as f64 } else { self.items as f64 } / all;
        let shortest = (whole * settings.shortest_fraction).max(it.overhead() * settings.overheads);
        let longest = (whole * settings.longest_fraction / it.depth as f64)
            .max(settings.longest_at_least.as_secs_f64())
            .max(shortest);
        // The lane's share of half of what remains takes as long as half of what remains takes all of them; all that it
        // has in hand counts.
        let mut time = (left / all / 2.0 / it.depth as f64).clamp(shortest.min(longest), longest);
        // Where nobody is there to share with, chunks need not become small, and a short run needs only one for each of
        // the lane's hands.
        if self.lanes.len() == 1 && !self.open {
            let is_short = whole < settings.whole_under.as_secs_f64();
            let longest = if is_short { longest.max(whole / it.depth as f64) } else { longest };
            let rest = left / all;
            time = if rest <= longest * 1.5 { rest } else { longest };
        }
        let grown = (it.largest * settings.growth).max(first);
        // A short run may be nothing but overhead. Who has only ever done chunks of one size cannot tell, and tries.
        let tries = !it.knows_overhead() && whole < settings.longest_at_least.as_secs_f64();
        let least = if tries { it.largest * 2.0 } else { 1.0 };
        it.done_in(time).unwrap_or(first).min(grown).max(least)
    }

    /// Items a second of all healthy lanes together. Those that have finished nothing yet are taken to be like the
    /// others; as the fast ones are known first, that is too much rather than too little, and chunks too small.
    fn rate_of_all(&self) -> f64 {
        let healthy = self.lanes.iter().filter(|it| it.state == State::Healthy);
        let (known, sum, count) =
            healthy.fold((0u32, 0.0, 0u32), |(known, sum, count), it| match it.rate() {
                Some(rate) => (known + 1, sum + rate, count + 1),
                None => (known, sum, count + 1),
            });
        sum * f64::from(count) / f64::from(known.max(1))
    }

    /// Takes items for a lane: what was given back first, then its share of a fixed split, then new ones.
    pub(super) fn take(&mut self, lane: LaneIndex, size: f64) -> Option<Returned> {
        let most = self.lanes[lane].most_items;
        if let Some(back) = self.returned.pop_front() {
            let end = if self.adaptive { self.costs.advance(&back.items, size) } else { back.items.end };
            return Some(self.cut(back, end, most));
        }
        if let Some(share) = self.lanes[lane].share.take() {
            let middle = share.start.saturating_add(most).min(share.end);
            self.lanes[lane].share = (middle < share.end).then_some(middle..share.end);
            return Some(Returned { items: share.start..middle, given_up: 0 });
        }
        if self.next >= self.items {
            // Nobody asks for the share of a lane that will not.
            let orphan = self.lanes.iter().position(|it| it.share.is_some() && it.state != State::Healthy)?;
            let share = self.lanes[orphan].share.take()?;
            let end = share.end;
            return Some(self.cut(Returned { items: share, given_up: 0 }, end, most));
        }
        let new = self.next..self.items;
        let end = self.costs.advance(&new, size).min(self.next.saturating_add(most));
        self.next = end;
        Some(Returned { items: new.start..end, given_up: 0 })
    }

    /// A range up to an end, and at most so many of it; the rest is given back.
    fn cut(&mut self, back: Returned, end: u64, most: u64) -> Returned {
        let Returned { items, given_up } = back;
        let middle = end.min(items.start.saturating_add(most)).min(items.end);
        if middle < items.end {
            self.returned.push_front(Returned { items: middle..items.end, given_up });
        }
        Returned { items: items.start..middle, given_up }
    }
}

//! Moves queued pieces between devices, so that no device has far more work than another.
//!
//! The load of a device is the time to drain its queue: queued pieces × the mean time of a piece there. When the most
//! loaded device has much more than the least loaded one, queued pieces move between them, few at a time and not often.
//! Three rules keep pieces from moving back and forth:
//!
//! - a piece moves at most once, because only [`Move::apply`] moves pieces, and skips those that were moved before;
//! - no move makes its target the more loaded of the two; moving a piece's data to the target counts as load there;
//! - for a while after a move, the trigger is higher for a source that received or a target that gave (hysteresis).

mod piece;
#[cfg(test)]
mod test;

use std::{cmp::Ordering, time::Duration};

use serde::{Deserialize, Serialize};

pub use piece::Piece;

/// When pieces move, and how many.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BalancerSettings {
    /// Pieces move when (source − target) / source is more than this; exactly this is not enough.
    pub trigger: f64,
    /// Minimum time between rebalances.
    #[serde(with = "evener_device::seconds", rename = "interval_seconds")]
    pub interval: Duration,
    /// Maximum number of pieces in one rebalance, over all its moves.
    pub pieces: usize,
    /// Replaces `trigger` if a move would reverse a recent one: its source received, or its target gave, less than
    /// `reverse_for` ago. The default of 1 means never, because an idle target makes exactly 1.
    pub reverse_trigger: f64,
    /// How long a move counts as recent. A load that swings with a shorter period moves pieces one way only.
    #[serde(with = "evener_device::seconds", rename = "reverse_for_seconds")]
    pub reverse_for: Duration,
}

impl Default for BalancerSettings {
    fn default() -> BalancerSettings {
        BalancerSettings {
            trigger: 0.3,
            interval: Duration::from_secs(1),
            pieces: 10,
            reverse_trigger: 1.0,
            reverse_for: Duration::from_secs(10),
        }
    }
}

/// The queue of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Queued pieces, without those in flight.
    pub queued: usize,
    /// Queued pieces that were never moved.
    pub movable: usize,
    /// Mean time of a piece on this device. If it is unknown or zero, the mean of the other devices is used.
    pub piece_time: Option<Duration>,
    /// Mean time to move the data of one of its pieces to another device.
    pub move_time: Duration,
    /// Whether the device takes work. A device that does not (absent, in quarantine) is no target, and its pieces are
    /// moved away regardless of the trigger.
    pub working: bool,
}

impl Default for Load {
    /// An empty queue of a working device of unknown speed.
    fn default() -> Load {
        Load { queued: 0, movable: 0, piece_time: None, move_time: Duration::ZERO, working: true }
    }
}

/// A number of pieces to move from the end of one device's queue to another's: see [`Move::apply`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The index of the source among the loads.
    pub from: usize,
    /// The index of the target among the loads.
    pub to: usize,
    /// Number of pieces.
    pub pieces: usize,
}

/// The balancer's moves, and how often it moved nothing, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BalancerStatistics {
    /// Moved pieces.
    pub pieces: u64,
    /// Rebalances that moved pieces.
    pub rebalances: u64,
    /// The last rebalance was too recent.
    pub too_early: u64,
    /// The loads were close enough, or the move would have reversed a recent one.
    pub under_trigger: u64,
    /// The loads were apart, but the queued pieces were moved before, or would make the target the more loaded one.
    pub nothing_movable: u64,
    /// No other device takes work.
    pub no_target: u64,
}

/// Why no piece moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    TooEarly,
    UnderTrigger,
    NothingMovable,
    NoTarget,
}

/// When a device last gave and received pieces.
#[derive(Clone, Copy, Debug, Default)]
struct Recent {
    gave: Option<Duration>,
    received: Option<Duration>,
}

/// Decides which queued pieces go to another device.
#[derive(Clone, Debug)]
pub struct Balancer {
    settings: BalancerSettings,
    last: Option<Duration>,
    recent: Vec<Recent>,
    statistics: BalancerStatistics,
}

impl Balancer {
    /// Makes a balancer.
    pub fn new(settings: BalancerSettings) -> Balancer {
        Balancer { settings, last: None, recent: Vec::new(), statistics: BalancerStatistics::default() }
    }

    /// Returns the moves to make now. `now` is the time since any fixed start. A device keeps its index among the loads
    /// from call to call; a device that has gone stays there as not working.
    pub fn rebalance(&mut self, now: Duration, loads: &[Load]) -> Vec<Move> {
        let decision = self.decide(now, loads);
        let counter = match &decision {
            Ok(_) => &mut self.statistics.rebalances,
            Err(Refusal::TooEarly) => &mut self.statistics.too_early,
            Err(Refusal::UnderTrigger) => &mut self.statistics.under_trigger,
            Err(Refusal::NothingMovable) => &mut self.statistics.nothing_movable,
            Err(Refusal::NoTarget) => &mut self.statistics.no_target,
        };
        *counter += 1;
        let moves = decision.unwrap_or_default();
        if !moves.is_empty() {
            self.last = Some(now);
            self.statistics.pieces += moves.iter().map(|step| step.pieces as u64).sum::<u64>();
        }
        moves
    }

    /// The statistics since the beginning.
    pub fn statistics(&self) -> BalancerStatistics {
        self.statistics
    }

    fn decide(&mut self, now: Duration, loads: &[Load]) -> Result<Vec<Move>, Refusal> {
        if self.last.is_some_and(|last| now.saturating_sub(last) < self.settings.interval) {
            return Err(Refusal::TooEarly);
        }
        let mut estimates = estimate(loads);
        if !estimates.iter().any(|it| it.working) {
            return Err(Refusal::NoTarget);
        }
        let moves = self.evacuate(&mut estimates);
        if !moves.is_empty() {
            return Ok(moves);
        }
        let step = self.even_out(now, &estimates)?;
        self.recent.resize(self.recent.len().max(loads.len()), Recent::default());
        self.recent[step.from].gave = Some(now);
        self.recent[step.to].received = Some(now);
        Ok(vec![step])
    }

    /// Moves pieces away from devices that do not work, each to the device that will finish it first.
    fn evacuate(&self, estimates: &mut [LoadEstimate]) -> Vec<Move> {
        let mut moves: Vec<Move> = Vec::new();
        let mut left = self.settings.pieces;
        for from in 0..estimates.len() {
            while left > 0 && !estimates[from].working && estimates[from].movable > 0 {
                let working = (0..estimates.len()).filter(|&device| estimates[device].working);
                let Some(to) = working.min_by(|&a, &b| {
                    let done = |device: usize| estimates[device].load() + estimates[device].piece_seconds;
                    done(a).total_cmp(&done(b))
                }) else {
                    return moves;
                };
                estimates[from].queued -= 1;
                estimates[from].movable -= 1;
                estimates[to].queued += 1;
                left -= 1;
                match moves.iter_mut().find(|step| step.from == from && step.to == to) {
                    Some(step) => step.pieces += 1,
                    None => moves.push(Move { from, to, pieces: 1 }),
                }
            }
        }
        moves
    }

    /// The best move between two working devices: from the most to the least loaded, or between the next pair if its
    /// pieces were moved before, or the move would reverse a recent one.
    ///
    /// The target is not the more loaded one afterwards, so no load rises above the source's and none falls below the
    /// target's: the spread over all devices cannot grow.
    fn even_out(&self, now: Duration, estimates: &[LoadEstimate]) -> Result<Move, Refusal> {
        let mut order: Vec<usize> =
            (0..estimates.len()).filter(|&device| estimates[device].working).collect();
        if order.len() < 2 {
            return Err(Refusal::NoTarget);
        }
        order.sort_by(|&a, &b| {
            let by_load = estimates[a].load().total_cmp(&estimates[b].load());
            // Of equal ones, the one that would finish another piece first.
            let by_speed = || estimates[a].piece_seconds.total_cmp(&estimates[b].piece_seconds);
            by_load.then_with(by_speed).then(a.cmp(&b))
        });
        let mut refusal = Refusal::UnderTrigger;
        for &from in order.iter().rev() {
            for &to in &order {
                let (source, target) = (estimates[from], estimates[to]);
                if from == to || !source.exceeds(target, self.settings.trigger) {
                    // Every further target has a higher load than this one.
                    break;
                }
                if self.reverses(now, from, to) && !source.exceeds(target, self.settings.reverse_trigger) {
                    continue;
                }
                let pieces = source.can_give(target).min(self.settings.pieces);
                if pieces > 0 {
                    return Ok(Move { from, to, pieces });
                }
                refusal = Refusal::NothingMovable;
            }
        }
        Err(refusal)
    }

    /// Whether a move would reverse a recent one.
    fn reverses(&self, now: Duration, from: usize, to: usize) -> bool {
        let recently = |time: Option<Duration>| {
            time.is_some_and(|time| now.saturating_sub(time) < self.settings.reverse_for)
        };
        let of = |device: usize| self.recent.get(device).copied().unwrap_or_default();
        recently(of(from).received) || recently(of(to).gave)
    }
}

/// Relative difference of two equal loads, because products of seconds are rounded.
const ROUNDING: f64 = 1e-12;

/// A device's load with a time per piece, estimated if it is unknown.
#[derive(Clone, Copy, Debug)]
struct LoadEstimate {
    queued: usize,
    movable: usize,
    piece_seconds: f64,
    /// Extra seconds of a piece that moves to another device.
    move_seconds: f64,
    working: bool,
}

impl LoadEstimate {
    /// Seconds to drain the queue.
    fn load(&self) -> f64 {
        self.queued as f64 * self.piece_seconds
    }

    /// Whether the load is more than the target's, plus the time to move a piece's data, by more than this fraction of
    /// itself. Rounding does not count: seven and ten pieces are 0.3 apart whatever a piece takes.
    fn exceeds(&self, target: LoadEstimate, fraction: f64) -> bool {
        let apart = self.load() - target.load() - self.move_seconds - self.load() * fraction;
        apart.partial_cmp(&(self.load() * ROUNDING)) == Some(Ordering::Greater)
    }

    /// Number of pieces that may move to the target without making it the more loaded one.
    fn can_give(&self, target: LoadEstimate) -> usize {
        let each = self.piece_seconds + target.piece_seconds + self.move_seconds;
        let even = (self.load() - target.load()) / each;
        ((even * (1.0 + ROUNDING)) as usize).min(self.movable)
    }
}

/// The loads with a time per piece. If no device has one, only the counts matter.
fn estimate(loads: &[Load]) -> Vec<LoadEstimate> {
    let known = |load: &Load| load.piece_time.filter(|time| !time.is_zero()).map(|time| time.as_secs_f64());
    let times: Vec<f64> = loads.iter().filter_map(known).collect();
    let mean = if times.is_empty() { 1.0 } else { times.iter().sum::<f64>() / times.len() as f64 };
    let estimate = |load: &Load| LoadEstimate {
        queued: load.queued,
        movable: load.movable.min(load.queued),
        piece_seconds: known(load).unwrap_or(mean),
        move_seconds: load.move_time.as_secs_f64(),
        working: load.working,
    };
    loads.iter().map(estimate).collect()
}

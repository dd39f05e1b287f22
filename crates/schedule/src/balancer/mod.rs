//! Evens out the queues of devices whose own pieces wait for them, because their data is there.
//!
//! The load of a device is the time it will take to drain its queue: queued pieces × the mean time of a piece there.
//! When the most loaded has too much more than the least loaded, queued pieces move from the one to the other, few
//! at a time and not often. Three things keep work from swinging back and forth:
//!
//! - a piece moves at most once, because only [`Move::apply`] moves pieces and it passes over those moved before;
//! - no move makes its target the more loaded of the two, so none calls for its own reversal; bringing a piece's data to
//!   the target counts as load there;
//! - for a while after a move, the trigger is higher for a source that received or a target that gave.

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
    /// At least this long from one rebalance to the next.
    #[serde(with = "evener_device::seconds", rename = "interval_seconds")]
    pub interval: Duration,
    /// At most so many pieces in one rebalance, over all its moves.
    pub pieces: usize,
    /// What takes the place of `trigger` where a move would reverse a recent one: its source received, or its target
    /// gave, less than `reverse_for` ago. The default of 1 means never, since an idle target makes exactly 1.
    pub reverse_trigger: f64,
    /// How long a rebalance is recent. A load that swings with a shorter period than this moves work one way only.
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

/// What waits at one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Pieces in the queue; what the device works on now is not among them.
    pub queued: usize,
    /// Those of them that were never moved.
    pub movable: usize,
    /// Mean time of a piece on this device. Where it is not known, or zero, the mean of the other devices serves.
    pub piece_time: Option<Duration>,
    /// Mean time that it takes to bring the data of one of its pieces to another device.
    pub move_time: Duration,
    /// Whether the device takes work. One that does not (absent, in quarantine) is no target, and what is queued
    /// there is moved away without regard to the trigger, since nobody knows when it would be done.
    pub working: bool,
}

impl Default for Load {
    /// An empty queue at a working device of unknown speed.
    fn default() -> Load {
        Load { queued: 0, movable: 0, piece_time: None, move_time: Duration::ZERO, working: true }
    }
}

/// Pieces to be moved from the end of one device's queue to another's: see [`Move::apply`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The device to take from, by its place among the loads.
    pub from: usize,
    /// The device to give to, by its place among the loads.
    pub to: usize,
    /// How many pieces.
    pub pieces: usize,
}

/// What a balancer has done, and how often it was asked and did nothing, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BalancerStatistics {
    /// Pieces it asked to be moved.
    pub pieces: u64,
    /// Times that it asked for any.
    pub rebalances: u64,
    /// The last rebalance was too recent.
    pub too_early: u64,
    /// The loads were close enough, or the move would have reversed a recent one.
    pub under_trigger: u64,
    /// The loads were apart, but what is queued was moved before, or would make its target the more loaded one.
    pub nothing_movable: u64,
    /// No other device takes work.
    pub no_target: u64,
}

/// Why nothing moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    TooEarly,
    UnderTrigger,
    NothingMovable,
    NoTarget,
}

/// When a device last gave and received, as far as balancing goes.
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
    /// A balancer that has moved nothing yet.
    pub fn new(settings: BalancerSettings) -> Balancer {
        Balancer { settings, last: None, recent: Vec::new(), statistics: BalancerStatistics::default() }
    }

    /// The moves to make now, none where all is well. `now` is the time since some start; a device keeps its place
    /// among the loads from call to call, and one that has gone stays there as not working.
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

    /// What was done and refused since the beginning.
    pub fn statistics(&self) -> BalancerStatistics {
        self.statistics
    }

    fn decide(&mut self, now: Duration, loads: &[Load]) -> Result<Vec<Move>, Refusal> {
        if self.last.is_some_and(|last| now.saturating_sub(last) < self.settings.interval) {
            return Err(Refusal::TooEarly);
        }
        let mut queues = expected(loads);
        if !queues.iter().any(|queue| queue.working) {
            return Err(Refusal::NoTarget);
        }
        let moves = self.evacuate(&mut queues);
        if !moves.is_empty() {
            return Ok(moves);
        }
        let step = self.even_out(now, &queues)?;
        self.recent.resize(self.recent.len().max(loads.len()), Recent::default());
        self.recent[step.from].gave = Some(now);
        self.recent[step.to].received = Some(now);
        Ok(vec![step])
    }

    /// Takes pieces from devices that do not work, each to where it will be done first.
    fn evacuate(&self, queues: &mut [Queue]) -> Vec<Move> {
        let mut moves: Vec<Move> = Vec::new();
        let mut left = self.settings.pieces;
        for from in 0..queues.len() {
            while left > 0 && !queues[from].working && queues[from].movable > 0 {
                let working = (0..queues.len()).filter(|&device| queues[device].working);
                let Some(to) = working.min_by(|&a, &b| {
                    let done = |device: usize| queues[device].load() + queues[device].piece_seconds;
                    done(a).total_cmp(&done(b))
                }) else {
                    return moves;
                };
                queues[from].queued -= 1;
                queues[from].movable -= 1;
                queues[to].queued += 1;
                left -= 1;
                match moves.iter_mut().find(|step| step.from == from && step.to == to) {
                    Some(step) => step.pieces += 1,
                    None => moves.push(Move { from, to, pieces: 1 }),
                }
            }
        }
        moves
    }

    /// The best move between two working devices: from the most to the least loaded, or the next pair where pieces
    /// that were moved before, or the band, stand in the way.
    ///
    /// Its target is not the more loaded one afterwards, so no load rises above the source's and none falls below
    /// the target's: the spread over all devices cannot grow.
    fn even_out(&self, now: Duration, queues: &[Queue]) -> Result<Move, Refusal> {
        let mut order: Vec<usize> = (0..queues.len()).filter(|&device| queues[device].working).collect();
        if order.len() < 2 {
            return Err(Refusal::NoTarget);
        }
        order.sort_by(|&a, &b| {
            let by_load = queues[a].load().total_cmp(&queues[b].load());
            // Of equals, the one that would be done with another piece first.
            let by_speed = || queues[a].piece_seconds.total_cmp(&queues[b].piece_seconds);
            by_load.then_with(by_speed).then(a.cmp(&b))
        });
        let mut refusal = Refusal::UnderTrigger;
        for &from in order.iter().rev() {
            for &to in &order {
                let (source, target) = (queues[from], queues[to]);
                if from == to || !source.exceeds(target, self.settings.trigger) {
                    // Every further target has more load than this one.
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

    /// Whether a move would go against one of the last little while.
    fn reverses(&self, now: Duration, from: usize, to: usize) -> bool {
        let recently = |time: Option<Duration>| {
            time.is_some_and(|time| now.saturating_sub(time) < self.settings.reverse_for)
        };
        let of = |device: usize| self.recent.get(device).copied().unwrap_or_default();
        recently(of(from).received) || recently(of(to).gave)
    }
}

/// The part of a load by which two may differ and still be the same, since products of seconds are rounded.
const ROUNDING: f64 = 1e-12;

/// A device's queue, with a time for its pieces even where none is known.
#[derive(Clone, Copy, Debug)]
struct Queue {
    queued: usize,
    movable: usize,
    piece_seconds: f64,
    /// What moving a piece away costs its target.
    move_seconds: f64,
    working: bool,
}

impl Queue {
    /// Seconds until it is drained.
    fn load(&self) -> f64 {
        self.queued as f64 * self.piece_seconds
    }

    /// Whether the load is more than the target's, once the data of a piece was brought there, by more than this fraction
    /// of itself. Rounding does not count: seven and ten pieces are 0.3 apart whatever a piece takes.
    fn exceeds(&self, target: Queue, fraction: f64) -> bool {
        let apart = self.load() - target.load() - self.move_seconds - self.load() * fraction;
        apart.partial_cmp(&(self.load() * ROUNDING)) == Some(Ordering::Greater)
    }

    /// How many pieces may go to the target without making it the more loaded one.
    fn can_give(&self, target: Queue) -> usize {
        let each = self.piece_seconds + target.piece_seconds + self.move_seconds;
        let even = (self.load() - target.load()) / each;
        ((even * (1.0 + ROUNDING)) as usize).min(self.movable)
    }
}

/// The queues with times for all their pieces. Where no device has one, only the counts matter.
fn expected(loads: &[Load]) -> Vec<Queue> {
    let known = |load: &Load| load.piece_time.filter(|time| !time.is_zero()).map(|time| time.as_secs_f64());
    let times: Vec<f64> = loads.iter().filter_map(known).collect();
    let mean = if times.is_empty() { 1.0 } else { times.iter().sum::<f64>() / times.len() as f64 };
    let queue = |load: &Load| Queue {
        queued: load.queued,
        movable: load.movable.min(load.queued),
        piece_seconds: known(load).unwrap_or(mean),
        move_seconds: load.move_time.as_secs_f64(),
        working: load.working,
    };
    loads.iter().map(queue).collect()
}

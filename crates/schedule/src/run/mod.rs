//! The decisions of one run: which lane does which items, and what happens when one fails.
//!
//! The README beside this file explains the events, the answers, the bound and the tail.

mod costs;
mod event;
mod health;
mod lane;
mod sizes;
mod tail;
#[cfg(test)]
mod test;

use std::{collections::VecDeque, ops::Range, time::Duration};

use self::lane::Lane;
pub use self::{
    costs::Costs,
    event::{
        Answer, Chunk, Expected, Failure, LaneIndex, LaneSpec, Outcome, Purpose, Settings, Shares, Tally,
        Time, Verdict,
    },
    lane::State,
};

/// Items that are tried together, by one lane or by several.
#[derive(Debug)]
struct Piece {
    items: Range<u64>,
    /// How often somebody was given up on with them.
    given_up: u32,
    attempts: Vec<Attempt>,
}

/// Items that were given back.
#[derive(Debug, Clone)]
struct Returned {
    items: Range<u64>,
    given_up: u32,
}

#[derive(Debug, Clone, Copy)]
struct Attempt {
    chunk: u64,
    lane: LaneIndex,
    began: Time,
    rescue: bool,
    /// Shows whether its lane is well again.
    canary: bool,
    /// Nobody else is given its items while it runs.
    exclusive: bool,
}

/// An attempt that still runs although somebody else's results were accepted.
#[derive(Debug, Clone, Copy)]
struct Loser {
    attempt: Attempt,
    cost: f64,
}

/// The decisions of one run. Told what happened, it answers with what to do; it does nothing by itself.
#[derive(Debug)]
pub struct Run {
    settings: Settings,
    items: u64,
    costs: Costs,
    /// Whether more items may come.
    open: bool,
    lanes: Vec<Lane>,
    tallies: Vec<Tally>,
    /// Items that nobody has been given: everything from here on, and what was given back.
    next: u64,
    returned: VecDeque<Returned>,
    pieces: Vec<Piece>,
    losers: Vec<Loser>,
    done: u64,
    next_chunk: u64,
    outcome: Option<Outcome>,
    adaptive: bool,
}

impl Run {
    /// A run over so many items.
    pub fn new(items: u64, lanes: &[LaneSpec], strategy: &Shares, settings: Settings) -> Self {
        let mut run = Run {
            settings,
            items,
            costs: Costs::default(),
            open: false,
            lanes: lanes.iter().map(|spec| Lane::new(spec, settings.most_items)).collect(),
            tallies: vec![Tally::default(); lanes.len()],
            next: 0,
            returned: VecDeque::new(),
            pieces: Vec::new(),
            losers: Vec::new(),
            done: 0,
            next_chunk: 0,
            outcome: None,
            adaptive: *strategy == Shares::Pulled,
        };
        if let Shares::Fixed(shares) = strategy {
            for (lane, &share) in run.lanes.iter_mut().zip(shares) {
                let end = run.next.saturating_add(share).min(items);
                lane.share = (end > run.next).then_some(run.next..end);
                run.next = end;
            }
        }
        if items == 0 {
            run.outcome = Some(Outcome::Complete);
        } else if lanes.is_empty() {
            run.outcome = Some(Outcome::NoLaneLeft);
        }
        run
    }

    /// The same, with items that cost unlike amounts.
    pub fn with_costs(mut self, costs: Costs) -> Self {
        self.costs = costs;
        self
    }

    /// A run whose items come one after another: more can be added until it is closed.
    pub fn open(lanes: &[LaneSpec], settings: Settings) -> Self {
        let mut run = Run::new(0, lanes, &Shares::Pulled, settings);
        run.open = true;
        run.outcome = lanes.is_empty().then_some(Outcome::NoLaneLeft);
        run
    }

    /// So many more items have come.
    pub fn grow(&mut self, items: u64) {
        self.items += items;
    }

    /// No more items will come.
    pub fn close(&mut self) {
        self.open = false;
        self.complete();
    }

    /// Ends the run, whatever is in flight.
    pub fn stop(&mut self) {
        self.outcome.get_or_insert(Outcome::Stopped);
    }

    fn complete(&mut self) {
        if self.done == self.items && !self.open {
            self.outcome.get_or_insert(Outcome::Complete);
        }
    }

    /// What a lane has shown, for the next run of the same task. Nothing where it finished no chunk.
    pub fn learned(&self, lane: LaneIndex) -> Option<Expected> {
        self.lanes[lane].learned()
    }

    /// How the run has ended, once it has.
    pub fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    /// What was counted, a lane each.
    pub fn tallies(&self) -> &[Tally] {
        &self.tallies
    }

    /// How a lane stands.
    pub fn state(&self, lane: LaneIndex) -> State {
        self.lanes[lane].state
    }

    /// A lane's measured rate in items a second, once it is known.
    pub fn rate(&self, lane: LaneIndex) -> Option<f64> {
        self.lanes[lane].rate()
    }

    /// Items with an accepted result.
    pub fn done(&self) -> u64 {
        self.done
    }

    /// Whether every item has been given to somebody: what is left is in flight.
    pub fn is_drained(&self) -> bool {
        self.next >= self.items
            && self.returned.is_empty()
            && self.lanes.iter().all(|lane| lane.share.is_none())
    }

    /// A lane has room for chunks of at most so many items.
    pub fn limit(&mut self, lane: LaneIndex, most_items: u64) {
        let it = &mut self.lanes[lane];
        it.most_items = it.most_items.min(most_items.max(1));
    }

    /// A lane that may have room asks what to do.
    pub fn ask(&mut self, lane: LaneIndex, now: Time) -> Answer {
        if self.outcome.is_some() {
            return Answer::Ended;
        }
        if !self.lanes[lane].has_room(now) {
            let until = match self.lanes[lane].state {
                State::Quarantined { until } if until > now => Some(until),
                _ => None,
            };
            return Answer::Wait { until };
        }
        if let State::Quarantined { .. } = self.lanes[lane].state {
            self.lanes[lane].on_trial = true;
        }
        let size = self.size_for(lane);
        if let Some(Returned { items, given_up }) = self.take(lane, size) {
            let purpose = if self.lanes[lane].on_trial { Purpose::Canary } else { Purpose::Work };
            self.pieces.push(Piece { items, given_up, attempts: Vec::new() });
            return Answer::Run(self.attempt(self.pieces.len() - 1, lane, purpose, now));
        }
        match self.latest_end(lane, now) {
            Some(piece) => Answer::Run(self.attempt(piece, lane, Purpose::Rescue, now)),
            // Whoever is late by then may be worth a rescue.
            None => {
                Answer::Wait { until: Some(now.saturating_add(self.settings.look_again.max(now / 1000))) }
            }
        }
    }

    /// A chunk has ended well, at once after it began; it kept its lane busy for so long.
    pub fn finished(&mut self, chunk: u64, took: Duration) -> Verdict {
        self.ended(chunk, took, took)
    }

    /// A chunk has ended well. It kept its lane busy for so long, and so long is it since it was handed out: more, where
    /// the lane was busy with another one too.
    pub fn ended(&mut self, chunk: u64, took: Duration, latency: Duration) -> Verdict {
        if let Some(index) = self.losers.iter().position(|loser| loser.attempt.chunk == chunk) {
            let loser = self.losers.swap_remove(index);
            self.tallies[loser.attempt.lane].dropped += 1;
            self.end(loser.attempt, loser.cost, took, latency);
            return Verdict::Drop;
        }
        let Some((piece, attempt)) = self.find(chunk) else {
            // It was given up on, and its items are in other hands or done.
            return Verdict::Drop;
        };
        let Piece { items, mut attempts, .. } = self.pieces.swap_remove(piece);
        let winner = attempts.swap_remove(attempt);
        let cost = self.costs.of(&items);
        let items = len(&items);
        self.tallies[winner.lane].items += items;
        self.tallies[winner.lane].rescues += u64::from(winner.rescue);
        self.end(winner, cost, took, latency);
        self.losers.extend(attempts.into_iter().map(|attempt| Loser { attempt, cost }));
        self.done += items;
        self.complete();
        Verdict::Accept
    }

    /// An attempt is out of its lane's hands, in good order.
    fn end(&mut self, attempt: Attempt, cost: f64, took: Duration, latency: Duration) {
        self.tallies[attempt.lane].chunks += 1;
        let lane = &mut self.lanes[attempt.lane];
        lane.in_flight -= 1;
        lane.learn(cost, took, latency);
        if attempt.canary {
            lane.on_trial = false;
            lane.state = State::Healthy;
        }
    }

    fn attempt(&mut self, piece: usize, lane: LaneIndex, purpose: Purpose, now: Time) -> Chunk {
        let id = self.next_chunk;
        self.next_chunk += 1;
        let exclusive = purpose == Purpose::Work && self.is_brief(lane, &self.pieces[piece].items);
        self.lanes[lane].in_flight += 1;
        let (rescue, canary) = (purpose == Purpose::Rescue, self.lanes[lane].on_trial);
        let piece = &mut self.pieces[piece];
        piece.attempts.push(Attempt { chunk: id, lane, began: now, rescue, canary, exclusive });
        Chunk { id, lane, items: piece.items.clone(), purpose, exclusive }
    }

    fn find(&self, chunk: u64) -> Option<(usize, usize)> {
        self.pieces.iter().enumerate().find_map(|(index, piece)| {
            Some((index, piece.attempts.iter().position(|attempt| attempt.chunk == chunk)?))
        })
    }
}

fn len(items: &Range<u64>) -> u64 {
    items.end - items.start
}

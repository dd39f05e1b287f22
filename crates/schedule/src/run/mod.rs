//! The decisions of one run: which lane does which items, and what happens when one fails.
//!
//! The README beside this file explains the events, the answers, the bound and the tail.

mod costs;
mod event;
mod lane;
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

    /// A chunk has failed.
    pub fn failed(&mut self, chunk: u64, failure: Failure, now: Time) {
        let loser = self.losers.iter().position(|loser| loser.attempt.chunk == chunk);
        let found = self.find(chunk);
        let (lane, items) = match (loser, found) {
            (Some(index), _) => {
                let loser = self.losers.swap_remove(index);
                self.lanes[loser.attempt.lane].in_flight -= 1;
                (loser.attempt.lane, None)
            }
            (None, Some((piece, attempt))) => {
                let lane = self.pieces[piece].attempts[attempt].lane;
                self.tallies[lane].retries += 1;
                (lane, Some(self.give_back(piece, attempt)))
            }
            (None, None) => return,
        };
        match (failure, items) {
            (Failure::Task, Some(items)) => {
                self.outcome.get_or_insert(Outcome::TaskFailed(items));
            }
            // Its items are done already, whoever failed on them.
            (Failure::Task | Failure::TooLarge, None) => {}
            (Failure::TooLarge, Some(items)) if len(&items) > 1 => {
                self.lanes[lane].most_items = len(&items) / 2;
            }
            (Failure::Unable, _) => self.set_aside(lane, State::Retired),
            (Failure::TooLarge | Failure::Untrusted, _) => self.quarantine(lane, now),
        }
    }

    /// A lane has failed without a chunk in hand, while it was made ready. What would be halved cannot be.
    pub fn lane_failed(&mut self, lane: LaneIndex, failure: Failure, now: Time) {
        // What cannot do this task cannot, whatever its other hands say.
        if self.lanes[lane].state == State::Retired {
            return;
        }
        match failure {
            Failure::Unable | Failure::Task => self.set_aside(lane, State::Retired),
            Failure::TooLarge | Failure::Untrusted => self.quarantine(lane, now),
        }
    }

    /// The chunks that should have ended by now: they have hung. Their lanes are put into quarantine and their items
    /// given back, unless somebody else has done them. Gives their numbers.
    pub fn overdue(&mut self, now: Time) -> Vec<u64> {
        let hung: Vec<(u64, LaneIndex)> = self
            .in_flight()
            .filter(|(attempt, cost, given_up)| {
                self.deadline(attempt, *cost, *given_up).is_some_and(|deadline| deadline <= now)
            })
            .map(|(attempt, ..)| (attempt.chunk, attempt.lane))
            .collect();
        for &(chunk, lane) in &hung {
            // Quarantining its lane for another chunk may have given this one back already.
            if let Some((piece, _)) = self.find(chunk) {
                self.pieces[piece].given_up += 1;
                self.tallies[lane].retries += 1;
                self.quarantine(lane, now);
            } else if self.losers.iter().any(|loser| loser.attempt.chunk == chunk) {
                self.quarantine(lane, now);
            }
        }
        hung.into_iter().map(|(chunk, _)| chunk).collect()
    }

    /// When the next chunk will have to be taken for hung, if nothing ends before.
    pub fn next_deadline(&self) -> Option<Time> {
        self.in_flight().filter_map(|(attempt, cost, given_up)| self.deadline(attempt, cost, given_up)).min()
    }

    /// Every chunk that is in somebody's hands, its cost, and how often its items were given up on. One whose items
    /// somebody else has done counts like any other: as long as it runs, its lane has no room, and if it never ends,
    /// its lane is not to be counted on.
    fn in_flight(&self) -> impl Iterator<Item = (&Attempt, f64, u32)> {
        let pieces = self.pieces.iter().flat_map(|piece| {
            let cost = self.costs.of(&piece.items);
            piece.attempts.iter().map(move |attempt| (attempt, cost, piece.given_up))
        });
        pieces.chain(self.losers.iter().map(|loser| (&loser.attempt, loser.cost, 0)))
    }

    /// How long a chunk may take, from its lane's own history and the user's limit. Until a lane has a history, that of
    /// the others counts, generously; where nobody has one, there is the user's limit alone.
    fn deadline(&self, attempt: &Attempt, cost: f64, given_up: u32) -> Option<Time> {
        /// A lane of which nothing is known may be so many times slower than the slowest that has shown something.
        const SLOWER: f64 = 1_000.0;
        let lane = &self.lanes[attempt.lane];
        let ahead = lane.in_flight.max(1) as f64;
        let is_last = !self
            .lanes
            .iter()
            .enumerate()
            .any(|(index, it)| index != attempt.lane && it.state == State::Healthy);
        let times = 4f64.powi(given_up.min(20) as i32) * if is_last { 16.0 } else { 1.0 };
        let (patience, least) = (self.settings.patience, self.settings.least_patience.as_secs_f64());
        let own = || Some((lane.estimate(cost)? * ahead * patience).max(least));
        let of_others = || {
            let slowest = self.lanes.iter().filter_map(|it| it.estimate(cost)).max_by(f64::total_cmp)?;
            // What happens only once, at the beginning, takes longer than anything that it has shown.
            Some((slowest * ahead * SLOWER).max(least * patience))
        };
        let expected = lane
            .may_hang
            .then(|| own().or_else(of_others))
            .flatten()
            .map(|seconds| Duration::from_secs_f64((seconds * times).min(1e9)));
        let allowed = match (expected, self.settings.limit) {
            (Some(expected), Some(limit)) => expected.min(limit),
            (expected, limit) => expected.or(limit)?,
        };
        Some(attempt.began.saturating_add(allowed))
    }

    /// How much a lane's next chunk should cost.
    fn size_for(&self, lane: LaneIndex) -> f64 {
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
        let time = (left / all / 2.0 / it.depth as f64).clamp(shortest.min(longest), longest);
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
    fn take(&mut self, lane: LaneIndex, size: f64) -> Option<Returned> {
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

    /// Whether a lane is done with some items before anybody else could be, and cannot be given up on meanwhile.
    fn is_brief(&self, lane: LaneIndex, items: &Range<u64>) -> bool {
        let it = &self.lanes[lane];
        let alone = !it.may_hang && it.depth == 1 && self.settings.limit.is_none();
        let brief = self.settings.exclusive_under.as_secs_f64();
        alone && it.estimate(self.costs.of(items)).is_some_and(|estimate| estimate < brief)
    }

    /// The piece that would end last, if this lane would end it sooner by enough to be worth it.
    fn latest_end(&self, lane: LaneIndex, now: Time) -> Option<usize> {
        let it = &self.lanes[lane];
        if it.on_trial || !self.adaptive || !self.settings.rescue {
            return None;
        }
        let now = now.as_secs_f64();
        let end = |piece: &Piece| {
            let [attempt] = piece.attempts.as_slice() else { return None };
            if attempt.lane == lane || attempt.exclusive || len(&piece.items) > it.most_items {
                return None;
            }
            let theirs = &self.lanes[attempt.lane];
            // Nothing is known of a lane that has finished nothing: it may never.
            let Some(estimate) = theirs.estimate(self.costs.of(&piece.items)) else {
                return Some(f64::INFINITY);
            };
            // What is behind another chunk of its lane begins later. One that is late already may take as long again.
            let queue = theirs.in_flight.max(1) as f64;
            let began = attempt.began.as_secs_f64();
            Some((began + estimate * queue).max(now + (now - began - estimate).max(0.0)))
        };
        let (piece, end) = self
            .pieces
            .iter()
            .enumerate()
            .filter_map(|(index, piece)| Some((index, end(piece)?)))
            .max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)))?;
        let own = it.estimate(self.costs.of(&self.pieces[piece].items))?;
        (now + own * 1.1 < end).then_some(piece)
    }

    /// Takes an attempt out of its lane's hands; where it was the only one, its items are given back. Gives the items.
    fn give_back(&mut self, piece: usize, attempt: usize) -> Range<u64> {
        let Attempt { lane, .. } = self.pieces[piece].attempts.swap_remove(attempt);
        self.lanes[lane].in_flight -= 1;
        let items = self.pieces[piece].items.clone();
        if self.pieces[piece].attempts.is_empty() {
            let Piece { given_up, .. } = self.pieces.swap_remove(piece);
            self.returned.push_back(Returned { items: items.clone(), given_up });
        }
        items
    }

    fn quarantine(&mut self, lane: LaneIndex, now: Time) {
        let it = &mut self.lanes[lane];
        let cooldown = self.settings.cooldown.saturating_mul(1 << it.strikes.min(20));
        it.strikes += 1;
        self.tallies[lane].quarantines += 1;
        self.set_aside(lane, State::Quarantined { until: now.saturating_add(cooldown) });
    }

    /// Takes everything out of a lane's hands.
    fn set_aside(&mut self, lane: LaneIndex, state: State) {
        self.lanes[lane].state = state;
        self.lanes[lane].on_trial = false;
        let mine = |piece: &Piece| piece.attempts.iter().position(|attempt| attempt.lane == lane);
        while let Some((piece, attempt)) =
            self.pieces.iter().enumerate().find_map(|(index, piece)| Some((index, mine(piece)?)))
        {
            self.give_back(piece, attempt);
        }
        self.losers.retain(|loser| loser.attempt.lane != lane);
        // Whoever runs the lane has it begin afresh, with empty hands.
        self.lanes[lane].in_flight = 0;
        if !self.lanes.iter().any(|it| it.state == State::Healthy) {
            self.outcome.get_or_insert(Outcome::NoLaneLeft);
        }
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

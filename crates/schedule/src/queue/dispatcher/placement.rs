//! The queues that pieces wait in, and the pieces that a worker takes.
//!
//! Pieces wait in one shared queue, sorted by key, and a worker takes the first ones that its device may run: no device
//! is idle while a piece waits that it could take. A piece whose data is on one device has a *home*: it waits in that
//! device's own queue, and only the balancer moves it. When a device fails, or all its workers are late, its pieces go
//! to the shared queue.

use evener_device::Error;
use smallvec::SmallVec;

use super::{Dispatcher, QueueError};
use crate::{
    queue::{
        device_queue::{DeviceQueue, PieceItem, Ticket, WaitingPiece},
        handle::PieceKey,
    },
    run::Time,
};

/// The work that a worker would begin.
pub(super) enum Pick {
    /// These pieces, as one batch.
    Pieces(SmallVec<[PieceKey; 1]>),
    /// A speculative copy of a batch that is in flight.
    Copy(u64),
    /// Nothing before this time, unless more pieces come: the batch is not full.
    Later(Time),
}

impl<I, O> Dispatcher<I, O> {
    /// Number of pieces in the shared queue.
    pub(in crate::queue) fn shared_len(&self) -> usize {
        self.shared.len()
    }

    /// Enqueues a piece at its home, or in the shared queue. A piece that no device is left for fails.
    pub(super) fn enqueue(&mut self, piece: WaitingPiece<I, O>, home: Option<usize>) {
        let is_stranded = |(device, it): (usize, &DeviceQueue<I, O>)| {
            it.health.is_retired() || !piece.ticket.may_try(device)
        };
        match home.filter(|&home| self.devices[home].is_well()) {
            Some(home) => self.devices[home].push(piece),
            None if self.devices.iter().enumerate().all(is_stranded) => self.give_up(piece),
            None => drop(self.shared.insert(piece.ticket.key, piece)),
        }
    }

    /// Moves a device's pieces to the shared queue.
    pub(super) fn release_home_pieces(&mut self, device: usize) {
        for piece in self.devices[device].drain() {
            self.enqueue(piece, None);
        }
    }

    /// Fails a piece that no device is left for.
    fn give_up(&mut self, mut piece: WaitingPiece<I, O>) {
        let tried = std::mem::take(&mut piece.ticket.failures);
        let untried = |device: &usize| !tried.iter().any(|(failed, _)| failed == device);
        let others = (0..self.devices.len()).filter(untried);
        let others: Vec<Error> =
            others.filter_map(|device| self.devices[device].health.last_error.clone()).collect();
        let failures = tried.into_iter().map(|(_, error)| error).chain(others).collect();
        self.settle(piece.ticket, piece.item, Err(QueueError::NoDeviceLeft { failures }));
    }

    /// Fails the pieces that no device is left for, after a failure: every device that could run them is given up, and
    /// no canary is running or due.
    pub(super) fn give_up_stranded(&mut self, now: Time) {
        let is_tried = |it: &DeviceQueue<I, O>| it.canary_worker.is_some() || it.health.may_be_tried(now);
        let is_out =
            |it: &DeviceQueue<I, O>| it.health.is_retired() || it.health.is_given_up() && !is_tried(it);
        if !self.devices.iter().any(is_out) {
            return;
        }
        let has_hope = |ticket: &Ticket<O>| {
            self.devices.iter().enumerate().any(|(device, it)| !is_out(it) && ticket.may_try(device))
        };
        let stranded = self.shared.iter().filter(|(_, piece)| !has_hope(&piece.ticket));
        let stranded: Vec<PieceKey> = stranded.map(|(&key, _)| key).collect();
        for key in stranded {
            self.shared.remove(&key).into_iter().for_each(|piece| self.give_up(piece));
        }
    }

    /// Whether a device may take a piece: not after a failure there, if a healthy device with fewer failures of it may.
    fn may_take(&self, device: usize, ticket: &Ticket<O>) -> bool {
        if ticket.failures.is_empty() {
            return true;
        }
        let tries = ticket.tries_on(device);
        let is_better = |other: usize| self.devices[other].is_well() && ticket.tries_on(other) < tries;
        ticket.may_try(device) && !(0..self.devices.len()).any(is_better)
    }

    /// The work that a worker of a device would begin now.
    pub(super) fn pick(&self, device: usize, now: Time) -> Option<Pick> {
        let it = &self.devices[device];
        if !it.may_begin(now) {
            return None;
        }
        let mut shared = self.shared.values().filter(|piece| self.may_take(device, &piece.ticket));
        if !it.health.is_working() {
            // The canary is the last piece in order: a device that failed before may hold it for any time.
            let canary =
                shared.next_back().map(|piece| Pick::Pieces(SmallVec::from_elem(piece.ticket.key, 1)));
            return canary.or_else(|| self.copy_for(device, false, now).map(Pick::Copy));
        }
        let (mut shared, mut own) = (shared.peekable(), it.own().peekable());
        let is_busy = shared.peek().is_some() || own.peek().is_some();
        if let Some(copy) = self.copy_for(device, is_busy, now) {
            return Some(Pick::Copy(copy));
        }
        let most = self.batch.pieces.min(it.max_pieces);
        let (mut pieces, mut oldest) = (SmallVec::new(), now);
        while pieces.len() < most {
            let key = |piece: &&&WaitingPiece<I, O>| piece.ticket.key;
            let from_shared = match (shared.peek(), own.peek()) {
                (Some(shared), Some(own)) => key(&shared) < key(&own),
                (shared, _) => shared.is_some(),
            };
            let Some(piece) = (if from_shared { shared.peek() } else { own.peek() }) else { break };
            let is_new = matches!(piece.item, PieceItem::New(_));
            if !is_new && !pieces.is_empty() {
                // The piece runs alone, and no piece behind it begins before it.
                return Some(Pick::Pieces(pieces));
            }
            pieces.push(piece.ticket.key);
            oldest = oldest.min(piece.ticket.since);
            if !is_new {
                return Some(Pick::Pieces(pieces));
            }
            if from_shared {
                shared.next()
            } else {
                own.next()
            };
        }
        let due = oldest.saturating_add(self.batch.delay);
        match pieces.len() {
            0 => None,
            count if count < most && due > now && self.may_grow() => Some(Pick::Later(due)),
            _ => Some(Pick::Pieces(pieces)),
        }
    }

    /// Whether more pieces may come before another one is finished.
    pub(super) fn may_grow(&self) -> bool {
        !self.closed && self.outstanding < self.capacity
    }

    /// Whether a worker of a device would have work, now or once a batch is due.
    fn has_work(&self, device: usize, now: Time) -> bool {
        let it = &self.devices[device];
        let any = || self.shared.values().any(|piece| self.may_take(device, &piece.ticket));
        it.may_begin(now) && (it.queued() > 0 || any() || self.copy_for(device, false, now).is_some())
    }

    /// The device that needs another worker, because there are more pieces than workers to take them.
    pub(in crate::queue) fn device_needing_worker(&self, now: Time) -> Option<usize> {
        let batches = |pieces: usize| pieces.div_ceil(self.batch.pieces);
        let lacks = |it: &DeviceQueue<I, O>| batches(it.queued()) > it.free_workers();
        let can_hire =
            |it: &DeviceQueue<I, O>| it.workers < it.max_workers && !it.stall.unready && it.may_begin(now);
        if !self.devices.iter().any(can_hire) {
            return None;
        }
        if let Some(device) = self.devices.iter().position(|it| can_hire(it) && lacks(it)) {
            return Some(device);
        }
        let wanted = batches(self.shared.len()) + self.stragglers.len();
        if wanted == 0 {
            return None;
        }
        let able = (0..self.devices.len()).filter(|&device| self.has_work(device, now));
        let able: SmallVec<[usize; 8]> = able.collect();
        let free = |&device: &usize| {
            self.devices[device].free_workers().saturating_sub(batches(self.devices[device].queued()))
        };
        if able.iter().map(free).sum::<usize>() >= wanted {
            return None;
        }
        self.by_speed(able.into_iter().filter(|&device| can_hire(&self.devices[device]))).first().copied()
    }

    /// The devices whose workers should wake, with their number, the fastest device first.
    pub(in crate::queue) fn to_wake(&self, now: Time) -> SmallVec<[(usize, usize); 4]> {
        let batches = |pieces: usize| pieces.div_ceil(self.batch.pieces);
        let idle = |device: usize| {
            self.devices[device].workers - self.devices[device].active - self.devices[device].preparing
        };
        let mut left = batches(self.shared.len()) + self.stragglers.len();
        let able = (0..self.devices.len()).filter(|&device| idle(device) > 0 && self.has_work(device, now));
        let mut wake = SmallVec::new();
        let has_timer = self.devices.iter().any(|it| it.timers > 0);
        for device in self.by_speed(able) {
            let own = batches(self.devices[device].queued());
            let count = idle(device).min(own + left);
            // One worker waits for a batch's due time; for pieces with a home, it is one of that device's.
            let it = &self.devices[device];
            let is_timed = if it.queued() > 0 { it.timers > 0 } else { has_timer };
            let is_full = self.shared.len() + it.queued() >= self.batch.pieces.min(it.max_pieces);
            let first = self.shared.values().next();
            let is_alone = first.is_some_and(|piece| matches!(piece.item, PieceItem::Begun(..)));
            let is_due = !is_timed || is_full || is_alone || !self.may_grow() || !self.stragglers.is_empty();
            if is_due && count > 0 {
                left -= count.saturating_sub(own).min(left);
                wake.push((device, count));
            }
        }
        wake
    }

    /// Sorts devices by their time per piece.
    fn by_speed(&self, devices: impl Iterator<Item = usize>) -> SmallVec<[usize; 8]> {
        let mut devices: SmallVec<[usize; 8]> = devices.collect();
        if devices.len() > 1 {
            let scale = self.seconds_per_score().or(Some(1.0));
            devices.sort_by(|&a, &b| {
                let seconds = |device| self.expected_seconds(device, scale).unwrap_or(1.0);
                seconds(a).total_cmp(&seconds(b))
            });
        }
        devices
    }

    /// A device's usual time per piece: measured, or from its score if the scale is known.
    pub(super) fn expected_seconds(&self, device: usize, scale: Option<f64>) -> Option<f64> {
        let it = &self.devices[device];
        let by_score = || Some(scale? * it.max_workers as f64 / it.score);
        it.mean.time().map(|mean| mean.as_secs_f64()).or_else(by_score)
    }

    /// Ratio of two devices' usual times per piece, at least 1.
    pub(super) fn times_as_slow(&self, device: usize, other: usize) -> f64 {
        let scale = self.seconds_per_score();
        let ratio = self.expected_seconds(device, scale).zip(self.expected_seconds(other, scale));
        ratio.map_or(1.0, |(here, there)| here / there).clamp(1.0, 1e6)
    }

    /// Seconds per piece of a device with score 1, estimated from the devices that have finished pieces, or `None` if
    /// none has.
    pub(super) fn seconds_per_score(&self) -> Option<f64> {
        let known = self
            .devices
            .iter()
            .filter_map(|it| Some(it.mean.time()?.as_secs_f64() * it.score / it.max_workers as f64));
        let (count, sum) = known.fold((0u32, 0.0), |(count, sum), scale| (count + 1, sum + scale));
        (count > 0).then(|| sum / f64::from(count))
    }
}

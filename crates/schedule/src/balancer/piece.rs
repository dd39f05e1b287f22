//! A piece of queued work, which remembers whether it was moved.

use std::collections::VecDeque;

use super::{Load, Move};

/// Work in a device's queue.
///
/// Only [`Move::apply`] marks a piece as moved, and it moves no piece twice. So no sequence of loads sends a piece back
/// and forth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece<T> {
    work: T,
    moved: bool,
}

impl<T> Piece<T> {
    /// Work that has just arrived and has never been moved.
    pub fn new(work: T) -> Piece<T> {
        Piece { work, moved: false }
    }

    /// The work.
    pub fn work(&self) -> &T {
        &self.work
    }

    /// Takes the work: to run it, or to submit it again if its device was lost.
    pub fn into_work(self) -> T {
        self.work
    }

    /// Whether the piece has been moved, and cannot move again.
    pub fn was_moved(&self) -> bool {
        self.moved
    }
}

impl Load {
    /// The load of a queue. It counts the pieces one by one; for a long queue, keep counts and fill in the fields
    /// instead.
    pub fn of<T>(queue: &VecDeque<Piece<T>>) -> Load {
        let movable = queue.iter().filter(|piece| !piece.moved).count();
        Load { queued: queue.len(), movable, ..Load::default() }
    }
}

impl Move {
    /// Makes the move and returns the number of moved pieces: fewer than [`Move::pieces`] if the source has begun some
    /// of them since the loads were read. The last pieces of the queue move, because they would have waited longest,
    /// and keep their order.
    pub fn apply<T>(&self, source: &mut VecDeque<Piece<T>>, target: &mut VecDeque<Piece<T>>) -> usize {
        let mut taken = VecDeque::new();
        let mut index = source.len();
        while index > 0 && taken.len() < self.pieces {
            index -= 1;
            if source[index].moved {
                continue;
            }
            if let Some(piece) = source.remove(index) {
                taken.push_front(Piece { moved: true, ..piece });
            }
        }
        let count = taken.len();
        target.append(&mut taken);
        count
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_last_pieces_move_in_order_and_those_moved_before_stay() {
        let mut source: VecDeque<Piece<u32>> = (0..5).map(Piece::new).collect();
        source[3].moved = true;
        let mut target = VecDeque::from([Piece::new(9)]);
        let step = Move { from: 0, to: 1, pieces: 2 };
        assert_eq!(step.apply(&mut source, &mut target), 2);
        let left: Vec<u32> = source.iter().map(|piece| *piece.work()).collect();
        assert_eq!(left, [0, 1, 3]);
        let there: Vec<(u32, bool)> = target.iter().map(|piece| (piece.work, piece.moved)).collect();
        assert_eq!(there, [(9, false), (2, true), (4, true)]);
        assert_eq!(Load::of(&target), Load { queued: 3, movable: 1, ..Load::default() });
    }

    #[test]
    fn a_move_takes_what_is_left_of_a_queue_that_ran_dry() {
        let mut source = VecDeque::from([Piece::new('a')]);
        let mut target = VecDeque::new();
        let step = Move { from: 0, to: 1, pieces: 10 };
        assert_eq!(step.apply(&mut source, &mut target), 1);
        assert_eq!(step.apply(&mut target, &mut source), 0, "nothing moves twice");
        assert!(target.pop_front().is_some_and(|piece| piece.was_moved() && piece.into_work() == 'a'));
    }
}

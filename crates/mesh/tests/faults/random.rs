//! Random calls and random faults, from a seed. Whatever happens:
//! - no call gives one rank a result and another an error,
//! - no result is wrong,
//! - no call takes longer than the timeout allows,
//! - after an error no call of the group succeeds.

use std::{
    thread,
    time::{Duration, Instant},
};

use evener_mesh::comm::{CommError, Communicator, GroupSpec, ReduceOp, World};

/// Unless `EVENER_SOAK_SECONDS` says otherwise.
const SECONDS: u64 = 5;
const TIMEOUT: Duration = Duration::from_millis(300);
/// On a machine that is busy with other things.
const DEADLINE: Duration = Duration::from_secs(20);
const ROUNDS: u64 = 12;

fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut it = *state;
    it = (it ^ (it >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    it = (it ^ (it >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    it ^ (it >> 31)
}

/// What one rank does wrong, in one round.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Wrong {
    Nothing,
    Poisons,
    IsLate,
    CallsSomethingElse,
    HasAnotherLength,
    Leaves,
    Panics,
}

const WRONGS: [Wrong; 7] = [
    Wrong::Nothing,
    Wrong::Poisons,
    Wrong::IsLate,
    Wrong::CallsSomethingElse,
    Wrong::HasAnotherLength,
    Wrong::Leaves,
    Wrong::Panics,
];

/// One call of a kind, of so many elements: whether its result is right.
fn call(group: &Communicator, kind: u64, len: usize, started: bool) -> Result<bool, CommError> {
    let (me, size) = (group.rank().unwrap_or(0), group.size());
    let mine: Vec<u32> = (0..len).map(|index| (index * (me + 1)) as u32).collect();
    let sum = |index: usize| (index * size * (size + 1) / 2) as u32;
    let right = |data: &[u32]| data.len() == len && data.iter().enumerate().all(|(at, it)| *it == sum(at));
    match kind {
        0 if started => group.start_all_reduce(mine, ReduceOp::Sum).wait().map(|data| right(&data)),
        0 => {
            let mut data = mine;
            group.all_reduce(&mut data, ReduceOp::Sum).map(|()| right(&data))
        }
        1 => {
            let mut all = vec![0; len * size];
            group.all_gather(&mine, &mut all)?;
            Ok(all.iter().enumerate().all(|(at, it)| *it as usize == (at % len) * (at / len + 1)))
        }
        2 => {
            let mut data = mine;
            group.broadcast(&mut data, size - 1)?;
            Ok(data.iter().enumerate().all(|(at, it)| *it as usize == at * size))
        }
        3 => {
            let (mine, mut all) = (vec![me as u32; me * len], Vec::new());
            let lengths = group.all_gather_uneven(&mine, &mut all)?;
            let expected = (0..size).flat_map(|rank| vec![rank as u32; rank * len]);
            Ok(lengths.iter().enumerate().all(|(rank, it)| *it == rank * len) && expected.eq(all))
        }
        _ => group.barrier().map(|()| true),
    }
}

/// One rank's life: for each round until it ended, whether its call gave the right result, or failed.
fn live(world: &World, seed: u64) -> Vec<Option<bool>> {
    let mut dice = seed;
    let group = world.new_group(GroupSpec::new("random", (0..world.size()).collect::<Vec<_>>())).unwrap();
    let (bad_round, bad_rank) = (next(&mut dice) % ROUNDS, next(&mut dice) as usize % world.size());
    let wrong = WRONGS[next(&mut dice) as usize % WRONGS.len()];
    let mut results = Vec::new();
    for round in 0..ROUNDS {
        let (kind, len) = (next(&mut dice) % 5, [1, 40, 700, 30_000][next(&mut dice) as usize % 4]);
        let started = next(&mut dice).is_multiple_of(2);
        // Each at a moment of its own.
        let mut own = seed ^ (round << 8 | world.rank() as u64);
        thread::sleep(Duration::from_micros(next(&mut own) % 200));
        let wrong = if (round, world.rank()) == (bad_round, bad_rank) { wrong } else { Wrong::Nothing };
        let start = Instant::now();
        let result = match wrong {
            Wrong::Nothing => call(&group, kind, len, started),
            Wrong::IsLate => {
                thread::sleep(TIMEOUT * 2);
                call(&group, kind, len, started)
            }
            Wrong::CallsSomethingElse => {
                group.scatter(&vec![1u8; world.size()], &mut [0], world.rank()).map(|()| true)
            }
            Wrong::HasAnotherLength => {
                group.all_reduce(&mut vec![1u32; len + 1], ReduceOp::Sum).map(|()| true)
            }
            Wrong::Poisons => thread::scope(|scope| {
                let other = scope.spawn(|| {
                    thread::sleep(Duration::from_micros(next(&mut own) % 300));
                    group.poison("on purpose");
                });
                let result = call(&group, kind, len, started);
                other.join().unwrap();
                result
            }),
            Wrong::Leaves => return results,
            Wrong::Panics => panic!("on purpose"),
        };
        assert!(start.elapsed() < DEADLINE, "seed {seed}, round {round}: {:?}", start.elapsed());
        if results.contains(&None) {
            assert!(
                result.is_err(),
                "seed {seed}, round {round}: a call succeeded after one that had failed"
            );
        }
        results.push(result.ok());
    }
    results
}

#[test]
fn random_calls_and_faults_leave_no_two_ranks_in_disagreement() {
    let seconds = std::env::var("EVENER_SOAK_SECONDS").ok().and_then(|it| it.parse().ok()).unwrap_or(SECONDS);
    let only = std::env::var("EVENER_SOAK_SEED").ok().and_then(|it| it.parse::<u64>().ok());
    let start = Instant::now();
    let mut seeds = 0u64;
    while start.elapsed() < Duration::from_secs(seconds) && (only.is_none() || seeds == 0) {
        let seed = only.unwrap_or(seeds * 1_000_003 + 17);
        seeds += 1;
        let size = 2 + (seed % 3) as usize;
        let threads: Vec<_> = World::local_with_timeout(size, TIMEOUT)
            .into_iter()
            .map(|world| thread::spawn(move || live(&world, seed)))
            .collect();
        // Nothing of one that panicked.
        let lives: Vec<_> = threads.into_iter().filter_map(|thread| thread.join().ok()).collect();
        assert!(lives.len() + 1 >= size, "seed {seed}: more than one rank panicked");
        for round in 0..ROUNDS as usize {
            let results: Vec<_> = lives.iter().filter_map(|life| life.get(round)).collect();
            assert!(!results.contains(&&Some(false)), "seed {seed}, round {round}: a wrong result");
            let succeeded = results.iter().filter(|it| it.is_some()).count();
            assert!(succeeded == 0 || succeeded == results.len(), "seed {seed}, round {round}: {results:?}");
        }
    }
    assert!(seeds > 0);
}

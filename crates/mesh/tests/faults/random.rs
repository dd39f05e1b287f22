//! Random calls and random faults, from a seed. In all cases:
//! - no call gives one rank a result and another an error,
//! - no result is wrong,
//! - no call takes longer than the timeout allows,
//! - after an error no call of the group succeeds.

use std::{
    thread,
    time::{Duration, Instant},
};

use evener_mesh::comm::{CommError, Communicator, GroupSpec, ReduceOp, World};

/// The default of `EVENER_SOAK_SECONDS`.
const SECONDS: u64 = 5;
const TIMEOUT: Duration = Duration::from_millis(300);
/// Long enough for a busy machine.
const DEADLINE: Duration = Duration::from_secs(20);
const ROUNDS: u64 = 12;

fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut it = *state;
    it = (it ^ (it >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    it = (it ^ (it >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    it ^ (it >> 31)
}

/// What one rank does wrong in one round.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Misbehaviour {
    Nothing,
    Poisons,
    IsLate,
    CallsSomethingElse,
    HasAnotherLength,
    Leaves,
    Panics,
}

const MISBEHAVIOURS: [Misbehaviour; 7] = [
    Misbehaviour::Nothing,
    Misbehaviour::Poisons,
    Misbehaviour::IsLate,
    Misbehaviour::CallsSomethingElse,
    Misbehaviour::HasAnotherLength,
    Misbehaviour::Leaves,
    Misbehaviour::Panics,
];

/// Makes one call of a kind. Returns whether its result is right.
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

/// Runs one rank. Returns for each round whether its call gave the right result, or `None` if it failed.
fn run_rank(world: &World, seed: u64) -> Vec<Option<bool>> {
    let mut rng = seed;
    let group = world.new_group(GroupSpec::new("random", (0..world.size()).collect::<Vec<_>>())).unwrap();
    let (bad_round, bad_rank) = (next(&mut rng) % ROUNDS, next(&mut rng) as usize % world.size());
    let wrong = MISBEHAVIOURS[next(&mut rng) as usize % MISBEHAVIOURS.len()];
    let mut results = Vec::new();
    for round in 0..ROUNDS {
        let (kind, len) = (next(&mut rng) % 5, [1, 40, 700, 30_000][next(&mut rng) as usize % 4]);
        let started = next(&mut rng).is_multiple_of(2);
        // Each rank calls at a different time.
        let mut own = seed ^ (round << 8 | world.rank() as u64);
        thread::sleep(Duration::from_micros(next(&mut own) % 200));
        let wrong =
            if (round, world.rank()) == (bad_round, bad_rank) { wrong } else { Misbehaviour::Nothing };
        let start = Instant::now();
        let result = match wrong {
            Misbehaviour::Nothing => call(&group, kind, len, started),
            Misbehaviour::IsLate => {
                thread::sleep(TIMEOUT * 2);
                call(&group, kind, len, started)
            }
            Misbehaviour::CallsSomethingElse => {
                group.scatter(&vec![1u8; world.size()], &mut [0], world.rank()).map(|()| true)
            }
            Misbehaviour::HasAnotherLength => {
                group.all_reduce(&mut vec![1u32; len + 1], ReduceOp::Sum).map(|()| true)
            }
            Misbehaviour::Poisons => thread::scope(|scope| {
                let other = scope.spawn(|| {
                    thread::sleep(Duration::from_micros(next(&mut own) % 300));
                    group.poison("on purpose");
                });
                let result = call(&group, kind, len, started);
                other.join().unwrap();
                result
            }),
            Misbehaviour::Leaves => return results,
            Misbehaviour::Panics => panic!("on purpose"),
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
            .map(|world| thread::spawn(move || run_rank(&world, seed)))
            .collect();
        // Without the results of a rank that panicked.
        let results_by_rank: Vec<_> = threads.into_iter().filter_map(|thread| thread.join().ok()).collect();
        assert!(results_by_rank.len() + 1 >= size, "seed {seed}: more than one rank panicked");
        for round in 0..ROUNDS as usize {
            let results: Vec<_> =
                results_by_rank.iter().filter_map(|results_of_rank| results_of_rank.get(round)).collect();
            assert!(!results.contains(&&Some(false)), "seed {seed}, round {round}: a wrong result");
            let succeeded = results.iter().filter(|it| it.is_some()).count();
            assert!(succeeded == 0 || succeeded == results.len(), "seed {seed}, round {round}: {results:?}");
        }
    }
    assert!(seeds > 0);
}

//! Many calls in a row with random delays, several groups at once, and started calls.

use std::{thread, time::Duration};

use evener_mesh::comm::{GroupSpec, ReduceOp};

use crate::{
    Rank,
    collectives::{all_gather, all_reduce, all_to_all, broadcast, send_and_recv},
    reference::{assert_same, given, next, reduced},
};

/// A thousand rounds of random calls, in which ranks are sometimes late.
pub fn a_thousand(rank: &Rank) {
    let group =
        rank.world.new_group(GroupSpec::new("rounds", (0..rank.world.size()).collect::<Vec<_>>())).unwrap();
    let mut rng = 7u64;
    let mut delays = 1000 + rank.world.rank() as u64;
    for round in 0..1000u64 {
        match next(&mut delays) % 20 {
            0 => thread::sleep(Duration::from_micros(next(&mut delays) % 300)),
            1..4 => (0..next(&mut delays) % 2000).for_each(|_| std::hint::spin_loop()),
            _ => {}
        }
        let mut seed = round << 8;
        // Small and large vectors take different routes.
        let len = [3, 100, 5000][(next(&mut rng) % 3) as usize];
        match next(&mut rng) % 6 {
            0 => all_reduce::<f32>(&group, len, ReduceOp::Sum, &mut seed),
            1 => all_reduce::<i64>(&group, len, ReduceOp::Max, &mut seed),
            2 => broadcast::<u8>(&group, len, &mut seed),
            3 => all_gather::<f64>(&group, len, &mut seed),
            4 => all_to_all::<u32>(&group, len, &mut seed),
            _ => send_and_recv::<i32>(&group, len, &mut seed),
        }
    }
}

/// Two groups that share ranks have calls in flight at the same time.
pub fn two_groups_at_once(rank: &Rank) {
    let size = rank.world.size();
    if size < 3 {
        return;
    }
    let low = rank.world.new_group(GroupSpec::new("low", (0..size - 1).collect::<Vec<_>>())).unwrap();
    let high = rank.world.new_group(GroupSpec::new("high", (1..size).rev().collect::<Vec<_>>())).unwrap();
    for round in 0..100u64 {
        let len = if round % 2 == 0 { 50 } else { 20_000 };
        let inputs = |group: u64, members: usize| -> Vec<Vec<f32>> {
            (0..members).map(|member| given(round * 2 + group, member, len)).collect()
        };
        let pending = low.rank().map(|me| {
            let inputs = inputs(0, low.size());
            (low.start_all_reduce(inputs[me].clone(), ReduceOp::Sum), reduced(ReduceOp::Sum, &inputs))
        });
        if let Some(me) = high.rank() {
            let inputs = inputs(1, high.size());
            let mut data = inputs[me].clone();
            high.all_reduce(&mut data, ReduceOp::Product).unwrap();
            assert_same("high", &data, &reduced(ReduceOp::Product, &inputs));
        }
        if let Some((pending, expected)) = pending {
            assert_same("low", &pending.wait().unwrap(), &expected);
        }
    }
}

/// Started calls run in order, and a blocking call runs after them.
pub fn started_calls_run_in_order(rank: &Rank) {
    let group =
        rank.world.new_group(GroupSpec::new("started", (0..rank.world.size()).collect::<Vec<_>>())).unwrap();
    let me = group.rank().unwrap();
    let size = group.size();
    let reduces: Vec<_> =
        (0..20).map(|index| group.start_all_reduce(vec![index + me as u64; 300], ReduceOp::Sum)).collect();
    let gathered = group.start_all_gather(vec![me as i32], vec![0; size]);
    let scattered = group.start_reduce_scatter(vec![1u8; size], vec![0], ReduceOp::Sum);
    let exchanged = group.start_all_to_all(vec![me as u32; size], vec![0; size]);
    let weighted = group.start_weighted_all_reduce(vec![me as f64], 2.0);
    let first = group.start_broadcast(vec![me as u8; 4], 0);
    let at_root = group.start_reduce(vec![1i64], ReduceOp::Sum, size - 1);
    let collected = group.start_gather(vec![me as u8], vec![0; if me == 0 { size } else { 0 }], 0);
    let dealt = group.start_scatter(vec![5u8; if me == 0 { size } else { 0 }], vec![0], 0);
    let met = group.start_barrier();
    let passed = match me {
        0 if size > 1 => Some(group.start_send(vec![9u8], 1)),
        1 => Some(group.start_recv(vec![0u8], 0)),
        _ => None,
    };
    let mut last = [1u32];
    group.all_reduce(&mut last, ReduceOp::Sum).unwrap();
    assert_eq!(last, [size as u32]);
    let ranks = (size * (size - 1) / 2) as u64;
    for (index, pending) in reduces.into_iter().enumerate() {
        assert_eq!(pending.wait().unwrap(), vec![index as u64 * size as u64 + ranks; 300]);
    }
    let all: Vec<usize> = (0..size).collect();
    assert_eq!(gathered.wait().unwrap().1, all.iter().map(|it| *it as i32).collect::<Vec<_>>());
    assert_eq!(scattered.wait().unwrap().1, [size as u8]);
    assert_eq!(exchanged.wait().unwrap().1, all.iter().map(|it| *it as u32).collect::<Vec<_>>());
    assert_eq!(weighted.wait().unwrap(), [ranks as f64 / size as f64]);
    assert_eq!(first.wait().unwrap(), [0; 4]);
    assert_eq!(at_root.wait().unwrap(), [if me == size - 1 { size as i64 } else { 1 }]);
    assert_eq!(collected.wait().unwrap().1.len(), if me == 0 { size } else { 0 });
    assert_eq!(dealt.wait().unwrap().1, [5]);
    met.wait().unwrap();
    if let Some(passed) = passed {
        assert_eq!(passed.wait().unwrap(), [9]);
    }
}

//! Every collective, of every type, by every operation, in groups of every size, against the reference.

use evener_mesh::comm::{Communicator, Element, ReduceOp};
use half::{bf16, f16};

use crate::{
    Rank,
    reference::{Sample, assert_same, given, next, reduced},
};

/// Lengths that are tried with everything.
const LENGTHS: [usize; 4] = [0, 1, 7, 1024];
/// A prime over a million: no size of a group, block or piece divides it.
const LONG: usize = 1_000_003;
/// What does not fit in a cache may go another way.
const LONGER_THAN_CACHES: usize = (33 << 20) + 5;

/// Everything in groups of one size, made of the first ranks.
pub fn everything(rank: &Rank, size: usize) {
    let Some(group) = rank.first(size) else { return };
    let mut seed = size as u64;
    for len in LENGTHS {
        every_type(&group, len, &mut seed);
    }
}

/// Long vectors, of every type with `full`, otherwise of a few.
pub fn long(rank: &Rank, size: usize) {
    let Some(group) = rank.first(size) else { return };
    let mut seed = 1 << 20 | size as u64;
    if crate::is_full() {
        every_type(&group, LONG, &mut seed);
        return;
    }
    of_type::<f32>(&group, LONG / size, &[ReduceOp::Sum], &mut seed);
    of_type::<bf16>(&group, LONG / size, &[ReduceOp::Average], &mut seed);
    of_type::<u8>(&group, LONG, &[ReduceOp::Max], &mut seed);
    all_reduce::<f32>(&group, LONG, ReduceOp::Sum, &mut seed);
    all_reduce::<i64>(&group, LONG, ReduceOp::Average, &mut seed);
    if size == 2 {
        all_reduce::<u8>(&group, LONGER_THAN_CACHES, ReduceOp::Sum, &mut seed);
        reduce::<u8>(&group, LONGER_THAN_CACHES, ReduceOp::Sum, &mut seed);
        broadcast::<u8>(&group, LONGER_THAN_CACHES, &mut seed);
    }
}

fn every_type(group: &Communicator, len: usize, seed: &mut u64) {
    of_type::<f32>(group, len, &ReduceOp::ALL, seed);
    of_type::<f64>(group, len, &ReduceOp::ALL, seed);
    of_type::<f16>(group, len, &ReduceOp::ALL, seed);
    of_type::<bf16>(group, len, &ReduceOp::ALL, seed);
    of_type::<i32>(group, len, &ReduceOp::ALL, seed);
    of_type::<i64>(group, len, &ReduceOp::ALL, seed);
    of_type::<u8>(group, len, &ReduceOp::ALL, seed);
    of_type::<u32>(group, len, &ReduceOp::ALL, seed);
    of_type::<u64>(group, len, &ReduceOp::ALL, seed);
}

fn of_type<T: Sample>(group: &Communicator, len: usize, operations: &[ReduceOp], seed: &mut u64) {
    for operation in operations {
        all_reduce::<T>(group, len, *operation, seed);
        reduce::<T>(group, len, *operation, seed);
        reduce_scatter::<T>(group, len, *operation, seed);
    }
    broadcast::<T>(group, len, seed);
    all_gather::<T>(group, len, seed);
    gather::<T>(group, len, seed);
    scatter::<T>(group, len, seed);
    all_to_all::<T>(group, len, seed);
    send_and_recv::<T>(group, len, seed);
    group.barrier().unwrap();
}

/// What each rank gives in the next round, and this rank's number.
fn round<T: Sample>(group: &Communicator, len: usize, seed: &mut u64) -> (Vec<Vec<T>>, usize) {
    *seed += 1;
    ((0..group.size()).map(|rank| given(*seed, rank, len)).collect(), group.rank().unwrap())
}

fn name<T: Element>(collective: &str, group: &Communicator, len: usize) -> String {
    format!("{collective} of {len} {} in {}", T::TYPE, group.size())
}

pub fn all_reduce<T: Sample>(group: &Communicator, len: usize, operation: ReduceOp, seed: &mut u64) {
    let (inputs, me) = round::<T>(group, len, seed);
    let mut data = inputs[me].clone();
    group.all_reduce(&mut data, operation).unwrap();
    assert_same(
        &name::<T>(&format!("all_reduce by {operation}"), group, len),
        &data,
        &reduced(operation, &inputs),
    );
}

fn reduce<T: Sample>(group: &Communicator, len: usize, operation: ReduceOp, seed: &mut u64) {
    let (inputs, me) = round::<T>(group, len, seed);
    let root = next(&mut seed.clone()) as usize % group.size();
    let mut data = inputs[me].clone();
    group.reduce(&mut data, operation, root).unwrap();
    let expected = if me == root { reduced(operation, &inputs) } else { inputs[me].clone() };
    assert_same(&name::<T>(&format!("reduce by {operation}"), group, len), &data, &expected);
}

fn reduce_scatter<T: Sample>(group: &Communicator, len: usize, operation: ReduceOp, seed: &mut u64) {
    let (inputs, me) = round::<T>(group, len * group.size(), seed);
    let mut output = vec![T::default(); len];
    group.reduce_scatter(&inputs[me], &mut output, operation).unwrap();
    let parts: Vec<_> = inputs.iter().map(|input| input[me * len..][..len].to_vec()).collect();
    assert_same(
        &name::<T>(&format!("reduce_scatter by {operation}"), group, len),
        &output,
        &reduced(operation, &parts),
    );
}

pub fn broadcast<T: Sample>(group: &Communicator, len: usize, seed: &mut u64) {
    let (inputs, me) = round::<T>(group, len, seed);
    for root in 0..group.size() {
        let mut data = inputs[me].clone();
        group.broadcast(&mut data, root).unwrap();
        assert_same(&name::<T>("broadcast", group, len), &data, &inputs[root]);
    }
}

pub fn all_gather<T: Sample>(group: &Communicator, len: usize, seed: &mut u64) {
    let (inputs, me) = round::<T>(group, len, seed);
    let mut output = vec![T::default(); len * group.size()];
    group.all_gather(&inputs[me], &mut output).unwrap();
    assert_same(&name::<T>("all_gather", group, len), &output, &inputs.concat());
}

fn gather<T: Sample>(group: &Communicator, len: usize, seed: &mut u64) {
    let (inputs, me) = round::<T>(group, len, seed);
    let root = next(&mut seed.clone()) as usize % group.size();
    let mut output = vec![T::default(); if me == root { len * group.size() } else { 0 }];
    group.gather(&inputs[me], &mut output, root).unwrap();
    let expected = if me == root { inputs.concat() } else { Vec::new() };
    assert_same(&name::<T>("gather", group, len), &output, &expected);
}

fn scatter<T: Sample>(group: &Communicator, len: usize, seed: &mut u64) {
    let (inputs, me) = round::<T>(group, len * group.size(), seed);
    let root = next(&mut seed.clone()) as usize % group.size();
    let mut output = vec![T::default(); len];
    let input: &[T] = if me == root { &inputs[root] } else { &[] };
    group.scatter(input, &mut output, root).unwrap();
    assert_same(&name::<T>("scatter", group, len), &output, &inputs[root][me * len..][..len]);
}

pub fn all_to_all<T: Sample>(group: &Communicator, len: usize, seed: &mut u64) {
    let (inputs, me) = round::<T>(group, len * group.size(), seed);
    let mut output = vec![T::default(); len * group.size()];
    group.all_to_all(&inputs[me], &mut output).unwrap();
    let expected: Vec<T> = inputs.iter().flat_map(|input| input[me * len..][..len].to_vec()).collect();
    assert_same(&name::<T>("all_to_all", group, len), &output, &expected);
}

/// Each sends to the next, and the last to the first: every second rank receives before it sends.
pub fn send_and_recv<T: Sample>(group: &Communicator, len: usize, seed: &mut u64) {
    let (inputs, me) = round::<T>(group, len, seed);
    let size = group.size();
    if size == 1 {
        return;
    }
    let (next, previous) = ((me + 1) % size, (me + size - 1) % size);
    let mut data = vec![T::default(); len];
    // Somebody receives first, so that nobody waits in a circle.
    if me % 2 == 1 {
        group.recv(&mut data, previous).unwrap();
        group.send(&inputs[me], next).unwrap();
    } else {
        group.send(&inputs[me], next).unwrap();
        group.recv(&mut data, previous).unwrap();
    }
    assert_same(&name::<T>("send and recv", group, len), &data, &inputs[previous]);
}

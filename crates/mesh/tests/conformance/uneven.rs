//! Gathers and all-to-alls of which every rank gives as much as it has.

use evener_mesh::comm::{CommError, Group, Members};

use crate::{
    Rank,
    reference::{Sample, assert_same, given, next},
};

fn group(rank: &Rank, name: &str) -> Group {
    rank.comm.group(Members::new(name, (0..rank.comm.size()).collect::<Vec<_>>())).unwrap()
}

/// Lengths from nothing to several pieces, by a seed that all ranks have.
pub fn uneven_vectors_arrive_whole_and_in_order(rank: &Rank) {
    let group = group(rank, "uneven");
    let mut dice = 11u64;
    for most in [1, 4, 40, 3000, 300_000] {
        for _ in 0..3 {
            of_type::<f32>(&group, most, &mut dice);
            of_type::<u8>(&group, most, &mut dice);
            of_type::<u64>(&group, most, &mut dice);
        }
    }
    // Everybody gives nothing; one gives everything.
    let mut output = vec![9u8];
    assert_eq!(group.all_gather_uneven(&[], &mut output).unwrap(), vec![0; group.size()]);
    assert!(output.is_empty());
    let mine = vec![7i32; if group.rank() == Some(group.size() - 1) { 100_000 } else { 0 }];
    let mut output = Vec::new();
    group.all_gather_uneven(&mine, &mut output).unwrap();
    assert_eq!(output, vec![7; 100_000]);
}

fn of_type<T: Sample>(group: &Group, most: u64, dice: &mut u64) {
    let (me, size) = (group.rank().unwrap(), group.size());
    let seed = next(dice);
    let lengths: Vec<usize> = (0..size).map(|_| (next(dice) % most) as usize).collect();
    let inputs: Vec<Vec<T>> = (0..size).map(|rank| given(seed, rank, lengths[rank])).collect();
    // What was in the output is of no interest.
    let mut output = vec![T::default(); 5];
    assert_eq!(group.all_gather_uneven(&inputs[me], &mut output).unwrap(), lengths);
    assert_same("all_gather_uneven", &output, &inputs.concat());

    let root = next(dice) as usize % size;
    assert_eq!(group.gather_uneven(&inputs[me], &mut output, root).unwrap(), lengths);
    assert_same("gather_uneven", &output, &if me == root { inputs.concat() } else { Vec::new() });

    let parts: Vec<Vec<usize>> =
        (0..size).map(|_| (0..size).map(|_| (next(dice) % most) as usize / size).collect()).collect();
    let inputs: Vec<Vec<T>> =
        (0..size).map(|rank| given(seed, rank, parts[rank].iter().sum::<usize>())).collect();
    let taken = group.all_to_all_uneven(&inputs[me], &parts[me], &mut output).unwrap();
    assert_eq!(taken, parts.iter().map(|row| row[me]).collect::<Vec<_>>());
    let part = |from: usize| {
        let start: usize = parts[from][..me].iter().sum();
        inputs[from][start..][..parts[from][me]].to_vec()
    };
    assert_same("all_to_all_uneven", &output, &(0..size).flat_map(part).collect::<Vec<_>>());
}

pub fn lengths_that_do_not_add_up_fail_everybody(rank: &Rank) {
    let group = group(rank, "sums");
    let (me, size) = (group.rank().unwrap(), group.size());
    let mut lengths = vec![2; size];
    if me == size - 1 {
        lengths[0] = 1;
    }
    let error = group.all_to_all_uneven(&vec![1u8; 2 * size], &lengths, &mut Vec::new()).unwrap_err();
    assert_eq!(matches!(error, CommError::Argument { .. }), me == size - 1, "{error}");
    assert!(group.barrier().is_err());
}

/// Its lengths are words like others, and must not be taken for somebody's vector.
pub fn an_uneven_call_is_not_taken_for_an_even_one(rank: &Rank) {
    let group = group(rank, "kinds");
    let (me, size) = (group.rank().unwrap(), group.size());
    if size == 1 {
        return;
    }
    let error = match me {
        0 => group.all_gather_uneven(&[5u64], &mut Vec::new()).map(drop).unwrap_err(),
        _ => group.all_gather(&[5u64], &mut vec![0; size]).unwrap_err(),
    };
    assert!(matches!(error, CommError::Disagree { .. }), "{error}");
    assert!(error.to_string().contains("all_gather of buffers or of uneven lengths"), "{error}");
}

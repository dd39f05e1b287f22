//! Gathers and all-to-alls with blocks of different lengths.

use evener_device::{Buffer, Device};
use evener_mesh::comm::{CommError, Communicator, GroupSpec};

use crate::{
    Rank,
    reference::{Sample, assert_same, given, next},
};

fn group(rank: &Rank, name: &str) -> Communicator {
    rank.world.new_group(GroupSpec::new(name, (0..rank.world.size()).collect::<Vec<_>>())).unwrap()
}

/// Lengths from 0 to several pieces, from a seed that all ranks share.
pub fn uneven_vectors_arrive_whole_and_in_order(rank: &Rank) {
    let group = group(rank, "uneven");
    let mut rng = 11u64;
    for most in [1, 4, 40, 3000, 300_000] {
        for _ in 0..3 {
            of_type::<f32>(&group, most, &mut rng);
            of_type::<u8>(&group, most, &mut rng);
            of_type::<u64>(&group, most, &mut rng);
        }
    }
    // All ranks send nothing; one sends everything.
    let mut output = vec![9u8];
    assert_eq!(group.all_gather_uneven(&[], &mut output).unwrap(), vec![0; group.size()]);
    assert!(output.is_empty());
    let mine = vec![7i32; if group.rank() == Some(group.size() - 1) { 100_000 } else { 0 }];
    let mut output = Vec::new();
    group.all_gather_uneven(&mine, &mut output).unwrap();
    assert_eq!(output, vec![7; 100_000]);
}

fn of_type<T: Sample>(group: &Communicator, most: u64, rng: &mut u64) {
    let (me, size) = (group.rank().unwrap(), group.size());
    let seed = next(rng);
    let lengths: Vec<usize> = (0..size).map(|_| (next(rng) % most) as usize).collect();
    let inputs: Vec<Vec<T>> = (0..size).map(|rank| given(seed, rank, lengths[rank])).collect();
    // The previous content of the output is dropped.
    let mut output = vec![T::default(); 5];
    assert_eq!(group.all_gather_uneven(&inputs[me], &mut output).unwrap(), lengths);
    assert_same("all_gather_uneven", &output, &inputs.concat());

    let root = next(rng) as usize % size;
    assert_eq!(group.gather_uneven(&inputs[me], &mut output, root).unwrap(), lengths);
    assert_same("gather_uneven", &output, &if me == root { inputs.concat() } else { Vec::new() });

    let (parts, inputs, expected) = all_to_all::<T>(group, most, seed, rng);
    let taken = group.all_to_all_uneven(&inputs[me], &parts[me], &mut output).unwrap();
    assert_eq!(taken, parts.iter().map(|row| row[me]).collect::<Vec<_>>());
    assert_same("all_to_all_uneven", &output, &expected);
}

/// The lengths between all ranks, the inputs, and this rank's output.
type AllToAll<T> = (Vec<Vec<usize>>, Vec<Vec<T>>, Vec<T>);

fn all_to_all<T: Sample>(group: &Communicator, most: u64, seed: u64, rng: &mut u64) -> AllToAll<T> {
    let (me, size) = (group.rank().unwrap(), group.size());
    let parts: Vec<Vec<usize>> =
        (0..size).map(|_| (0..size).map(|_| (next(rng) % most) as usize / size).collect()).collect();
    let inputs: Vec<Vec<T>> =
        (0..size).map(|rank| given(seed, rank, parts[rank].iter().sum::<usize>())).collect();
    let part = |from: usize| {
        let start: usize = parts[from][..me].iter().sum();
        inputs[from][start..][..parts[from][me]].to_vec()
    };
    let expected = (0..size).flat_map(part).collect();
    (parts, inputs, expected)
}

/// The same on device buffers, blocking and started; and started on host memory.
pub fn uneven_buffers_arrive_whole_and_in_order(rank: &Rank) {
    let group = group(rank, "uneven buffers");
    let mut rng = 12u64;
    // Several pieces of each block, and a rank that sends nothing.
    for most in [1, 5, 3000, 900_000] {
        of_buffers::<f32>(&group, most, &mut rng);
        of_buffers::<u8>(&group, most, &mut rng);
    }
}

fn of_buffers<T: Sample>(group: &Communicator, most: u64, rng: &mut u64) {
    let (me, size) = (group.rank().unwrap(), group.size());
    let device = Device::cpu();
    let (on_devices, mut stream) = (group.with_device(&device).unwrap(), device.stream().unwrap());
    let there = |elements: &[T]| device.buffer_from(elements).unwrap();
    let seed = next(rng);
    let lengths: Vec<usize> = (0..size).map(|_| (next(rng) % most) as usize).collect();
    let inputs: Vec<Vec<T>> = (0..size).map(|rank| given(seed, rank, lengths[rank])).collect();
    let (mine, all) = (there(&inputs[me]), inputs.concat());
    let root = next(rng) as usize % size;
    let at_root = |buffer| (me == root).then_some(buffer);
    let (parts, dealt, expected) = all_to_all::<T>(group, most, seed, rng);
    let taken: Vec<usize> = parts.iter().map(|row| row[me]).collect();
    let deals = there(&dealt[me]);
    let empty = |len: usize| there(&vec![T::default(); len]);
    let [first, second, third, fourth] = [(); 4].map(|()| empty(all.len()));
    let (fifth, sixth) = (empty(expected.len()), empty(expected.len()));

    let pending = on_devices.start_all_gather_uneven(&mut stream, &mine, &first);
    assert_eq!(on_devices.all_gather_uneven(&mut stream, &mine, &second).unwrap(), lengths);
    assert_eq!(pending.wait().unwrap(), lengths);
    let pending = on_devices.start_gather_uneven(&mut stream, &mine, at_root(&third), root);
    assert_eq!(on_devices.gather_uneven(&mut stream, &mine, at_root(&fourth), root).unwrap(), lengths);
    assert_eq!(pending.wait().unwrap(), lengths);
    let pending = on_devices.start_all_to_all_uneven(&mut stream, &deals, &parts[me], &fifth);
    let called = on_devices.all_to_all_uneven(&mut stream, &deals, &parts[me], &sixth);
    assert_eq!((called.unwrap(), pending.wait().unwrap()), (taken.clone(), taken.clone()));

    let mut holds = |what: &str, buffer: &Buffer<T>, expected: &[T]| {
        assert_same(what, &stream.download(buffer).unwrap().wait().unwrap(), expected);
    };
    for (what, buffer) in [("started", &first), ("called", &second)] {
        holds(&format!("all_gather_uneven {what}"), buffer, &all);
    }
    let gathered = if me == root { all.clone() } else { vec![T::default(); all.len()] };
    for (what, buffer) in [("started", &third), ("called", &fourth)] {
        holds(&format!("gather_uneven {what}"), buffer, &gathered);
    }
    for (what, buffer) in [("started", &fifth), ("called", &sixth)] {
        holds(&format!("all_to_all_uneven {what}"), buffer, &expected);
    }

    let first = group.start_all_gather_uneven(inputs[me].clone(), Vec::new());
    let second = group.start_gather_uneven(inputs[me].clone(), vec![T::default(); 3], root);
    let third = group.start_all_to_all_uneven(dealt[me].clone(), &parts[me], Vec::new());
    let (input, output, given) = first.wait().unwrap();
    assert_same("the input", &input, &inputs[me]);
    assert_eq!(given, lengths);
    assert_same("start_all_gather_uneven", &output, &all);
    let (_, output, given) = second.wait().unwrap();
    assert_eq!(given, lengths);
    assert_same("start_gather_uneven", &output, if me == root { &all } else { &[] });
    let (_, output, given) = third.wait().unwrap();
    assert_eq!(given, taken);
    assert_same("start_all_to_all_uneven", &output, &expected);
}

/// One rank's buffer is too short or too long, or is one that only the root may have; the others' are right.
pub fn a_buffer_that_does_not_fit_uneven_blocks_fails_all_ranks(rank: &Rank) {
    for (index, started) in [(0, false), (1, false), (2, false), (3, false), (0, true), (3, true)] {
        let group = group(rank, &format!("misfits {index} {started}"));
        let (me, size) = (group.rank().unwrap(), group.size());
        let wrong = size - 1;
        if size == 1 && index == 2 {
            continue;
        }
        let device = Device::cpu();
        let (on_devices, mut stream) = (group.with_device(&device).unwrap(), device.stream().unwrap());
        let mine = device.buffer_from(&vec![me as u32; me + 1]).unwrap();
        let total = size * (size + 1) / 2;
        let output = |len: usize| device.buffer::<u32>(len).unwrap();
        let error = match index {
            0 | 1 => {
                let len = if me == wrong { [total - 1, total + 1][index] } else { total };
                match started {
                    true => on_devices.start_all_gather_uneven(&mut stream, &mine, &output(len)).wait(),
                    false => on_devices.all_gather_uneven(&mut stream, &mine, &output(len)),
                }
            }
            2 => {
                let output = [0, wrong].contains(&me).then(|| output(total));
                on_devices.gather_uneven(&mut stream, &mine, output.as_ref(), 0)
            }
            _ => {
                // All elements go to the first rank; one rank passes a length that is too long by one.
                let mut lengths = vec![0; size];
                lengths[0] = if me == wrong { me + 2 } else { me + 1 };
                let output = output(if me == 0 { total } else { 0 });
                match started {
                    true => on_devices.start_all_to_all_uneven(&mut stream, &mine, &lengths, &output).wait(),
                    false => on_devices.all_to_all_uneven(&mut stream, &mine, &lengths, &output),
                }
            }
        }
        .unwrap_err();
        if me == wrong {
            assert!(matches!(error, CommError::InvalidArgument { .. }), "{index}: {error}");
        } else {
            assert_eq!(error.ranks(), [wrong], "{index}: {error}");
        }
        assert!(group.barrier().is_err());
    }
}

pub fn lengths_that_do_not_add_up_fail_all_ranks(rank: &Rank) {
    let group = group(rank, "sums");
    let (me, size) = (group.rank().unwrap(), group.size());
    let mut lengths = vec![2; size];
    if me == size - 1 {
        lengths[0] = 1;
    }
    let error = group.all_to_all_uneven(&vec![1u8; 2 * size], &lengths, &mut Vec::new()).unwrap_err();
    assert_eq!(matches!(error, CommError::InvalidArgument { .. }), me == size - 1, "{error}");
    assert!(group.barrier().is_err());
}

/// The lengths that it exchanges must not be taken for a vector of another call.
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
    assert!(matches!(error, CommError::Mismatch { .. }), "{error}");
    assert!(
        error.to_string().contains("exchange of block lengths or buffer sizes before all_gather"),
        "{error}"
    );
}

//! What ranks must agree on, the errors if they do not, and who is in a group.

use std::time::Duration;

use evener_mesh::comm::{CommError, Communicator, Generation, GroupSpec, ReduceOp};

use crate::Rank;

/// Creates a group of all ranks for one test.
fn all(rank: &Rank, name: &str) -> Communicator {
    rank.world.new_group(GroupSpec::new(name, (0..rank.world.size()).collect::<Vec<_>>())).unwrap()
}

fn is_last(rank: &Rank) -> bool {
    rank.world.rank() == rank.world.size() - 1
}

/// Checks that all ranks get an error that names the last one, and that the group is poisoned.
fn all_get_the_error(
    rank: &Rank,
    name: &str,
    says: &str,
    call: impl Fn(&Communicator, bool) -> Result<(), CommError>,
) {
    if rank.world.size() < 3 {
        return;
    }
    let group = all(rank, name);
    group.barrier().unwrap();
    let error = call(&group, is_last(rank)).unwrap_err();
    let CommError::Mismatch { ranks, detail, .. } = &error else { panic!("{name}: {error}") };
    assert_eq!(ranks, &[rank.world.size() - 1], "{error}");
    assert!(detail.contains(says), "{detail:?} does not say {says:?}");
    assert!(matches!(group.barrier(), Err(CommError::Poisoned { .. })));
}

pub fn a_different_collective_is_named(rank: &Rank) {
    let last = rank.world.size() - 1;
    let says = format!("rank {last} called broadcast, others all_reduce");
    for len in [4, 10_000] {
        all_get_the_error(rank, &format!("collective{len}"), &says, |group, odd| {
            let mut data = vec![1.0f32; len];
            if odd { group.broadcast(&mut data, 0) } else { group.all_reduce(&mut data, ReduceOp::Sum) }
        });
    }
    let says = format!("rank {last} called barrier, others all_gather");
    all_get_the_error(rank, "barrier", &says, |group, odd| {
        if odd { group.barrier() } else { group.all_gather(&[1u8; 900], &mut vec![0; 900 * group.size()]) }
    });
}

pub fn a_different_size_type_operation_or_root_is_named(rank: &Rank) {
    let last = rank.world.size() - 1;
    for (index, (odd_len, len)) in
        [(7, 8), (70_000, 80_000), (8, 80_000), (80_000, 8)].into_iter().enumerate()
    {
        let says = format!(
            "rank {last} called all_reduce of {odd_len} f32 by sum, others all_reduce of {len} f32 by sum"
        );
        all_get_the_error(rank, &format!("size{index}"), &says, |group, odd| {
            group.all_reduce(&mut vec![0.0f32; if odd { odd_len } else { len }], ReduceOp::Sum)
        });
    }
    all_get_the_error(rank, "type", "all_reduce of 4 i32", |group, odd| {
        if odd {
            group.all_reduce(&mut [0i32; 4], ReduceOp::Sum)
        } else {
            group.all_reduce(&mut [0u32; 4], ReduceOp::Sum)
        }
    });
    all_get_the_error(rank, "operation", "by max, others", |group, odd| {
        group.all_reduce(&mut [0.0f64; 4], if odd { ReduceOp::Max } else { ReduceOp::Min })
    });
    all_get_the_error(rank, "root", "at root 1, others", |group, odd| {
        group.broadcast(&mut [0.0f64; 4], usize::from(odd))
    });
}

/// Ranks that have made the same small call several times still notice that one of them makes another.
pub fn a_different_call_after_many_equal_ones_is_named(rank: &Rank) {
    type Odd = fn(&Communicator) -> Result<(), CommError>;
    let odd_calls: [(&str, Odd); 7] = [
        ("barrier", |group| group.barrier()),
        ("all_reduce of 63 f32 by sum", |group| group.all_reduce(&mut [1.0f32; 63], ReduceOp::Sum)),
        ("all_reduce of 64 i32 by sum", |group| group.all_reduce(&mut [1i32; 64], ReduceOp::Sum)),
        ("all_reduce of 64 f32 by max", |group| group.all_reduce(&mut [1.0f32; 64], ReduceOp::Max)),
        ("all_reduce of 1000 f32 by sum", |group| group.all_reduce(&mut [1.0f32; 1000], ReduceOp::Sum)),
        ("all_reduce of 500000 f32 by sum", |group| {
            group.all_reduce(&mut vec![1.0f32; 500_000], ReduceOp::Sum)
        }),
        ("broadcast", |group| group.broadcast(&mut [1.0f32; 64], 0)),
    ];
    let size = rank.world.size();
    for (index, (says, odd_call)) in odd_calls.into_iter().enumerate() {
        for odd_is_last in [true, false] {
            let name = format!("after equal calls {index} {odd_is_last}");
            all_get_the_error(rank, &name, says, |group, is_last| {
                for round in 0..5 {
                    let mut data = [(round + rank.world.rank()) as f32; 64];
                    group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
                    let expected = (size * round + size * (size - 1) / 2) as f32;
                    assert!(data.iter().all(|it| *it == expected), "round {round}: {data:?}");
                    // Another call in between changes nothing.
                    if round == 2 {
                        group.barrier().unwrap();
                    }
                }
                if is_last == odd_is_last {
                    odd_call(group)
                } else {
                    group.all_reduce(&mut [1.0f32; 64], ReduceOp::Sum)
                }
            });
        }
    }
}

/// A send and its receive must have the same size and type.
pub fn what_is_received_must_be_what_is_sent(rank: &Rank) {
    if rank.world.size() < 2 || rank.world.rank() > 1 {
        return;
    }
    let pair = rank.world.new_group(GroupSpec::new("exchange", [0, 1])).unwrap();
    let done = if rank.world.rank() == 0 { pair.send(&[1u32; 5], 1) } else { pair.recv(&mut [0u32; 6], 0) };
    let error = done.unwrap_err();
    assert!(error.to_string().contains("recv of 6 u32"), "{error}");
    assert!(error.to_string().contains("send of 5 u32"), "{error}");
}

/// An invalid argument on one rank is an error on all.
pub fn a_wrong_argument_fails_all_ranks(rank: &Rank) {
    type Bad = fn(&Communicator) -> Result<(), CommError>;
    let wrong: [(&str, Bad); 5] = [
        ("root", |group| group.broadcast(&mut [0u8; 4], 99)),
        ("length", |group| group.all_gather(&[0u8; 4], &mut [0; 3])),
        ("weight", |group| group.weighted_all_reduce(&mut [0.0f32; 4], -1.0)),
        ("nan", |group| group.weighted_all_reduce(&mut [0.0f32; 4], f64::NAN)),
        ("self", |group| group.send(&[0u8; 4], group.rank().unwrap())),
    ];
    for (name, wrong) in wrong {
        let group = all(rank, name);
        if is_last(rank) {
            let error = wrong(&group).unwrap_err();
            assert!(matches!(error, CommError::InvalidArgument { .. }), "{name}: {error}");
        } else {
            let error = group.barrier().unwrap_err();
            assert!(matches!(error, CommError::Failed { .. }), "{name}: {error}");
            assert_eq!(error.ranks(), [rank.world.size() - 1]);
        }
    }
}

pub fn a_mean_without_weight_is_an_error_and_keeps_the_data(rank: &Rank) {
    let group = all(rank, "weights");
    for len in [3, 5000] {
        let mut data = vec![1.0f32; len];
        assert!(matches!(group.weighted_all_reduce(&mut data, 0.0), Err(CommError::ZeroWeights { .. })));
        assert_eq!(data, vec![1.0; len]);
        // Only the last rank has a weight; the data of the others is not read.
        data.fill(if is_last(rank) { 7.0 } else { f32::NAN });
        group.weighted_all_reduce(&mut data, if is_last(rank) { 0.5 } else { 0.0 }).unwrap();
        assert_eq!(data, vec![7.0; len]);
    }
}

pub fn only_members_take_part(rank: &Rank) {
    if rank.world.size() < 2 {
        return;
    }
    let group = rank.world.new_group(GroupSpec::new("others", [1])).unwrap();
    let done = group.barrier();
    if rank.world.rank() == 1 {
        done.unwrap();
    } else {
        let error = done.unwrap_err();
        assert!(matches!(error, CommError::NotAMember { .. }));
        assert_eq!(
            error.to_string(),
            format!("group `others` has ranks [1]: rank {} is not in it", rank.world.rank())
        );
    }
}

pub fn groups_that_cannot_be_are_refused(rank: &Rank) {
    let size = rank.world.size();
    let refused = |name: &str, ranks: &[usize], says: &str| {
        let error = rank.world.new_group(GroupSpec::new(name, ranks)).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    };
    refused("empty", &[], "no ranks");
    refused("twice", &[0, 0], "rank 0 is named twice");
    refused("far", &[size], &format!("there is no rank {size}: the world has 0 to {}", size - 1));
    refused("world", &[0], "the name `world` is reserved for the group of all ranks");
}

pub fn derived_groups_inherit_timeout_and_generation(rank: &Rank) {
    let generation = Generation::new(3);
    let ranks: Vec<_> = (0..rank.world.size()).collect();
    let spec =
        GroupSpec::new("parent", ranks.clone()).timeout(Duration::from_secs(17)).generation(&generation);
    let group = rank.world.new_group(spec).unwrap().new_group("child", ranks.clone()).unwrap();
    assert_eq!(group.timeout(), Duration::from_secs(17));
    let group = group.rebuild(&ranks[1..]).unwrap();
    assert_eq!((group.name(), group.timeout(), group.ranks()), ("child", Duration::from_secs(17), &[0][..]));
    if rank.world.rank() == 0 {
        group.barrier().unwrap();
    }
    generation.end();
    assert!(matches!(group.barrier(), Err(CommError::Stale { generation: 3, .. })));
}

pub fn an_exchange_that_fails_is_named_as_it_was_called(rank: &Rank) {
    let ranks: Vec<_> = (0..rank.world.size()).collect();
    let spec = GroupSpec::new("unanswered", ranks).timeout(Duration::from_millis(100));
    let group = rank.world.new_group(spec).unwrap();
    if group.size() > 1 && group.rank() == Some(0) {
        let error = group.recv(&mut [0u8], 1).unwrap_err();
        assert!(matches!(&error, CommError::TimedOut { call, .. } if call == "recv"), "{error}");
    }
    // No rank leaves before: that would be another error.
    rank.world.communicator().barrier().unwrap();
}

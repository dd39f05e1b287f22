//! Communicators of a mesh: of every axis, after a reshape, and without a rank that has left.

use std::time::{Duration, Instant};

use evener_device::DeviceKind;
use evener_mesh::{
    Member, Mesh,
    comm::{CommError, Communicator, ReduceOp},
};

use crate::Rank;

/// Far below the timeout: a notified rank does not wait for it.
const AT_ONCE: Duration = Duration::from_secs(20);

/// Returns a mesh of all ranks, with as many axes as fit.
fn mesh(rank: &Rank) -> Mesh {
    let size = rank.world.size();
    let devices = (0..size).map(|index| Member::new(format!("d{index}"), DeviceKind::Discrete));
    let half = if size.is_multiple_of(2) { 2 } else { 1 };
    let quarter = if size.is_multiple_of(4) { 2 } else { 1 };
    let shape = [("dp", size / half / quarter), ("pp", quarter), ("tp", half)];
    Mesh::new(devices).axes(shape).unwrap()
}

/// Checks that exactly the members of a group sum their values.
fn adds_up(group: &Communicator, rank: &Rank) {
    let mut sum = [1u64 << rank.world.rank()];
    group.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
    assert_eq!(sum, [group.ranks().iter().map(|rank| 1 << rank).sum::<u64>()], "{}", group.name());
}

fn is_stale(group: &Communicator, generation: u64) {
    let mut data = [0u8];
    for done in [group.barrier(), group.all_reduce(&mut data, ReduceOp::Sum)] {
        let error = done.unwrap_err();
        let CommError::Stale { generation: found, .. } = error else { panic!("{error}") };
        assert_eq!(found, generation);
        assert!(error.to_string().contains("which was reshaped since: connect again"), "{error}");
    }
    assert!(matches!(group.new_group("part", group.ranks()), Err(CommError::Stale { .. })));
}

pub fn every_axis_has_a_communicator(rank: &Rank) {
    let (parent, me) = (rank.world.communicator(), rank.world.rank());
    let mut mesh = mesh(rank);
    let even: Vec<_> = (0..rank.world.size()).filter(|rank| rank % 2 == 0).rev().collect();
    mesh.add_group("even", even.clone()).unwrap();
    for axis in ["dp", "pp", "tp"] {
        let expected = mesh.group_of(me, axis).unwrap();
        let group = mesh.connect(parent, axis).unwrap();
        assert_eq!((group.name(), group.ranks()), (expected.name(), expected.ranks().unwrap()));
        assert_eq!(group.rank(), Some(mesh.coordinate(me, axis).unwrap()));
        assert_eq!(group.timeout(), parent.timeout());
        adds_up(&group, rank);
        // The rank set gives the same communicator.
        adds_up(&expected.connect(parent).unwrap(), rank);
    }
    adds_up(&mesh.connect(parent, "world").unwrap(), rank);
    if me % 2 == 0 {
        let group = mesh.connect(parent, "even").unwrap();
        assert_eq!(group.ranks(), even);
        adds_up(&group, rank);
    } else {
        let error = mesh.connect(parent, "even").unwrap_err();
        assert_eq!(error.to_string(), format!("group `even` has ranks {even:?}: rank {me} is not in it"));
    }
    let error = mesh.connect(parent, "ep").unwrap_err();
    assert!(error.to_string().starts_with("there is no group `ep`: this mesh has world"), "{error}");
    if rank.world.size() > 1 {
        let few = Mesh::new([Member::new("d0", DeviceKind::Discrete)]).axes([("dp", 1)]).unwrap();
        let error = few.connect(parent, "dp").unwrap_err();
        assert!(matches!(error, CommError::InvalidGroup { .. }), "{error}");
    }
}

pub fn after_a_reshape_old_groups_fail_and_new_ones_work(rank: &Rank) {
    let (parent, size) = (rank.world.communicator(), rank.world.size());
    let mut mesh = mesh(rank);
    let (dp, tp) = (mesh.connect(parent, "dp").unwrap(), mesh.connect(parent, "tp").unwrap());
    // A mesh on a group of another mesh ends with that.
    let inner = Mesh::new((0..tp.size()).map(|index| Member::new(format!("d{index}"), DeviceKind::Discrete)));
    let inner = inner.axes([("sp", tp.size())]).unwrap();
    let sp = inner.connect(&tp, "sp").unwrap();
    for group in [&dp, &tp, &sp] {
        adds_up(group, rank);
    }
    // Only some ranks connect to this group: groups of the next generation must not match it.
    let own = mesh.add_group("own", 0..size).unwrap();
    let unmet = (rank.world.rank() == 0).then(|| own.connect(parent).unwrap());
    parent.barrier().unwrap();
    let handle = mesh.group("world").unwrap();
    assert!(mesh.reshape([("dp", size + 1)]).is_err());
    adds_up(&tp, rank);
    parent.barrier().unwrap();
    for generation in 1..3 {
        mesh.reshape([("tp", size)]).unwrap();
        is_stale(&dp, 0);
        is_stale(&tp, 0);
        is_stale(&sp, 0);
        unmet.iter().for_each(|group| is_stale(group, 0));
        assert!(matches!(handle.connect(parent), Err(CommError::Stale { generation: 0, .. })));
        mesh.add_group("own", 0..size).unwrap();
        let (all, own) = (mesh.connect(parent, "tp").unwrap(), mesh.connect(parent, "own").unwrap());
        assert_eq!(all.name(), "tp_0");
        adds_up(&all, rank);
        adds_up(&own, rank);
        parent.barrier().unwrap();
        if generation == 2 {
            mesh.reshape([("dp", size)]).unwrap();
            is_stale(&all, 2);
        }
    }
}

pub fn ranks_that_wait_for_one_that_has_reshaped_are_notified(rank: &Rank) {
    let (parent, size) = (rank.world.communicator(), rank.world.size());
    if size < 2 {
        return;
    }
    let mut mesh = mesh(rank);
    let all = mesh.connect(parent, "world").unwrap();
    let second = mesh.connect(parent, "world").unwrap();
    all.barrier().unwrap();
    if rank.world.rank() == size - 1 {
        mesh.reshape([("tp", size)]).unwrap();
    } else {
        let start = Instant::now();
        let error = all.all_reduce(&mut vec![0.0f32; 5000], ReduceOp::Sum).unwrap_err();
        assert!(start.elapsed() < AT_ONCE, "{error}");
        assert_eq!(error.ranks(), [size - 1], "{error}");
        assert!(error.to_string().contains("which was reshaped since"), "{error}");
        // Started calls are notified too.
        let error = second.start_barrier().wait().unwrap_err();
        assert!(start.elapsed() < AT_ONCE, "{error}");
        mesh.reshape([("tp", size)]).unwrap();
    }
    is_stale(&all, 0);
    is_stale(&second, 0);
    adds_up(&mesh.connect(parent, "tp").unwrap(), rank);
}

/// A call in flight when its mesh is reshaped succeeds on all ranks, or fails on all.
pub fn a_reshape_during_a_call_ends_alike_on_all_ranks(rank: &Rank) {
    let (parent, size) = (rank.world.communicator(), rank.world.size());
    let mut mesh = mesh(rank);
    for round in 0..40 {
        let group = mesh.connect(parent, "world").unwrap();
        // The others arrive sometimes before, sometimes after.
        let pause = Duration::from_micros(if round % 2 == 0 { 300 } else { 0 });
        let last = rank.world.rank() == size - 1;
        std::thread::sleep(if last { Duration::ZERO } else { pause });
        let call = group.start_all_reduce(vec![1u32; 2000], ReduceOp::Sum);
        if last {
            std::thread::sleep(Duration::from_micros(round * 10));
            mesh.reshape([("dp", size)]).unwrap();
        }
        let done = call.wait();
        let mut succeeded = vec![0u8; size];
        parent.all_gather(&[u8::from(done.is_ok())], &mut succeeded).unwrap();
        assert!(succeeded.iter().all(|it| *it == succeeded[0]), "{succeeded:?}: {done:?}");
        if !last {
            mesh.reshape([("dp", size)]).unwrap();
        }
        is_stale(&group, round);
    }
}

/// The last rank leaves, and then the first: the others continue, with new ranks in the mesh.
pub fn a_mesh_goes_on_without_ranks_that_are_gone(rank: &Rank) {
    let (size, me) = (rank.world.size(), rank.world.rank());
    if size < 4 {
        return;
    }
    let mut mesh = mesh(rank);
    let all: Vec<_> = (0..size).collect();
    let mut parent = rank.world.communicator().new_group("parent", all).unwrap();
    for (gone, left) in [(size - 1, size - 1), (0, size - 2)] {
        let group = mesh.connect(&parent, "world").unwrap();
        group.barrier().unwrap();
        if me == gone {
            return;
        }
        let error = group.barrier().unwrap_err();
        assert_eq!(error.ranks(), [gone], "{error}");
        let refused = mesh.rebuild(&parent, error.ranks(), [("dp", left + 1)]).unwrap_err();
        assert!(refused.to_string().contains("would be missing"), "{refused}");
        parent = mesh.rebuild(&parent, error.ranks(), [("dp", left), ("tp", 1)]).unwrap();
        assert_eq!(mesh.world_size(), left);
        let (dp, tp) = (mesh.connect(&parent, "dp").unwrap(), mesh.connect(&parent, "tp").unwrap());
        assert!(!dp.ranks().contains(&gone) && dp.ranks().contains(&me));
        let my_rank = parent.rank().unwrap();
        assert_eq!(mesh.member(my_rank).unwrap().id.to_string(), format!("d{me}"));
        adds_up(&dp, rank);
        adds_up(&tp, rank);
        dp.barrier().unwrap();
    }
    // A parent communicator that was a group of the mesh outlives its generation.
    let own = mesh.connect(&parent, "dp").unwrap();
    let parent = mesh.rebuild(&own, &[], [("tp", size - 2)]).unwrap();
    is_stale(&own, 2);
    adds_up(&mesh.connect(&parent, "tp").unwrap(), rank);
    parent.barrier().unwrap();
}

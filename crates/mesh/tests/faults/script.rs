//! A run of ten collectives, in which one rank does something wrong at one step.

use std::time::{Duration, Instant};

use evener_device::DeviceKind;
use evener_mesh::{
    Member, Mesh,
    comm::{CommError, Communicator, GroupSpec, ReduceOp, World},
};

/// How long a call waits for the other ranks.
pub const TIMEOUT: Duration = Duration::from_millis(400);
/// By then every other rank has its error, even on a busy machine.
pub const DEADLINE: Duration = Duration::from_millis(2000);
/// Number of collectives in a run.
pub const STEPS: usize = 10;

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The rank panics.
    Panics,
    /// The rank does nothing for longer than the timeout, and then continues.
    Hangs,
    /// The rank leaves.
    Exits,
    /// The rank passes vectors of another length.
    WrongSize,
    /// The rank calls another collective.
    OtherCollective,
    /// The rank's process is killed, without a leave notice.
    Killed,
}

/// Runs one of the ten collectives, with vectors of any length.
pub fn step(group: &Communicator, step: usize, len: usize) -> Result<(), CommError> {
    let (me, size) = (group.rank().unwrap(), group.size());
    let mut data = vec![1.0f32; len];
    match step {
        0 => group.all_reduce(&mut data, ReduceOp::Sum)?,
        1 => group.broadcast(&mut data, 0)?,
        2 => group.all_gather(&data, &mut vec![0.0; len * size])?,
        3 => group.reduce(&mut data, ReduceOp::Max, size - 1)?,
        4 => group.reduce_scatter(&vec![1.0; len * size], &mut data, ReduceOp::Sum)?,
        5 => group.gather(&data, &mut vec![0.0; if me == 0 { len * size } else { 0 }], 0)?,
        6 => group.scatter(&vec![1.0; if me == 0 { len * size } else { 0 }], &mut data, 0)?,
        7 => group.all_to_all(&vec![1.0; len * size], &mut vec![0.0; len * size])?,
        8 => group.weighted_all_reduce(&mut data, 1.0)?,
        _ => group.barrier()?,
    }
    if step == 0 {
        assert_eq!(data, vec![size as f32; len]);
    }
    Ok(())
}

/// Runs the fault on the faulty rank. Returns whether the rank is still there.
pub fn go_wrong(group: &Communicator, fault: Fault, at: usize, len: usize) -> bool {
    match fault {
        Fault::Panics => panic!("a panic on purpose"),
        Fault::Exits => return false,
        Fault::Killed => {
            let me = std::process::id().to_string();
            std::process::Command::new("kill").args(["-9", &me]).status().unwrap();
            std::thread::sleep(Duration::from_secs(60));
            panic!("still there");
        }
        Fault::Hangs => {
            std::thread::sleep(TIMEOUT * 2);
            step(group, at, len).expect_err("the others have given up");
        }
        // A barrier has no size: there the fault is another collective too.
        Fault::WrongSize if at != 9 => {
            step(group, at, len + 1).expect_err("sizes differ");
        }
        Fault::WrongSize | Fault::OtherCollective => {
            step(group, (at + 1) % STEPS, len).expect_err("collectives differ");
        }
    }
    true
}

/// Runs one rank of a group of all, in which the last rank fails at a step. The others get an error in time, rebuild
/// the group without it, and continue. Returns whether this rank is still there.
pub fn run(world: &World, name: &str, fault: Fault, at: usize, len: usize) -> bool {
    let ranks: Vec<_> = (0..world.size()).collect();
    let wrong = world.size() - 1;
    let group = world.new_group(GroupSpec::new(name, ranks).timeout(TIMEOUT)).unwrap();
    for index in 0..at {
        step(&group, index, len).unwrap();
    }
    if world.rank() == wrong {
        return go_wrong(&group, fault, at, len);
    }
    survive(&group, &format!("{fault:?} at {at} of {len}"), wrong, |group| step(group, at, len));
    true
}

/// Runs every other rank: it gets an error in time that names the faulty rank, and continues without it.
pub fn survive(
    group: &Communicator,
    what: &str,
    wrong: usize,
    call: impl FnOnce(&Communicator) -> Result<(), CommError>,
) {
    let start = Instant::now();
    let Err(error) = call(group) else { panic!("{what}: no error") };
    let took = start.elapsed();
    assert!(took < DEADLINE, "{what}: an error only after {took:?}: {error}");
    assert_eq!(error.ranks(), [wrong], "{what}: {error}");
    assert!(matches!(group.barrier(), Err(CommError::Poisoned { .. })), "{what}: not beyond use");
    group.rebuild(error.ranks()).unwrap().barrier().unwrap();
    // Also rebuilds the mesh, with the remaining devices.
    let devices = (0..group.size()).map(|index| Member::new(format!("d{index}"), DeviceKind::Discrete));
    let mut mesh = Mesh::new(devices).axes([("dp", group.size())]).unwrap();
    let parent = mesh.rebuild(group, error.ranks(), [("dp", group.size() - 1)]).unwrap();
    let rest = mesh.connect(&parent, "dp").unwrap();
    for index in 0..STEPS {
        step(&rest, index, 1000).unwrap_or_else(|error| panic!("{what}: after rebuilding: {error}"));
    }
}

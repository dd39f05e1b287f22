//! Faults: if one rank fails in any way, every other rank gets an error in time, and continues without it.
// Ranks report errors by panicking, and also panic on purpose.
// A process initializes MPI itself, as programs do.
#![allow(unsafe_code)]
#![allow(clippy::panic, clippy::unwrap_used, clippy::expect_used, clippy::print_stderr, unreachable_pub)]

mod over_mpi;
mod random;
mod script;
#[cfg(target_os = "linux")]
mod side_effects;

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex, RwLock,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    task::{Context, Wake, Waker},
    thread,
    time::{Duration, Instant},
};

use evener_device::{Device, DeviceKind, testing::Faults};
use evener_mesh::{
    Member, Mesh,
    comm::{Collective, CommError, Communicator, GroupSpec, PendingCollective, ReduceOp, World},
};
use script::{DEADLINE, Fault, STEPS, TIMEOUT, run, step};

/// Runs a fault at every step, with vectors that are copied and vectors that are lent.
fn at_every_step(fault: Fault, size: usize) {
    for at in 0..STEPS {
        for len in [5, 3000] {
            let ranks: Vec<_> = World::local(size)
                .into_iter()
                .map(|world| thread::spawn(move || run(&world, "run", fault, at, len)))
                .collect();
            for (rank, thread) in ranks.into_iter().enumerate() {
                let joined = thread.join();
                if fault == Fault::Panics && rank == size - 1 {
                    assert!(joined.is_err());
                } else {
                    assert!(joined.is_ok(), "rank {rank}, {fault:?} at {at} of {len}");
                }
            }
        }
    }
}

#[test]
fn a_rank_that_panics_fails_the_others_at_once() {
    let start = Instant::now();
    at_every_step(Fault::Panics, 4);
    // No rank waits for one that has left.
    assert!(start.elapsed() < TIMEOUT * 2 * STEPS as u32, "{:?}", start.elapsed());
}

#[test]
fn a_rank_that_hangs_fails_the_others_in_time_and_itself_when_it_comes() {
    at_every_step(Fault::Hangs, 3);
}

#[test]
fn a_rank_that_exits_fails_the_others() {
    at_every_step(Fault::Exits, 4);
}

#[test]
fn a_wrong_size_fails_all_ranks() {
    at_every_step(Fault::WrongSize, 4);
}

#[test]
fn another_collective_fails_all_ranks() {
    at_every_step(Fault::OtherCollective, 4);
}

/// Runs each rank of a world in a thread.
fn ranks<R: Send + 'static>(size: usize, rank: impl Fn(World) -> R + Send + Clone + 'static) -> Vec<R> {
    let threads: Vec<_> = World::local_with_timeout(size, TIMEOUT)
        .into_iter()
        .map(|world| {
            let rank = rank.clone();
            thread::spawn(move || rank(world))
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

#[test]
fn sending_to_one_that_does_not_receive_ends_in_time() {
    ranks(3, |world| {
        let start = Instant::now();
        let error = match world.rank() {
            0 => world.communicator().send(&[1u8; 2000], 1).unwrap_err(),
            // Waits for the third rank, which makes no call.
            1 => world.communicator().recv(&mut [0u8; 9], 2).unwrap_err(),
            _ => return thread::sleep(TIMEOUT * 2),
        };
        assert!(start.elapsed() < DEADLINE, "{error}");
    });
}

#[test]
fn a_failed_exchange_fails_the_next_call_of_all_ranks() {
    ranks(3, |world| {
        let group = world.communicator();
        match world.rank() {
            0 => drop(group.send(&[1u8; 3], 1).unwrap_err()),
            1 => drop(group.recv(&mut [0u8; 4], 0).unwrap_err()),
            _ => {
                let error = group.barrier().unwrap_err();
                assert!(matches!(error, CommError::Failed { .. }), "{error}");
                assert!(error.to_string().contains("recv of 4 u8"), "{error}");
            }
        }
    });
}

#[test]
fn a_group_that_a_rank_never_joins_fails_in_time() {
    ranks(3, |world| {
        if world.rank() == 2 {
            return;
        }
        let group = world.new_group(GroupSpec::new("late", [0, 1, 2])).unwrap();
        let start = Instant::now();
        let error = group.all_reduce(&mut [1.0f32], ReduceOp::Sum).unwrap_err();
        assert!(start.elapsed() < DEADLINE && error.ranks() == [2], "{error}");
    });
}

#[test]
fn what_was_started_fails_too_and_is_given_back_an_error() {
    ranks(2, |world| {
        let group = world.communicator();
        if world.rank() == 1 {
            return thread::sleep(TIMEOUT * 3);
        }
        let (first, second) = (group.start_barrier(), group.start_all_reduce(vec![1u8; 9000], ReduceOp::Sum));
        assert!(matches!(first.wait(), Err(CommError::TimedOut { .. })));
        assert!(matches!(second.wait(), Err(CommError::Poisoned { .. })));
    });
}

/// A timeout of any length, on host memory and on device buffers.
#[test]
fn the_longest_timeout_is_none() {
    let threads: Vec<_> = World::local_with_timeout(2, Duration::MAX)
        .into_iter()
        .map(|world| {
            thread::spawn(move || {
                // One rank waits long enough to sleep.
                thread::sleep(Duration::from_millis(world.rank() as u64 * 50));
                (0..STEPS).for_each(|index| step(world.communicator(), index, 3000).unwrap());
                let device = evener_device::Device::cpu();
                let (mut stream, buffer) = (device.stream().unwrap(), device.buffer_from(&[1.0f32]).unwrap());
                let group = world.communicator().with_device(&device).unwrap();
                group.all_reduce(&mut stream, &buffer, ReduceOp::Sum).unwrap();
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn poison_reaches_all_ranks() {
    ranks(4, |world| {
        if world.rank() == 3 {
            world.communicator().poison("the loss is no number");
        }
        let error = world.communicator().barrier().unwrap_err();
        assert!(error.to_string().contains("the loss is no number"), "{error}");
    });
}

/// Threads that spin until this is dropped, and preempt the threads of a test.
struct Spinning {
    done: Arc<AtomicBool>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Spinning {
    fn start() -> Self {
        let done = Arc::new(AtomicBool::new(false));
        let spin = |_| {
            let done = done.clone();
            thread::spawn(move || {
                while !done.load(Relaxed) {
                    std::hint::spin_loop();
                }
            })
        };
        Spinning { threads: (0..4).map(spin).collect(), done }
    }
}

impl Drop for Spinning {
    fn drop(&mut self) {
        self.done.store(true, Relaxed);
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
    }
}

/// Runs a call of two ranks many times, and `fail` on another thread of the first rank at some point of it: the call gives
/// the right result on both ranks, or an error on both. Spinning threads preempt the ranks during their share of the work.
/// `prepare` is called on both ranks before.
fn fail_during_a_call<P: Send + 'static>(prepare: fn(&World) -> P, fail: fn(&World, P)) {
    const LEN: usize = 4_000_000;
    fn reduce(world: &World, number: f32) -> Result<usize, CommError> {
        let mut data = vec![number; LEN];
        world.communicator().all_reduce(&mut data, ReduceOp::Sum)?;
        Ok(data.iter().filter(|it| **it != 3.0).count())
    }
    let _spinning = Spinning::start();
    for round in 0..60 {
        let mut worlds = World::local(2).into_iter();
        let (one, other) = (worlds.next().unwrap(), worlds.next().unwrap());
        let other = thread::spawn(move || {
            let prepared = prepare(&other);
            let result = reduce(&other, 2.0);
            drop(prepared);
            result
        });
        let prepared = prepare(&one);
        let result = thread::scope(|scope| {
            let call = scope.spawn(|| reduce(&one, 1.0));
            thread::sleep(Duration::from_millis(round % 20));
            fail(&one, prepared);
            call.join().unwrap()
        });
        let results = [result, other.join().unwrap()];
        let right = results.iter().filter(|it| matches!(it, Ok(0))).count();
        let failed = results.iter().filter(|it| it.is_err()).count();
        assert!(right == 2 || failed == 2, "round {round}, elements that are wrong: {results:?}");
        one.communicator().barrier().unwrap_err();
    }
}

#[test]
fn a_group_poisoned_during_a_call_gives_no_wrong_result() {
    fail_during_a_call(|_| (), |world, ()| world.communicator().poison("on purpose"));
}

/// A device is lost during another thread's call: a started call on its buffers poisons the group.
#[test]
fn a_device_that_fails_during_a_call_on_another_thread_gives_no_wrong_result() {
    let prepare = |world: &World| {
        let (device, faults) = Faults::wrap(&Device::cpu());
        let group = world.communicator().with_device(&device).unwrap();
        let (stream, buffer) = (device.stream().unwrap(), device.buffer_from(&[1.0f32]).unwrap());
        (group, faults, stream, buffer)
    };
    fail_during_a_call(prepare, |_, (group, faults, mut stream, buffer)| {
        faults.destroy();
        let pending = group.start(&mut stream, Collective::AllReduce(ReduceOp::Sum), None, Some(&buffer));
        let error = pending.wait().unwrap_err();
        assert!(matches!(error, CommError::Device { rank: 0, .. }), "{error}");
    });
}

/// A task that owns its future and the last handle of its group. Its waker drops both.
struct OwningTask {
    future: Mutex<Option<PendingCollective<Vec<f32>>>>,
    group: Mutex<Option<Communicator>>,
    dropped: mpsc::Sender<()>,
}

impl Wake for OwningTask {
    fn wake(self: Arc<Self>) {
        drop(self.future.lock().unwrap().take());
        drop(self.group.lock().unwrap().take());
        self.dropped.send(()).unwrap();
    }
}

#[test]
fn a_waker_that_drops_the_last_handle_of_its_group_leaves_the_group_after_its_started_calls() {
    let others = ranks(2, |world| {
        let group = world.new_group(GroupSpec::new("owned", [0, 1]).timeout(TIMEOUT * 50)).unwrap();
        if world.rank() == 1 {
            // By then the other rank waits.
            thread::sleep(Duration::from_millis(50));
            group.all_reduce(&mut [1.0f32], ReduceOp::Sum).unwrap();
            // Started before the group was dropped.
            group.barrier().unwrap();
            let start = Instant::now();
            let error = group.barrier().unwrap_err();
            assert!(matches!(error, CommError::Left { rank: 0, .. }), "{error}");
            assert!(start.elapsed() < TIMEOUT * 10, "{:?}", start.elapsed());
            return;
        }
        let (dropped, has_dropped) = mpsc::channel();
        let mut future = group.start_all_reduce(vec![1.0f32], ReduceOp::Sum);
        drop(group.start_barrier());
        let task = Arc::new(OwningTask { future: Mutex::default(), group: Mutex::new(Some(group)), dropped });
        let waker = Waker::from(task.clone());
        assert!(Pin::new(&mut future).poll(&mut Context::from_waker(&waker)).is_pending());
        *task.future.lock().unwrap() = Some(future);
        has_dropped.recv_timeout(TIMEOUT * 20).expect("the thread did not get past dropping the group");
    });
    assert_eq!(others.len(), 2);
}

/// A thread's wait for another rank does not swallow an `unpark` that was meant for the code around it.
#[test]
fn a_call_that_parks_leaves_the_thread_unparked() {
    ranks(2, |world| {
        if world.rank() == 1 {
            // Long enough that the other rank parks.
            thread::sleep(Duration::from_millis(100));
            return world.communicator().barrier().unwrap();
        }
        thread::current().unpark();
        world.communicator().barrier().unwrap();
        let start = Instant::now();
        thread::park_timeout(Duration::from_secs(10));
        assert!(start.elapsed() < Duration::from_secs(5), "the unpark is lost");
    });
}

#[test]
fn the_result_of_a_started_call_is_taken_once() {
    ranks(1, |world| {
        let group = world.communicator();
        let mut pending = group.start_all_reduce(vec![1u8], ReduceOp::Sum);
        let mut context = Context::from_waker(Waker::noop());
        while Pin::new(&mut pending).poll(&mut context).is_pending() {
            thread::yield_now();
        }
        assert!(matches!(pending.wait(), Err(CommError::ResultTaken { .. })));
        group.barrier().unwrap();
    });
}

/// Ranks that are late at random agree on whether a call succeeded, and no rank accesses memory that is no longer lent:
/// vectors are freed at once.
#[test]
fn late_ranks_and_timeouts_never_disagree() {
    for round in 0..150u64 {
        let timeout = Duration::from_micros(300);
        let threads: Vec<_> = World::local_with_timeout(3, timeout)
            .into_iter()
            .map(|world| {
                thread::spawn(move || {
                    // Around the timeout, so that any rank may time out first.
                    let delay = (round * 37 + world.rank() as u64 * 101) % 450;
                    thread::sleep(Duration::from_micros(delay));
                    let mut data = vec![world.rank() as f32 + 1.0; 20_000];
                    world.communicator().all_reduce(&mut data, ReduceOp::Sum).map(|()| data[19_999])
                })
            })
            .collect();
        let results: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        let succeeded = results.iter().filter(|result| result.is_ok()).count();
        assert!(succeeded == 0 || succeeded == 3, "{results:?}");
        assert!(results.iter().flatten().all(|value| *value == 6.0));
    }
}

/// Threads share a mesh. If one reshapes it, ranks that wait for another are woken at once, and all get the same error.
#[test]
fn a_shared_mesh_that_is_reshaped_wakes_waiting_ranks() {
    let devices = (0..3).map(|index| Member::new(format!("d{index}"), DeviceKind::Discrete));
    let mesh = Arc::new(RwLock::new(Mesh::new(devices).axes([("dp", 3)]).unwrap()));
    let threads: Vec<_> = World::local(3)
        .into_iter()
        .map(|world| {
            let mesh = mesh.clone();
            thread::spawn(move || {
                let connected = mesh.read().unwrap().connect(world.communicator(), "dp").unwrap();
                connected.barrier().unwrap();
                let start = Instant::now();
                if world.rank() == 2 {
                    // The other ranks wait by then.
                    thread::sleep(Duration::from_millis(50));
                    mesh.write().unwrap().reshape([("tp", 3)]).unwrap();
                }
                let error = connected.barrier().unwrap_err();
                assert!(matches!(error, CommError::Stale { generation: 0, .. }), "{error}");
                assert!(start.elapsed() < DEADLINE, "{:?}", start.elapsed());
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

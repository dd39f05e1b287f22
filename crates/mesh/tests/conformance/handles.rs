//! Started calls can be awaited, and on device buffers they follow a stream.

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::Duration,
};

use evener_device::{Buffer, Device, Kernel, Stream};
use evener_mesh::comm::{Collective, CommError, GroupSpec, ReduceOp};

use crate::Rank;

/// Wakes a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// A minimal runtime. It parks until woken, so a waker that is not called makes the test time out.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park_timeout(Duration::from_secs(60)),
        }
    }
}

fn all(rank: &Rank) -> Vec<usize> {
    (0..rank.world.size()).collect()
}

pub fn started_calls_can_be_awaited(rank: &Rank) {
    let group = rank.world.new_group(GroupSpec::new("awaited", all(rank))).unwrap();
    let (me, size) = (group.rank().unwrap(), group.size());
    let start = std::time::Instant::now();
    block_on(async {
        for round in 0..50usize {
            // Sometimes a rank is late, so that the others have to wait for the result.
            if round % 7 == me {
                thread::sleep(Duration::from_millis(2));
            }
            let sum = group.start_all_reduce(vec![(me + round) as u64; 10], ReduceOp::Sum);
            let both = group.start(Collective::AllGather, vec![me as u32], vec![0; size]);
            let expected = (size * round + size * (size - 1) / 2) as u64;
            assert_eq!(sum.await.unwrap(), vec![expected; 10]);
            assert_eq!(both.await.unwrap().1, (0..size as u32).collect::<Vec<_>>());
        }
        // An error can be awaited too.
        assert!(matches!(
            group.start(Collective::Broadcast(size), vec![], vec![1u8]).await,
            Err(CommError::InvalidArgument { .. })
        ));
    });
    assert!(start.elapsed() < Duration::from_secs(55), "a waker was not called");
}

pub fn a_group_with_a_device_outlives_its_other_handles(rank: &Rank) {
    let device = Device::cpu();
    let group = {
        let group = rank.world.new_group(GroupSpec::new("owned", all(rank))).unwrap();
        group.with_device(&device).unwrap()
    };
    // Nothing is borrowed: it can go to another thread.
    let size = rank.world.size();
    let sums = thread::spawn(move || {
        let (mut stream, buffer) = (device.stream().unwrap(), device.buffer_from(&[1u32; 10]).unwrap());
        group.all_reduce(&mut stream, &buffer, ReduceOp::Sum).unwrap();
        stream.download(&buffer).unwrap().wait().unwrap()
    });
    assert_eq!(sums.join().unwrap(), [size as u32; 10]);
}

/// Work queued before a started call runs first, even if it is slow; and started calls run in order.
pub fn started_calls_on_buffers_follow_their_stream(rank: &Rank, device: &Device) {
    let group =
        rank.world.new_group(GroupSpec::new("streams", all(rank))).unwrap().with_device(device).unwrap();
    let (me, size) = (group.communicator().rank().unwrap() as u32, group.communicator().size());
    // One workgroup computes everything, which also takes a GPU some time.
    let kernel = Kernel::new("slow")
        .writes::<u32>()
        .workgroup(64)
        .rust(|launch| {
            thread::sleep(Duration::from_millis(20));
            launch.write::<u32>(0).map(|numbers| numbers.iter_mut().for_each(|it| *it += 1))
        })
        .wgsl(
            "@group(0) @binding(0) var<storage, read_write> numbers: array<u32>;
             @compute @workgroup_size(64)
             fn slow(@builtin(global_invocation_id) id: vec3<u32>) {
                 for (var i = id.x; i < arrayLength(&numbers); i += 64u) { numbers[i] += 1u; }
             }",
        );
    let program = device.compile(&kernel).unwrap();
    let mut stream = device.stream().unwrap();
    for len in [1, 1000, 2_000_003] {
        let (data, gathered) =
            (device.buffer_from(&vec![me; len]).unwrap(), device.buffer(len * size).unwrap());
        stream.launch(&program.bind(&[data.arg()]).unwrap(), 1, &()).unwrap();
        let sum = group.start(&mut stream, Collective::AllReduce(ReduceOp::Sum), None, Some(&data));
        let copies = group.start(&mut stream, Collective::AllGather, Some(&data), Some(&gathered));
        copies.wait().unwrap();
        sum.wait().unwrap();
        let expected = (size * (size + 1) / 2) as u32;
        let found = stream.download(&gathered).unwrap().wait().unwrap();
        assert!(found.iter().all(|it| *it == expected), "{len} elements of {me}: {:?}", &found[..1]);
    }
    // An invalid call is an error of the handle, on every rank.
    let (one, two) = (device.buffer::<u8>(1).unwrap(), device.buffer::<u8>(size + 1).unwrap());
    group.start(&mut stream, Collective::AllGather, Some(&one), Some(&two)).wait().unwrap_err();
    group.start(&mut stream, Collective::Barrier, None, None::<&Buffer<u8>>).wait().unwrap_err();
}

/// Work that is queued in the same stream later runs while the call waits for another rank.
pub fn what_is_queued_after_a_started_call_does_not_wait_for_it(rank: &Rank, device: &Device) {
    let group =
        rank.world.new_group(GroupSpec::new("overlap", all(rank))).unwrap().with_device(device).unwrap();
    let (me, size) = (group.communicator().rank().unwrap(), group.communicator().size());
    let mut stream = device.stream().unwrap();
    let (data, other) = (device.buffer_from(&[1.0f32; 100]).unwrap(), device.buffer::<f32>(1).unwrap());
    let kernel = Kernel::new("compute")
        .writes::<f32>()
        .workgroup(1)
        .rust(|launch| launch.write::<f32>(0).map(|numbers| numbers[0] = 7.0))
        .wgsl(
            "@group(0) @binding(0) var<storage, read_write> numbers: array<f32>;
             @compute @workgroup_size(1)
             fn compute() { numbers[0] = 7.0; }",
        );
    let program = device.compile(&kernel).unwrap();
    let start =
        |stream: &mut Stream| group.start(stream, Collective::AllReduce(ReduceOp::Sum), None, Some(&data));
    if me == size - 1 {
        // The others compute before this rank makes its call, and report it on another group.
        let told = rank.world.new_group(GroupSpec::new("told", all(rank))).unwrap();
        told.barrier().unwrap();
        start(&mut stream).wait().unwrap();
    } else {
        let pending = start(&mut stream);
        stream.launch(&program.bind(&[other.arg()]).unwrap(), 1, &()).unwrap();
        stream.wait_timeout(Duration::from_secs(30)).unwrap();
        assert_eq!(stream.download(&other).unwrap().wait().unwrap(), [7.0]);
        let told = rank.world.new_group(GroupSpec::new("told", all(rank))).unwrap();
        told.barrier().unwrap();
        pending.wait().unwrap();
    }
    assert_eq!(stream.download(&data).unwrap().wait().unwrap(), [size as f32; 100]);
}

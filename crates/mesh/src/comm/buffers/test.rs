use std::time::Duration;

use evener_device::{
    Api, Inventory, Kernel,
    testing::{Fault, Faults, InjectedError},
};
use half::f16;

use super::{pieces::PIECE_BYTES, *};
use crate::comm::{ReduceOp, World};

/// Runs each rank in a thread, with its own device.
fn ranks<R: Send + 'static>(
    devices: Vec<Device>,
    rank: impl Fn(&World, &Device, &mut Stream) -> R + Send + Clone + 'static,
) -> Vec<R> {
    let threads: Vec<_> = World::local(devices.len())
        .into_iter()
        .zip(devices)
        .map(|(world, device)| {
            let rank = rank.clone();
            std::thread::spawn(move || rank(&world, &device, &mut device.stream().unwrap()))
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

/// One rank, which runs collectives on device buffers and in host memory, and compares the results.
struct BufferChecker<'a> {
    group: &'a Communicator,
    device: &'a Device,
    stream: &'a mut Stream,
}

impl BufferChecker<'_> {
    fn upload<T: Element>(&self, elements: &[T]) -> Buffer<T> {
        self.device.buffer_from(elements).unwrap()
    }

    fn assert_same<T: Element>(&mut self, what: &str, found: &Buffer<T>, expected: &[T]) {
        let found = self.stream.download(found).unwrap().wait().unwrap();
        let len = expected.len();
        assert_eq!(found.len(), len, "{what}");
        // Not by `assert_eq`, which would print them all.
        let differs = found.iter().zip(expected).position(|(found, expected)| found != expected);
        assert_eq!(differs, None, "{what} of {len} {}: the first element that differs", T::TYPE);
    }

    /// Checks every collective but the weighted one, with blocks of `len` elements.
    fn every<T: Element>(&mut self, len: usize, number: fn(usize) -> T) {
        let (group, me, size) = (self.group, self.group.rank().unwrap(), self.group.size());
        let root = len % size;
        let mine: Vec<T> = (0..len).map(|index| number(index * 31 + me * 7)).collect();
        let blocks: Vec<T> = (0..len * size).map(|index| number(index * 17 + me * 5)).collect();
        let (device, one, many) = (self.device, self.upload(&mine), self.upload(&blocks));
        let (none, nones) = (vec![T::zeroed(); len], vec![T::zeroed(); len * size]);
        let (into, into_many) = (self.upload(&none), self.upload(&nones));
        let (mut host, mut host_many) = (none.clone(), nones.clone());

        group.all_gather_buffer(device, self.stream, &one, &into_many).unwrap();
        group.all_gather(&mine, &mut host_many).unwrap();
        self.assert_same("all_gather", &into_many, &host_many);

        group.all_to_all_buffer(device, self.stream, &many, &into_many).unwrap();
        group.all_to_all(&blocks, &mut host_many).unwrap();
        self.assert_same("all_to_all", &into_many, &host_many);

        for operation in [ReduceOp::Sum, ReduceOp::Max] {
            group.reduce_scatter_buffer(device, self.stream, &many, &into, operation).unwrap();
            group.reduce_scatter(&blocks, &mut host, operation).unwrap();
            self.assert_same("reduce_scatter", &into, &host);
        }

        let at_root = me == root;
        group.scatter_buffer(device, self.stream, at_root.then_some(&many), &into, root).unwrap();
        group.scatter(if at_root { &blocks } else { &[] }, &mut host, root).unwrap();
        self.assert_same("scatter", &into, &host);

        group.gather_buffer(device, self.stream, &one, at_root.then_some(&into_many), root).unwrap();
        group.gather(&mine, if at_root { &mut host_many } else { &mut [] }, root).unwrap();
        self.assert_same("gather", &into_many, &host_many);

        // Each rank sends to the next, one after another, since each waits for the other's answer.
        let (next, previous) = ((me + 1) % size, (me + size - 1) % size);
        for turn in 0..size {
            if size > 1 && me == turn {
                group.send_buffer(device, self.stream, &one, next).unwrap();
                group.send(&mine, next).unwrap();
            } else if size > 1 && previous == turn {
                group.recv_buffer(device, self.stream, &into, turn).unwrap();
                group.recv(&mut host, turn).unwrap();
            }
        }
        self.assert_same("send and recv", &into, &host);

        let mut data = mine.clone();
        group.reduce_buffer(device, self.stream, &one, ReduceOp::Sum, root).unwrap();
        group.reduce(&mut data, ReduceOp::Sum, root).unwrap();
        self.assert_same("reduce", &one, &data);
        group.all_reduce_buffer(device, self.stream, &one, ReduceOp::Average).unwrap();
        group.all_reduce(&mut data, ReduceOp::Average).unwrap();
        self.assert_same("all_reduce", &one, &data);
        let mut data = mine.clone();
        let one = self.upload(&mine);
        group.broadcast_buffer(device, self.stream, &one, root).unwrap();
        group.broadcast(&mut data, root).unwrap();
        self.assert_same("broadcast", &one, &data);

        // In place, if that is allowed.
        let (mine_of_many, expected) = (me * len..(me + 1) * len, blocks.clone());
        if (len * size_of::<T>()).is_multiple_of(8) {
            let part = many.slice(mine_of_many.clone()).unwrap();
            group.reduce_scatter_buffer(device, self.stream, &many, &part, ReduceOp::Max).unwrap();
            group.reduce_scatter(&blocks, &mut host, ReduceOp::Max).unwrap();
            let expected: Vec<T> = [&expected[..me * len], &host, &expected[(me + 1) * len..]].concat();
            self.assert_same("reduce_scatter in place", &many, &expected);
            group.all_gather_buffer(device, self.stream, &part, &many).unwrap();
            group.all_gather(&host, &mut host_many).unwrap();
            self.assert_same("all_gather in place", &many, &host_many);
        }
    }

    /// Checks blocks of different lengths, some empty, also ones that the device cannot copy one by one.
    fn uneven<T: Element>(&mut self, len: usize, number: fn(usize) -> T) {
        let (group, me, size) = (self.group, self.group.rank().unwrap(), self.group.size());
        let on_devices = group.with_device(self.device).unwrap();
        let length = |from: usize, to: usize| len * ((from * 3 + to * 5) % 4) / 2 + (from + to) % 3;
        let lengths: Vec<usize> = (0..size).map(|to| length(me, to)).collect();
        let blocks: Vec<T> = (0..lengths.iter().sum()).map(|index| number(index * 17 + me * 5)).collect();
        let (mine, root, mut expected) = (&blocks[..lengths[0]], len % size, Vec::new());
        let (one, many) = (self.upload(mine), self.upload(&blocks));

        let given = group.all_gather_uneven(mine, &mut expected).unwrap();
        let into = self.upload(&vec![T::zeroed(); expected.len()]);
        assert_eq!(on_devices.all_gather_uneven(self.stream, &one, &into).unwrap(), given);
        self.assert_same("all_gather_uneven", &into, &expected);

        let into = self.upload(&vec![T::zeroed(); expected.len()]);
        let at_root = (me == root).then_some(&into);
        assert_eq!(on_devices.gather_uneven(self.stream, &one, at_root, root).unwrap(), given);
        if me == root {
            self.assert_same("gather_uneven", &into, &expected);
        }

        let given = group.all_to_all_uneven(&blocks, &lengths, &mut expected).unwrap();
        let into = self.upload(&vec![T::zeroed(); expected.len()]);
        let found = on_devices.all_to_all_uneven(self.stream, &many, &lengths, &into);
        assert_eq!(found.unwrap(), given);
        self.assert_same("all_to_all_uneven", &into, &expected);
    }

    fn weighted(&mut self, len: usize) {
        let me = self.group.rank().unwrap();
        let mut data: Vec<f32> = (0..len).map(|index| (me * 3 + index % 7) as f32).collect();
        let buffer = self.upload(&data);
        self.group.weighted_all_reduce_buffer(self.device, self.stream, &buffer, me as f64 + 0.5).unwrap();
        self.group.weighted_all_reduce(&mut data, me as f64 + 0.5).unwrap();
        self.assert_same("weighted_all_reduce", &buffer, &data);
    }
}

/// Checks every collective with one device per rank against host memory.
fn every_collective_on(devices: Vec<Device>) {
    let long = 2 * PIECE_BYTES / 4 / devices.len();
    ranks(devices, move |world, device, stream| {
        let mut checker = BufferChecker { group: world.communicator(), device, stream };
        // Blocks with and without the copy alignment of all devices.
        for len in [0, 1, 3, 7, 1000, 1001] {
            checker.every::<f32>(len, |index| (index % 4093) as f32 / 8.0);
            checker.every::<f16>(len, |index| f16::from_f32((index % 61) as f32 / 4.0));
            checker.every::<u8>(len, |index| index as u8);
            checker.every::<i64>(len, |index| index as i64 * 0x1_0000_0001);
        }
        for len in [0, 1, 8, 1000] {
            checker.uneven::<f32>(len, |index| (index % 4093) as f32 / 8.0);
            checker.uneven::<u8>(len, |index| index as u8);
        }
        checker.uneven::<f32>(long, |index| (index % 4093) as f32 / 8.0);
        checker.uneven::<u8>(3 * long, |index| index as u8);
        // Several pieces, the last a short one.
        checker.every::<f32>(long + 36, |index| (index % 4093) as f32 / 8.0);
        checker.every::<u8>(3 * long + 17, |index| index as u8);
        checker.weighted(5);
        checker.weighted(2 * PIECE_BYTES / 4 + 17);
    });
}

fn device_of(api: Api) -> Device {
    let inventory = Inventory::discover_all_apis();
    let found = inventory.devices().iter().find(|it| it.describe().api == api);
    found.unwrap_or_else(|| panic!("no {api} device")).clone()
}

#[test]
fn every_collective_gives_what_it_gives_in_host_memory() {
    every_collective_on(vec![Device::cpu()]);
    every_collective_on(vec![Device::cpu(); 3]);
}

#[test]
#[ignore = "needs a Vulkan device"]
fn with_vulkan_every_collective_gives_what_it_gives_in_host_memory() {
    every_collective_on(vec![Device::cpu(), device_of(Api::Vulkan), Device::cpu()]);
    every_collective_on(vec![device_of(Api::Vulkan), device_of(Api::Vulkan)]);
}

#[test]
#[ignore = "needs a CUDA card"]
fn with_card_every_collective_gives_what_it_gives_in_host_memory() {
    every_collective_on(vec![device_of(Api::Cuda), Device::cpu()]);
}

/// A call with a buffer of one block, and two of one block per rank.
type Call = fn(&Communicator, &Device, &mut Stream, &[Buffer<f32>; 3]) -> Result<()>;

fn buffers(device: &Device, len: usize) -> [Buffer<f32>; 3] {
    [len, 2 * len, 2 * len].map(|len| device.buffer(len).unwrap())
}

const CALLS: [(&str, Call); 8] = [
    ("all_reduce", |group, device, stream, [one, ..]| {
        group.all_reduce_buffer(device, stream, one, ReduceOp::Sum)
    }),
    ("broadcast", |group, device, stream, [one, ..]| group.broadcast_buffer(device, stream, one, 0)),
    ("all_gather", |group, device, stream, [one, many, _]| {
        group.all_gather_buffer(device, stream, one, many)
    }),
    ("reduce_scatter", |group, device, stream, [one, many, _]| {
        group.reduce_scatter_buffer(device, stream, many, one, ReduceOp::Sum)
    }),
    ("gather", |group, device, stream, [one, many, _]| {
        group.gather_buffer(device, stream, one, (group.rank() == Some(1)).then_some(many), 1)
    }),
    ("all_gather_uneven", |group, device, stream, [one, many, _]| {
        group.with_device(device)?.all_gather_uneven(stream, one, many).map(drop)
    }),
    ("all_to_all", |group, device, stream, [_, many, other]| {
        group.all_to_all_buffer(device, stream, many, other)
    }),
    ("send and recv", |group, device, stream, [one, ..]| match group.rank() {
        Some(0) => group.send_buffer(device, stream, one, 1),
        _ => group.recv_buffer(device, stream, one, 0),
    }),
];

#[test]
fn a_device_that_fails_is_an_error_on_every_rank() {
    for (name, call) in CALLS {
        // Fails each operation in turn, until the call needs no more.
        let mut succeeded = 0;
        const MOST: u64 = 200;
        for operation in 1..=MOST {
            let results = ranks(vec![Device::cpu(), Device::cpu()], move |world, _, _| {
                let (device, faults) = Faults::wrap(&Device::cpu());
                let buffers = buffers(&device, PIECE_BYTES / 4 + 100);
                let mut stream = device.stream().unwrap();
                if world.rank() == 1 {
                    faults.at(faults.operations() + operation, Fault::Fail(InjectedError::Lost));
                }
                call(world.communicator(), &device, &mut stream, &buffers)
            });
            if results.iter().all(Result::is_ok) {
                succeeded += 1;
                if succeeded == 3 {
                    break;
                }
                continue;
            }
            assert_eq!(succeeded, 0, "{name}: operation {operation} failed after one that was not needed");
            for result in results {
                let error = result.unwrap_err();
                assert_eq!(error.ranks(), [1], "{name}, operation {operation}: {error}");
            }
        }
        assert_eq!(succeeded, 3, "{name} takes more operations than were tried");
    }
}

#[test]
fn buffers_of_different_lengths_fail_on_every_rank() {
    for (name, call) in CALLS {
        let errors = ranks(vec![Device::cpu(), Device::cpu()], move |world, device, stream| {
            call(world.communicator(), device, stream, &buffers(device, 10 + world.rank())).unwrap_err()
        });
        let disagree = errors.iter().filter(|error| matches!(error, CommError::Mismatch { .. })).count();
        // Of two ranks that exchange, one finds the mismatch and notifies the other. Uneven calls need not agree: both
        // outputs are wrong.
        let expected = match name {
            "send and recv" => 1,
            "all_gather_uneven" => 0,
            _ => 2,
        };
        assert_eq!(disagree, expected, "{name}: {errors:?}");
    }
}

#[test]
fn buffers_that_cannot_be_right_fail_on_every_rank() {
    type Wrong = fn(&Communicator, &Device, &mut Stream, &Buffer<u8>) -> Result<()>;
    let wrong: [(&str, Wrong); 5] = [
        ("no output at the root", |group, device, stream, one| {
            group.gather_buffer(device, stream, one, None, 1)
        }),
        ("but only the root 0 has one", |group, device, stream, one| {
            group.scatter_buffer(device, stream, Some(one), one, 0)
        }),
        ("output of 5 elements, but a group of 2 needs 10", |group, device, stream, one| {
            group.all_gather_buffer(device, stream, one, one)
        }),
        ("input of 5 elements, but a group of 2 needs 4", |group, device, stream, one| {
            group.all_to_all_buffer(device, stream, one, one)
        }),
        ("root 7 in a group of 2", |group, device, stream, one| {
            group.broadcast_buffer(device, stream, one, 7)
        }),
    ];
    for (says, wrong) in wrong {
        let errors = ranks(vec![Device::cpu(), Device::cpu()], move |world, device, stream| {
            let one = device.buffer::<u8>(5).unwrap();
            match world.rank() {
                0 => world.communicator().all_reduce_buffer(device, stream, &one, ReduceOp::Sum).unwrap_err(),
                _ => wrong(world.communicator(), device, stream, &one).unwrap_err(),
            }
        });
        assert!(matches!(errors[1], CommError::InvalidArgument { .. }), "{}", errors[1]);
        assert!(errors[1].to_string().contains(says), "{}", errors[1]);
        assert_eq!(errors[0].ranks(), [1], "{}", errors[0]);
    }
}

/// Work queued before runs first, even if this rank downloads nothing: here a slow kernel, and an upload that would
/// overwrite the result.
#[test]
fn what_is_queued_in_the_stream_comes_first() {
    ranks(vec![Device::cpu(), Device::cpu()], |world, device, stream| {
        let slow = Kernel::new("slow").writes::<u32>().rust(|launch| {
            std::thread::sleep(Duration::from_millis(100));
            launch.write::<u32>(0).map(drop)
        });
        let buffer = device.buffer_from(&[world.rank() as u32; 100]).unwrap();
        if world.rank() == 1 {
            let program = device.compile(&slow).unwrap();
            let other = device.buffer::<u32>(1).unwrap();
            stream.launch(&program.bind(&[other.arg()]).unwrap(), 1, &()).unwrap();
            stream.upload(&[9; 100], &buffer).unwrap();
        }
        world.communicator().broadcast_buffer(device, stream, &buffer, 0).unwrap();
        assert_eq!(stream.download(&buffer).unwrap().wait().unwrap(), [0; 100]);
    });
}

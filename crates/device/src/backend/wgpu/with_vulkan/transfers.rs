//! Large downloads on the transfer queue. Mesa's software has only one queue: there they bypass wgpu but use the same
//! queue.

use ash::vk;
use wgpu::{BufferDescriptor, BufferUsages, MapMode};

use super::{
    super::{open, transfer::TransferQueue},
    *,
};

/// Opens a device that uses a transfer queue.
fn open_with_transfers() -> (Device, Arc<OpenDevice>) {
    let source = vulkan();
    let described = Description { id: "vulkan:transfers".into(), ..source.describe().clone() };
    let adapter = adapters(Api::Vulkan).unwrap().into_iter().find(|it| it.get_info().name == described.name);
    let adapter = adapter.unwrap();
    let mut open = open::open_device(&described, &adapter).unwrap();
    if open.transfers.is_none() {
        open.transfers = Some(Arc::new(TransferQueue::new(&adapter, &open.device, None).unwrap()));
    }
    device_of(WgpuBackend::of(open), &described)
}

const LARGE: usize = 1 << 19;

#[test]
#[ignore = "needs a Vulkan device"]
fn large_downloads_of_any_length_arrive() {
    let (device, _) = open_with_transfers();
    let mut stream = device.stream().unwrap();
    for len in [1 << 20, (1 << 20) + 1, (1 << 20) - 1, (3 << 20) + 7, (9 << 20) + 2] {
        let bytes: Vec<u8> = (0..len).map(|i: usize| (i * 7 + i / 251) as u8).collect();
        let buffer = device.buffer_from(&bytes).unwrap();
        assert!(stream.download(&buffer).unwrap().wait().unwrap() == bytes, "{len} bytes");
        let part = buffer.slice(4096..).unwrap();
        assert!(stream.download(&part).unwrap().wait().unwrap() == bytes[4096..], "{len} bytes, in part");
    }
}

#[test]
#[ignore = "needs a Vulkan device"]
fn a_large_download_comes_after_what_was_queued_before_and_before_what_comes_next() {
    let (device, _) = open_with_transfers();
    let input = device.buffer_from(&(0..LARGE as u32).collect::<Vec<_>>()).unwrap();
    let output = device.buffer::<u32>(LARGE).unwrap();
    let bound = device.compile(&affine()).unwrap().bind(&[input.arg(), output.arg()]).unwrap();
    let mut stream = device.stream().unwrap();
    let downloads: Vec<_> = (0..12u32)
        .map(|round| {
            stream.launch(&bound, LARGE as u32 / 64, &[3u32, round]).unwrap();
            stream.download(&output).unwrap()
        })
        .collect();
    for (round, download) in downloads.into_iter().enumerate() {
        let found = download.wait().unwrap();
        let right = |(i, value): (usize, &u32)| *value == i as u32 * 3 + round as u32;
        assert!(found.iter().enumerate().all(right), "round {round}");
    }
}

#[test]
#[ignore = "needs a Vulkan device"]
fn another_stream_that_waits_for_a_download_does_not_overwrite_it() {
    let (device, _) = open_with_transfers();
    let buffer = device.buffer_from(&vec![5u32; LARGE]).unwrap();
    let (mut one, mut other) = (device.stream().unwrap(), device.stream().unwrap());
    for _ in 0..8 {
        launch_long_enough(&device, &mut one);
        one.upload(&vec![5u32; LARGE], &buffer).unwrap();
        let download = one.download(&buffer).unwrap();
        other.wait_event(&one.record_event().unwrap()).unwrap();
        other.zero(&buffer).unwrap();
        other.flush().unwrap();
        assert!(download.wait().unwrap().iter().all(|value| *value == 5));
        assert!(other.download(&buffer).unwrap().wait().unwrap().iter().all(|value| *value == 0));
    }
}

/// Keeps the device busy for some milliseconds.
fn launch_long_enough(device: &Device, stream: &mut Stream) {
    let output = device.buffer::<u32>(64).unwrap();
    let bound = device.compile(&slow()).unwrap().bind(&[output.arg()]).unwrap();
    stream.launch(&bound, 50, &10_000u32).unwrap();
}

#[test]
#[ignore = "needs a Vulkan device"]
fn memory_is_not_reused_before_a_download_from_it_has_finished() {
    let (device, open) = open_with_transfers();
    let (mut stream, mut other) = (device.stream().unwrap(), device.stream().unwrap());
    for round in 1..10u32 {
        let buffer = device.buffer_from(&vec![round; LARGE]).unwrap();
        launch_long_enough(&device, &mut stream);
        let download = stream.download(&buffer).unwrap();
        drop(buffer);
        let next = device.buffer::<u32>(LARGE).unwrap();
        assert!(other.download(&next).unwrap().wait().unwrap().iter().all(|value| *value == 0), "zero");
        assert!(download.wait().unwrap().iter().all(|value| *value == round), "round {round}");
    }
    stream.wait().unwrap();
    assert_eq!(open.cache.usage().in_use_bytes, 0, "all of it comes back");
}

#[test]
#[ignore = "needs a Vulkan device"]
fn new_memory_is_zero_for_a_large_download() {
    let (device, _) = open_with_transfers();
    for _ in 0..3 {
        let buffer = device.buffer::<u32>(LARGE).unwrap();
        let mut stream = device.stream().unwrap();
        assert!(stream.download(&buffer).unwrap().wait().unwrap().iter().all(|value| *value == 0));
        stream.upload(&vec![u32::MAX; LARGE], &buffer).unwrap();
        stream.wait().unwrap();
    }
}

#[test]
#[ignore = "needs a Vulkan device"]
fn threads_download_at_once() {
    let (device, _) = open_with_transfers();
    thread::scope(|scope| {
        for number in 0..4u32 {
            let device = &device;
            scope.spawn(move || {
                let mut stream = device.stream().unwrap();
                let input = device.buffer_from(&vec![number; LARGE]).unwrap();
                let output = device.buffer::<u32>(LARGE).unwrap();
                let bound = device.compile(&affine()).unwrap().bind(&[input.arg(), output.arg()]).unwrap();
                for round in 0..10u32 {
                    stream.launch(&bound, LARGE as u32 / 64, &[1u32, round]).unwrap();
                    let found = stream.download(&output).unwrap().wait().unwrap();
                    assert!(found.iter().all(|value| *value == number + round), "{number}, round {round}");
                }
            });
        }
    });
}

#[test]
#[ignore = "needs a Vulkan device"]
fn a_timeout_passes_and_the_download_still_comes() {
    let (device, _) = open_with_transfers();
    let buffer = device.buffer_from(&vec![9u32; LARGE]).unwrap();
    let mut stream = device.stream().unwrap();
    launch_long(&device, &mut stream);
    let host = device.host_buffer::<u32>(LARGE, Direction::Download).unwrap();
    let transfer = stream.download_host(&buffer, host).unwrap();
    assert!(!transfer.is_done().unwrap());
    let timeout = stream.wait_timeout(Duration::from_millis(1)).unwrap_err();
    assert!(matches!(timeout, Error::TimedOut { .. }), "{timeout}");
    assert!(transfer.wait().unwrap().as_slice().iter().all(|value| *value == 9));
}

#[test]
#[ignore = "needs a Vulkan device"]
fn a_download_of_a_lost_device_is_an_error_and_its_host_memory_stays() {
    let (device, open) = open_with_transfers();
    let buffer = device.buffer_from(&vec![9u32; LARGE]).unwrap();
    let mut stream = device.stream().unwrap();
    let ready = device.host_buffer::<u32>(LARGE, Direction::Download).unwrap();
    let download = stream.download(&buffer).unwrap();
    // Only this test destroys a device, which frees memory that a copy in flight would still write.
    assert_eq!(open.transfers.as_ref().unwrap().wait_for_all(Duration::from_secs(60)), Ok(true));
    lose(&open);
    assert!(matches!(download.wait().unwrap_err(), Error::Lost { .. }));
    assert!(matches!(stream.download(&buffer).unwrap_err(), Error::Lost { .. }));
    assert_eq!(ready.as_slice().len(), LARGE);
}

/// Makes the next download fail with a driver's code.
fn fail_next(open: &OpenDevice, code: vk::Result) {
    *open.transfers.as_ref().unwrap().fault.lock().unwrap() = Some(code);
}

#[test]
#[ignore = "needs a Vulkan device"]
fn a_download_without_memory_for_its_commands_goes_through_wgpus_queue() {
    let (device, open) = open_with_transfers();
    let buffer = device.buffer_from(&vec![7u32; LARGE]).unwrap();
    let mut stream = device.stream().unwrap();
    for code in [vk::Result::ERROR_OUT_OF_DEVICE_MEMORY, vk::Result::ERROR_OUT_OF_HOST_MEMORY] {
        let before = stream.download(&buffer).unwrap();
        fail_next(&open, code);
        let failed = stream.download(&buffer).unwrap();
        assert!(open.transfers.as_ref().unwrap().fault.lock().unwrap().is_none(), "it was tried");
        let after = stream.download(&buffer).unwrap();
        for download in [before, failed, after] {
            assert!(download.wait().unwrap().iter().all(|value| *value == 7), "{code}");
        }
        assert!(!open.failure.is_lost());
    }
}

#[test]
#[ignore = "needs a Vulkan device"]
fn a_lost_transfer_queue_loses_the_device() {
    let (device, open) = open_with_transfers();
    let buffer = device.buffer_from(&vec![7u32; LARGE]).unwrap();
    let mut stream = device.stream().unwrap();
    fail_next(&open, vk::Result::ERROR_DEVICE_LOST);
    assert!(matches!(stream.download(&buffer).unwrap_err(), Error::Lost { .. }));
    assert!(open.failure.is_lost());
}

#[test]
#[ignore = "needs a Vulkan device"]
fn a_submission_that_unwinds_is_counted_and_leaves_no_semaphore_to_the_next() {
    let (device, open) = open_with_transfers();
    let (_, first) = open.submit(None, 0);
    let usage = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
    let descriptor = BufferDescriptor { label: None, size: 4, usage, mapped_at_creation: false };
    // wgpu runs callbacks during a submission, after the driver has accepted it.
    let mapped = open.device.create_buffer(&descriptor);
    mapped.map_async(MapMode::Read, .., |_| panic!("in a callback"));
    assert_eq!(catch_panic(|| open.submit(None, 0)).unwrap_err(), "in a callback");
    assert_eq!(open.submit(None, 0).1, first + 2, "each submission signals a number of its own");
    let buffer = device.buffer_from(&vec![3u32; LARGE]).unwrap();
    let found = device.stream().unwrap().download(&buffer).unwrap().wait().unwrap();
    assert!(found.iter().all(|value| *value == 3));
}

#[test]
#[ignore = "needs a Vulkan device"]
fn threads_download_while_others_submit_allocate_and_drop() {
    let (device, open) = open_with_transfers();
    thread::scope(|scope| {
        for number in 0..3u32 {
            let device = &device;
            scope.spawn(move || {
                for round in 0..12u32 {
                    let mut stream = device.stream().unwrap();
                    let buffer = device.buffer_from(&vec![number + round; LARGE]).unwrap();
                    let waited = stream.download(&buffer).unwrap();
                    // Nothing waits for this download, and its memory is dropped while it may be in flight.
                    drop(stream.download(&buffer).unwrap());
                    drop(buffer);
                    assert!(waited.wait().unwrap().iter().all(|value| *value == number + round));
                }
            });
            scope.spawn(move || {
                let mut stream = device.stream().unwrap();
                let input = device.buffer_from(&vec![number; LARGE]).unwrap();
                let output = device.buffer::<u32>(LARGE).unwrap();
                let bound = device.compile(&affine()).unwrap().bind(&[input.arg(), output.arg()]).unwrap();
                for round in 0..40u32 {
                    stream.launch(&bound, LARGE as u32 / 64, &[1u32, round]).unwrap();
                    let few = stream.download(&output.slice(..100).unwrap()).unwrap().wait().unwrap();
                    assert!(few.iter().all(|value| *value == number + round), "{number}, round {round}");
                }
            });
        }
    });
    let mut stream = device.stream().unwrap();
    stream.wait().unwrap();
    assert_eq!(open.transfers.as_ref().unwrap().wait_for_all(Duration::from_secs(60)), Ok(true));
    assert_eq!(open.cache.usage().in_use_bytes, 0, "all of it comes back");
}

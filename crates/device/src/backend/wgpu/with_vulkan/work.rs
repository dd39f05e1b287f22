//! Work in flight: order, waiting, clocks and loss.

use super::*;

#[test]
#[ignore = "needs a Vulkan device"]
fn kernels_that_share_a_buffer_run_one_after_the_other() {
    let (device, _) = open_vulkan(&vulkan());
    let program = device.compile(&affine()).unwrap();
    let buffers = [device.buffer::<u32>(1000).unwrap(), device.buffer::<u32>(1000).unwrap()];
    let there = program.bind(&[buffers[0].arg(), buffers[1].arg()]).unwrap();
    let back = program.bind(&[buffers[1].arg(), buffers[0].arg()]).unwrap();
    let mut stream = device.stream().unwrap();
    let mut expected = 0u32;
    for turn in 0..101u32 {
        stream.launch(&there, 16, &[3u32, turn]).unwrap();
        stream.launch(&back, 16, &[1u32, 1]).unwrap();
        expected = expected.wrapping_mul(3).wrapping_add(turn).wrapping_add(1);
    }
    assert_eq!(stream.download(&buffers[0]).unwrap().wait().unwrap(), [expected; 1000]);
}

#[test]
#[ignore = "needs a Vulkan device"]
fn a_lost_device_returns_lost_and_nothing_panics() {
    let source = vulkan();
    let (device, open) = open_vulkan(&source);
    let buffer = device.buffer_from(&[1u32; 64]).unwrap();
    let output = device.buffer::<u32>(64).unwrap();
    let bound = device.compile(&affine()).unwrap().bind(&[buffer.arg(), output.arg()]).unwrap();
    let mut stream = device.stream().unwrap();
    let event = stream.record_event().unwrap();
    lose(&open);
    let lost = |outcome: Result<(), Error>| {
        let error = outcome.unwrap_err();
        assert!(matches!(error, Error::Lost { .. }), "{error}");
    };
    lost(stream.launch(&bound, 1, &[1u32, 1]));
    lost(stream.upload(&[1u32], &buffer));
    lost(stream.zero(&buffer));
    lost(stream.copy(&buffer, &output));
    lost(stream.download(&buffer).map(drop));
    lost(stream.timestamp().map(drop));
    lost(stream.record_event().map(drop));
    lost(stream.flush());
    lost(stream.wait());
    lost(stream.wait_timeout(Duration::from_millis(1)));
    lost(event.wait());
    lost(event.is_done().map(drop));
    lost(device.buffer::<u32>(1).map(drop));
    lost(device.host_buffer::<u32>(1, Direction::Upload).map(drop));
    lost(device.compile(&slow()).map(drop));
    lost(device.stream().map(drop));
    drop((device, open, buffer, output, bound, stream, event));
    // The hardware can be opened again.
    assert_eq!(Device::from_source(source).buffer_from(&[1u32; 3]).unwrap().len(), 3);
}

#[test]
#[ignore = "needs a Vulkan device"]
fn a_submission_that_the_device_did_not_accept_does_not_count_as_finished() {
    let (device, open) = open_vulkan(&vulkan());
    let output = device.buffer::<u32>(64).unwrap();
    let bound = device.compile(&slow()).unwrap().bind(&[output.arg()]).unwrap();
    let mut stream = device.stream().unwrap();
    stream.launch(&bound, 1, &1u32).unwrap();
    // Lost, but not noticed yet.
    open.device.destroy();
    let error = stream.wait().unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error}");
}

#[test]
#[ignore = "needs a Vulkan device"]
fn the_clock_of_the_device_goes_forward() {
    let (device, open) = open_vulkan(&vulkan());
    let mut stream = device.stream().unwrap();
    if !open.capabilities.features.contains(Features::TIMESTAMPS) {
        assert!(matches!(stream.timestamp().unwrap_err(), Error::Unsupported { .. }));
        return;
    }
    let started = Instant::now();
    let before = stream.timestamp().unwrap();
    assert!(before.since(&before).is_err(), "nothing has run yet");
    launch_long(&device, &mut stream);
    let after = stream.timestamp().unwrap();
    stream.wait().unwrap();
    let (device_time, host_time) = (after.since(&before).unwrap(), started.elapsed());
    assert!(device_time > Duration::from_micros(100), "{device_time:?}");
    assert!(device_time <= host_time, "{device_time:?} on the device, {host_time:?} on the host");
    // More timestamps than one `TimestampQueries` holds, over several submissions.
    let many: Vec<_> = (0..200).map(|_| stream.timestamp().unwrap()).collect();
    stream.wait().unwrap();
    for pair in many.windows(2) {
        pair[1].since(&pair[0]).unwrap();
    }
}

#[test]
#[ignore = "needs a Vulkan device"]
fn threads_wait_for_their_own_events_at_once() {
    let (device, _) = open_vulkan(&vulkan());
    let output = device.buffer::<u32>(64).unwrap();
    let bound = device.compile(&slow()).unwrap().bind(&[output.arg()]).unwrap();
    let mut stream = device.stream().unwrap();
    stream.launch(&bound, 1, &1u32).unwrap();
    let early = stream.record_event().unwrap();
    launch_long(&device, &mut stream);
    let late = stream.record_event().unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| late.wait());
        // Waiting and submitting work beside the thread that waits for the long kernel.
        early.wait().unwrap();
        let other = device.buffer_uninit::<u32>(64).unwrap();
        let mut second = device.stream().unwrap();
        second.zero(&other).unwrap();
        let third = second.record_event().unwrap();
        third.wait().unwrap();
        waits.join().unwrap().unwrap();
    });
    // An event after a wait for another stream's event is not reached before that one.
    let mut first = device.stream().unwrap();
    let mut second = device.stream().unwrap();
    launch_long(&device, &mut first);
    let event = first.record_event().unwrap();
    second.wait_event(&event).unwrap();
    second.record_event().unwrap().wait().unwrap();
    assert!(event.is_done().unwrap());
}

#[test]
#[ignore = "needs a Vulkan device"]
fn two_threads_share_a_device() {
    let (device, _) = open_vulkan(&vulkan());
    let program = device.compile(&affine()).unwrap();
    thread::scope(|scope| {
        for worker in 0..2u32 {
            let (device, program) = (&device, &program);
            scope.spawn(move || {
                let mut stream = device.stream().unwrap();
                for round in 0..50u32 {
                    let input = device.buffer_from(&vec![round; 777]).unwrap();
                    let output = device.buffer::<u32>(777).unwrap();
                    let bound = program.bind(&[input.arg(), output.arg()]).unwrap();
                    stream.launch(&bound, 13, &[2u32, worker]).unwrap();
                    let got = stream.download(&output).unwrap().wait().unwrap();
                    assert_eq!(got, vec![2 * round + worker; 777]);
                }
            });
        }
    });
}

#[test]
#[ignore = "needs a Vulkan device"]
fn dropping_everything_with_work_in_flight_does_not_block() {
    let (device, open) = open_vulkan(&vulkan());
    let weak = Arc::downgrade(&open);
    drop(open);
    let mut stream = device.stream().unwrap();
    launch_long(&device, &mut stream);
    let output = device.buffer::<u32>(64).unwrap();
    let download = stream.download(&output).unwrap();
    let started = Instant::now();
    drop((download, stream, output, device));
    let took = started.elapsed();
    assert!(weak.upgrade().is_none(), "nothing keeps it open");
    assert!(took < Duration::from_millis(200), "{took:?}");
}

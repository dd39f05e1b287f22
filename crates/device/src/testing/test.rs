use std::time::{Duration, Instant};

use super::*;
use crate::Kernel;

fn sum_on(device: &Device) -> Result<u32> {
    let kernel = Kernel::new("sum").reads::<u32>().writes::<u32>().rust(|launch| {
        std::thread::sleep(Duration::from_millis(5));
        launch.write::<u32>(1)?[0] = launch.read::<u32>(0)?.iter().sum();
        Ok(())
    });
    let program = device.compile(&kernel)?;
    let input = device.buffer_from(&[1u32, 2, 3, 4])?;
    let output = device.buffer::<u32>(1)?;
    let mut stream = device.stream()?;
    stream.launch(&program.bind(&[input.arg(), output.arg()])?, 1, &())?;
    let result = stream.download(&output)?.wait_timeout(Duration::from_millis(200))?[0];
    stream.wait_timeout(Duration::from_millis(200))?;
    Ok(result)
}

#[test]
fn a_wrapped_device_without_faults_works_as_the_original_one() {
    let (device, faults) = Faults::wrap(&Device::cpu());
    assert_eq!(sum_on(&device).unwrap(), 10);
    assert!(faults.operations() > 8);
}

#[test]
fn every_operation_can_fail_with_every_error() {
    let (device, faults) = Faults::wrap(&Device::cpu());
    sum_on(&device).unwrap();
    for n in 1..=faults.operations() {
        for failure in InjectedError::ALL {
            let (device, faults) = Faults::wrap(&Device::cpu());
            faults.at(n, Fault::Fail(failure));
            let error = sum_on(&device).unwrap_err();
            let wanted = failure.error(device.id(), "");
            assert_eq!(std::mem::discriminant(&error), std::mem::discriminant(&wanted), "{n}: {error}");
            let after = sum_on(&device);
            let stays_lost = failure == InjectedError::Lost && n > 1;
            assert_eq!(after.is_err(), stays_lost, "only a device lost after it was opened stays lost");
            assert_eq!(sum_on(&device.reopened()).unwrap(), 10);
        }
    }
}

#[test]
fn a_hung_device_times_out_and_goes_on_when_released() {
    let (device, faults) = Faults::wrap(&Device::cpu());
    let mut stream = device.stream().unwrap();
    faults.at_next(Fault::Hang);
    let event = stream.record_event().unwrap();
    assert!(!event.is_done().unwrap());
    assert!(matches!(event.wait_timeout(Duration::from_millis(20)), Err(Error::TimedOut { .. })));
    faults.release();
    event.wait_timeout(Duration::from_secs(5)).unwrap();
}

#[test]
fn a_fault_is_injected_into_the_next_operation_while_other_threads_use_the_device() {
    let (device, faults) = Faults::wrap(&Device::cpu());
    device.buffer::<u8>(1).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let failed = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !stop.load(SeqCst) {
                    failed.fetch_add(u64::from(device.buffer::<u8>(1).is_err()), SeqCst);
                }
            });
        }
        for round in 0..2_000 {
            faults.at_next(Fault::Fail(InjectedError::Task));
            let start = Instant::now();
            while failed.load(SeqCst) == round {
                if start.elapsed() > Duration::from_secs(10) {
                    stop.store(true, SeqCst);
                    panic!("fault {round} never happened");
                }
                std::thread::yield_now();
            }
        }
        stop.store(true, SeqCst);
    });
    assert_eq!(failed.load(SeqCst), 2_000);
}

#[test]
fn killing_a_hung_device_wakes_waiting_threads() {
    let (device, faults) = Faults::wrap(&Device::cpu());
    let mut stream = device.stream().unwrap();
    faults.at_next(Fault::Hang);
    let event = stream.record_event().unwrap();
    let waiting = std::thread::spawn(move || event.wait());
    std::thread::sleep(Duration::from_millis(20));
    faults.kill();
    assert!(matches!(waiting.join().unwrap(), Err(Error::Lost { .. })));
}

#[test]
fn a_corrupted_download_differs_in_one_bit() {
    let (device, faults) = Faults::wrap(&Device::cpu());
    let sent = [7u8; 100];
    let buffer = device.buffer_from(&sent).unwrap();
    faults.at_next(Fault::Corrupt);
    let received = device.stream().unwrap().download(&buffer).unwrap().wait().unwrap();
    let flipped: u32 = sent.iter().zip(&received).map(|(a, b)| (a ^ b).count_ones()).sum();
    assert_eq!(flipped, 1);
    assert_eq!(device.stream().unwrap().download(&buffer).unwrap().wait().unwrap(), sent, "once only");
}

#[test]
fn a_slowed_device_takes_the_factor_longer() {
    let (device, faults) = Faults::wrap(&Device::cpu());
    let time = |device: &Device| {
        let kernel = Kernel::new("sleep").rust(|_| {
            std::thread::sleep(Duration::from_millis(20));
            Ok(())
        });
        let bound = device.compile(&kernel).unwrap().bind(&[]).unwrap();
        let mut stream = device.stream().unwrap();
        let start = Instant::now();
        stream.launch(&bound, 1, &()).unwrap();
        stream.launch(&bound, 1, &()).unwrap();
        stream.wait().unwrap();
        start.elapsed()
    };
    // Each takes at least its two sleeps of 20 ms, and any amount more on a busy machine.
    let plain = (0..5).map(|_| time(&device)).min().unwrap();
    faults.slow_down(4.0);
    let slowed = (0..3).map(|_| time(&device)).min().unwrap();
    assert!(slowed >= 4 * Duration::from_millis(40), "{plain:?} became {slowed:?}");
    assert!(slowed > 2 * plain, "{plain:?} became {slowed:?}");
}

#[test]
fn a_destroyed_device_fails_however_often_it_is_opened() {
    let (device, faults) = Faults::wrap(&Device::cpu());
    sum_on(&device).unwrap();
    faults.destroy();
    for device in [device.clone(), device.reopened(), device.reopened().reopened()] {
        assert!(matches!(sum_on(&device), Err(Error::Lost { .. })));
    }
}

#[test]
fn a_slowed_device_is_as_slow_whatever_the_order_of_waits() {
    let (device, faults) = Faults::wrap(&Device::cpu());
    faults.slow_down(40.0);
    let kernel = Kernel::new("sleep").rust(|_| {
        std::thread::sleep(Duration::from_millis(5));
        Ok(())
    });
    let bound = device.compile(&kernel).unwrap().bind(&[]).unwrap();
    let mut stream = device.stream().unwrap();
    let start = Instant::now();
    stream.launch(&bound, 1, &()).unwrap();
    let first = stream.record_event().unwrap();
    let second = stream.record_event().unwrap();
    second.wait().unwrap();
    let once = start.elapsed();
    assert!(once >= Duration::from_millis(200), "{once:?}");
    first.wait().unwrap();
    assert!(start.elapsed() < once + Duration::from_secs(2), "it was slowed down twice");
}

#[test]
fn a_wait_accepts_the_longest_duration() {
    let (device, _faults) = Faults::wrap(&Device::cpu());
    let buffer = device.buffer_from(&[1u32, 2, 3]).unwrap();
    let mut stream = device.stream().unwrap();
    let found = stream.download(&buffer).unwrap().wait_timeout(Duration::MAX).unwrap();
    assert_eq!(found, [1, 2, 3]);
    stream.record_event().unwrap().wait_timeout(Duration::MAX).unwrap();
    stream.wait_timeout(Duration::MAX).unwrap();
}

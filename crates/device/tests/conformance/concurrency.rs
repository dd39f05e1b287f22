//! Streams run beside each other and beside the host, and dropping objects early is safe.

use std::time::{Duration, Instant};

use evener_device::{Device, Direction};

use crate::{Behaviour, Outcome, ensure, sources};

pub(crate) const ALL: &[Behaviour] = &[
    ("a_stream_waits_for_an_event_of_another", events),
    ("the_host_goes_on_while_the_device_works", asynchronous),
    ("chunks_that_alternate_between_streams_come_out_right", pipelined),
    ("two_threads_share_a_device", two_threads),
    ("what_is_dropped_in_flight_does_no_harm", dropped),
];

fn events(device: &Device) -> Outcome {
    let data = device.buffer_from(&[3u32])?;
    let copy = device.buffer::<u32>(1)?;
    let bound = device.compile(&sources::spin())?.bind(&[data.arg()])?;
    let (mut first, mut second) = (device.stream()?, device.stream()?);
    for round in 1..=20u32 {
        first.launch(&bound, 1, &1_000u32)?;
        let computed = first.record_event()?;
        second.wait_event(&computed)?;
        second.copy(&data, &copy)?;
        let copied = second.record_event()?;
        first.wait_event(&copied)?;
        let (found, expected) = (second.download(&copy)?.wait()?[0], sources::spun(3, 1_000 * round));
        ensure!(found == expected, "round {round}: {expected} expected, {found} found");
    }
    Ok(())
}

fn asynchronous(device: &Device) -> Outcome {
    let data = device.buffer_from(&[1u32])?;
    let target = device.buffer::<u8>(1 << 20)?;
    let bound = device.compile(&sources::spin())?.bind(&[data.arg()])?;
    let mut stream = device.stream()?;
    stream.launch(&bound, 1, &10u32)?;
    stream.wait()?;
    let host = device.host_buffer::<u8>(1 << 20, Direction::Upload)?;
    let start = Instant::now();
    for _ in 0..10 {
        stream.launch(&bound, 1, &sources::MAX_ROUNDS)?;
    }
    let upload = stream.upload_host(host, &target)?;
    stream.flush()?;
    let queued = start.elapsed();
    upload.wait()?;
    let done = start.elapsed();
    ensure!(queued < done / 2, "queueing took {queued:?} of {done:?}");
    Ok(())
}

fn pipelined(device: &Device) -> Outcome {
    const CHUNK: usize = 50_000;
    let program = device.compile(&sources::triple())?;
    let mut lanes = Vec::new();
    for _ in 0..2 {
        let (input, output) = (device.buffer_uninit::<u32>(CHUNK)?, device.buffer_uninit::<u32>(CHUNK)?);
        let bound = program.bind(&[input.arg(), output.arg()])?;
        lanes.push((device.stream()?, input, output, bound));
    }
    let mut downloads = Vec::new();
    for chunk in 0..16u32 {
        let (stream, input, output, bound) = &mut lanes[chunk as usize % 2];
        let numbers: Vec<u32> = (0..CHUNK as u32).map(|i| i + chunk * 1_000_003).collect();
        stream.upload(&numbers, input)?;
        stream.launch(bound, 100, &[CHUNK as u32, chunk])?;
        downloads.push(stream.download(output)?);
    }
    for (chunk, download) in (0u32..).zip(downloads) {
        let found = download.wait()?;
        let wrong = (0u32..)
            .zip(&found)
            .find(|&(i, &found)| found != (i + chunk * 1_000_003).wrapping_mul(3).wrapping_add(chunk));
        ensure!(wrong.is_none(), "chunk {chunk}: {wrong:?}");
    }
    Ok(())
}

fn two_threads(device: &Device) -> Outcome {
    let work = |seed: u32| -> Outcome {
        let mut stream = device.stream()?;
        for round in 0..25u32 {
            let len = 1_000 + round as usize;
            let numbers: Vec<u32> = (0..len as u32).map(|i| i ^ seed).collect();
            let (input, output) = (device.buffer_from(&numbers)?, device.buffer::<u32>(len)?);
            let bound = device.compile(&sources::triple())?.bind(&[input.arg(), output.arg()])?;
            stream.launch(&bound, 4, &[len as u32, seed])?;
            let found = stream.download(&output)?.wait()?;
            let right = numbers.iter().zip(&found).all(|(n, f)| *f == n.wrapping_mul(3).wrapping_add(seed));
            ensure!(right && found.len() == len, "seed {seed}, round {round} differs");
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = [17u32, 4242].map(|seed| scope.spawn(move || work(seed))).into_iter().collect();
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(outcome) => outcome,
            Err(_) => Err("a thread panicked".into()),
        })
    })
}

fn dropped(device: &Device) -> Outcome {
    for round in 0..10u32 {
        let start = Instant::now();
        let data = device.buffer_from(&[round])?;
        let bound = device.compile(&sources::spin())?.bind(&[data.arg()])?;
        let mut stream = device.stream()?;
        stream.launch(&bound, 1, &sources::MAX_ROUNDS)?;
        let download = stream.download(&data)?;
        let host = device.host_buffer::<u32>(1, Direction::Upload)?;
        let upload = stream.upload_host(host, &data)?;
        drop((data, bound, upload, download, stream));
        // A new buffer must not get memory that a dropped object still uses.
        let fresh = device.buffer::<u32>(1)?;
        let found = device.stream()?.download(&fresh)?.wait()?;
        ensure!(found == [0], "a new buffer holds {found:?}");
        ensure!(start.elapsed() < Duration::from_secs(20), "dropping took {:?}", start.elapsed());
    }
    Ok(())
}

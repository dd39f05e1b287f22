//! Bytes that are copied to a device and back are unchanged.

use std::fmt::Debug;

use bytemuck::Pod;
use evener_device::{Device, Direction, Error, copy_parallel};

use crate::{Behaviour, Outcome, ensure, ensure_error};

pub(crate) const ALL: &[Behaviour] = &[
    ("every_type_and_odd_size_comes_back", every_type_and_odd_size),
    ("host_memory_comes_back_and_can_be_used_again", host_memory),
    ("shared_host_memory_is_uploaded_in_parts_by_several_streams", shared_host_memory),
    ("elements_are_uploaded_through_staging_memory_in_pieces", staged),
    ("a_large_download_is_not_changed_by_later_operations", large_downloads),
    ("a_long_download_uses_a_bounded_amount_of_pinned_memory", bounded_download),
    ("parts_of_buffers_are_copied_and_zeroed_alone", parts),
    ("slices_of_one_buffer_that_do_not_overlap_are_copied_to_each_other", within),
    ("buffers_are_filled_with_elements_of_any_size", fills),
    ("buffers_over_four_gibibytes_keep_their_bytes", over_four_gibibytes),
];

fn every_type_and_odd_size(device: &Device) -> Outcome {
    round_trips::<u8>(device, |i| i as u8)?;
    round_trips::<i8>(device, |i| i as i8)?;
    round_trips::<u16>(device, |i| i as u16)?;
    round_trips::<i16>(device, |i| i as i16)?;
    round_trips::<u32>(device, |i| i as u32 ^ 0xDEAD_BEEF)?;
    round_trips::<i32>(device, |i| -(i as i32))?;
    round_trips::<u64>(device, |i| (i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15))?;
    round_trips::<i64>(device, |i| i64::MIN + i as i64)?;
    round_trips::<f32>(device, |i| i as f32 * 0.1)?;
    round_trips::<f64>(device, |i| 1.0 / (1.0 + i as f64))?;
    round_trips::<[u8; 32]>(device, |i| [i as u8; 32])?;
    round_trips::<[u64; 4]>(device, |i| [i as u64, !0, 0, i as u64 + 1])
}

fn round_trips<T: Pod + PartialEq + Debug>(device: &Device, element: impl Fn(usize) -> T) -> Outcome {
    // The last length is copied in several pieces of staging memory.
    for len in [0, 1, 3, 251, 65_537, (9 << 20) / size_of::<T>() + 1] {
        let sent: Vec<T> = (0..len).map(&element).collect();
        let buffer = device.buffer_from(&sent)?;
        ensure!(buffer.len() == len, "{len} elements became {}", buffer.len());
        let received = device.stream()?.download(&buffer)?.wait()?;
        let name = std::any::type_name::<T>();
        ensure!(received.len() == len, "{len} of {name} became {}", received.len());
        if let Some(at) = (0..len).find(|&at| sent[at] != received[at]) {
            return Err(format!("{name} {at} of {len}: {:?} became {:?}", sent[at], received[at]).into());
        }
    }
    Ok(())
}

fn within(device: &Device) -> Outcome {
    let sent: Vec<u32> = (0..4096).collect();
    let buffer = device.buffer_from(&sent)?;
    let mut stream = device.stream()?;
    stream.copy(&buffer.slice(..1024)?, &buffer.slice(1024..)?)?;
    stream.copy(&buffer.slice(3072..)?, &buffer.slice(2048..3072)?)?;
    let found = stream.download(&buffer)?.wait()?;
    let expected: Vec<u32> = (0..1024).chain(0..1024).chain(3072..4096).chain(3072..4096).collect();
    ensure!(found == expected, "copies within a buffer gave {:?}", &found[1020..1028]);
    let text =
        ensure_error!(Error::Unsupported { .. }, stream.copy(&buffer.slice(..1028)?, &buffer.slice(1024..)?));
    ensure!(text.contains("overlap"), "{text}");
    ensure_error!(Error::Unsupported { .. }, stream.copy(&buffer, &buffer));
    Ok(())
}

fn fills(device: &Device) -> Outcome {
    filled(device, 0xA5u8, 0)?;
    filled(device, 0xBEEFu16, 0)?;
    filled(device, 0x0101_0101u32, 0)?;
    filled(device, 0xDEAD_BEEFu32, 0)?;
    filled(device, u64::MAX / 3, 7)?;
    filled(device, [1u32, 2, 3], [0; 3])?;
    filled(device, [0u64, 1, 2, u64::MAX], [9; 4])
}

fn filled<T: Pod + PartialEq + Debug>(device: &Device, element: T, other: T) -> Outcome {
    let mut stream = device.stream()?;
    for len in [0, 1, 4, 1001, (9 << 20) / size_of::<T>() + 1] {
        let buffer = device.buffer_from(&vec![other; len])?;
        stream.fill(&buffer, element)?;
        let found = stream.download(&buffer)?.wait()?;
        ensure!(found == vec![element; len], "{len} of {element:?}");
        // A slice of it, and nothing around the slice.
        if len > 1000 {
            stream.fill(&buffer, other)?;
            stream.fill(&buffer.slice(64..512)?, element)?;
            let found = stream.download(&buffer)?.wait()?;
            let is_right =
                |(at, found): (usize, &T)| *found == if (64..512).contains(&at) { element } else { other };
            ensure!(found.iter().enumerate().all(is_right), "a part of {len} of {element:?}");
        }
    }
    Ok(())
}

fn bounded_download(device: &Device) -> Outcome {
    // Not a multiple of a piece.
    const LEN: usize = (150 << 20) / 8 + 3;
    let sent: Vec<u64> = (0..LEN as u64).map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect();
    let buffer = device.buffer_from(&sent)?;
    device.trim();
    let mut stream = device.stream()?;
    let download = stream.download(&buffer)?;
    let memory = device.memory();
    let pinned = memory.pinned_bytes + memory.pinned_cached_bytes;
    ensure!(pinned <= 80 << 20, "{pinned} bytes pinned for {}", buffer.bytes());
    // Later operations do not change what is downloaded.
    stream.zero(&buffer)?;
    ensure!(download.wait()? == sent, "other elements came back");
    stream.upload(&sent, &buffer)?;
    let mut found = vec![0; LEN];
    stream.download(&buffer)?.wait_into(&mut found)?;
    ensure!(found == sent, "other elements came back into a slice");
    let short = stream.download(&buffer)?.wait_into(&mut found[1..]);
    ensure_error!(Error::Unsupported { .. }, short);
    Ok(())
}

fn staged(device: &Device) -> Outcome {
    // Several pieces and one more element.
    const LEN: usize = (9 << 20) / 4 + 1;
    let numbers: Vec<u32> = (0..LEN as u32).map(|i| i.wrapping_mul(0x9E37_79B9)).collect();
    let (mut stream, buffer) = (device.stream()?, device.buffer::<u32>(LEN)?);
    let mut staging = device.staging_buffer::<u32>(LEN)?;
    for count in [LEN, 0, 1, 1 << 20, (1 << 20) + 4, LEN] {
        stream.zero(&buffer)?;
        let mut pieces = Vec::new();
        let upload = stream.upload_staged(staging, count, &buffer, |_, piece, memory| {
            copy_parallel(&numbers[piece.clone()], memory);
            pieces.push(piece);
            Ok(())
        })?;
        staging = upload.wait()?;
        ensure!(staging.len() == LEN, "the staging memory comes back whole");
        let joined = pieces.iter().try_fold(0, |end, piece| (piece.start == end).then_some(piece.end));
        ensure!(joined == Some(count), "{count} elements in pieces {pieces:?}");
        let found = stream.download(&buffer)?.wait()?;
        ensure!(found[..count] == numbers[..count], "{count} elements are not the same");
        ensure!(found[count..].iter().all(|it| *it == 0), "more than {count} elements were written");
    }
    let too_many = stream.upload_staged(staging, LEN + 1, &buffer, |_, _, _| Ok(()));
    ensure_error!(Error::Unsupported { .. }, too_many);
    let failed = stream.upload_staged(device.staging_buffer(LEN)?, LEN, &buffer, |_, piece, _| {
        if piece.start == 0 { Ok(()) } else { Err(Error::Ended) }
    });
    ensure_error!(Error::Ended, failed);
    // The pieces that were copied before the error neither block nor affect later operations.
    stream.upload(&numbers, &buffer)?;
    ensure!(stream.download(&buffer)?.wait()? == numbers, "after a piece that failed");
    Ok(())
}

fn large_downloads(device: &Device) -> Outcome {
    const LEN: usize = 3 << 20;
    let (mut stream, mut other) = (device.stream()?, device.stream()?);
    let buffer = device.buffer::<u8>(LEN)?;
    let mut downloads = Vec::new();
    for round in 1..=8u8 {
        stream.upload(&vec![round; LEN], &buffer)?;
        downloads.push((round, stream.download(&buffer)?));
        if round % 2 == 0 {
            // Another stream overwrites the buffer after it has waited for the download.
            other.wait_event(&stream.record_event()?)?;
            other.zero(&buffer)?;
            stream.wait_event(&other.record_event()?)?;
        }
    }
    for round in 9..=12u8 {
        // Memory that is dropped during a download and allocated again at once.
        let short_lived = device.buffer_from(&vec![round; LEN])?;
        downloads.push((round, stream.download(&short_lived)?));
        drop(short_lived);
        let next = device.buffer::<u8>(LEN)?;
        other.upload(&vec![0xFF; LEN / 2], &next)?;
        other.flush()?;
    }
    for (round, download) in downloads {
        let found = download.wait()?;
        ensure!(found.len() == LEN, "{} bytes of {LEN}", found.len());
        let wrong = found.iter().position(|byte| *byte != round);
        ensure!(wrong.is_none(), "download {round}: byte {wrong:?} was changed");
    }
    Ok(())
}

fn shared_host_memory(device: &Device) -> Outcome {
    const LEN: usize = 1 << 16;
    let mut host = device.host_buffer::<u32>(LEN, Direction::Upload)?;
    host.as_mut_slice().iter_mut().zip(0..).for_each(|(element, index)| *element = index);
    let shared = host.share();
    let mut parts = Vec::new();
    for range in [0..LEN / 2, LEN / 4..LEN, LEN - 1..LEN, 5..5] {
        let (mut stream, buffer) = (device.stream()?, device.buffer::<u32>(range.len())?);
        stream.upload_shared(&shared, range.clone(), &buffer)?;
        parts.push((stream, buffer, range));
    }
    ensure!(shared.as_slice()[LEN - 1] == LEN as u32 - 1, "what is shared can be read meanwhile");
    // The copies in flight keep the memory alive.
    drop(shared.clone());
    for (mut stream, buffer, range) in parts {
        let received = stream.download(&buffer)?.wait()?;
        let sent: Vec<u32> = (range.start as u32..range.end as u32).collect();
        ensure!(received == sent, "elements {range:?} became others");
    }
    let buffer = device.buffer::<u32>(2)?;
    let mut stream = device.stream()?;
    let part = shared.slice(100..200).ok_or("a part of what is shared")?;
    stream.upload_shared(&part, 10..12, &buffer)?;
    ensure!(stream.download(&buffer)?.wait()? == [110, 111], "a part of a part became another");
    ensure!(part.slice(99..101).is_none(), "a part reaches past the end");
    let past = device.stream()?.upload_shared(&shared, LEN - 1..LEN + 1, &buffer);
    ensure_error!(Error::Unsupported { .. }, past);
    Ok(())
}

fn host_memory(device: &Device) -> Outcome {
    for len in [0usize, 1, 1021, 1 << 20] {
        let mut up = device.host_buffer::<u8>(len, Direction::Upload)?;
        let mut down = device.host_buffer::<u8>(len, Direction::Download)?;
        ensure!(up.as_slice().len() == len, "{len} bytes became {}", up.as_slice().len());
        let buffer = device.buffer::<u8>(len)?;
        let mut stream = device.stream()?;
        for round in 0..3u8 {
            for (index, byte) in up.as_mut_slice().iter_mut().enumerate() {
                *byte = (index as u8).wrapping_mul(7).wrapping_add(round);
            }
            let sent = up.as_slice().to_vec();
            up = stream.upload_host(up, &buffer)?.wait()?;
            down = stream.download_host(&buffer, down)?.wait()?;
            ensure!(down.as_slice() == sent, "{len} bytes differ in round {round}");
            ensure!(up.as_slice() == sent, "upload memory of {len} bytes changed in round {round}");
        }
    }
    Ok(())
}

fn parts(device: &Device) -> Outcome {
    let mut stream = device.stream()?;
    let mut expected: Vec<u32> = (0..10_000).collect();
    let buffer = device.buffer_from(&expected)?;
    stream.upload(&[7u32; 13], &buffer.slice(101..114)?)?;
    expected[101..114].fill(7);
    stream.zero(&buffer.slice(5_000..5_003)?)?;
    expected[5_000..5_003].fill(0);
    let other = device.buffer::<u32>(20)?;
    stream.copy(&buffer.slice(100..110)?, &other.slice(5..)?)?;
    let whole = stream.download(&buffer)?;
    let part = stream.download(&other)?;
    let middle = stream.download(&buffer.slice(110..=114)?)?;
    ensure!(whole.wait()? == expected, "the whole buffer differs");
    let mut copied = vec![0; 20];
    copied[5..15].copy_from_slice(&expected[100..110]);
    ensure!(part.wait()? == copied, "the copied part differs");
    ensure!(middle.wait()? == expected[110..=114], "the downloaded part differs");

    let mut there = [0; 20];
    stream.download(&other)?.wait_into(&mut there)?;
    ensure!(there[..] == copied, "the part that was copied into a slice differs");
    ensure_error!(Error::Unsupported { .. }, stream.download(&other)?.wait_into(&mut there[1..]));

    let wide = buffer.cast::<[u32; 4]>()?;
    ensure!(wide.len() == 2_500, "10,000 words are {} units of four", wide.len());
    ensure_error!(Error::Unsupported { .. }, buffer.slice(9_999..10_001));
    ensure_error!(Error::Unsupported { .. }, buffer.slice(1..3)?.cast::<[u32; 4]>());
    ensure_error!(Error::Unsupported { .. }, stream.upload(&[0; 21], &other));
    Ok(())
}

fn over_four_gibibytes(device: &Device) -> Outcome {
    const PIECE: usize = 64 << 20;
    let len = (4usize << 30) + 12_345;
    let has = device.capabilities()?;
    if has.max_buffer_bytes < len as u64 {
        let text = ensure_error!(Error::OutOfMemory { .. }, device.buffer_uninit::<u8>(len));
        eprintln!("{}: 4 GiB refused, as the largest buffer is {} bytes", device.id(), has.max_buffer_bytes);
        ensure!(text.contains(&len.to_string()), "the size asked for is not in: {text}");
        return Ok(());
    }
    let buffer = match device.buffer_uninit::<u8>(len) {
        Ok(buffer) => buffer,
        // A refusal must be justified by the free memory.
        Err(Error::OutOfMemory { available: Some(available), .. }) if available < len as u64 => {
            eprintln!("{}: 4 GiB refused, as {available} bytes are free", device.id());
            return Ok(());
        }
        Err(why) => return Err(why.into()),
    };
    // Each piece differs from every other one in its first bytes, and from its neighbours in all bytes.
    let mut piece = vec![0u8; PIECE];
    for (index, byte) in piece.iter_mut().enumerate() {
        *byte = (index % 251) as u8;
    }
    let mut stream = device.stream()?;
    for (index, start) in (0..len).step_by(PIECE).enumerate() {
        let part = buffer.slice(start..len.min(start + PIECE))?;
        piece[..8].copy_from_slice(&(index as u64).to_le_bytes());
        stream.upload(&piece[..part.len()], &part)?;
    }
    for (index, start) in (0..len).step_by(PIECE).enumerate() {
        let part = buffer.slice(start..len.min(start + PIECE))?;
        piece[..8].copy_from_slice(&(index as u64).to_le_bytes());
        let received = stream.download(&part)?.wait()?;
        ensure!(received == piece[..part.len()], "piece {index} at byte {start} differs");
    }
    drop(buffer);
    device.trim();
    Ok(())
}

use evener_device::{Buffer, Inventory, Stream};

use super::*;
use crate::comm::{Element, ReduceOp, World};

fn card(id: &str, api: &str, card: &str, version: &str) -> MemberDevice {
    let [id, api, card, nccl_version, why_no_nccl] = [id, api, card, version, "no NCCL"].map(str::to_owned);
    MemberDevice { id, api, card, nccl_version, why_no_nccl }
}

#[test]
fn a_members_device_survives_encoding_and_a_long_reason_is_cut() {
    let device = card("cuda:0", "cuda", "host/GPU-1", "2.21.5");
    assert_eq!(MemberDevice::decode(&device.encode()), device);
    let long = MemberDevice { why_no_nccl: "ü".repeat(DEVICE_BYTES), ..device.clone() };
    let decoded = MemberDevice::decode(&long.encode());
    assert!(long.why_no_nccl.starts_with(decoded.why_no_nccl.trim_end_matches('\u{fffd}')), "{decoded:?}");
    assert_eq!(MemberDevice { why_no_nccl: "no NCCL".into(), ..decoded }, device);
}

#[test]
fn nccl_is_used_between_different_cards_that_all_have_it() {
    let cards = [card("cuda:0", "cuda", "a", "2.21.5"), card("cuda:1", "cuda", "b", "2.21.5")];
    assert_eq!(why_not_nccl(&cards, &[4, 7]), None);
    let same = [cards[0].clone(), cards[0].clone()];
    assert_eq!(why_not_nccl(&same, &[4, 7]).unwrap(), "ranks 4 and 7 are on the same card");
    let without = [cards[0].clone(), card("cuda:1", "cuda", "b", "")];
    assert_eq!(why_not_nccl(&without, &[4, 7]).unwrap(), "rank 7 has no NCCL");
    let unlike = [cards[0].clone(), card("vulkan:0", "vulkan", "b", "")];
    assert_eq!(why_not_nccl(&unlike, &[4, 7]).unwrap(), "rank 7 is on vulkan:0, which is not CUDA");
}

#[test]
#[ignore = "needs a CUDA card with NCCL"]
fn with_card_nccl_reduces_on_the_card() {
    let inventory = Inventory::discover_all_apis();
    let card = inventory.devices().iter().find(|it| it.describe().api == Api::Cuda).expect("no CUDA device");
    let world = World::local(1).remove(0);
    let group = world.communicator().with_device(card).unwrap();
    assert!(group.backend().starts_with("nccl 2."), "{}", group.backend());
    let mut stream = card.stream().unwrap();
    fn check<T: Element>(group: &DeviceCommunicator, card: &Device, stream: &mut Stream, numbers: &[T]) {
        let buffer = card.buffer_from(numbers).unwrap();
        for operation in ReduceOp::ALL {
            group.all_reduce(stream, &buffer, operation).unwrap();
            group.reduce(stream, &buffer, operation, 0).unwrap();
        }
        group.broadcast(stream, &buffer, 0).unwrap();
        assert_eq!(stream.download(&buffer).unwrap().wait().unwrap(), numbers);
        // With one rank, each collective returns its own input.
        type Way<T> = fn(&DeviceCommunicator, &mut Stream, &Buffer<T>, &Buffer<T>) -> Result<()>;
        let ways: [Way<T>; 7] = [
            |group, stream, from, to| group.all_gather(stream, from, to),
            |group, stream, from, to| group.reduce_scatter(stream, from, to, ReduceOp::Sum),
            |group, stream, from, to| group.gather(stream, from, Some(to), 0),
            |group, stream, from, to| group.scatter(stream, Some(from), to, 0),
            |group, stream, from, to| group.all_to_all(stream, from, to),
            |group, stream, from, to| group.all_gather_uneven(stream, from, to).map(drop),
            |group, stream, from, to| group.all_to_all_uneven(stream, from, &[from.len()], to).map(drop),
        ];
        for way in ways {
            let output = card.buffer(numbers.len()).unwrap();
            way(group, stream, &buffer, &output).unwrap();
            assert_eq!(stream.download(&output).unwrap().wait().unwrap(), numbers);
        }
    }
    for len in [0, 1, 7, 1024, 1_000_003] {
        check(&group, card, &mut stream, &(0..len).map(|it| it as f32).collect::<Vec<_>>());
        check(&group, card, &mut stream, &(0..len).map(|it| it as f64).collect::<Vec<_>>());
        check(
            &group,
            card,
            &mut stream,
            &(0..len).map(|it| half::f16::from_f32(it as f32)).collect::<Vec<_>>(),
        );
        check(
            &group,
            card,
            &mut stream,
            &(0..len).map(|it| half::bf16::from_f32(it as f32)).collect::<Vec<_>>(),
        );
        check(&group, card, &mut stream, &(0..len).collect::<Vec<_>>());
        check(&group, card, &mut stream, &(0..len).map(|it| it as i64).collect::<Vec<_>>());
        check(&group, card, &mut stream, &(0..len).map(|it| it as u8).collect::<Vec<_>>());
        check(&group, card, &mut stream, &(0..len).map(|it| it as u32).collect::<Vec<_>>());
        check(&group, card, &mut stream, &(0..len).map(|it| it as u64).collect::<Vec<_>>());
    }
    let weighted = card.buffer_from(&[3.0f64]).unwrap();
    group.weighted_all_reduce(&mut stream, &weighted, 2.0).unwrap();
}

/// Without a card all buffers go through the host, which other tests check: here, that every collective exists.
#[test]
fn every_collective_of_a_group_with_devices_is_there() {
    let threads: Vec<_> = World::local(2)
        .into_iter()
        .map(|world| {
            std::thread::spawn(move || {
                let device = Device::cpu();
                let (mut stream, me) = (device.stream().unwrap(), world.rank());
                let group = world.communicator().with_device(&device).unwrap();
                let there = |elements: &[u32]| device.buffer_from(elements).unwrap();
                let (mine, gathered, both) = (there(&[me as u32 + 1]), there(&[0; 2]), there(&[0; 2]));
                let at_root = me == 0;
                let holds = |what: &str, stream: &mut Stream, buffer: &Buffer<u32>, expected: &[u32]| {
                    let found = stream.download(buffer).unwrap().wait().unwrap();
                    assert_eq!(found, expected, "{what} on rank {me}");
                };
                group.all_gather(&mut stream, &mine, &gathered).unwrap();
                holds("all_gather", &mut stream, &gathered, &[1, 2]);
                group.all_to_all(&mut stream, &gathered, &both).unwrap();
                holds("all_to_all", &mut stream, &both, &[me as u32 + 1; 2]);
                group.reduce_scatter(&mut stream, &both, &mine, ReduceOp::Sum).unwrap();
                holds("reduce_scatter", &mut stream, &mine, &[3]);
                group.scatter(&mut stream, at_root.then_some(&there(&[5, 6])), &mine, 0).unwrap();
                holds("scatter", &mut stream, &mine, &[5 + me as u32]);
                group.gather(&mut stream, &mine, at_root.then_some(&both), 0).unwrap();
                holds("gather", &mut stream, &both, if at_root { &[5, 6] } else { &[2, 2] });
                group.broadcast(&mut stream, &both, 1).unwrap();
                holds("broadcast", &mut stream, &both, &[2, 2]);
                group.reduce(&mut stream, &mine, ReduceOp::Product, 1).unwrap();
                holds("reduce", &mut stream, &mine, &[if at_root { 5 } else { 30 }]);
                group.all_reduce(&mut stream, &mine, ReduceOp::Max).unwrap();
                holds("all_reduce", &mut stream, &mine, &[30]);
                let sent = there(&[7]);
                match at_root {
                    true => group.send(&mut stream, &sent, 1).unwrap(),
                    false => group.recv(&mut stream, &mine, 0).unwrap(),
                }
                holds("send and recv", &mut stream, &mine, &[if at_root { 30 } else { 7 }]);
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

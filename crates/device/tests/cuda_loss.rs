//! The loss of a card, and opening it again. One test in a process of its own: a fault in a kernel breaks the card's
//! context for the whole process.

#![allow(unsafe_code)]

use evener_device::{Direction, Error, Inventory, Kernel};

#[test]
#[ignore = "needs a CUDA device"]
fn a_card_that_a_kernel_broke_is_lost_and_works_again_when_reopened() {
    let inventory = Inventory::discover_all_apis();
    let found = inventory.devices().iter().find(|device| device.id().as_str() == "cuda:0");
    let device = found.expect("no CUDA device");
    let store = Kernel::new("store").writes::<u64>().params::<u64>().workgroup(1);
    // SAFETY: the kernel breaks the promise on purpose, at an address without memory: the card stops the store.
    let store = unsafe {
        store.cuda(
            r#"extern "C" __global__ void store(unsigned long long *out, unsigned long long where) {
                *(where ? (unsigned long long *)where : out) = 42;
            }"#,
        )
    };
    let program = device.compile(&store).unwrap();
    let parts = device.split(&[40, 40]).unwrap();
    let buffer = device.buffer::<u64>(1).unwrap();
    let host = device.host_buffer::<u64>(1000, Direction::Download).unwrap();
    let part_buffer = parts.first().map(|part| part.buffer_from(&[1u32; 100]).unwrap());
    let mut stream = device.stream().unwrap();
    let bound = program.bind(&[buffer.arg()]).unwrap();
    stream.launch(&bound, 1, &0u64).unwrap();
    assert_eq!(stream.download(&buffer).unwrap().wait().unwrap(), [42]);

    stream.launch(&bound, 1, &0xdead_0000_0000u64).unwrap();
    let error = stream.wait().unwrap_err();
    println!("{error}");
    assert!(matches!(error, Error::Lost { .. }), "{error}");
    assert!(matches!(stream.launch(&bound, 1, &0u64), Err(Error::Lost { .. })));
    assert!(matches!(device.buffer::<u64>(1), Err(Error::Lost { .. })), "the whole handle is lost");

    // The driver decides whether a process can use the card again. Those of 2026 do not allow it: opening then fails at
    // once with the same error and advice.
    let again = device.reopened();
    if let Err(error) = again.open() {
        assert!(matches!(&error, Error::Lost { detail, .. } if detail.contains("restart it")), "{error}");
        assert!(host.as_slice().iter().all(|&value| value == 0), "host memory is still there to be read");
        for part in &parts {
            assert!(matches!(part.reopened().open(), Err(Error::Lost { .. })));
        }
        return;
    }
    let program = again.compile(&store).unwrap();
    let new = again.buffer::<u64>(1).unwrap();
    let mut new_stream = again.stream().unwrap();
    new_stream.launch(&program.bind(&[new.arg()]).unwrap(), 1, &0u64).unwrap();
    assert_eq!(new_stream.download(&new).unwrap().wait().unwrap(), [42]);

    // The rest of the old handle neither works nor harms the new one.
    assert!(matches!(stream.launch(&bound, 1, &0u64), Err(Error::Lost { .. })));
    assert!(new_stream.zero(&buffer).is_err(), "memory of the lost context");
    assert!(host.as_slice().iter().all(|&value| value == 0), "host memory is still there to be read");
    drop((host, stream, bound, buffer, part_buffer));
    for part in &parts {
        let part = part.reopened();
        let buffer = part.buffer_from(&[7u32; 1000]).unwrap();
        assert_eq!(part.stream().unwrap().download(&buffer).unwrap().wait().unwrap(), [7; 1000]);
    }
    new_stream.zero(&new).unwrap();
    assert_eq!(new_stream.download(&new).unwrap().wait().unwrap(), [0]);
}

//! Tests with a fake NCCL, `fake.c`, on top of the device crate's fake CUDA driver. The C compiler that also links
//! builds it.

use std::process::Command;

use evener_device::{Api, Device, Error, Inventory};
use libloading::os::unix::Library;

use super::*;
use crate::comm::CollectiveKind;

/// Set in the process that loads the fake library.
const INSIDE: &str = "EVENER_TEST_INSIDE";

/// Runs a test again in a process that loads the fake library. Returns `None` in that process.
fn in_another_process(test: &str) -> Option<()> {
    if std::env::var_os(INSIDE).is_some() {
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let (source, driver) = (folder.path().join("fake.c"), folder.path().join("libcuda.so.1"));
    let stand_in = include_str!("../../../../device/src/backend/cuda/fake_driver/driver.c");
    let text = ["#define cuStreamQuery stand_in_stream_query\n", stand_in, include_str!("fake.c")].concat();
    std::fs::write(&source, text).unwrap();
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&driver, &source]).status();
    assert!(compiled.unwrap().success());
    // One file, so that both libraries share their contexts.
    for name in ["libnccl.so.2", "libcuda.so"] {
        std::os::unix::fs::symlink(&driver, folder.path().join(name)).unwrap();
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "--nocapture", &format!("backend::nccl::test::{test}")]);
    command.env(INSIDE, "1").env("LD_LIBRARY_PATH", folder.path()).env_remove("EVENER_NCCL");
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    Some(())
}

fn ask(function: &[u8]) -> usize {
    // SAFETY: the library is loaded already, and its functions take no arguments and return a pointer or a number.
    unsafe {
        let library = Library::new("libcuda.so.1").unwrap();
        let asked = library.get::<unsafe extern "C" fn() -> usize>(function).unwrap();
        asked()
    }
}

/// Returns the processor time of this thread.
#[cfg(target_os = "linux")]
fn busy_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(stat.split(' ').next().unwrap().parse().unwrap())
}

const PROGRAMS_CONTEXT: usize = 0xCAFE;
const SUM: Collective = Collective::AllReduce(ReduceOp::Sum);

fn operands() -> Operands<'static> {
    let signature = Signature {
        kind: CollectiveKind::AllReduce,
        element: CollectiveDType::F32,
        operation: Some(ReduceOp::Sum),
        root: None,
        count: 4,
        before: None,
    };
    Operands { input: 64, output: 64, signature, blocks: Blocks::of(&signature, &[], 1) }
}

fn card() -> Device {
    let inventory = Inventory::discover_all_apis();
    let card = inventory.devices().iter().find(|device| device.describe().api == Api::Cuda);
    card.expect("the stand-in has a card").clone()
}

fn join(card: &Device, timeout: Duration) -> NcclComm {
    let context = card.buffer::<u8>(256).unwrap().cuda_context().unwrap();
    NcclComm::join([0; ID_BYTES], 1, 0, context, timeout).unwrap()
}

#[test]
#[cfg(target_os = "linux")]
fn any_timeout_will_do_and_waiting_sleeps() {
    let None = in_another_process("any_timeout_will_do_and_waiting_sleeps") else { return };
    let card = card();
    let busy = busy_time();
    join(&card, Duration::MAX).run(SUM, operands(), Duration::MAX).unwrap();
    let busy = busy_time() - busy;
    // Of three waits of 200 ms.
    assert!(busy < Duration::from_millis(200), "busy for {busy:?}");
}

#[test]
fn the_context_of_the_program_stays_current() {
    let None = in_another_process("the_context_of_the_program_stays_current") else { return };
    let card = card();
    let mut joined = join(&card, Duration::from_secs(10));
    assert_eq!(ask(b"fake_current"), PROGRAMS_CONTEXT);
    let late = joined.run(SUM, operands(), Duration::from_millis(300)).unwrap_err();
    assert!(late.contains("did not end"), "{late}");
    assert_eq!((ask(b"fake_current"), ask(b"fake_aborted")), (PROGRAMS_CONTEXT, 1));
    drop(join(&card, Duration::from_secs(10)));
    assert_eq!((ask(b"fake_current"), ask(b"fake_aborted")), (PROGRAMS_CONTEXT, 2));
    assert_eq!(ask(b"fake_astray"), 0, "NCCL is called with the card's context current");
}

#[test]
fn nothing_of_nccl_reaches_a_lost_card() {
    let None = in_another_process("nothing_of_nccl_reaches_a_lost_card") else { return };
    let card = card();
    let mut joined = join(&card, Duration::from_secs(10));
    ask(b"fake_fault");
    assert!(
        matches!(card.buffer::<u8>(1 << 20), Err(Error::Lost { .. })),
        "one of Evener's own calls finds it"
    );
    let lost = joined.run(SUM, operands(), Duration::from_secs(10)).unwrap_err();
    assert!(lost.contains("lost"), "{lost}");
    drop(joined);
    assert_eq!(ask(b"fake_aborted"), 0, "the communicator is left to the driver");
    assert_eq!(ask(b"fake_current"), PROGRAMS_CONTEXT);
}

#[test]
fn a_loss_that_nccl_finds_is_the_devices() {
    let None = in_another_process("a_loss_that_nccl_finds_is_the_devices") else { return };
    let card = card();
    let mut joined = join(&card, Duration::from_secs(10));
    ask(b"fake_fault");
    joined.run(SUM, operands(), Duration::from_secs(10)).unwrap_err();
    assert!(matches!(card.buffer::<u8>(1 << 20), Err(Error::Lost { .. })));
}

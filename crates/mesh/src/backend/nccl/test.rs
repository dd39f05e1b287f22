//! With a library that stands in for NCCL and for the CUDA driver: `fake.c`, which the C compiler makes that also links.

use std::process::Command;

use libloading::os::unix::Library;

use super::*;

/// Set in the process that finds the library.
const INSIDE: &str = "EVENER_TEST_INSIDE";

/// Runs a test of this program again in a process that finds the library. Nothing where this is that process.
fn in_another_process(test: &str) -> Option<()> {
    if std::env::var_os(INSIDE).is_some() {
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let (source, driver) = (folder.path().join("fake.c"), folder.path().join("libcuda.so.1"));
    std::fs::write(&source, include_str!("fake.c")).unwrap();
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&driver, &source]).status();
    assert!(compiled.unwrap().success());
    // One file: both see the same contexts.
    std::os::unix::fs::symlink(&driver, folder.path().join("libnccl.so.2")).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "--nocapture", &format!("backend::nccl::test::{test}")]);
    command.env(INSIDE, "1").env("LD_LIBRARY_PATH", folder.path()).env_remove("EVENER_NCCL");
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    Some(())
}

fn ask(function: &[u8]) -> usize {
    // SAFETY: the library that is loaded already, whose functions take nothing and give a pointer or a number.
    unsafe {
        let library = Library::new("libcuda.so.1").unwrap();
        let asked = library.get::<unsafe extern "C" fn() -> usize>(function).unwrap();
        asked()
    }
}

/// How long this thread has had a core.
#[cfg(target_os = "linux")]
fn busy_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(stat.split(' ').next().unwrap().parse().unwrap())
}

const PROGRAMS_CONTEXT: usize = 0xCAFE;
const OPERANDS: Operands = Operands { input: 64, output: 64, count: 4, element: ElementType::F32 };

fn join(timeout: Duration) -> Communicator {
    Communicator::join([0; ID_BYTES], 1, 0, 64, timeout).unwrap()
}

#[test]
#[cfg(target_os = "linux")]
fn any_timeout_will_do_and_waiting_sleeps() {
    let None = in_another_process("any_timeout_will_do_and_waiting_sleeps") else { return };
    let busy = busy_time();
    join(Duration::MAX).run(Work::AllReduce(Operation::Sum), OPERANDS, Duration::MAX).unwrap();
    let busy = busy_time() - busy;
    // Of three waits of 200 ms.
    assert!(busy < Duration::from_millis(200), "busy for {busy:?}");
}

#[test]
fn the_context_of_the_program_stays_current() {
    let None = in_another_process("the_context_of_the_program_stays_current") else { return };
    let mut joined = join(Duration::from_secs(10));
    assert_eq!(ask(b"fake_current"), PROGRAMS_CONTEXT);
    let late = joined.run(Work::AllReduce(Operation::Sum), OPERANDS, Duration::from_millis(300)).unwrap_err();
    assert!(late.contains("did not end"), "{late}");
    assert_eq!((ask(b"fake_current"), ask(b"fake_aborted") as c_int), (PROGRAMS_CONTEXT, 1));
    drop(join(Duration::from_secs(10)));
    assert_eq!((ask(b"fake_current"), ask(b"fake_aborted") as c_int), (PROGRAMS_CONTEXT, 2));
}

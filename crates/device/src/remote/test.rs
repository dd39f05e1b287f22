//! Faults and fuzzing, with a worker on a thread of this process.
// In the crate that declares the slice, the section of a `kernel_fn!` counts as unsafe code.
#![allow(unsafe_code)]

use std::{
    io::{self, PipeReader, PipeWriter, Read, Write, pipe},
    sync::{
        Arc, Condvar, Mutex, Once,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use proptest::prelude::*;

use super::{
    frame::{FrameReader, FrameWriter, MAX_MESSAGE, MAX_PAYLOAD, encode},
    message::*,
    outbox::Outbox,
    *,
};
use crate::{Device, Error, Inventory, Kernel, Result, kernel_fn};

kernel_fn! {
    /// Adds a number to each element.
    fn add(number: u32) -> Kernel {
        Kernel::new("add").writes::<u32>().rust(move |launch| {
            launch.write::<u32>(0)?.iter_mut().for_each(|element| *element = element.wrapping_add(number));
            Ok(())
        })
    }
}

kernel_fn! {
    /// Adds the first of many parameters to the first element.
    fn add_parameter() -> Kernel {
        Kernel::new("add_parameter").writes::<u32>().params::<[u32; 1024]>().rust(|launch| {
            let number = launch.params::<[u32; 1024]>()?[0];
            launch.write::<u32>(0)?[0] += number;
            Ok(())
        })
    }
}

kernel_fn! {
    /// Fails.
    fn fail() -> Kernel {
        Kernel::new("fail").writes::<u8>().rust(|_| Err("as it should".into()))
    }
}

kernel_fn! {
    /// Panics in a worker.
    fn panic_in_worker() -> Kernel {
        if thread::current().name() == Some("evener-worker-request") {
            // As a panic, but without the message that other tests count.
            std::panic::resume_unwind(Box::new("as it should"));
        }
        Kernel::new("panic_in_worker").rust(|_| Ok(()))
    }
}

kernel_fn! {
    /// Has large arguments.
    fn named(_bytes: Vec<u8>) -> Kernel {
        Kernel::new("named").rust(|_| Ok(()))
    }
}

/// What happens to the bytes of one direction.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// The pipe ends after this many bytes.
    Cut(usize),
    /// A bit of this byte is flipped.
    Flip(usize, u8),
    /// Nothing passes for this time, after this many bytes.
    Pause(usize, Duration),
}

/// A pipe's end with a fault, which counts its bytes.
#[derive(Debug)]
struct Faulty<P> {
    pipe: P,
    fault: Fault,
    passed: Arc<AtomicUsize>,
}

impl<P: Read> Read for Faulty<P> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let passed = self.passed.load(SeqCst);
        let into = match self.fault {
            Fault::Cut(at) => {
                let room = at.saturating_sub(passed).min(into.len());
                &mut into[..room]
            }
            _ => into,
        };
        if let Fault::Pause(at, time) = self.fault
            && passed >= at
        {
            self.fault = Fault::None;
            thread::sleep(time);
        }
        let read = self.pipe.read(into)?;
        if let Fault::Flip(at, bit) = self.fault
            && (passed..passed + read).contains(&at)
        {
            into[at - passed] ^= 1 << bit;
        }
        self.passed.fetch_add(read, SeqCst);
        Ok(read)
    }
}

/// Starts a worker with this machine's processor on a thread, each time that a connection is needed. Only the first
/// connection has the faults.
#[derive(Debug)]
struct ThreadWorker {
    connections: AtomicUsize,
    to_worker: Fault,
    from_worker: Fault,
    sent: Arc<AtomicUsize>,
    received: Arc<AtomicUsize>,
}

impl ThreadWorker {
    fn with_faults(to_worker: Fault, from_worker: Fault) -> Arc<Self> {
        let (sent, received) = (Arc::default(), Arc::default());
        Arc::new(ThreadWorker { connections: AtomicUsize::new(0), to_worker, from_worker, sent, received })
    }
}

fn processor() -> Inventory {
    Inventory::from_parts(vec![Device::cpu()], Vec::new())
}

#[derive(Debug)]
struct NoHandle;

impl WorkerHandle for NoHandle {
    fn end(&self) {}
}

impl Connector for ThreadWorker {
    fn connect(&self) -> Result<Pipes, String> {
        let ((input, to_worker), (from_worker, output)) = (pipe().unwrap(), pipe().unwrap());
        let is_first = self.connections.fetch_add(1, SeqCst) == 0;
        let fault = |fault: Fault| if is_first { fault } else { Fault::None };
        let input = Faulty { pipe: input, fault: fault(self.to_worker), passed: self.sent.clone() };
        let passed = self.received.clone();
        let from_worker = Faulty { pipe: from_worker, fault: fault(self.from_worker), passed };
        thread::spawn(move || serve(processor(), input, output));
        Ok(Pipes {
            from_worker: Box::new(from_worker),
            to_worker: Box::new(to_worker),
            worker: Arc::new(NoHandle),
        })
    }
}

fn connect(worker: &Arc<ThreadWorker>) -> Result<Device> {
    let host = RemoteHost::connect("there", worker.clone(), Duration::from_secs(10))?;
    Ok(host.devices()[0].clone())
}

/// Uploads, computes and downloads, with copies in several pieces. Fails if a result is wrong.
fn round_trip(device: &Device) -> Result<()> {
    const LEN: usize = 200_000;
    let numbers: Vec<u32> = (0..LEN as u32).collect();
    let buffer = device.buffer_uninit::<u32>(LEN)?;
    let bound = device.compile(&add(7))?.bind(&[buffer.arg()])?;
    let mut stream = device.stream()?;
    let start = stream.timestamp()?;
    stream.upload(&numbers, &buffer)?;
    stream.launch(&bound, 1, &())?;
    let download = stream.download(&buffer)?;
    let small = stream.download(&buffer.slice(..3)?)?;
    let end = stream.timestamp()?;
    let found = download.wait()?;
    assert!(found.iter().zip(&numbers).all(|(found, number)| *found == number + 7), "a wrong result");
    assert_eq!(small.wait()?, [7, 8, 9]);
    stream.wait()?;
    assert!(end.since(&start)? > Duration::ZERO);
    Ok(())
}

/// Runs something that must end soon.
fn within_seconds<T: Send + 'static>(what: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, done) = mpsc::channel();
    thread::spawn(move || sender.send(what()));
    done.recv_timeout(Duration::from_secs(15)).expect("hangs, or has panicked")
}

/// Connects with a fault and runs a round trip: it succeeds, or the device is lost.
fn try_with(to_worker: Fault, from_worker: Fault) -> Option<Error> {
    within_seconds(move || {
        let worker = ThreadWorker::with_faults(to_worker, from_worker);
        let outcome = connect(&worker).and_then(|device| round_trip(&device));
        if let Err(error) = &outcome {
            assert!(matches!(error, Error::Lost { .. }), "{error}");
            assert!(error.device().unwrap().as_str().starts_with("there"), "{error}");
        }
        outcome.err()
    })
}

/// The number of bytes in each direction of a round trip without faults.
fn bytes_of_a_round_trip() -> (usize, usize) {
    let worker = ThreadWorker::with_faults(Fault::None, Fault::None);
    let device = connect(&worker).unwrap();
    round_trip(&device).unwrap();
    (worker.sent.load(SeqCst), worker.received.load(SeqCst))
}

#[test]
fn a_device_of_a_worker_computes_and_is_named_after_its_host() {
    let device = connect(&ThreadWorker::with_faults(Fault::None, Fault::None)).unwrap();
    assert_eq!((device.id().as_str(), device.describe().host.as_deref()), ("there/cpu", Some("there")));
    assert!(!device.shares_hardware_with(&Device::cpu()));
    round_trip(&device).unwrap();
    let error = device.compile(&Kernel::new("local").rust(|_| Ok(()))).unwrap_err();
    assert!(
        matches!(&error, Error::Unsupported { .. }) && error.to_string().contains("kernel_fn"),
        "{error}"
    );
}

#[test]
fn a_connection_that_is_cut_anywhere_is_a_lost_device_and_never_a_hang() {
    let (sent, received) = bytes_of_a_round_trip();
    let steps =
        |bytes: usize| (0..40).map(move |step| step * 37).chain((1..60).map(move |step| bytes * step / 60));
    for at in steps(sent) {
        let error = try_with(Fault::Cut(at), Fault::None);
        assert!(error.is_some() || at + 200 > sent, "cut after {at} of {sent} bytes, and nothing was lost");
    }
    for at in steps(received) {
        let error = try_with(Fault::None, Fault::Cut(at));
        assert!(error.is_some() || at + 200 > received, "cut after {at} of {received} bytes");
    }
}

#[test]
fn a_flipped_bit_is_a_lost_device_and_never_a_wrong_result() {
    let (sent, received) = bytes_of_a_round_trip();
    for step in 0..120usize {
        let bit = (step % 8) as u8;
        // The first bytes are headers and small messages, the others mostly data.
        let at = |bytes: usize| if step < 60 { step * 19 } else { bytes * (step - 60) / 60 };
        let to_worker = try_with(Fault::Flip(at(sent), bit), Fault::None);
        assert!(to_worker.is_some() || at(sent) + 200 > sent, "bit {bit} of byte {} to the worker", at(sent));
        let from_worker = try_with(Fault::None, Fault::Flip(at(received), bit));
        assert!(
            from_worker.is_some() || at(received) + 200 > received,
            "byte {} of the worker",
            at(received)
        );
    }
}

#[test]
fn the_worker_tells_why_it_ends_a_connection() {
    let (sent, _) = bytes_of_a_round_trip();
    let error = try_with(Fault::Flip(sent / 2, 3), Fault::None).unwrap().to_string();
    assert!(error.contains("corrupted"), "{error}");
}

#[test]
fn a_device_that_was_lost_comes_back_with_a_new_connection() {
    let worker = ThreadWorker::with_faults(Fault::None, Fault::Cut(30_000));
    let device = connect(&worker).unwrap();
    let error = round_trip(&device).unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error}");
    assert!(matches!(device.buffer::<u8>(1).unwrap_err(), Error::Lost { .. }));
    within_seconds(move || round_trip(&device.reopened())).unwrap();
}

/// A worker on a thread, whose first pipe breaks when the test says so. The worker notices nothing.
#[derive(Debug)]
struct BreakingPipe {
    worker: Arc<ThreadWorker>,
    is_broken: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Breaking {
    pipe: Box<dyn WritePipe>,
    is_broken: Arc<AtomicBool>,
}

impl Write for Breaking {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.is_broken.load(SeqCst) {
            Err(io::ErrorKind::BrokenPipe.into())
        } else {
            self.pipe.write(bytes)
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.pipe.flush()
    }
}

impl Connector for BreakingPipe {
    fn connect(&self) -> Result<Pipes, String> {
        let is_first = self.worker.connections.load(SeqCst) == 0;
        let mut pipes = self.worker.connect()?;
        if is_first {
            pipes.to_worker = Box::new(Breaking { pipe: pipes.to_worker, is_broken: self.is_broken.clone() });
        }
        Ok(pipes)
    }
}

#[test]
fn a_device_comes_back_as_soon_as_a_call_has_found_it_lost() {
    let is_broken = Arc::<AtomicBool>::default();
    let worker = ThreadWorker::with_faults(Fault::None, Fault::None);
    let connector = BreakingPipe { worker, is_broken: is_broken.clone() };
    let host = RemoteHost::connect("there", Arc::new(connector), Duration::from_secs(10)).unwrap();
    let device = host.devices()[0].clone();
    let mut stream = device.stream().unwrap();
    is_broken.store(true, SeqCst);
    // The write of one call fails, and a later one is told.
    let error = (0..1000).find_map(|_| stream.flush().err()).unwrap();
    assert!(matches!(error, Error::Lost { .. }), "{error}");
    round_trip(&device.reopened()).unwrap();
}

#[test]
fn streams_do_not_hold_each_other_up() {
    let device = connect(&ThreadWorker::with_faults(Fault::None, Fault::None)).unwrap();
    let (large, small) = (device.buffer::<u8>(48 << 20).unwrap(), device.buffer::<u8>(100).unwrap());
    let (mut copying, mut other) = (device.stream().unwrap(), device.stream().unwrap());
    let host = device.host_buffer::<u8>(48 << 20, crate::Direction::Upload).unwrap();
    let transfer = copying.upload_host(host, &large).unwrap();
    other.upload(&[3; 100], &small).unwrap();
    assert_eq!(other.download(&small).unwrap().wait().unwrap(), [3; 100]);
    assert!(!transfer.is_done().unwrap(), "the small copy waited for the large one");
    transfer.wait().unwrap();
}

#[test]
fn more_operations_than_the_window_are_held_back_and_none_is_lost() {
    let device = connect(&ThreadWorker::with_faults(Fault::None, Fault::None)).unwrap();
    let data = device.buffer::<u32>(1000).unwrap();
    let bound = device.compile(&add(1)).unwrap().bind(&[data.arg()]).unwrap();
    let mut stream = device.stream().unwrap();
    let ones = vec![1u32; 1000];
    let (mut expected, mut sent) = (0u32, 0);
    // More than twice the window, most of it in frames of small uploads.
    while sent < 2 * OPERATION_WINDOW {
        stream.upload(&ones, &data).unwrap();
        stream.launch(&bound, 1, &()).unwrap();
        sent += 4000;
        expected = 2;
    }
    assert_eq!(stream.download(&data).unwrap().wait().unwrap(), vec![expected; 1000]);
}

#[test]
fn an_operation_larger_than_the_window_is_sent_after_small_ones() {
    const LAUNCHES: u32 = 1500;
    assert!(u64::from(LAUNCHES) * 4096 > OPERATION_WINDOW);
    let device = connect(&ThreadWorker::with_faults(Fault::None, Fault::None)).unwrap();
    let found = within_seconds(move || -> Result<Vec<u32>> {
        let data = device.buffer::<u32>(1)?;
        let bound = device.compile(&add_parameter())?.bind(&[data.arg()])?;
        let mut stream = device.stream()?;
        // Its bytes are too few for a credit.
        stream.launch(&bound, 1, &[1u32; 1024])?;
        stream.wait()?;
        let graph = stream.record_graph(|recorder| {
            (0..LAUNCHES).try_for_each(|_| recorder.launch(&bound, 1, &[2u32; 1024]))
        })?;
        stream.replay(&graph)?;
        stream.download(&data)?.wait()
    });
    assert_eq!(found.unwrap(), [1 + 2 * LAUNCHES]);
}

#[test]
fn uploads_of_a_stream_that_is_dropped_arrive() {
    const LEN: usize = 40 << 20;
    let device = connect(&ThreadWorker::with_faults(Fault::None, Fault::None)).unwrap();
    let found = within_seconds(move || -> Result<Vec<u8>> {
        let data = device.buffer::<u8>(LEN)?;
        let mut host = device.host_buffer::<u8>(LEN, crate::Direction::Upload)?;
        host.as_mut_slice().fill(7);
        let mut dropped = device.stream()?;
        let transfer = dropped.upload_host(host, &data)?;
        drop(dropped);
        // Sends what waits, the end of the stream included, before most of the data.
        device.buffer::<u8>(1)?;
        transfer.wait()?;
        device.stream()?.download(&data)?.wait()
    });
    assert!(found.unwrap().iter().all(|&byte| byte == 7));
}

#[test]
fn a_large_download_behind_a_kernel_that_fails_is_an_error_of_the_kernel() {
    let device = connect(&ThreadWorker::with_faults(Fault::None, Fault::None)).unwrap();
    within_seconds(move || {
        // The worker copies it in three parts.
        let data = device.buffer::<u8>(3 * TRANSFER_BYTES).unwrap();
        let bound = device.compile(&fail()).unwrap().bind(&[data.arg()]).unwrap();
        let mut stream = device.stream().unwrap();
        for _ in 0..2 {
            stream.launch(&bound, 1, &()).unwrap();
            let error = stream.download(&data).unwrap().wait().unwrap_err();
            assert!(matches!(error, Error::Task { .. }), "{error}");
            assert!(matches!(stream.wait(), Err(Error::Task { .. })));
        }
        assert_eq!(stream.download(&data).unwrap().wait().unwrap().len(), 3 * TRANSFER_BYTES);
    });
}

#[test]
fn a_request_that_panics_in_the_worker_is_an_error_and_not_a_hang() {
    let device = connect(&ThreadWorker::with_faults(Fault::None, Fault::None)).unwrap();
    within_seconds(move || {
        let error = device.compile(&panic_in_worker()).unwrap_err();
        assert!(error.to_string().contains("panicked"), "{error}");
        round_trip(&device).unwrap();
    });
}

#[test]
fn a_kernel_that_is_too_long_to_be_sent_is_refused_and_no_device_is_lost() {
    let device = connect(&ThreadWorker::with_faults(Fault::None, Fault::None)).unwrap();
    let error = device.compile(&named(vec![0; MAX_MESSAGE])).unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    round_trip(&device).unwrap();
}

#[test]
fn a_timestamp_behind_a_failure_is_reported_as_unread() {
    let ((input, to_worker), (from_worker, output)) = (pipe().unwrap(), pipe().unwrap());
    thread::spawn(move || serve(processor(), input, output));
    let (mut reader, mut writer) = (FrameReader::new(from_worker), FrameWriter::new(to_worker));
    writer.preamble().unwrap();
    reader.preamble().unwrap();
    let mut send = |message: ToWorker| {
        writer.write(&encode(&message).unwrap(), &[]).unwrap();
        writer.flush().unwrap();
    };
    let mut answer = || reader.next::<ToClient>().unwrap().unwrap().message;
    let device = DevicePath { id: "cpu".into(), splits: Vec::new() };
    let asks = [
        Ask::Open { device, opening: 1 },
        Ask::Allocate { opening: 1, memory: 2, bytes: 4, is_zeroed: true },
    ];
    for (request, ask) in (10..).zip(asks) {
        send(ToWorker::Request { request, ask });
        assert!(matches!(answer(), ToClient::Answer { answer: Ok(_), .. }));
    }
    send(ToWorker::OpenStream { opening: 1, stream: 3 });
    let out_of_bounds = Span { memory: 2, offset: 0, bytes: 8 };
    let operations = [
        Operation::Timestamp { timestamp: 4 },
        Operation::Zero { region: out_of_bounds },
        Operation::Timestamp { timestamp: 5 },
        Operation::Event { event: 6 },
    ];
    operations.into_iter().for_each(|operation| send(ToWorker::Run { stream: 3, operation }));
    let ToClient::Reached { event: 6, outcome: Err(_), clocks } = answer() else { panic!("no failure") };
    let clock = |timestamp, since_previous| Clock { timestamp, since_previous };
    assert_eq!(clocks, [clock(4, Some(Duration::ZERO)), clock(5, None)]);
}

#[test]
fn events_order_streams_whose_uploads_wait_for_each_other() {
    const LEN: usize = 40 << 20;
    let device = connect(&ThreadWorker::with_faults(Fault::None, Fault::None)).unwrap();
    let (first, second) = (device.buffer::<u8>(LEN).unwrap(), device.buffer::<u8>(LEN).unwrap());
    let outcome = within_seconds(move || -> Result<Vec<u8>> {
        let (mut one, mut other) = (device.stream()?, device.stream()?);
        let host = |byte: u8| -> Result<_> {
            let mut host = device.host_buffer::<u8>(LEN, crate::Direction::Upload)?;
            host.as_mut_slice().fill(byte);
            Ok(host)
        };
        let before = one.upload_host(host(1)?, &first)?;
        other.wait_event(&one.record_event()?)?;
        let copy = other.upload_host(host(2)?, &second)?;
        other.copy(&first, &second)?;
        let found = other.download(&second.slice(LEN - 3..)?)?.wait()?;
        drop((before.wait()?, copy.wait()?));
        Ok(found)
    });
    assert_eq!(outcome.unwrap(), [1, 1, 1]);
}

#[test]
fn what_a_shell_prints_before_the_greeting_is_skipped_or_reported() {
    let mut greeting = b"Welcome to gpu-box\nlast login: never\r\n".to_vec();
    FrameWriter::new(&mut greeting).preamble().unwrap();
    assert_eq!(FrameReader::new(&greeting[..]).preamble().unwrap(), VERSION);
    let error = FrameReader::new(&b"sh: 1: evener: not found\n"[..]).preamble().unwrap_err().to_string();
    assert!(error.contains("evener: not found"), "{error}");
    let endless = FrameReader::new(io::repeat(b'\n')).preamble().unwrap_err();
    assert!(endless.to_string().contains("greeting"), "{endless}");
}

#[test]
fn another_version_is_refused_with_both_versions() {
    #[derive(Debug)]
    struct Older;
    impl Connector for Older {
        fn connect(&self) -> Result<Pipes, String> {
            let ((_, to_worker), (from_worker, mut output)) = (pipe().unwrap(), pipe().unwrap());
            output.write_all(&[&frame::PREAMBLE[..], &0u32.to_le_bytes()].concat()).unwrap();
            let worker = Arc::new(NoHandle);
            Ok(Pipes { from_worker: Box::new(from_worker), to_worker: Box::new(to_worker), worker })
        }
    }
    let error = RemoteHost::connect("old", Arc::new(Older), Duration::from_secs(10)).unwrap_err().to_string();
    assert!(error.contains("version 0") && error.contains("older"), "{error}");
}

#[test]
fn a_worker_that_does_not_answer_is_given_up_after_the_timeout() {
    #[derive(Debug)]
    struct Silent(Mutex<Vec<(PipeReader, PipeWriter)>>);
    impl Connector for Silent {
        fn connect(&self) -> Result<Pipes, String> {
            let ((input, to_worker), (from_worker, output)) = (pipe().unwrap(), pipe().unwrap());
            self.0.lock().unwrap().push((input, output));
            let worker = Arc::new(NoHandle);
            Ok(Pipes { from_worker: Box::new(from_worker), to_worker: Box::new(to_worker), worker })
        }
    }
    let start = Instant::now();
    let silent = Arc::new(Silent(Mutex::default()));
    let error = RemoteHost::connect("silent", silent, Duration::from_millis(200)).unwrap_err();
    assert!(error.to_string().contains("no answer within 200ms"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(5));
}

/// A worker that lists a processor, and whose pipe can be filled: writing to it waits then, until the worker is ended.
#[derive(Debug, Clone, Default)]
struct Stuck(Arc<(Mutex<StuckState>, Condvar)>);

#[derive(Debug, Default)]
struct StuckState {
    is_full: bool,
    /// `None` before the worker starts, and after it was ended.
    pipe: Option<PipeWriter>,
}

impl Stuck {
    fn fill(&self) {
        self.0.0.lock().unwrap().is_full = true;
    }
}

impl Write for Stuck {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let (state, changed) = &*self.0;
        let is_waiting = |state: &mut StuckState| state.is_full && state.pipe.is_some();
        let mut state = changed.wait_while(state.lock().unwrap(), is_waiting).unwrap();
        state.pipe.as_mut().map_or(Err(io::ErrorKind::BrokenPipe.into()), |pipe| pipe.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl WorkerHandle for Stuck {
    fn end(&self) {
        self.0.0.lock().unwrap().pipe = None;
        self.0.1.notify_all();
    }
}

impl Connector for Stuck {
    fn connect(&self) -> Result<Pipes, String> {
        let ((input, to_worker), (from_worker, output)) = (pipe().unwrap(), pipe().unwrap());
        self.0.0.lock().unwrap().pipe = Some(to_worker);
        thread::spawn(move || -> Option<()> {
            let (mut reader, mut writer) = (FrameReader::new(input), FrameWriter::new(output));
            writer.preamble().ok()?;
            reader.preamble().ok()?;
            while let Some(frame) = reader.next::<ToWorker>().ok()? {
                if let ToWorker::Request { request, ask } = frame.message {
                    let devices = serde_json::to_string(&[Device::cpu().describe()]).unwrap();
                    let (absent, version) = ("[]".into(), "1".into());
                    let answer = Ok(match ask {
                        Ask::Open { .. } => Answer::Opened(Device::cpu().capabilities().unwrap()),
                        _ => Answer::Devices { devices, absent, version },
                    });
                    writer.write(&encode(&ToClient::Answer { request, answer }).unwrap(), &[]).ok()?;
                    writer.flush().ok()?;
                }
            }
            None
        });
        let (to_worker, worker) = (Box::new(self.clone()), Arc::new(self.clone()));
        Ok(Pipes { from_worker: Box::new(from_worker), to_worker, worker })
    }
}

#[test]
fn a_worker_that_reads_nothing_more_is_lost_whichever_thread_writes_to_it() {
    let stuck = Stuck::default();
    let host = RemoteHost::connect("stuck", Arc::new(stuck.clone()), Duration::from_secs(10)).unwrap();
    stuck.fill();
    // The thread that asks for signs of life meets the full pipe first.
    thread::sleep(Duration::from_millis(1500));
    let error = within_seconds(move || host.devices()[0].buffer::<u8>(1).unwrap_err());
    assert!(error.to_string().contains("silent"), "{error}");
}

#[test]
fn a_wait_with_a_timeout_ends_in_time_although_the_pipe_is_full() {
    let stuck = Stuck::default();
    let host = RemoteHost::connect("stuck", Arc::new(stuck.clone()), Duration::from_secs(10)).unwrap();
    let mut stream = host.devices()[0].stream().unwrap();
    stuck.fill();
    // The thread that sends signs of life has met the full pipe, and holds it.
    thread::sleep(Duration::from_millis(1500));
    let start = Instant::now();
    for _ in 0..3 {
        let error = stream.wait_timeout(Duration::from_millis(100)).unwrap_err();
        assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    }
    assert!(start.elapsed() < Duration::from_secs(2), "it took {:?}", start.elapsed());
}

#[test]
fn a_link_on_which_nothing_passes_for_long_in_one_direction_is_not_lost() {
    // A large upload on a slow link is as silent.
    let pause = Fault::Pause(2000, SILENCE + Duration::from_secs(3));
    let worker = ThreadWorker::with_faults(pause, Fault::None);
    within_seconds(move || connect(&worker).and_then(|device| round_trip(&device))).unwrap();
}

/// A worker on a thread, whose processor has faults.
#[derive(Debug)]
struct FaultyWorker(Device);

impl Connector for FaultyWorker {
    fn connect(&self) -> Result<Pipes, String> {
        let ((input, to_worker), (from_worker, output)) = (pipe().unwrap(), pipe().unwrap());
        let inventory = Inventory::from_parts(vec![self.0.clone()], Vec::new());
        thread::spawn(move || serve(inventory, input, output));
        let worker = Arc::new(NoHandle);
        Ok(Pipes { from_worker: Box::new(from_worker), to_worker: Box::new(to_worker), worker })
    }
}

#[test]
fn a_worker_that_hangs_in_a_message_is_lost_and_one_that_is_slow_is_not() {
    let (device, faults) = crate::testing::Faults::wrap(&Device::cpu());
    let host = RemoteHost::connect("hung", Arc::new(FaultyWorker(device)), Duration::from_secs(10)).unwrap();
    let device = host.devices()[0].clone();
    let (data, numbers) = (device.buffer::<u32>(100_000).unwrap(), vec![7; 100_000]);
    let mut stream = device.stream().unwrap();
    stream.upload(&numbers, &data).unwrap();
    stream.wait().unwrap();
    // The thread that reads allocates memory for an upload. A slow allocation is waited for.
    faults.at_next(crate::testing::Fault::Hang);
    let release = faults.clone();
    thread::spawn(move || {
        thread::sleep(Duration::from_millis(1200));
        release.release();
    });
    stream.upload(&numbers, &data).unwrap();
    assert_eq!(stream.download(&data).unwrap().wait().unwrap(), numbers);
    faults.at_next(crate::testing::Fault::Hang);
    stream.upload(&numbers, &data).unwrap();
    let error = within_seconds(move || stream.wait().unwrap_err());
    assert!(error.to_string().contains("silent"), "{error}");
    faults.release();
}

#[test]
fn a_worker_that_lives_and_does_not_list_its_devices_is_given_up_after_the_timeout() {
    #[derive(Debug)]
    struct Mute;
    impl Connector for Mute {
        fn connect(&self) -> Result<Pipes, String> {
            let ((input, to_worker), (from_worker, output)) = (pipe().unwrap(), pipe().unwrap());
            thread::spawn(move || -> io::Result<()> {
                let mut writer = FrameWriter::new(output);
                writer.preamble()?;
                loop {
                    writer.write(&encode(&ToClient::Alive).unwrap(), &[])?;
                    writer.flush()?;
                    thread::sleep(Duration::from_millis(50));
                    let _ = &input;
                }
            });
            let worker = Arc::new(NoHandle);
            Ok(Pipes { from_worker: Box::new(from_worker), to_worker: Box::new(to_worker), worker })
        }
    }
    let start = Instant::now();
    let error = RemoteHost::connect("mute", Arc::new(Mute), Duration::from_millis(300)).unwrap_err();
    assert!(error.to_string().contains("no answer within 300ms"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_machine_with_another_byte_order_is_refused() {
    let mut greeting = Vec::new();
    FrameWriter::new(&mut greeting).preamble().unwrap();
    let last = greeting.len() - 4;
    greeting[last..].reverse();
    for error in [
        FrameReader::new(&greeting[..]).preamble().unwrap_err(),
        FrameReader::new(&greeting[..]).exact_preamble().unwrap_err(),
    ] {
        assert!(error.to_string().contains("byte order"), "{error}");
    }
}

/// Counts the panics of all threads of the protocol in this process.
fn panics() -> usize {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if thread::current().name().is_some_and(|name| name.starts_with("evener-")) {
                COUNT.fetch_add(1, SeqCst);
            }
            before(panic);
        }));
    });
    COUNT.load(SeqCst)
}

/// A seeded source of choices.
struct Choices(u64);

impl Choices {
    fn below(&mut self, limit: u64) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % limit
    }

    /// A number of a thing that probably exists.
    fn id(&mut self) -> Id {
        1 + self.below(12)
    }

    fn size(&mut self) -> u64 {
        match self.below(8) {
            0 => u64::MAX - self.below(2),
            1 => 0,
            2 => self.below(8 << 20),
            _ => self.below(20_000),
        }
    }

    fn span(&mut self) -> Span {
        let (memory, offset, bytes) = (self.id(), self.below(100) * self.below(2), self.size());
        Span { memory, offset, bytes }
    }

    fn path(&mut self) -> DevicePath {
        let split = |choices: &mut Choices| (vec![1; choices.below(3) as usize], choices.below(3) as u32);
        let splits = (0..self.below(3)).map(|_| split(self)).collect();
        DevicePath { id: if self.below(5) > 0 { "cpu" } else { "none" }.into(), splits }
    }

    fn kernel(&mut self) -> WireKernel {
        let program = registry::program_hash().filter(|_| self.below(4) > 0).unwrap_or_default();
        let (function, arguments) = match self.below(4) {
            0 => ("nowhere".into(), vec![1, 2, 3]),
            1 => (concat!(module_path!(), "::add").into(), vec![0xFF; 7]),
            _ => (concat!(module_path!(), "::add").into(), vec![5]),
        };
        let body = match self.below(4) {
            0 => WireBody::None,
            1 => WireBody::Wgsl(Vec::new()),
            _ => WireBody::Rust { program, version: "0".into(), function, arguments },
        };
        let bindings = (0..self.below(3)).map(|_| (self.below(4) > 0, "u32".into())).collect();
        let extent = |choices: &mut Choices| choices.below(3) as u32;
        let workgroup = [extent(self), extent(self), 1];
        WireKernel { name: "add".into(), bindings, params_bytes: 0, workgroup, shared_bytes: 0, body }
    }

    fn launch(&mut self) -> WireLaunch {
        let groups = [self.below(3) as u32, 1, if self.below(9) > 0 { 1 } else { u32::MAX }];
        WireLaunch { bound: self.id(), groups, params: vec![0; self.below(3) as usize] }
    }

    fn operation(&mut self) -> Operation {
        match self.below(13) {
            0 => Operation::Upload { to: self.span(), transfer: None },
            1 => Operation::Upload { to: self.span(), transfer: Some(self.id()) },
            2 => Operation::Download { from: self.span(), transfer: self.id() },
            3 => Operation::Copy { from: self.span(), to: self.span() },
            4 => Operation::Zero { region: self.span() },
            5 => Operation::Fill { region: self.span(), pattern: vec![7; self.below(9) as usize] },
            6 => Operation::Launch(self.launch()),
            7 => Operation::Record { graph: self.id() + 100, launches: vec![self.launch()] },
            8 => Operation::Replay { graph: self.id() + 100 },
            9 => Operation::Timestamp { timestamp: self.id() + 200 },
            10 => Operation::Event { event: self.id() + 300 },
            11 => Operation::Wait { event: self.id() },
            _ => Operation::Flush,
        }
    }

    fn ask(&mut self) -> Ask {
        let opening = 1;
        match self.below(12) {
            0 => Ask::Devices,
            1 => {
                Ask::Split { device: self.path(), sizes: vec![self.below(4) as u32; self.below(3) as usize] }
            }
            2 => Ask::Open { device: self.path(), opening: self.id() },
            3..=5 => {
                let bytes = self.size();
                Ask::Allocate { opening, memory: self.id(), bytes, is_zeroed: self.below(2) == 0 }
            }
            6 | 7 => Ask::Compile { opening, program: self.id(), kernel: self.kernel() },
            8 => Ask::WithWorkgroup {
                opening,
                bound: self.id(),
                new: self.id(),
                workgroup: [2, 1, 1],
                shared_bytes: 0,
            },
            9 => Ask::Occupancy { opening, bound: self.id() },
            10 => Ask::Memory { opening },
            _ => Ask::Trim { opening },
        }
    }

    fn message_to_worker(&mut self) -> (ToWorker, Vec<u8>) {
        let plain = |message| (message, Vec::new());
        match self.below(20) {
            0 => plain(ToWorker::Alive),
            1..=5 => plain(ToWorker::Request { request: self.id(), ask: self.ask() }),
            6 if self.below(4) == 0 => plain(ToWorker::Close { opening: self.id() }),
            7 => plain(ToWorker::Drop { object: self.id() }),
            8 => {
                let arguments = (0..self.below(3)).map(|_| self.span()).collect();
                plain(ToWorker::Bind { program: self.id(), bound: self.id(), arguments })
            }
            9 if self.below(3) == 0 => plain(ToWorker::OpenStream { opening: 1, stream: self.id() }),
            10 if self.below(4) == 0 => plain(ToWorker::CloseStream { stream: self.id() }),
            11 => {
                let bytes = self.below(MAX_PAYLOAD as u64) as usize;
                (ToWorker::Data { transfer: self.id(), offset: self.below(2) * 100 }, vec![9; bytes])
            }
            _ => {
                let operation = self.operation();
                let payload = match operation {
                    Operation::Upload { to, transfer: None } => vec![1; to.bytes.min(1000) as usize],
                    _ => Vec::new(),
                };
                (ToWorker::Run { stream: 1 + self.below(2), operation }, payload)
            }
        }
    }

    fn message_to_client(&mut self) -> (ToClient, Vec<u8>) {
        let error = |choices: &mut Choices| match choices.below(2) {
            0 => WireError::Lost { device: "cpu".into(), operation: "x".into(), detail: "y".into() },
            _ => WireError::Other { detail: "z".into() },
        };
        let plain = |message| (message, Vec::new());
        match self.below(8) {
            0 => plain(ToClient::Alive),
            1 | 2 => {
                let answer = match self.below(6) {
                    0 => Err(error(self)),
                    1 => Ok(Answer::Occupancy(None)),
                    2 => Ok(Answer::Compiled { body: "Rust".into() }),
                    3 => Ok(Answer::Devices { devices: "[".into(), absent: "]".into(), version: "1".into() }),
                    _ => Ok(Answer::Done),
                };
                plain(ToClient::Answer { request: self.id(), answer })
            }
            3 | 4 => {
                let outcome = if self.below(3) == 0 { Err(error(self)) } else { Ok(()) };
                let clock = |choices: &mut Choices| Clock {
                    timestamp: choices.id(),
                    since_previous: Some(Duration::MAX),
                };
                let clocks = (0..self.below(2)).map(|_| clock(self)).collect();
                plain(ToClient::Reached { event: self.id(), outcome, clocks })
            }
            5 => plain(ToClient::Credit { stream: self.id(), operations: self.size(), data: self.size() }),
            6 => {
                let bytes = self.below(2000) as usize;
                (ToClient::Data { transfer: self.id(), offset: 0 }, vec![3; bytes])
            }
            _ => plain(ToClient::Abandoned { transfer: self.id() }),
        }
    }
}

/// Lets a worker read these bytes. It must come to an end, and no thread may panic.
fn serve_bytes(bytes: Vec<u8>) -> Result<(), String> {
    let before = panics();
    let outcome = within_seconds(move || serve(processor(), &bytes[..], io::sink()));
    assert_eq!(panics(), before, "a thread of the worker panicked");
    outcome
}

fn frames_to_worker(messages: impl IntoIterator<Item = (ToWorker, Vec<u8>)>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = FrameWriter::new(&mut bytes);
    writer.preamble().unwrap();
    for (message, payload) in messages {
        writer.write(&encode(&message).unwrap(), &payload).unwrap();
    }
    writer.flush().unwrap();
    drop(writer);
    bytes
}

#[test]
fn an_outbox_of_many_threads_sends_everything_and_keeps_each_threads_order() {
    const THREADS: u64 = 4;
    const MESSAGES: u64 = 3000;
    let (reader, writer) = pipe().unwrap();
    let writer = FrameWriter::new(Box::new(writer) as Box<dyn WritePipe>);
    let outbox = Arc::new(Outbox::new(writer, |transfer, offset| {
        encode(&ToWorker::Data { transfer, offset }).unwrap()
    }));
    let running = outbox.clone();
    thread::spawn(move || running.run());
    for thread in 1..=THREADS {
        let outbox = outbox.clone();
        outbox.open_lane(thread, 0).unwrap();
        thread::spawn(move || {
            let mut choices = Choices(thread);
            for number in 1..=MESSAGES {
                let object = thread << 32 | number;
                let message = encode(&ToWorker::Drop { object }).unwrap();
                match choices.below(4) {
                    0 => outbox.put(message).unwrap(),
                    1 => outbox
                        .put_in_lane(thread, encode(&ToWorker::Close { opening: object }).unwrap())
                        .unwrap(),
                    2 if choices.below(20) == 0 => {
                        let bytes = 1 + choices.below(2 * MAX_PAYLOAD as u64);
                        let payload = Box::new(vec![thread as u8; bytes as usize]);
                        outbox
                            .put_copy(thread, outbox::Copy { transfer: object, offset: 0, payload, sent: 0 })
                            .unwrap();
                        outbox.add_credit(thread, bytes);
                    }
                    _ => outbox.put_lazily(message, Vec::new()).unwrap(),
                }
            }
            outbox.put(encode(&ToWorker::CloseStream { stream: thread }).unwrap()).unwrap();
            outbox.put_in_lane(thread, encode(&ToWorker::CloseStream { stream: thread }).unwrap()).unwrap();
        });
    }
    within_seconds(move || {
        let mut reader = FrameReader::new(reader);
        let (mut in_order, mut in_lane) = ([0; 5], [0; 5]);
        let mut closed = 0;
        let check = |last: &mut [u64; 5], object: Id| {
            let last = &mut last[(object >> 32) as usize];
            assert!(object > *last, "message {object:x} after {last:x}");
            *last = object;
        };
        while closed < 2 * THREADS {
            match reader.next::<ToWorker>().unwrap().unwrap().message {
                ToWorker::Drop { object } => check(&mut in_order, object),
                ToWorker::Close { opening } => check(&mut in_lane, opening),
                ToWorker::Data { transfer, offset: 0 } => check(&mut in_lane, transfer),
                ToWorker::CloseStream { .. } => closed += 1,
                _ => {}
            }
        }
    });
    outbox.close("over", None);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_make_a_worker_panic_or_hang(bytes in proptest::collection::vec(any::<u8>(), 0..2000), at in 0..400usize) {
        let mut greeted = frames_to_worker([]);
        greeted.extend(&bytes);
        // A frame is never accepted by chance.
        prop_assert_eq!(serve_bytes(greeted).is_ok(), bytes.is_empty());
        // Bytes within valid frames.
        let ask = ToWorker::Request { request: 1, ask: Ask::Devices };
        let mut valid = frames_to_worker(vec![(ask, Vec::new()); 10]);
        let (length, change) = (valid.len(), bytes.first().copied().unwrap_or(1).max(1));
        let greeting = frames_to_worker([]).len();
        let at = greeting + at % (length - greeting);
        valid[at] ^= change;
        prop_assert!(serve_bytes(valid).is_err());
    }

    #[test]
    fn no_bytes_are_decoded_to_a_much_longer_message(bytes in proptest::collection::vec(any::<u8>(), 0..500)) {
        // A length in the bytes is not believed before the elements are there.
        if let Ok(message) = postcard::from_bytes::<ToWorker>(&bytes) {
            prop_assert!(encode(&message).unwrap().len() <= 2 * bytes.len() + 100);
        }
        let _ = postcard::from_bytes::<ToClient>(&bytes);
    }

    #[test]
    fn no_sequence_of_messages_makes_a_worker_panic_or_hang(seed in any::<u64>()) {
        let mut choices = Choices(seed);
        let open = Ask::Open { device: DevicePath { id: "cpu".into(), splits: Vec::new() }, opening: 1 };
        let input = Sequence::new(&mut choices, open);
        let before = panics();
        let outcome = within_seconds(move || serve(processor(), input, io::sink()));
        prop_assert_eq!(panics(), before, "seed {}: {:?}", seed, outcome);
    }

    #[test]
    fn no_sequence_of_messages_makes_a_client_panic_or_hang(seed in any::<u64>()) {
        let before = panics();
        let outcome = within_seconds(move || {
            let worker = Arc::new(RandomWorker(seed));
            RemoteHost::connect("random", worker, Duration::from_secs(10)).and_then(|host| {
                let device = host.devices().first().cloned().unwrap();
                round_trip_of_random_worker(&device)
            })
        });
        prop_assert_eq!(panics(), before);
        // A worker that answers at random never gets through a whole round trip.
        prop_assert!(outcome.is_err());
    }
}

/// Frames for a worker: opening the processor, a pause in which that is done, then two streams and random messages.
struct Sequence {
    bytes: Vec<u8>,
    position: usize,
    pause_at: usize,
}

impl Sequence {
    fn new(choices: &mut Choices, open: Ask) -> Self {
        let mut writer = FrameWriter::new(Vec::new());
        writer.preamble().unwrap();
        let mut write = |message: ToWorker, payload: &[u8]| {
            writer.write(&encode(&message).unwrap(), payload).unwrap();
            writer.flush().unwrap();
            writer.written()
        };
        let pause_at = write(ToWorker::Request { request: 1000, ask: open }, &[]);
        let mut written = pause_at;
        for stream in [1, 2] {
            written = write(ToWorker::OpenStream { opening: 1, stream }, &[]);
        }
        for _ in 0..choices.below(60) {
            let (message, payload) = choices.message_to_worker();
            written = write(message, &payload);
        }
        let bytes = writer.into_inner();
        assert_eq!(bytes.len(), written);
        Sequence { bytes, position: 0, pause_at }
    }
}

impl Read for Sequence {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.position == self.pause_at {
            thread::sleep(Duration::from_millis(30));
        }
        let end = if self.position < self.pause_at { self.pause_at } else { self.bytes.len() };
        let bytes = &self.bytes[self.position..end];
        let read = bytes.len().min(into.len());
        into[..read].copy_from_slice(&bytes[..read]);
        self.position += read;
        Ok(read)
    }
}

/// A worker that lists a processor and opens it, and then answers at random.
#[derive(Debug)]
struct RandomWorker(u64);

impl Connector for RandomWorker {
    fn connect(&self) -> Result<Pipes, String> {
        let ((input, to_worker), (from_worker, output)) = (pipe().unwrap(), pipe().unwrap());
        let seed = self.0;
        thread::spawn(move || -> Option<()> {
            let mut choices = Choices(seed);
            let (mut reader, mut writer) = (FrameReader::new(input), FrameWriter::new(output));
            writer.preamble().ok()?;
            reader.preamble().ok()?;
            while let Some(frame) = reader.next::<ToWorker>().ok()? {
                let answer = match frame.message {
                    ToWorker::Request { request, ask: Ask::Devices } => {
                        let devices = serde_json::to_string(&[Device::cpu().describe()]).unwrap();
                        Some((request, Answer::Devices { devices, absent: "[]".into(), version: "1".into() }))
                    }
                    ToWorker::Request { request, ask: Ask::Open { .. } } => {
                        Some((request, Answer::Opened(Device::cpu().capabilities().unwrap())))
                    }
                    ToWorker::Request { request, .. } if choices.below(4) > 0 => {
                        Some((request, Answer::Done))
                    }
                    _ => None,
                };
                let (message, payload) = match answer {
                    Some((request, answer)) => (ToClient::Answer { request, answer: Ok(answer) }, Vec::new()),
                    None => choices.message_to_client(),
                };
                writer.write(&encode(&message).unwrap(), &payload).ok()?;
                writer.flush().ok()?;
                if choices.below(100) == 0 {
                    return None;
                }
            }
            None
        });
        let worker = Arc::new(NoHandle);
        Ok(Pipes { from_worker: Box::new(from_worker), to_worker: Box::new(to_worker), worker })
    }
}

/// Uses a device until something fails. Waits have a limit, because a worker may answer nothing.
fn round_trip_of_random_worker(device: &Device) -> Result<()> {
    let buffer = device.buffer_uninit::<u32>(1000)?;
    let mut stream = device.stream()?;
    for round in 0..50u32 {
        stream.upload(&[round; 1000], &buffer)?;
        stream.flush()?;
        let download = stream.download(&buffer)?;
        let found = download.wait_timeout(Duration::from_millis(200))?;
        if found != [round; 1000] {
            return Err(Error::BadResult {
                device: device.id().clone(),
                operation: "downloading".into(),
                detail: "the worker sent something else".into(),
            });
        }
    }
    Ok(())
}

#[test]
fn frames_that_are_too_long_or_out_of_order_are_refused() {
    let mut bytes = Vec::new();
    let mut writer = FrameWriter::new(&mut bytes);
    let alive = encode(&ToWorker::Alive).unwrap();
    for _ in 0..3 {
        writer.write(&alive, &[]).unwrap();
    }
    writer.flush().unwrap();
    drop(writer);
    let frame = bytes.len() / 3;
    // One is missing, and one comes twice.
    for order in [[0, 2, 2], [0, 0, 1]] {
        let shuffled: Vec<u8> = order.iter().flat_map(|&at| bytes[at * frame..][..frame].to_vec()).collect();
        let mut reader = FrameReader::new(&shuffled[..]);
        reader.next::<ToWorker>().unwrap();
        let error = reader.next::<ToWorker>().unwrap_err().to_string();
        assert!(error.contains("instead of frame 1"), "{error}");
    }
    let mut long = Vec::new();
    let mut writer = FrameWriter::new(&mut long);
    writer.write(&alive, &vec![0; MAX_PAYLOAD + 1]).unwrap();
    writer.flush().unwrap();
    drop(writer);
    let error = FrameReader::new(&long[..]).next::<ToWorker>().unwrap_err().to_string();
    assert!(error.contains("too long"), "{error}");
    let source = WireBody::Wgsl(vec![WireWgsl {
        needs: crate::Features::empty(),
        source: "x".repeat(MAX_MESSAGE).into(),
        is_checked: true,
        constants: Vec::new(),
    }]);
    assert!(encode(&source).unwrap_err().to_string().contains("at most"));
}

/// A pipe with a rate of 100 MB/s.
#[derive(Default)]
struct SlowPipe(Vec<u8>);

impl Write for SlowPipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        thread::sleep(Duration::from_nanos(10 * bytes.len() as u64));
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Pieces of numbers that repeat themselves, and in the end two of noise.
fn pieces() -> Vec<Vec<u8>> {
    let mut state = 1u32;
    let mut noise = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    let noise: Vec<Vec<u8>> = (0..2).map(|_| (0..MAX_PAYLOAD).map(|_| noise()).collect()).collect();
    let repeated = |piece: u32| (0..MAX_PAYLOAD as u32).map(move |at| (at / 64 + piece) as u8).collect();
    (0..20).map(repeated).chain(noise).collect()
}

fn written_pieces(pieces: &[Vec<u8>]) -> Vec<u8> {
    let mut writer = FrameWriter::new(SlowPipe::default());
    for (number, piece) in pieces.iter().enumerate() {
        let message = ToWorker::Data { transfer: 1, offset: (number * MAX_PAYLOAD) as u64 };
        writer.write_piece(&encode(&message).unwrap(), piece).unwrap();
    }
    writer.flush().unwrap();
    writer.into_inner().0
}

#[test]
fn pieces_that_compress_are_compressed_on_a_slow_link_and_come_back() {
    let pieces = pieces();
    let written = written_pieces(&pieces);
    assert!(written.len() < pieces.len() * MAX_PAYLOAD / 2, "{} bytes", written.len());
    let mut reader = FrameReader::new(&written[..]);
    for piece in &pieces {
        let frame = reader.next::<ToWorker>().unwrap().unwrap();
        assert_eq!(frame.payload_bytes, piece.len());
        let mut read = vec![0; frame.payload_bytes];
        reader.payload(&mut read).unwrap();
        assert!(read == *piece, "a piece is another one");
    }
    assert!(reader.next::<ToWorker>().unwrap().is_none());
}

#[test]
fn a_compressed_piece_that_is_corrupted_or_cut_is_an_error() {
    let written = written_pieces(&pieces()[..12]);
    let read_all = |bytes: &[u8]| -> Result<usize, frame::FrameError> {
        let (mut reader, mut count) = (FrameReader::new(bytes), 0);
        while let Some(frame) = reader.next::<ToWorker>()? {
            reader.payload(&mut vec![0; frame.payload_bytes])?;
            count += 1;
        }
        Ok(count)
    };
    assert_eq!(read_all(&written).unwrap(), 12);
    for at in (0..written.len()).step_by(written.len() / 97) {
        let mut corrupted = written.clone();
        corrupted[at] ^= 1 << (at % 8);
        read_all(&corrupted).unwrap_err();
        // A cut between two frames is the end of the pipe.
        assert!(read_all(&written[..at]).is_err() || read_all(&written[..at]).unwrap() < 12);
    }
}

#[test]
fn compressed_bytes_that_are_no_block_of_that_length_are_refused() {
    // The checksums are right, so only the decompression can tell.
    for (raw, sent) in [(1000u32, vec![0xF0u8; 10]), (1000, vec![0; 999]), (10, vec![1; 20]), (5, vec![])] {
        let message = encode(&ToWorker::Data { transfer: 1, offset: 0 }).unwrap();
        let mut frame = Vec::new();
        let checksums = [crc32fast::hash(&message), crc32fast::hash(&sent)];
        let lengths = [0, message.len() as u32, raw, sent.len() as u32];
        lengths.iter().chain(&checksums).for_each(|number| frame.extend(number.to_le_bytes()));
        frame.extend(crc32fast::hash(&frame).to_le_bytes());
        frame.extend(&message);
        frame.extend(&sent);
        let mut reader = FrameReader::new(&frame[..]);
        let outcome = reader.next::<ToWorker>().and_then(|found| {
            let bytes = found.map_or(0, |found| found.payload_bytes);
            reader.payload(&mut vec![0; bytes])
        });
        outcome.unwrap_err();
    }
}

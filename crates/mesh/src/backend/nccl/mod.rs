//! NCCL, loaded at run time: collectives on the memory of CUDA devices without a copy through the host.
//!
//! The ranks agree on the call through their host communicator before NCCL runs it, and on its success afterwards; so a
//! mismatch, a timeout or a failure of one rank is an error on every rank. NCCL communicators are non-blocking; one
//! whose work does not end in time is aborted, which removes its kernels from the card.
//!
//! NCCL and the driver are called inside the card's context ([`evener_device::cuda::PrimaryContext`]): not at all once the
//! card is lost, and with the program's current context restored afterwards.
//!
//! NCCL reduces in its own order: every rank gets the same bits, but not those of the other back ends.

mod library;
#[cfg(test)]
mod test;

use std::{
    ffi::{c_int, c_void},
    ops::Range,
    time::Duration,
};

use evener_device::cuda::PrimaryContext;
pub(crate) use library::available;
use library::{Config, Driver, Libraries, Nccl, Ptr, UniqueId};

use super::wait::Backoff;
use crate::comm::{Blocks, Collective, CollectiveDType, ReduceOp, Signature};

/// Bytes of the unique id by which ranks find a communicator.
pub(crate) const ID_BYTES: usize = library::ID_BYTES;

pub(crate) fn new_id() -> Result<[u8; ID_BYTES], String> {
    let nccl = &library::open()?.nccl;
    let mut id = UniqueId([0; ID_BYTES]);
    // SAFETY: the pointer is to a live variable.
    nccl.check(unsafe { (nccl.get_unique_id)(&mut id) }, "ncclGetUniqueId")?;
    Ok(id.0)
}

/// One rank's NCCL communicator, on one card.
#[derive(Debug)]
pub(crate) struct NcclComm {
    nccl: &'static Nccl,
    driver: &'static Driver,
    /// `None` once it was aborted.
    comm: Option<Ptr>,
    context: PrimaryContext,
    stream: Ptr,
    ranks: usize,
    rank: usize,
}

// SAFETY: NCCL and CUDA accept calls from any thread, one at a time. All methods that call them take `&mut self`, except
// `begin`, which only `run` calls, with `&mut self`.
unsafe impl Send for NcclComm {}

/// The operands of a collective: addresses on the card, or 0 if unused, and the layout of their blocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Operands<'a> {
    pub(crate) input: u64,
    pub(crate) output: u64,
    pub(crate) signature: Signature,
    pub(crate) blocks: Blocks<'a>,
}

impl NcclComm {
    /// Joins the other ranks, on the card of the context.
    pub(crate) fn join(
        id: [u8; ID_BYTES],
        ranks: usize,
        rank: usize,
        context: PrimaryContext,
        timeout: Duration,
    ) -> Result<Self, String> {
        let Libraries { nccl, driver, .. } = library::open()?;
        let stream = std::ptr::null_mut();
        let mut this = NcclComm { nccl, driver, comm: None, context, stream, ranks, rank };
        let code = {
            let inside = this.context.enter(JOINING).map_err(text)?;
            let mut comm = std::ptr::null_mut();
            let mut config = Config::not_blocking();
            // SAFETY: the context is current, and the pointers are to live variables.
            let code = unsafe {
                inside.check((driver.stream_create)(&mut this.stream, STREAM_NON_BLOCKING)).map_err(text)?;
                let (ranks, rank) = (ranks as c_int, rank as c_int);
                (nccl.comm_init_rank_config)(&mut comm, ranks, UniqueId(id), rank, &mut config)
            };
            this.comm = Some(comm).filter(|comm| !comm.is_null());
            code
        };
        this.wait_accepted(code, "ncclCommInitRankConfig", &Backoff::new(), timeout)?;
        Ok(this)
    }

    /// Runs a collective, and waits until it has ended. The caller keeps the memory at the addresses until then.
    pub(crate) fn run(
        &mut self,
        collective: Collective,
        operands: Operands<'_>,
        timeout: Duration,
    ) -> Result<(), String> {
        let wait = Backoff::new();
        let (driver, stream) = (self.driver, self.stream);
        let Some(comm) = self.comm else { return Err("the communicator was aborted".into()) };
        // All members return here: they have equal signatures.
        if operands.signature.count == 0 {
            return Ok(());
        }
        let (code, name) = {
            let _inside = self.context.enter(COLLECTIVE).map_err(text)?;
            self.begin(collective, operands, comm)
        };
        self.wait_accepted(code, name, &wait, timeout)?;
        loop {
            let ended = {
                let inside = self.context.enter(COLLECTIVE).map_err(text)?;
                // SAFETY: the stream belongs to the context that is current.
                match unsafe { (driver.stream_query)(stream) } {
                    DRIVER_NOT_READY => None,
                    code => Some(inside.check(code).map_err(text)),
                }
            };
            if let Some(ended) = ended {
                return ended.inspect_err(|_| self.abort());
            }
            self.wait_accepted(IN_PROGRESS, name, &wait, timeout)?;
            wait.pause();
        }
    }

    /// Enqueues the collective in the stream. Returns NCCL's code and the function's name.
    fn begin(&self, collective: Collective, operands: Operands<'_>, comm: Ptr) -> (c_int, &'static str) {
        let (nccl, stream, Operands { signature, blocks, .. }) = (self.nccl, self.stream, operands);
        let (input, output) = (operands.input as *mut c_void, operands.output as *mut c_void);
        let (count, kind) = (signature.count as usize, type_number(signature.element));
        macro_rules! call {
            ($function:ident($($argument:expr),*)) => {
                ((nccl.$function)($($argument,)* comm, stream), concat!("NCCL's ", stringify!($function)))
            };
        }
        // SAFETY: the caller's buffers have `count` elements, or the blocks of `blocks`, and are kept until the work is
        // done (see `run`); the communicator and the stream belong to the current context. Every NCCL group that is
        // started is ended.
        unsafe {
            match collective {
                Collective::AllReduce(by) => {
                    call!(all_reduce(input, output, count, kind, operation_number(by)))
                }
                Collective::Reduce(by, root) => {
                    call!(reduce(input, output, count, kind, operation_number(by), root as c_int))
                }
                Collective::Broadcast(root) => call!(broadcast(input, output, count, kind, root as c_int)),
                Collective::AllGather if blocks.are_even() => call!(all_gather(input, output, count, kind)),
                Collective::ReduceScatter(by) => {
                    call!(reduce_scatter(input, output, count, kind, operation_number(by)))
                }
                Collective::Send(to) => call!(send(input, count, kind, to as c_int)),
                Collective::Recv(from) => call!(recv(output, count, kind, from as c_int)),
                _ => {
                    let mut code = (nccl.group_start)();
                    let accepted = |code: c_int| [SUCCESS, IN_PROGRESS].contains(&code);
                    for member in 0..self.ranks {
                        let (sent, received) =
                            (blocks.send_range(self.rank, member), blocks.recv_range(self.rank, member));
                        let count = |range: &Range<usize>| range.len() / signature.element.bytes();
                        let (other, from) = (member as c_int, input.wrapping_byte_add(sent.start));
                        if accepted(code) && !sent.is_empty() {
                            code = (nccl.send)(from, count(&sent), kind, other, comm, stream);
                        }
                        let to = output.wrapping_byte_add(received.start);
                        if accepted(code) && !received.is_empty() {
                            code = (nccl.recv)(to, count(&received), kind, other, comm, stream);
                        }
                    }
                    let ended = (nccl.group_end)();
                    (if accepted(code) { ended } else { code }, "sending and receiving by NCCL")
                }
            }
        }
    }

    /// Waits until NCCL has accepted a non-blocking call; aborts if that fails or takes too long.
    fn wait_accepted(
        &mut self,
        mut code: c_int,
        name: &str,
        wait: &Backoff,
        timeout: Duration,
    ) -> Result<(), String> {
        while code == IN_PROGRESS {
            let Some(comm) = self.comm else { return Err(format!("{name}: no communicator")) };
            if wait.has_exceeded(timeout) {
                self.abort();
                return Err(format!("{name} did not end within {timeout:?}"));
            }
            let mut state = 0;
            let queried = {
                let _inside = self.context.enter(COLLECTIVE).map_err(text)?;
                // SAFETY: the communicator is alive, and the pointer is to a live variable.
                unsafe { (self.nccl.comm_get_async_error)(comm, &mut state) }
            };
            code = if queried == SUCCESS { state } else { queried };
            if code == IN_PROGRESS {
                wait.pause();
            }
        }
        self.nccl.check(code, name).inspect_err(|_| self.abort())
    }

    /// Aborts the work in flight. The communicator of a lost card is left to the driver.
    pub(crate) fn abort(&mut self) {
        if let (Some(comm), Ok(_inside)) = (self.comm.take(), self.context.enter("aborting NCCL")) {
            // SAFETY: `take` makes this the last use. NCCL changes the thread's current context; leaving the context
            // entered here restores the previous one.
            unsafe { (self.nccl.comm_abort)(comm) };
        }
    }
}

impl Drop for NcclComm {
    fn drop(&mut self) {
        // Aborting does not wait for the other ranks, as destroying would; no work is in flight.
        self.abort();
        if let Ok(_inside) = self.context.enter("leaving NCCL")
            && !self.stream.is_null()
        {
            // SAFETY: the stream belongs to this context, and is not used after the drop.
            unsafe { (self.driver.stream_destroy)(self.stream) };
        }
    }
}

fn text(error: evener_device::Error) -> String {
    error.to_string()
}

const JOINING: &str = "joining by NCCL";
const COLLECTIVE: &str = "a collective by NCCL";

const SUCCESS: c_int = 0;
const IN_PROGRESS: c_int = 7;
const DRIVER_NOT_READY: c_int = 600;
const STREAM_NON_BLOCKING: u32 = 1;

fn type_number(element: CollectiveDType) -> c_int {
    match element {
        CollectiveDType::U8 => 1,
        CollectiveDType::I32 => 2,
        CollectiveDType::U32 => 3,
        CollectiveDType::I64 => 4,
        CollectiveDType::U64 => 5,
        CollectiveDType::F16 => 6,
        CollectiveDType::F32 => 7,
        CollectiveDType::F64 => 8,
        CollectiveDType::Bf16 => 9,
    }
}

fn operation_number(operation: ReduceOp) -> c_int {
    match operation {
        ReduceOp::Sum => 0,
        ReduceOp::Product => 1,
        ReduceOp::Max => 2,
        ReduceOp::Min => 3,
        ReduceOp::Average => 4,
    }
}

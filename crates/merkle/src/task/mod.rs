//! The task of a run: blocks of leaves become their roots, or all of their nodes.

mod block;
mod cores;
mod device;

use std::{marker::PhantomData, sync::Arc};

use evener_device::{Device, DeviceId, Error, Kernel, Kind, Result};
use evener_schedule::{Chunk, Results, Task};

pub(crate) use self::block::{Block, Items};
use self::{block::Place, cores::Cores, device::OnDevice};
use crate::{hash::Digest, kernel, subtree::Format};

/// What becomes of a block.
pub(crate) trait Outcome: Send + Sync + 'static {
    /// What it is in a run's results.
    type Output: Send + 'static;
    /// Whether all nodes are wanted, and not the root alone.
    const WHOLE: bool;

    /// Gives the results of some blocks: the roots, or the nodes of one block after the other.
    fn give(nodes: &[Digest], height: u32, results: &mut Results<'_, Self::Output>);
    /// Gives the results of all blocks, which a device has copied to where they can stay for now.
    fn lend<'s>(nodes: &'s [Digest], height: u32, results: &mut Results<'s, Self::Output>);
}

/// Blocks become their roots.
pub(crate) struct Roots;

impl Outcome for Roots {
    type Output = Digest;
    const WHOLE: bool = false;

    fn give(nodes: &[Digest], _: u32, results: &mut Results<'_, Digest>) {
        results.extend_from_slice(nodes);
    }

    fn lend<'s>(nodes: &'s [Digest], _: u32, results: &mut Results<'s, Digest>) {
        results.lend(nodes);
    }
}

/// Blocks become all of their nodes, level after level.
pub(crate) struct Nodes;

impl Outcome for Nodes {
    type Output = Box<[Digest]>;
    const WHOLE: bool = true;

    fn give(nodes: &[Digest], height: u32, results: &mut Results<'_, Box<[Digest]>>) {
        // A device leaves a place unused after each block.
        results.extend(nodes.chunks(2 << height).map(|block| block[..(2 << height) - 1].into()));
    }

    fn lend<'s>(nodes: &'s [Digest], height: u32, results: &mut Results<'s, Box<[Digest]>>) {
        Self::give(nodes, height, results);
    }
}

/// How a run's blocks are reduced.
pub(crate) struct BlockTask<O> {
    shared: Arc<Shape>,
    outcome: PhantomData<fn() -> O>,
}

#[derive(Debug)]
struct Shape {
    name: String,
    format: Format,
    height: u32,
    kernel: Kernel,
}

impl Shape {
    fn block_bytes(&self) -> usize {
        self.format.bytes() << self.height
    }
}

impl<O: Outcome> BlockTask<O> {
    #[allow(unsafe_code)]
    pub(crate) fn new(format: Format, height: u32) -> Self {
        // Its history is kept under the name: a block of this kind takes about the same time each time.
        let what = match (format.hashed, O::WHOLE) {
            (true, false) => "digests".to_owned(),
            (true, true) => "digests, whole".to_owned(),
            (false, false) => format!("leaves of {} B", format.leaf_bytes),
            (false, true) => format!("leaves of {} B, whole", format.leaf_bytes),
        };
        let name = format!("merkle {}: {} {what}", format.scheme, 1u64 << height);
        // SAFETY: `OnDevice::run`, which alone launches it, has a block of leaves and room for its nodes for each workgroup.
        let kernel = unsafe { kernel::merkle(format) };
        let shape = Shape { name, format, height, kernel };
        BlockTask { shared: Arc::new(shape), outcome: PhantomData }
    }
}

impl<O> Clone for BlockTask<O> {
    fn clone(&self) -> Self {
        BlockTask { shared: self.shared.clone(), outcome: PhantomData }
    }
}

/// What a hand keeps from chunk to chunk.
pub(crate) enum State {
    Cores(DeviceId, Cores),
    Device(Box<OnDevice>),
}

impl<O: Outcome> Task for BlockTask<O> {
    type Input = Block;
    type Output = O::Output;
    type State = State;

    fn name(&self) -> &str {
        &self.shared.name
    }

    fn can_use(&self, device: &Device) -> bool {
        self.shared.kernel.has_body_for(device.describe().api)
    }

    fn prepare(&self, device: &Device) -> Result<State> {
        Ok(match device.describe().kind {
            Kind::Cpu => State::Cores(device.id().clone(), Cores::default()),
            _ => State::Device(Box::new(OnDevice::new(device, &self.shared, O::WHOLE)?)),
        })
    }

    fn most_items(&self, state: &State) -> u64 {
        match state {
            State::Cores(..) => u64::MAX,
            State::Device(device) => device.most_blocks(),
        }
    }

    fn may_hang(&self, device: &Device) -> bool {
        device.describe().kind != Kind::Cpu
    }

    fn run<'s>(
        &self,
        state: &'s mut State,
        chunk: &Chunk<'_, Block>,
        results: &mut Results<'s, O::Output>,
    ) -> Result<()> {
        match state {
            State::Cores(device, cores) => cores.run::<O>(&self.shared, chunk, results, device),
            State::Device(device) => {
                let nodes = device.run(&self.shared, O::WHOLE, chunk)?;
                O::lend(nodes, self.shared.height, results);
                Ok(())
            }
        }
    }
}

/// Leaves could not be had: no device could do it.
fn unreadable(device: &DeviceId, message: String) -> Error {
    Error::Task { device: device.clone(), operation: "reading leaves".into(), item: None, message }
}

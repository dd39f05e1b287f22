//! Communicators whose ranks have a device each, and which choose the route between the devices.

mod call;
#[cfg(unix)]
mod direct;
#[cfg(test)]
mod test;

use std::sync::Arc;
#[cfg(unix)]
use std::sync::Mutex;

use evener_device::{Api, Device};

use super::{
    communicator::Communicator,
    error::{CommError, Result},
};
#[cfg(unix)]
use crate::backend::nccl::{self, NcclComm};

/// Bytes of a rank's device information.
const CARD_BYTES: usize = 256;

/// A communicator whose ranks have a device each.
///
/// If all devices are different CUDA cards with NCCL, buffers move between the cards through NCCL. Otherwise they move
/// through the host, piece by piece. [`backend`](DeviceCommunicator::backend) returns which, and why.
///
/// ```
/// use evener_device::Device;
/// use evener_mesh::comm::{ReduceOp, World};
///
/// let world = World::local(1).remove(0);
/// let device = Device::cpu();
/// let group = world.communicator().with_device(&device)?;
/// assert_eq!(group.backend(), "local through the host: rank 0 is on cpu, which is not CUDA");
/// let (mut stream, buffer) = (device.stream()?, device.buffer_from(&[1u32, 2])?);
/// group.all_reduce(&mut stream, &buffer, ReduceOp::Sum)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct DeviceCommunicator {
    communicator: Communicator,
    backend: String,
    route: Arc<Route>,
}

/// The route of buffers between the ranks.
#[derive(Debug)]
struct Route {
    // Dropped before the device, which keeps its context alive.
    #[cfg(unix)]
    direct: Option<Mutex<NcclComm>>,
    device: Device,
}

impl Communicator {
    /// Returns a communicator for buffers on this rank's device. Every member calls this, each with its own device; all
    /// choose the same route.
    pub fn with_device(&self, device: &Device) -> Result<DeviceCommunicator> {
        let cards = self.cards(device)?;
        let why_not = why_not_nccl(&cards, self.ranks());
        #[cfg(unix)]
        let (why, direct) = match &why_not {
            None => self.join_nccl(device).map(|(why, direct)| (why, Some(Mutex::new(direct))))?,
            Some(_) => (String::new(), None),
        };
        #[cfg(not(unix))]
        let why = String::new();
        Ok(DeviceCommunicator {
            communicator: self.clone(),
            backend: why_not.map_or(why, |why_not| format!("{} through the host: {why_not}", self.backend())),
            route: Arc::new(Route {
                #[cfg(unix)]
                direct,
                device: device.clone(),
            }),
        })
    }

    /// Gathers every member's device: its id, its API, the host and card, NCCL's version, and why NCCL is missing.
    fn cards(&self, device: &Device) -> Result<Vec<[String; 5]>> {
        let it = device.describe();
        #[cfg(unix)]
        let nccl = if it.api == Api::Cuda { nccl::available() } else { Err(String::new()) };
        #[cfg(not(unix))]
        let nccl: Result<String, String> = Err("only on Unix so far".into());
        let host = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let card = it.uuid.clone().or_else(|| it.pci.clone()).unwrap_or_else(|| it.id.to_string());
        let (version, lack) = match nccl {
            Ok(version) => (version, String::new()),
            Err(lack) => (String::new(), lack),
        };
        let card = format!("{}/{card}", host.trim());
        let text = [it.id.to_string(), it.api.to_string(), card, version, lack].join("\n");
        let mut mine = [0u8; CARD_BYTES];
        let len = text.len().min(CARD_BYTES);
        mine[..len].copy_from_slice(&text.as_bytes()[..len]);
        let mut all = vec![0u8; CARD_BYTES * self.size()];
        self.all_gather(&mine, &mut all)?;
        let cards = all.chunks_exact(CARD_BYTES).map(|card| {
            let text = String::from_utf8_lossy(card).trim_end_matches('\0').to_owned();
            let mut lines = text.split('\n').map(str::to_owned);
            std::array::from_fn(|_| lines.next().unwrap_or_default())
        });
        Ok(cards.collect())
    }

    #[cfg(unix)]
    fn join_nccl(&self, device: &Device) -> Result<(String, NcclComm)> {
        let inner = self.inner();
        let failed = |detail: String| {
            let group = self.name().to_owned();
            inner.fail(CommError::Library { group, library: "NCCL", operation: "joining".into(), detail })
        };
        let me = self.rank().unwrap_or(0);
        let mut id = [0; nccl::ID_BYTES];
        if me == 0 {
            id = nccl::new_id().map_err(failed)?;
        }
        self.broadcast(&mut id, 0)?;
        let memory = device.buffer::<u8>(256).map_err(|error| inner.device_failed(error))?;
        let context = memory
            .cuda_context()
            .ok_or_else(|| failed("the device's memory is not a CUDA device's".into()))?;
        let joined = NcclComm::join(id, self.size(), me, context, self.timeout()).map_err(failed)?;
        self.barrier()?;
        Ok((format!("nccl {}", nccl::available().unwrap_or_default()), joined))
    }
}

/// Returns why these cards cannot use NCCL, or `None` if they can.
fn why_not_nccl(cards: &[[String; 5]], ranks: &[usize]) -> Option<String> {
    for (index, [id, api, card, version, lack]) in cards.iter().enumerate() {
        let rank = ranks[index];
        if *api != Api::Cuda.to_string() {
            return Some(format!("rank {rank} is on {id}, which is not CUDA"));
        }
        if version.is_empty() {
            return Some(format!("rank {rank} has {lack}"));
        }
        if let Some(other) = cards[..index].iter().position(|it| it[2] == *card) {
            return Some(format!("ranks {} and {rank} are on the same card", ranks[other]));
        }
    }
    None
}

impl DeviceCommunicator {
    /// Returns the route of buffers between the ranks, and the reason.
    pub fn backend(&self) -> &str {
        &self.backend
    }

    /// Returns the communicator for host memory.
    pub fn communicator(&self) -> &Communicator {
        &self.communicator
    }
}

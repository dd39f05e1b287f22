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

/// Bytes of a member's device in messages.
const DEVICE_BYTES: usize = 256;

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
        let why_not = why_not_nccl(&self.all_devices(device)?, self.ranks());
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

    /// Gathers the devices of all members.
    fn all_devices(&self, device: &Device) -> Result<Vec<MemberDevice>> {
        let mine = MemberDevice::new(device).encode();
        let mut all = vec![0u8; DEVICE_BYTES * self.size()];
        self.all_gather(&mine, &mut all)?;
        Ok(all.chunks_exact(DEVICE_BYTES).map(MemberDevice::decode).collect())
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

/// A member's device, as the other members know it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct MemberDevice {
    id: String,
    api: String,
    /// The host and the card, which differ between any two cards.
    card: String,
    /// Empty if NCCL is missing.
    nccl_version: String,
    why_no_nccl: String,
}

impl MemberDevice {
    fn new(device: &Device) -> Self {
        let it = device.describe();
        #[cfg(unix)]
        let nccl = if it.api == Api::Cuda { nccl::available() } else { Err(String::new()) };
        #[cfg(not(unix))]
        let nccl: Result<String, String> = Err("only on Unix so far".into());
        let host = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let card = it.uuid.clone().or_else(|| it.pci.clone()).unwrap_or_else(|| it.id.to_string());
        let (nccl_version, why_no_nccl) = match nccl {
            Ok(version) => (version, String::new()),
            Err(why) => (String::new(), why),
        };
        MemberDevice {
            id: it.id.to_string(),
            api: it.api.to_string(),
            card: format!("{}/{card}", host.trim()),
            nccl_version,
            why_no_nccl,
        }
    }

    /// Encodes the fields as lines. The last is cut if they are too long.
    fn encode(&self) -> [u8; DEVICE_BYTES] {
        let text = [&*self.id, &self.api, &self.card, &self.nccl_version, &self.why_no_nccl].join("\n");
        let (mut bytes, len) = ([0; DEVICE_BYTES], text.len().min(DEVICE_BYTES));
        bytes[..len].copy_from_slice(&text.as_bytes()[..len]);
        bytes
    }

    fn decode(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let mut lines = text.trim_end_matches('\0').split('\n').map(str::to_owned);
        let mut line = || lines.next().unwrap_or_default();
        MemberDevice { id: line(), api: line(), card: line(), nccl_version: line(), why_no_nccl: line() }
    }
}

/// Returns why these devices cannot use NCCL, or `None` if they can.
fn why_not_nccl(devices: &[MemberDevice], ranks: &[usize]) -> Option<String> {
    for (index, device) in devices.iter().enumerate() {
        let rank = ranks[index];
        if device.api != Api::Cuda.to_string() {
            return Some(format!("rank {rank} is on {}, which is not CUDA", device.id));
        }
        if device.nccl_version.is_empty() {
            return Some(format!("rank {rank} has {}", device.why_no_nccl));
        }
        if let Some(other) = devices[..index].iter().position(|other| other.card == device.card) {
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

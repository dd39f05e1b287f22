//! A group whose ranks have a device each, and which finds the best way between them by itself.

use std::sync::{Mutex, PoisonError};

use evener_device::{Api, Buffer, Device, Stream};

use super::{
    element::{Element, FloatElement},
    error::{CommError, Result},
    group::Group,
    operation::Operation,
};
#[cfg(unix)]
use crate::backend::nccl::{self, Communicator, Work};

/// How much a rank says of its device.
const CARD_BYTES: usize = 256;

/// A group whose ranks have a device each.
///
/// Where all of them are on CUDA cards, no two on the same, and have NCCL, buffers go from card to card through that.
/// Otherwise, on unlike devices, they go through the host, piece by piece. [`backend`](DeviceGroup::backend) says which,
/// and why.
///
/// ```
/// use evener_device::Device;
/// use evener_mesh::comm::{Comm, Operation};
///
/// let comm = Comm::local(1).remove(0);
/// let device = Device::cpu();
/// let group = comm.world().with_device(&device)?;
/// assert_eq!(group.backend(), "local through the host: rank 0 is on cpu, which is not CUDA");
/// let (mut stream, buffer) = (device.stream()?, device.buffer_from(&[1u32, 2])?);
/// group.all_reduce(&mut stream, &buffer, Operation::Sum)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct DeviceGroup<'a> {
    group: &'a Group,
    device: Device,
    why: String,
    #[cfg(unix)]
    direct: Option<Mutex<Communicator>>,
}

impl Group {
    /// Gives this rank's device to the group. Every member does so, each with its own; all take the same way.
    pub fn with_device(&self, device: &Device) -> Result<DeviceGroup<'_>> {
        let cards = self.cards(device)?;
        let why_not = why_not_nccl(&cards, self.ranks());
        #[cfg(unix)]
        if why_not.is_none() {
            let (why, direct) = self.join_nccl(device)?;
            return Ok(DeviceGroup {
                group: self,
                device: device.clone(),
                why,
                direct: Some(Mutex::new(direct)),
            });
        }
        let why = format!("{} through the host: {}", self.backend(), why_not.unwrap_or_default());
        Ok(DeviceGroup {
            group: self,
            device: device.clone(),
            why,
            #[cfg(unix)]
            direct: None,
        })
    }

    /// What every member says of its device: its host, its id and API, which card it is, and NCCL's version.
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
    fn join_nccl(&self, device: &Device) -> Result<(String, Communicator)> {
        let core = &self.core;
        let failed = |detail: String| {
            let group = self.name().to_owned();
            core.fail(CommError::Library { group, library: "NCCL", operation: "joining".into(), detail })
        };
        let me = self.rank().unwrap_or(0);
        let mut id = [0; nccl::ID_BYTES];
        if me == 0 {
            id = nccl::new_id().map_err(failed)?;
        }
        self.broadcast(&mut id, 0)?;
        let memory = device.buffer::<u8>(256).map_err(|error| core.device_failed(error))?;
        let address =
            memory.cuda_address().ok_or_else(|| failed("the device's memory has no address".into()))?;
        let joined = Communicator::join(id, self.size(), me, address, self.timeout()).map_err(failed)?;
        self.barrier()?;
        Ok((format!("nccl {}", nccl::available().unwrap_or_default()), joined))
    }
}

/// Why ranks on such cards cannot use NCCL.
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

impl DeviceGroup<'_> {
    /// Which way buffers take between the ranks, and why.
    pub fn backend(&self) -> &str {
        &self.why
    }

    /// The group on the host.
    pub fn group(&self) -> &Group {
        self.group
    }

    /// As [`Group::all_reduce_buffer`]; through NCCL, which reduces in an order of its own.
    pub fn all_reduce<T: Element>(
        &self,
        stream: &mut Stream,
        buffer: &Buffer<T>,
        operation: Operation,
    ) -> Result<()> {
        #[cfg(unix)]
        if let Some(direct) = &self.direct {
            return self.run(direct, stream, buffer, Work::AllReduce(operation));
        }
        self.group.all_reduce_buffer(&self.device, stream, buffer, operation)
    }

    /// As [`Group::weighted_all_reduce_buffer`], always through the host.
    pub fn weighted_all_reduce<T: FloatElement>(
        &self,
        stream: &mut Stream,
        buffer: &Buffer<T>,
        weight: f64,
    ) -> Result<()> {
        self.group.weighted_all_reduce_buffer(&self.device, stream, buffer, weight)
    }

    /// As [`Group::reduce_buffer`].
    pub fn reduce<T: Element>(
        &self,
        stream: &mut Stream,
        buffer: &Buffer<T>,
        operation: Operation,
        root: usize,
    ) -> Result<()> {
        #[cfg(unix)]
        if let Some(direct) = self.direct.as_ref().filter(|_| root < self.group.size()) {
            return self.run(direct, stream, buffer, Work::Reduce(operation, root));
        }
        self.group.reduce_buffer(&self.device, stream, buffer, operation, root)
    }

    /// As [`Group::broadcast_buffer`].
    pub fn broadcast<T: Element>(&self, stream: &mut Stream, buffer: &Buffer<T>, root: usize) -> Result<()> {
        #[cfg(unix)]
        if let Some(direct) = self.direct.as_ref().filter(|_| root < self.group.size()) {
            return self.run(direct, stream, buffer, Work::Broadcast(root));
        }
        self.group.broadcast_buffer(&self.device, stream, buffer, root)
    }

    #[cfg(unix)]
    fn run<T: Element>(
        &self,
        direct: &Mutex<Communicator>,
        stream: &mut Stream,
        buffer: &Buffer<T>,
        work: Work,
    ) -> Result<()> {
        let core = &self.group.core;
        core.settle();
        let mut direct = direct.lock().unwrap_or_else(PoisonError::into_inner);
        let says = match work {
            Work::AllReduce(operation) => [1, operation as u64, 0],
            Work::Reduce(operation, root) => [2, operation as u64, root as u64],
            Work::Broadcast(root) => [3, 0, root as u64],
        };
        let agreed = core.agree(&[says[0], says[1], says[2], T::TYPE as u64, buffer.len() as u64]);
        let done = agreed.and_then(|()| {
            stream.wait_timeout(self.group.timeout()).map_err(|error| core.device_failed(error))?;
            let address = buffer.cuda_address().unwrap_or(0);
            direct.run(work, T::TYPE, address, buffer.len(), self.group.timeout()).map_err(|detail| {
                let group = self.group.name().to_owned();
                core.fail(CommError::Library {
                    group,
                    library: "NCCL",
                    operation: "a collective".into(),
                    detail,
                })
            })?;
            // It ended well everywhere, or somebody says that it did not.
            core.barrier()
        });
        if done.is_err() {
            direct.abort();
        }
        done
    }
}

#[cfg(test)]
mod test {
    use evener_device::Inventory;

    use super::*;
    use crate::comm::Comm;

    fn card(id: &str, api: &str, card: &str, version: &str) -> [String; 5] {
        [id, api, card, version, "no NCCL"].map(str::to_owned)
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
        let card =
            inventory.devices().iter().find(|it| it.describe().api == Api::Cuda).expect("no CUDA device");
        let comm = Comm::local(1).remove(0);
        let group = comm.world().with_device(card).unwrap();
        assert!(group.backend().starts_with("nccl 2."), "{}", group.backend());
        let mut stream = card.stream().unwrap();
        fn check<T: Element>(group: &DeviceGroup<'_>, card: &Device, stream: &mut Stream, numbers: &[T]) {
            let buffer = card.buffer_from(numbers).unwrap();
            for operation in Operation::ALL {
                group.all_reduce(stream, &buffer, operation).unwrap();
                group.reduce(stream, &buffer, operation, 0).unwrap();
            }
            group.broadcast(stream, &buffer, 0).unwrap();
            assert_eq!(stream.download(&buffer).unwrap().wait().unwrap(), numbers);
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
}

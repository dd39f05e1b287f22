//! Any GPU, through wgpu: Vulkan, Metal, Direct3D 12 and OpenGL.
//!
//! An [`OpenDevice`](open_device::OpenDevice) has wgpu's device and its one queue, which runs submissions in order.
//! Streams therefore need no synchronization with each other: a stream is a command encoder, submitted when an event is
//! recorded, a wait begins or enough operations are queued. On Vulkan, large downloads go to a second queue
//! ([`transfer`]) and overlap with kernels.
//!
//! wgpu reports most errors through callbacks and panics on the rest. [`failure`] turns both into values.

mod clock;
mod describe;
mod event;
mod external;
mod failure;
mod host;
mod idle;
mod instance;
#[cfg(not(target_vendor = "apple"))]
mod mapped_memory;
#[cfg(target_vendor = "apple")]
#[path = "no_mapped_memory.rs"]
mod mapped_memory;
mod memory;
mod open;
mod open_device;
mod pipeline_cache;
mod program;
mod stream;
#[cfg(not(target_vendor = "apple"))]
mod transfer;
#[cfg(target_vendor = "apple")]
#[path = "no_transfer.rs"]
mod transfer;
#[cfg(not(target_vendor = "apple"))]
mod vulkan;
#[cfg(test)]
mod with_vulkan;

use std::sync::Arc;

pub(crate) use self::{external::source_of, memory::buffer_of};
pub use self::{external::wgpu_features, program::check_wgsl};
use super::{Backend, Source};
use crate::{
    describe::{Api, Description, DeviceId},
    discover::{Absent, Found},
    error::{Error, Result},
};

/// Finds the devices that wgpu drives. They are numbered within each API in the order of their PCI addresses.
///
/// OpenGL is searched only if no other API has a device: it lists the same hardware with fewer features, and opening it
/// loads window-system libraries, some of which print to the terminal.
pub(crate) fn find() -> Found {
    let mut found = Found::default();
    for &api in instance::PREFERRED {
        look(api, &mut found);
    }
    if found.sources.is_empty() {
        for &api in instance::FALLBACK {
            look(api, &mut found);
        }
    }
    found
}

/// Adds the devices of one API, or the reason why it has none.
fn look(api: Api, found: &mut Found) {
    match instance::adapters(api) {
        Ok(mut adapters) => {
            // Software devices have no address and come last; the sort is stable, so they keep the driver's order.
            adapters.sort_by_key(|adapter| {
                let pci = describe::pci(&adapter.get_info());
                (pci.is_none(), pci)
            });
            found.sources.extend(adapters.into_iter().enumerate().map(|(index, adapter)| {
                let id = DeviceId::from(format!("{api}:{index}"));
                let description = describe::describe(id, api, &adapter);
                Arc::new(WgpuSource { description, adapter }) as Arc<dyn Source>
            }));
        }
        Err(reason) => found.absent.push(Absent { back_end: api.to_string(), reason }),
    }
}

#[derive(Debug)]
struct WgpuSource {
    description: Description,
    adapter: wgpu::Adapter,
}

impl Source for WgpuSource {
    fn describe(&self) -> &Description {
        &self.description
    }

    fn open(&self) -> Result<Arc<dyn Backend>> {
        Ok(Arc::new(open::WgpuBackend::open(&self.description, &self.adapter)?))
    }

    fn split(&self, sizes: &[u32]) -> Result<Vec<Arc<dyn Source>>> {
        no_partitions(&self.description, sizes)
    }
}

fn no_partitions(description: &Description, sizes: &[u32]) -> Result<Vec<Arc<dyn Source>>> {
    Err(Error::Split {
        device: description.id.clone(),
        sizes: sizes.to_vec(),
        detail: format!("{} cannot split a device", description.api),
    })
}

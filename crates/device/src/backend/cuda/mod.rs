//! NVIDIA cards through the CUDA driver, which is loaded at run time: building needs neither the driver nor a toolkit.
//!
//! | file | what it is about |
//! | --- | --- |
//! | `driver` | the driver's functions |
//! | `errors` | what the driver's result codes mean |
//! | `card` | a card's properties, before it is opened |
//! | `context`, `gate` | the primary context that all users of a card share: how it is entered, lost and recreated |
//! | `primary_context` | the same context for other libraries |
//! | `open` | an open card or partition, and the work that outlives it |
//! | `memory` | memory on the card, and pinned memory on the host |
//! | `stream`, `event`, `keep_alive` | operations in order, their progress, and the resources that they keep alive |
//! | `graph` | CUDA graphs: recorded launches that are queued with one call |
//! | `program`, `cubin`, `nvrtc`, `nvrtc_paths` | kernels: loading, the cache on disk, compiling, and finding the compiler |
//! | `partition` | some of a card's multiprocessors as a device of their own |

mod card;
mod context;
mod cubin;
mod driver;
mod errors;
mod event;
#[cfg(test)]
#[cfg(unix)]
mod fake_driver;
mod gate;
mod graph;
mod keep_alive;
mod memory;
mod nvrtc;
mod nvrtc_paths;
mod open;
mod partition;
pub(crate) mod primary_context;
mod program;
mod stream;
#[cfg(test)]
mod with_card;

use std::sync::Arc;

pub use self::nvrtc::{compile_for, compile_kernel};
use self::{
    card::Card, context::DeviceContext, driver::Driver, nvrtc::Nvrtc, open::CudaBackend, partition::SplitCard,
};
use super::{Backend, Source};
use crate::{
    describe::Description,
    discover::{Absent, Found},
    error::{Error, Result},
};

/// Finds the cards of this machine, without opening any.
pub(crate) fn find() -> Found {
    let cards = match Driver::get().and_then(card::all) {
        Ok(cards) => cards,
        Err(reason) => return Found::nothing("cuda", reason),
    };
    let mut absent = Vec::new();
    if let Err(why) = Nvrtc::get() {
        let reason = format!(
            "{why}, so kernels cannot be compiled; NVIDIA GPUs are used through Vulkan where Vulkan lists them"
        );
        absent.push(Absent { back_end: "cuda".into(), reason });
    }
    let source = |(description, card)| -> Arc<dyn Source> {
        Arc::new(CudaSource { description, card, partition: None })
    };
    Found { sources: cards.into_iter().map(source).collect(), absent }
}

/// Whether kernels can be compiled for CUDA. If not, discovery prefers the same cards through another API.
pub(crate) fn compiles_kernels() -> bool {
    Nvrtc::get().is_ok()
}

#[derive(Debug)]
struct CudaSource {
    description: Description,
    card: Arc<Card>,
    partition: Option<Partition>,
}

/// One partition of a split card.
#[derive(Debug)]
struct Partition {
    split: Arc<SplitCard>,
    index: usize,
}

impl Source for CudaSource {
    fn describe(&self) -> &Description {
        &self.description
    }

    fn open(&self) -> Result<Arc<dyn Backend>> {
        let id = &self.description.id;
        let backend = || match &self.partition {
            None => CudaBackend::open(self.card.slot.open(id)?, self.card.clone(), None),
            Some(partition) => {
                let green = partition.split.green_context(partition.index)?;
                let context = DeviceContext { id: id.clone(), primary: green.context.primary.clone() };
                CudaBackend::open(context, self.card.clone(), Some(green))
            }
        };
        match backend() {
            Ok(backend) => Ok(Arc::new(backend)),
            // The drivers of CUDA 13.0 do not let a process use a card again after a kernel of it faulted.
            Err(Error::Lost { device, operation, detail }) => Err(Error::Lost {
                detail: format!(
                    "{detail} (if a kernel faulted, this process cannot use the device again: restart it)"
                ),
                device,
                operation,
            }),
            Err(error) => Err(error),
        }
    }

    fn split(&self, sizes: &[u32]) -> Result<Vec<Arc<dyn Source>>> {
        let id = &self.description.id;
        if self.partition.is_some() {
            return Err(Error::Split {
                device: id.clone(),
                sizes: sizes.to_vec(),
                detail: "it is already a partition: split the whole device into all the sizes at once".into(),
            });
        }
        let split = Arc::new(SplitCard::new(&self.card, id, sizes)?);
        let partition = |(index, (units, &asked)): (usize, (u32, &u32))| -> Arc<dyn Source> {
            Arc::new(CudaSource {
                description: Description {
                    id: id.partition(index),
                    compute_units: Some(units),
                    part_of: Some(id.clone()),
                    rounded_from: (units != asked).then_some(asked),
                    ..self.description.clone()
                },
                card: self.card.clone(),
                partition: Some(Partition { split: split.clone(), index }),
            })
        };
        Ok(split.units().into_iter().zip(sizes).enumerate().map(partition).collect())
    }
}

//! NVIDIA cards through the driver, which is opened at run time: neither it nor a toolkit is needed to build.
//!
//! | file | what it is about |
//! | --- | --- |
//! | `driver` | the driver's functions |
//! | `errors` | what its result codes mean |
//! | `card` | what a card is, before it is opened |
//! | `context`, `gate` | the context that all users of a card share, how it is lost and made anew |
//! | `guest` | the way into that context for other libraries |
//! | `open` | an open card: what is made from it, and what outlives that |
//! | `memory` | memory on the card, and pinned memory on the host |
//! | `stream`, `event`, `keep` | operations in order, how far they are, and what they keep alive |
//! | `graph` | launches that are recorded, and queued as one |
//! | `program`, `cubin`, `nvrtc`, `places` | kernels: loaded, on disk, compiled, and with what |
//! | `partition` | some of a card's multiprocessors as a device |

mod card;
mod context;
mod cubin;
mod driver;
mod errors;
mod event;
mod gate;
mod graph;
pub(crate) mod guest;
mod keep;
mod memory;
mod nvrtc;
mod open;
mod partition;
mod places;
mod program;
#[cfg(test)]
#[cfg(unix)]
mod stand_in;
mod stream;
#[cfg(test)]
mod with_card;

use std::sync::Arc;

pub use self::nvrtc::{compile_for, compile_kernel};
use self::{card::Card, context::Hold, driver::Driver, nvrtc::Nvrtc, open::CudaBackend, partition::Split};
use super::{Backend, Source};
use crate::{
    describe::Description,
    discover::{Absent, Found},
    error::{Error, Result},
};

/// The cards of this machine, none of them opened.
pub(crate) fn find() -> Found {
    let cards = match Driver::get().and_then(card::all) {
        Ok(cards) => cards,
        Err(reason) => return Found::nothing("cuda", reason),
    };
    let mut absent = Vec::new();
    if let Err(why) = Nvrtc::get() {
        let reason = format!(
            "{why}, so kernels cannot be compiled: NVIDIA GPUs are used through Vulkan where it shows them"
        );
        absent.push(Absent { back_end: "cuda".into(), reason });
    }
    let source =
        |(description, card)| -> Arc<dyn Source> { Arc::new(CudaSource { description, card, part: None }) };
    Found { sources: cards.into_iter().map(source).collect(), absent }
}

/// Whether kernels can be compiled for the cards. Where not, the same cards through another API serve better.
pub(crate) fn compiles_kernels() -> bool {
    Nvrtc::get().is_ok()
}

#[derive(Debug)]
struct CudaSource {
    description: Description,
    card: Arc<Card>,
    part: Option<Part>,
}

/// Which partition of which cut.
#[derive(Debug)]
struct Part {
    split: Arc<Split>,
    index: usize,
}

impl Source for CudaSource {
    fn describe(&self) -> &Description {
        &self.description
    }

    fn open(&self) -> Result<Arc<dyn Backend>> {
        let id = &self.description.id;
        let backend = || match &self.part {
            None => CudaBackend::open(self.card.slot.hold(id)?, self.card.clone(), None),
            Some(part) => {
                let green = part.split.green(part.index)?;
                let hold = Hold { id: id.clone(), context: green.hold.context.clone() };
                CudaBackend::open(hold, self.card.clone(), Some(green))
            }
        };
        match backend() {
            Ok(backend) => Ok(Arc::new(backend)),
            // The drivers of CUDA 13.0 serve no process again in which a kernel made a fault.
            Err(Error::Lost { device, operation, detail }) => Err(Error::Lost {
                detail: format!(
                    "{detail} (if a kernel broke it, this process cannot use it again: start it again)"
                ),
                device,
                operation,
            }),
            Err(error) => Err(error),
        }
    }

    fn split(&self, sizes: &[u32]) -> Result<Vec<Arc<dyn Source>>> {
        let id = &self.description.id;
        if self.part.is_some() {
            return Err(Error::Split {
                device: id.clone(),
                sizes: sizes.to_vec(),
                detail: "it is a partition already: split the whole device into all the sizes at once".into(),
            });
        }
        let split = Arc::new(Split::new(&self.card, id, sizes)?);
        let part = |(index, (units, &asked)): (usize, (u32, &u32))| -> Arc<dyn Source> {
            Arc::new(CudaSource {
                description: Description {
                    id: id.partition(index),
                    compute_units: Some(units),
                    part_of: Some(id.clone()),
                    rounded_from: (units != asked).then_some(asked),
                    ..self.description.clone()
                },
                card: self.card.clone(),
                part: Some(Part { split: split.clone(), index }),
            })
        };
        Ok(split.units().into_iter().zip(sizes).enumerate().map(part).collect())
    }
}

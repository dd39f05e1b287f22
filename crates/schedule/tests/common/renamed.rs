//! The processor under another name, so that tests have any number of devices on any machine.

use std::sync::Arc;

use evener_device::{
    Description, Device, Result,
    backend::{Backend, Source},
};

#[derive(Debug)]
struct Renamed {
    description: Description,
    under: Arc<dyn Source>,
}

impl Source for Renamed {
    fn describe(&self) -> &Description {
        &self.description
    }

    fn open(&self) -> Result<Arc<dyn Backend>> {
        self.under.open()
    }

    fn split(&self, sizes: &[u32]) -> Result<Vec<Arc<dyn Source>>> {
        self.under.split(sizes)
    }
}

/// Returns the processor with a description that a closure changes.
pub(crate) fn renamed(id: &str, change: impl FnOnce(&mut Description)) -> Device {
    let under = Device::cpu().source().clone();
    let mut description = Description { id: id.into(), ..under.describe().clone() };
    change(&mut description);
    Device::from_source(Arc::new(Renamed { description, under }))
}

//! Devices that exist in tests only: they can be found, described and split, but not opened.

use std::sync::Arc;

use crate::{
    backend::{Backend, Source},
    describe::{Api, Description, DeviceId, DeviceKind},
    device::Device,
    error::{Error, Result},
};

/// A discrete Vulkan card with no other properties.
pub(crate) fn description(id: &str) -> Description {
    Description {
        id: DeviceId::from(id),
        name: format!("device {id}"),
        kind: DeviceKind::Discrete,
        api: Api::Vulkan,
        memory_bytes: None,
        compute_units: None,
        pci: None,
        uuid: None,
        driver: String::new(),
        part_of: None,
        rounded_from: None,
    }
}

pub(crate) fn device(description: Description) -> Device {
    Device::from_source(Arc::new(FakeSource { description }))
}

/// Splits in steps of 8 units.
#[derive(Debug)]
struct FakeSource {
    description: Description,
}

impl Source for FakeSource {
    fn describe(&self) -> &Description {
        &self.description
    }

    fn open(&self) -> Result<Arc<dyn Backend>> {
        Err(Error::unsupported(&self.description.id, "opening the device", "the device is a fake"))
    }

    fn split(&self, sizes: &[u32]) -> Result<Vec<Arc<dyn Source>>> {
        let rounded: Vec<u32> = sizes.iter().map(|size| size.saturating_add(7) / 8 * 8).collect();
        let units = self.description.compute_units.unwrap_or(0);
        if rounded.iter().map(|&size| u64::from(size)).sum::<u64>() > u64::from(units) {
            return Err(Error::Split {
                device: self.description.id.clone(),
                sizes: sizes.to_vec(),
                detail: format!("the device has {units} units, in steps of 8"),
            });
        }
        let partition = |(index, (&asked, &rounded)): (usize, (&u32, &u32))| -> Arc<dyn Source> {
            Arc::new(FakeSource {
                description: Description {
                    id: self.description.id.partition(index),
                    compute_units: Some(rounded),
                    part_of: Some(self.description.id.clone()),
                    rounded_from: (asked != rounded).then_some(asked),
                    ..self.description.clone()
                },
            })
        };
        Ok(sizes.iter().zip(&rounded).enumerate().map(partition).collect())
    }
}

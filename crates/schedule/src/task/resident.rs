//! Data that stays on a device for as long as its job.

use std::{
    any::Any,
    fmt,
    sync::{Arc, Mutex},
};

use bytemuck::Pod;
use evener_device::{Argument, Device, Result};

use super::unique;
use crate::sync::lock;

/// What all workers of a job have in common on one opened device, such as a table that kernels read: see
/// [`Task::prepare_with`](super::Task::prepare_with).
///
/// It is gone with the states of the job's workers: when the job is dropped, by [`Pool::release`](crate::Pool::release),
/// and when the device was lost and is opened afresh.
#[derive(Debug, Clone, Default)]
pub struct Resident(Arc<Mutex<Option<Arc<dyn Any + Send + Sync>>>>);

impl Resident {
    /// Returns the workers' common data. The first worker makes it, while the others wait.
    pub fn get_or_make<V: Send + Sync + 'static>(&self, make: impl FnOnce() -> Result<V>) -> Result<Arc<V>> {
        let mut there = lock(&self.0);
        if let Some(Ok(made)) = there.clone().map(Arc::downcast) {
            return Ok(made);
        }
        let made = Arc::new(make()?);
        *there = Some(made.clone());
        Ok(made)
    }
}

type Upload = dyn Fn(&Device) -> Result<Argument> + Send + Sync;

/// An array that every item may read all of.
#[derive(Clone)]
pub(super) struct Table {
    pub(super) name: Arc<str>,
    /// Differs between any two contents.
    pub(super) id: u64,
    upload: Arc<Upload>,
}

impl Table {
    pub(super) fn new<T: Pod>(name: &str, data: impl AsRef<[T]> + Send + Sync + 'static) -> Self {
        let upload = move |device: &Device| Ok(device.buffer_from(data.as_ref())?.arg());
        Table { name: name.into(), id: unique(), upload: Arc::new(upload) }
    }
}

/// The tables of a kernel on one opened device.
#[derive(Default)]
pub(super) struct Tables(Mutex<Vec<(Table, Argument)>>);

impl Tables {
    /// The table as an argument of the kernel. The first worker that asks for it copies it to the device, in place of an
    /// earlier one of the same name, while the others wait.
    pub(super) fn get(&self, device: &Device, table: &Table) -> Result<Argument> {
        let mut there = lock(&self.0);
        if let Some(place) = there.iter().position(|(it, _)| it.name == table.name) {
            if there[place].0.id == table.id {
                return Ok(there[place].1.clone());
            }
            there.remove(place);
        }
        let argument = (table.upload)(device)?;
        there.push((table.clone(), argument.clone()));
        Ok(argument)
    }
}

impl fmt::Debug for Tables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(lock(&self.0).iter().map(|(table, _)| table.name.clone())).finish()
    }
}

//! Data that stays on a device as long as its job.

use std::{
    any::Any,
    fmt,
    sync::{Arc, Mutex},
};

use bytemuck::Pod;
use evener_device::{Argument, Device, Result};

use super::unique_id;
use crate::sync::lock;

/// Data that all workers of a job share on one opened device, for example a table that kernels read: see
/// [`Task::prepare_with`](super::Task::prepare_with).
///
/// The data is dropped with the states of the job's workers: with the job, by [`Pool::release`](crate::Pool::release), and
/// when a lost device is opened again.
#[derive(Debug, Clone, Default)]
pub struct Resident(Arc<Mutex<Option<Arc<dyn Any + Send + Sync>>>>);

impl Resident {
    /// Returns the shared data. The first worker makes it, while the others wait.
    pub fn get_or_make<V: Send + Sync + 'static>(&self, make: impl FnOnce() -> Result<V>) -> Result<Arc<V>> {
        let mut data = lock(&self.0);
        if let Some(Ok(made)) = data.clone().map(Arc::downcast) {
            return Ok(made);
        }
        let made = Arc::new(make()?);
        *data = Some(made.clone());
        Ok(made)
    }
}

type UploadTable = dyn Fn(&Device) -> Result<Argument> + Send + Sync;

/// An array that is the same for every item.
#[derive(Clone)]
pub(super) struct Table {
    pub(super) name: Arc<str>,
    /// A different number for each contents.
    pub(super) id: u64,
    upload: Arc<UploadTable>,
}

impl Table {
    pub(super) fn new<T: Pod>(name: &str, data: impl AsRef<[T]> + Send + Sync + 'static) -> Self {
        let upload = move |device: &Device| Ok(device.buffer_from(data.as_ref())?.arg());
        Table { name: name.into(), id: unique_id(), upload: Arc::new(upload) }
    }
}

/// The tables of a kernel on one opened device.
#[derive(Default)]
pub(super) struct Tables(Mutex<Vec<(Table, Argument)>>);

impl Tables {
    /// Returns the table as a kernel argument. The first worker that asks copies it to the device, in place of an earlier
    /// table of the same name, while the others wait.
    pub(super) fn get(&self, device: &Device, table: &Table) -> Result<Argument> {
        let mut entries = lock(&self.0);
        if let Some(index) = entries.iter().position(|(it, _)| it.name == table.name) {
            if entries[index].0.id == table.id {
                return Ok(entries[index].1.clone());
            }
            entries.remove(index);
        }
        let argument = (table.upload)(device)?;
        entries.push((table.clone(), argument.clone()));
        Ok(argument)
    }
}

impl fmt::Debug for Tables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(lock(&self.0).iter().map(|(table, _)| table.name.clone())).finish()
    }
}

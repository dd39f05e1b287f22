//! The pools of this process: one for each selection of devices, kept for later calls.

use std::{
    collections::HashMap,
    process,
    sync::{LazyLock, Mutex, PoisonError},
};

use evener_device::Inventory;
use evener_schedule::{Pool, RunError};

/// Pools by process and selection: a forked process cannot use those of its parent.
type Pools = HashMap<(u32, Option<String>), Pool>;

static POOLS: LazyLock<Mutex<Pools>> = LazyLock::new(Mutex::default);

/// Returns the pool of a selection, or of the default devices. Fails if the selection names no device.
pub(crate) fn pool(selection: Option<&str>) -> Result<Pool, RunError> {
    let key = (process::id(), selection.map(str::to_owned));
    if let Some(pool) = POOLS.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
        return Ok(pool.clone());
    }
    // Without the lock, since finding devices takes time. If two threads do so, the first pool stays.
    let devices = Inventory::discover().select_or_default(selection)?;
    let made = Pool::new(devices)?;
    Ok(POOLS.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_insert(made).clone())
}

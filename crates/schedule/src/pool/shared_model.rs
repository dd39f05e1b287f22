//! The model of device speeds, shared by a pool's jobs and kept on disk.

use std::{
    path::PathBuf,
    sync::Mutex,
    time::{Duration, Instant, SystemTime},
};

use crate::{contain::log, hybrid::Model, sync::lock};

/// Minimum time between saves.
const SAVE_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum time between saves, as a multiple of how long a save takes.
const SAVE_COST_FACTOR: u32 = 1000;

/// The model, loaded at its first use, and saved when it has learned from a run.
#[derive(Debug)]
pub(crate) struct SharedModel {
    /// The model's file; `None` if it is not kept.
    path: Option<PathBuf>,
    state: Mutex<ModelState>,
}

#[derive(Debug, Default)]
struct ModelState {
    model: Option<Model>,
    /// When it may be saved again; `None` if it never was.
    save_after: Option<Instant>,
}

impl SharedModel {
    pub(super) fn new(path: Option<PathBuf>) -> Self {
        SharedModel { path, state: Mutex::default() }
    }

    /// Calls a closure with the model.
    pub(super) fn with_model<R>(&self, access: impl FnOnce(&mut Model) -> R) -> R {
        let load = || self.path.as_deref().map_or_else(Model::default, Model::load);
        access(lock(&self.state).model.get_or_insert_with(load))
    }

    /// Saves the model, unless it was saved a moment ago.
    pub(crate) fn save_if_due(&self) {
        if lock(&self.state).save_after.is_none_or(|after| Instant::now() >= after) {
            self.save();
        }
    }

    fn save(&self) {
        let mut state = lock(&self.state);
        let changed = state.model.as_mut().filter(|model| model.has_changed());
        let Some((model, path)) = changed.zip(self.path.as_ref()) else { return };
        let changes = model.take_changes();
        let begin = Instant::now();
        state.save_after = Some(begin + SAVE_INTERVAL);
        // Other threads may use the model during the save.
        drop(state);
        if let Err(why) = changes.save(path, SystemTime::now()) {
            // Not an error: what is not saved is learned again.
            log!(debug, path = %path.display(), %why, "what was learned of the devices could not be cached");
        }
        lock(&self.state).save_after = Some(begin + SAVE_INTERVAL.max(begin.elapsed() * SAVE_COST_FACTOR));
    }
}

impl Drop for SharedModel {
    fn drop(&mut self) {
        self.save();
    }
}

//! Which devices a run uses: the hybrid model, kept on disk between programs.

use std::{
    path::PathBuf,
    sync::Mutex,
    time::{Duration, Instant, SystemTime},
};

use crate::{contain::log, hybrid::Model, sync::lock};

/// The model is saved this long after it was last, at the earliest.
const SAVE_EVERY: Duration = Duration::from_secs(1);
/// Saving may take one part in so many of the time.
const SAVING: u32 = 1000;

/// The model, loaded when it is first asked and saved when runs have ended that it learned from.
#[derive(Debug)]
pub(crate) struct Chooser {
    /// Where the model is kept; nowhere, where it is not.
    path: Option<PathBuf>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    model: Option<Model>,
    /// When it may be saved again; at once, where it never was.
    save_after: Option<Instant>,
}

impl Chooser {
    pub(super) fn new(path: Option<PathBuf>) -> Self {
        Chooser { path, known: Mutex::default() }
    }

    /// Asks the model, or teaches it.
    pub(super) fn with_model<R>(&self, use_it: impl FnOnce(&mut Model) -> R) -> R {
        let load = || self.path.as_deref().map_or_else(Model::default, Model::load);
        use_it(lock(&self.known).model.get_or_insert_with(load))
    }

    /// Saves what was learned, unless that was done a moment ago.
    pub(crate) fn save_now_and_then(&self) {
        if lock(&self.known).save_after.is_none_or(|after| Instant::now() >= after) {
            self.save();
        }
    }

    fn save(&self) {
        let mut known = lock(&self.known);
        let changed = known.model.as_mut().filter(|model| model.has_changed());
        let Some((model, path)) = changed.zip(self.path.as_ref()) else { return };
        let changes = model.take_changes();
        let begin = Instant::now();
        known.save_after = Some(begin + SAVE_EVERY);
        // Others may choose meanwhile.
        drop(known);
        if let Err(why) = changes.save(path, SystemTime::now()) {
            // It is a convenience: what is not kept is learned again.
            log!(debug, path = %path.display(), %why, "what was learned of the devices could not be kept");
        }
        lock(&self.known).save_after = Some(begin + SAVE_EVERY.max(begin.elapsed() * SAVING));
    }
}

impl Drop for Chooser {
    fn drop(&mut self) {
        self.save();
    }
}

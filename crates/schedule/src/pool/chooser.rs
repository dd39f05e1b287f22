//! Which devices a run uses: the hybrid model, kept on disk between programs.

use std::{
    path::PathBuf,
    sync::{Mutex, MutexGuard},
};

use evener_device::cache_folder;

use super::lock;
use crate::contain::log;
use crate::hybrid::{Candidate, Choice, Experience, Model, Observation};

/// The model, loaded when it is first asked and saved when the pool ends.
#[derive(Debug, Default)]
pub(crate) struct Chooser {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    place: Place,
    model: Option<Model>,
    learned: bool,
}

/// Where the model is kept.
#[derive(Debug, Default)]
enum Place {
    /// In the user's cache folder.
    #[default]
    Usual,
    /// There, or nowhere.
    At(Option<PathBuf>),
}

impl Known {
    fn path(&self) -> Option<PathBuf> {
        match &self.place {
            Place::Usual => cache_folder().map(|folder| folder.join("runs.json")),
            Place::At(path) => path.clone(),
        }
    }

    fn model(&mut self) -> &mut Model {
        let path = self.path();
        self.model.get_or_insert_with(|| path.map_or_else(Model::default, |path| Model::load(&path)))
    }
}

impl Chooser {
    /// Keeps the model there from now on, or nowhere. What was known is what is there.
    pub(crate) fn keep_at(&self, path: Option<PathBuf>) {
        *lock(&self.known) = Known { place: Place::At(path), model: None, learned: false };
    }

    pub(crate) fn choose(&self, task: &str, items: u64, candidates: &[Candidate]) -> Choice {
        self.known().model().choose(task, items, candidates)
    }

    /// Learns from what each device did in a run.
    pub(crate) fn observe(&self, task: &str, observations: &[Observation]) {
        let mut known = self.known();
        known.learned = true;
        for observation in observations {
            known.model().observe(task, observation);
        }
    }

    /// Learns from how long whole runs took.
    pub(crate) fn ended(&self, task: &str, items: u64, experience: Experience) {
        let mut known = self.known();
        known.learned = true;
        known.model().ended(task, items, experience);
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        lock(&self.known)
    }
}

impl Drop for Chooser {
    fn drop(&mut self) {
        let known = self.known();
        if let (true, Some(path), Some(model)) = (known.learned, known.path(), &known.model)
            && let Err(why) = model.save(&path)
        {
            // It is a convenience: what is not kept is learned again.
            log!(debug, path = %path.display(), %why, "what was learned of the devices could not be kept");
        }
    }
}

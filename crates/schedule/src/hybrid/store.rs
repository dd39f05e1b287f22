//! The model on disk.

use std::{collections::BTreeMap, io, path::Path};

use serde::{Deserialize, Serialize};

use super::{Model, Record, Trials};

/// Changes whenever what is kept, or what it means, does.
const VERSION: u32 = 4;

type Tasks = BTreeMap<String, BTreeMap<String, Record>>;
type Runs = BTreeMap<String, Trials>;

#[derive(Serialize, Deserialize)]
struct Stored<Tasks, Runs> {
    version: u32,
    tasks: Tasks,
    runs: Runs,
}

impl Model {
    /// The model that was saved there. A file that is missing, damaged or of another version is an empty model: what
    /// it knew is learned again.
    pub fn load(path: &Path) -> Model {
        let text = std::fs::read(path).ok();
        let stored: Option<Stored<Tasks, Runs>> = text.and_then(|text| serde_json::from_slice(&text).ok());
        match stored {
            Some(Stored { version: VERSION, tasks, runs }) => {
                Model { tasks, trials: runs, ..Model::default() }
            }
            _ => Model::default(),
        }
    }

    /// Writes the model whole or not at all, so that two processes cannot spoil each other's; of two that write, the
    /// last one's is kept. Fails where the folder cannot be made or written.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let stored: Stored<&Tasks, &Runs> =
            Stored { version: VERSION, tasks: &self.tasks, runs: &self.trials };
        evener_device::write_whole(path, &serde_json::to_vec(&stored)?)
    }
}

#[cfg(test)]
mod test {
    use std::time::Duration;

    use super::*;
    use crate::hybrid::{Experience, Observation};

    fn taught() -> Model {
        let mut model = Model::default();
        let busy = Duration::from_millis(1500);
        let observation =
            Observation { device: "cuda:0".into(), items: 1000, busy, startup: busy, cold: true };
        model.observe("hash", &observation);
        let devices = vec!["cuda:0".to_owned()];
        let worked = devices.clone();
        model.ended("hash", 1000, Experience { devices, worked, wall: busy, runs: 0 });
        model
    }

    #[test]
    fn what_is_saved_is_loaded_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/er/model.json");
        Model::default().save(&path).unwrap();
        taught().save(&path).unwrap();
        assert_eq!(Model::load(&path), taught());
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing lies beside it");
    }

    #[test]
    fn a_missing_old_or_damaged_file_is_an_empty_model() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.json");
        assert_eq!(Model::load(&path), Model::default());
        taught().save(&path).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let older = text.replace("\"version\":4", "\"version\":0");
        for damaged in
            ["", "{}", "\0", &text[..text.len() / 2], &older, r#"{"version":4,"runs":{},"tasks":{"a":3}}"#]
        {
            std::fs::write(&path, damaged).unwrap();
            assert_eq!(Model::load(&path), Model::default(), "{damaged}");
        }
    }

    #[test]
    fn a_model_that_cannot_be_written_leaves_the_old_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        taught().save(&path).unwrap();
        assert!(taught().save(&path.join("below")).is_err());
        assert_eq!(Model::load(&path), taught());
    }
}

//! The model on disk.

use std::{
    collections::BTreeMap,
    io,
    path::Path,
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize};

use super::{MAX_TASKS, Model, TaskHistory};

/// Changes whenever the content of the file, or its meaning, does.
const VERSION: u32 = 6;
/// Maximum time that an unused task is kept.
const MAX_AGE: Duration = Duration::from_secs(180 * 24 * 3600);

#[derive(Serialize, Deserialize)]
struct Stored<Tasks> {
    version: u32,
    tasks: Tasks,
}

impl Model {
    /// Loads a saved model. A missing, damaged or outdated file gives an empty model, which learns again.
    pub fn load(path: &Path) -> Model {
        let text = std::fs::read(path).ok();
        match text.and_then(|text| serde_json::from_slice(&text).ok()) {
            Some(Stored { version: VERSION, tasks }) => Model { tasks, uses: 0 },
            _ => Model::default(),
        }
    }

    /// Takes the tasks that have changed since the last call.
    pub fn take_changes(&mut self) -> Model {
        let take = |(task, history): (&String, &mut TaskHistory)| {
            std::mem::take(&mut history.changed).then(|| (task.clone(), history.clone()))
        };
        Model { tasks: self.tasks.iter_mut().filter_map(take).collect(), uses: 0 }
    }

    /// Whether any task has changed since the last `take_changes`.
    pub fn has_changed(&self) -> bool {
        self.tasks.values().any(|history| history.changed)
    }

    /// Adds these tasks to those in a file, and replaces the file's own. Tasks that were not used for half a year are
    /// dropped, and the oldest if there are more than 256. The file is replaced atomically; of two processes that write
    /// at once, the last one's is kept. Fails if the folder or the file cannot be written.
    pub fn save(&self, path: &Path, now: SystemTime) -> io::Result<()> {
        let since_1970 = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let now_s = since_1970(now).as_secs();
        let mut tasks: BTreeMap<String, TaskHistory> = Model::load(path).tasks;
        for (task, history) in &self.tasks {
            tasks.insert(task.clone(), TaskHistory { saved_s: now_s, ..history.clone() });
        }
        tasks.retain(|_, history| history.saved_s >= now_s.saturating_sub(MAX_AGE.as_secs()));
        while tasks.len() > MAX_TASKS {
            let oldest = tasks.iter().min_by_key(|(task, it)| (self.tasks.contains_key(*task), it.saved_s));
            let oldest = oldest.map(|(task, _)| task.clone()).unwrap_or_default();
            tasks.remove(&oldest);
        }
        evener_device::write_atomically(path, &serde_json::to_vec(&Stored { version: VERSION, tasks })?)
    }
}

#[cfg(test)]
mod test {
    use std::time::Duration;

    use super::*;
    use crate::hybrid::{Measurements, Observation};

    fn taught() -> Model {
        let mut model = Model::default();
        let busy = Duration::from_millis(1500);
        let observation = Observation {
            device: "cuda:0".into(),
            items: 1000,
            busy,
            startup: busy,
            needed_preparation: true,
        };
        model.observe("hash", &observation);
        let devices = vec!["cuda:0".to_owned()];
        let worked = devices.clone();
        model.record_runs("hash", 1000, Measurements { devices, worked, wall: busy, runs: 0 });
        model.take_changes();
        model
    }

    /// The time after this many days.
    fn day(days: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(days * 24 * 3600)
    }

    /// The model as it is loaded after it was saved on a day.
    fn saved(model: Model, days: u64) -> Model {
        let tasks = model.tasks.into_iter();
        let tasks = tasks
            .map(|(task, history)| (task, TaskHistory { saved_s: days * 24 * 3600, used: 0, ..history }));
        Model { tasks: tasks.collect(), uses: 0 }
    }

    #[test]
    fn tasks_of_other_processes_stay_and_old_ones_and_those_beyond_the_limit_go() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.json");
        let named = |name: &str| Model {
            tasks: taught().tasks.into_values().map(|it| (name.to_owned(), it)).collect(),
            uses: 0,
        };
        let names = || Model::load(&path).tasks.into_keys().collect::<Vec<_>>();
        named("old").save(&path, day(100)).unwrap();
        named("recent").save(&path, day(200)).unwrap();
        assert_eq!(names(), ["old", "recent"]);
        named("new").save(&path, day(300)).unwrap();
        assert_eq!(names(), ["new", "recent"]);
        for number in 0..300 {
            named(&number.to_string()).save(&path, day(301 + number / 10)).unwrap();
        }
        assert_eq!(names().len(), MAX_TASKS);
        assert!(names().contains(&"299".to_owned()) && !names().contains(&"new".to_owned()));
    }

    #[test]
    fn a_saved_model_is_loaded_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/er/model.json");
        Model::default().save(&path, day(1)).unwrap();
        taught().save(&path, day(1)).unwrap();
        assert_eq!(Model::load(&path), saved(taught(), 1));
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing lies beside it");
    }

    #[test]
    fn a_missing_old_or_damaged_file_is_an_empty_model() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.json");
        assert_eq!(Model::load(&path), Model::default());
        taught().save(&path, day(1)).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let older = text.replace("\"version\":6", "\"version\":0");
        for damaged in ["", "{}", "\0", &text[..text.len() / 2], &older, r#"{"version":6,"tasks":{"a":3}}"#] {
            std::fs::write(&path, damaged).unwrap();
            assert_eq!(Model::load(&path), Model::default(), "{damaged}");
        }
    }

    #[test]
    fn a_model_that_cannot_be_written_leaves_the_old_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        taught().save(&path, day(1)).unwrap();
        assert!(taught().save(&path.join("below"), day(1)).is_err());
        assert_eq!(Model::load(&path), saved(taught(), 1));
    }
}

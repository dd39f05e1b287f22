//! Checkpoints: the state of a run on disk.
//!
//! A checkpoint is a folder `step-…` with `model.safetensors` (parameters, buffers and optimizer states) and
//! `state.json` (the state machines). It is written beside its place and moved there, so that a run that is killed while
//! it writes leaves the checkpoint before whole.

use std::{
    borrow::Cow,
    collections::HashMap,
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use safetensors::{Dtype, SafeTensors, View};
use serde::{Deserialize, Serialize};

use crate::{
    error::{Result, TrainError},
    machines::Machines,
    replica::{Layout, Scalar, Tensor},
};

/// The version of the format.
const VERSION: u32 = 1;
/// Checkpoints that are kept.
const KEPT: usize = 2;
/// Age of a half written checkpoint that nobody will complete.
const ABANDONED: Duration = Duration::from_secs(600);
const TENSORS: &str = "model.safetensors";
const STATE: &str = "state.json";

/// The part of a checkpoint that is JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SavedState {
    /// The version of the format.
    pub version: u32,
    /// The tensors.
    pub layout: Layout,
    /// Number of ranks.
    pub ranks: usize,
    /// Whether the speeds of all ranks were known.
    pub probed: bool,
    /// The state machines.
    pub machines: Machines,
}

/// What a checkpoint holds apart from the state machines.
#[derive(Debug, Clone, PartialEq)]
pub struct SavedTensors<E> {
    /// All parameters.
    pub parameters: Vec<E>,
    /// All buffers.
    pub buffers: Vec<E>,
    /// The optimizer's state: one for all ranks, or one per rank where ranks make local steps.
    pub optimizers: Vec<Vec<E>>,
    /// The momentum of the outer step, if it has one.
    pub momentum: Vec<f64>,
}

/// A checkpoint that was read.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    /// The state machines.
    pub state: SavedState,
    bytes: Vec<u8>,
}

fn failed(path: &Path, error: impl std::fmt::Display) -> TrainError {
    TrainError::Checkpoint { path: path.to_owned(), detail: error.to_string() }
}

/// A tensor to be written.
struct Written<'a> {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: &'a [u8],
}

impl View for Written<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self.bytes)
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

impl Checkpoint {
    /// Writes a checkpoint into a folder, and removes old ones. Returns its path.
    pub fn write<E: Scalar>(folder: &Path, state: &SavedState, tensors: &SavedTensors<E>) -> Result<PathBuf> {
        let name = format!("step-{:012}", state.machines.step());
        let (place, beside) = (folder.join(&name), folder.join(format!(".{name}.{}", std::process::id())));
        let write = || -> Result<(), Box<dyn std::error::Error>> {
            fs::create_dir_all(folder)?;
            let _ = fs::remove_dir_all(&beside);
            fs::create_dir(&beside)?;
            let bytes = safetensors::serialize(views(&state.layout, tensors), None)?;
            write_file(&beside.join(TENSORS), &bytes)?;
            write_file(&beside.join(STATE), &serde_json::to_vec_pretty(state)?)?;
            if place.exists() {
                // A run that continued from an earlier checkpoint has come here again.
                let old = folder.join(format!(".{name}.old"));
                let _ = fs::remove_dir_all(&old);
                fs::rename(&place, &old)?;
                fs::rename(&beside, &place)?;
                fs::remove_dir_all(&old)?;
            } else {
                fs::rename(&beside, &place)?;
            }
            // The move itself must reach the disk too.
            #[cfg(unix)]
            File::open(folder)?.sync_all()?;
            Ok(())
        };
        write().map_err(|error| failed(&place, error))?;
        for (_, old) in checkpoints(folder).into_iter().skip(KEPT) {
            let _ = fs::remove_dir_all(old);
        }
        remove_abandoned(folder);
        Ok(place)
    }

    /// Reads the latest checkpoint of a folder, or `None` if there is none. A checkpoint that cannot be read is
    /// mentioned in the log and the one before is read; fails if none can be read.
    pub fn latest(folder: &Path) -> Result<Option<Checkpoint>> {
        let mut error = None;
        for (_, path) in checkpoints(folder) {
            match Checkpoint::read(&path) {
                Ok(checkpoint) => return Ok(Some(checkpoint)),
                Err(why) => {
                    tracing::warn!("{why}");
                    error.get_or_insert(why);
                }
            }
        }
        error.map_or(Ok(None), Err)
    }

    /// Reads a checkpoint.
    pub fn read(path: &Path) -> Result<Checkpoint> {
        let read = || -> Result<Checkpoint, Box<dyn std::error::Error>> {
            let state: SavedState = serde_json::from_slice(&fs::read(path.join(STATE))?)?;
            if state.version != VERSION {
                return Err(format!("version {} is not {VERSION}", state.version).into());
            }
            let bytes = fs::read(path.join(TENSORS))?;
            SafeTensors::deserialize(&bytes)?;
            Ok(Checkpoint { path: path.to_owned(), state, bytes })
        };
        read().map_err(|error| failed(path, error))
    }

    /// Returns the tensors. Fails if they are not of this type and of the layout that the checkpoint says.
    pub fn tensors<E: Scalar>(&self) -> Result<SavedTensors<E>> {
        let file = SafeTensors::deserialize(&self.bytes).map_err(|error| failed(&self.path, error))?;
        let one = |name: &str| -> Result<Vec<E>> {
            let tensor = file.tensor(name).map_err(|error| failed(&self.path, format!("{name}: {error}")))?;
            if tensor.dtype() != E::SAFETENSORS {
                let detail = format!("{name} is {:?}, and the model {:?}", tensor.dtype(), E::SAFETENSORS);
                return Err(failed(&self.path, detail));
            }
            Ok(bytemuck::pod_collect_to_vec(tensor.data()))
        };
        let all = |tensors: &[Tensor], prefix: &str| -> Result<Vec<E>> {
            let mut values = Vec::new();
            for tensor in tensors {
                values.extend(one(&format!("{prefix}{}", tensor.name))?);
            }
            Ok(values)
        };
        let layout = &self.state.layout;
        let mut optimizers = Vec::new();
        while file.tensor(&format!("optimizer.{}", optimizers.len())).is_ok() {
            optimizers.push(one(&format!("optimizer.{}", optimizers.len()))?);
        }
        let momentum = match file.tensor("outer.momentum") {
            Ok(tensor) => bytemuck::pod_collect_to_vec(tensor.data()),
            Err(_) => Vec::new(),
        };
        let (parameters, buffers) = (all(&layout.parameters, "")?, all(&layout.buffers, "")?);
        Ok(SavedTensors { parameters, buffers, optimizers, momentum })
    }

    /// Returns where the checkpoint is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn views<'a, E: Scalar>(layout: &Layout, tensors: &'a SavedTensors<E>) -> HashMap<String, Written<'a>> {
    let mut views = HashMap::new();
    for (list, values) in [(&layout.parameters, &tensors.parameters), (&layout.buffers, &tensors.buffers)] {
        let mut start = 0;
        for tensor in list {
            let bytes = bytemuck::cast_slice(&values[start..start + tensor.len()]);
            start += tensor.len();
            let shape = tensor.shape.clone();
            views.insert(tensor.name.clone(), Written { dtype: E::SAFETENSORS, shape, bytes });
        }
    }
    for (rank, values) in tensors.optimizers.iter().enumerate() {
        let bytes = bytemuck::cast_slice(values);
        let written = Written { dtype: E::SAFETENSORS, shape: vec![values.len()], bytes };
        views.insert(format!("optimizer.{rank}"), written);
    }
    if !tensors.momentum.is_empty() {
        let bytes = bytemuck::cast_slice(&tensors.momentum);
        let written = Written { dtype: Dtype::F64, shape: vec![tensors.momentum.len()], bytes };
        views.insert("outer.momentum".into(), written);
    }
    views
}

fn write_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Removes what killed runs left half written. A worker that was stopped while it wrote may still go on, so only what is
/// old is removed.
fn remove_abandoned(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let age = entry.metadata().and_then(|it| it.modified()).ok().and_then(|time| time.elapsed().ok());
        let is_old = age.is_some_and(|age| age > ABANDONED);
        if is_old && entry.file_name().to_string_lossy().starts_with(".step-") {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Returns the checkpoints of a folder, the latest first.
fn checkpoints(folder: &Path) -> Vec<(u64, PathBuf)> {
    let mut found: Vec<(u64, PathBuf)> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let step = entry.file_name().to_str()?.strip_prefix("step-")?.parse().ok()?;
            Some((step, entry.path()))
        })
        .collect();
    found.sort_by(|one, other| other.cmp(one));
    found
}

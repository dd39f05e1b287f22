//! A worker's state: what it goes back to after a failure, what others get from it, and what is on disk.

use evener_mesh::comm::CommError;
use serde::{Deserialize, Serialize};

use super::{
    engine::{Engine, Fault},
    settings::Policy,
};
use crate::{
    cadence::OuterStep,
    checkpoint::{Checkpoint, SavedState, SavedTensors},
    error::{Result, TrainError},
    machines::Machines,
    replica::{Layout, Part, Replica, Scalar},
};

/// The state at the last commit, as far as a failed round may have changed it: buffers, and with local steps everything.
pub(super) struct Snapshot<E> {
    pub(super) parameters: Vec<E>,
    buffers: Vec<E>,
    optimizer: Vec<E>,
    /// The momentum of the outer step, if it has one.
    pub(super) momentum: Vec<f64>,
}

impl<E: Scalar> Snapshot<E> {
    pub(super) fn new(layout: &Layout, policy: Policy, outer: OuterStep) -> Self {
        let local =
            |part| if policy == Policy::Cadence { vec![E::default(); layout.len(part)] } else { Vec::new() };
        let momentum =
            if policy == Policy::Cadence && outer.has_momentum() { layout.len(Part::Parameters) } else { 0 };
        Snapshot {
            parameters: local(Part::Parameters),
            buffers: vec![E::default(); layout.len(Part::Buffers)],
            optimizer: local(Part::Optimizer),
            momentum: vec![0.0; momentum],
        }
    }

    fn parts(&mut self) -> [(Part, &mut Vec<E>); 3] {
        [
            (Part::Parameters, &mut self.parameters),
            (Part::Buffers, &mut self.buffers),
            (Part::Optimizer, &mut self.optimizer),
        ]
    }

    /// Turns the mean change of parameters into new parameters.
    pub(super) fn outer_step(&mut self, outer: OuterStep, changes: &mut [E]) {
        for (index, change) in changes.iter_mut().enumerate() {
            let mut none = 0.0;
            let momentum = self.momentum.get_mut(index).unwrap_or(&mut none);
            let step = outer.step(change.to_f64(), momentum);
            *change = E::from_f64(self.parameters[index].to_f64() + step);
        }
    }
}

/// What a worker that cannot use the checkpoint says instead of whether it has a state.
const CANNOT_CONTINUE: u64 = 2;

/// What a worker gets from another one, besides tensors.
#[derive(Serialize, Deserialize)]
struct Header {
    machines: Machines,
    probed: bool,
    resumed_from: Option<u64>,
    /// Whether each rank gets an optimizer state of its own.
    optimizers: bool,
}

impl<R: Replica> Engine<R> {
    /// Keeps the state of a commit.
    pub(super) fn commit(&mut self) -> Result<()> {
        for (part, values) in self.committed.parts() {
            if !values.is_empty() {
                let rank = self.around.rank;
                self.replica.read(part, values).map_err(|error| TrainError::Replica { rank, error })?;
            }
        }
        Ok(())
    }

    /// Goes back to the last commit.
    pub(super) fn restore(&mut self) -> Result<()> {
        for (part, values) in self.committed.parts() {
            if !values.is_empty() {
                let rank = self.around.rank;
                self.replica.write(part, values).map_err(|error| TrainError::Replica { rank, error })?;
            }
        }
        Ok(())
    }

    /// Brings all members of a new group to the same state: that of the first member with the most committed steps.
    /// Then finds the speeds of all workers, if they are not known.
    pub(super) fn agree(&mut self) -> Result<(), Fault> {
        let layout = serde_json::to_string(&self.layout).unwrap_or_default();
        let layout = layout.bytes().fold(7u64, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte as u64));
        let has_state = if self.load_error.is_some() { CANNOT_CONTINUE } else { u64::from(self.has_state) };
        let mine = [has_state, self.machines.step(), layout];
        let mut all = vec![0u64; 3 * self.group.size()];
        self.group.all_gather(&mine, &mut all)?;
        let members: Vec<&[u64]> = all.chunks_exact(3).collect();
        if let Some(error) = self.load_error.take() {
            return Err(error.into());
        }
        if let Some(other) = members.iter().position(|member| member[0] == CANNOT_CONTINUE) {
            let (group, ranks) = (self.group.name().to_owned(), vec![self.group.ranks()[other]]);
            let detail = format!("worker {} cannot use the checkpoint", ranks[0]);
            let error = CommError::Failed { group, call: "start".into(), ranks, detail };
            return Err(TrainError::Comm(error).into());
        }
        if let Some(other) = members.iter().position(|member| member[2] != layout) {
            let (rank, other) = (self.around.rank, self.group.ranks()[other]);
            let detail = format!("worker {other} has other tensors than worker {rank}");
            return Err(TrainError::Layouts { detail }.into());
        }
        let ahead = members.iter().map(|member| (member[0], member[1])).max().unwrap_or_default();
        let is_ahead = |member: &&[u64]| (member[0], member[1]) == ahead;
        // Replicas that nobody has trained yet may differ as well.
        if ahead.0 == 0 || !members.iter().all(is_ahead) || self.optimizers.is_some() {
            let root = members.iter().position(is_ahead).unwrap_or(0);
            let behind = ahead.0 == 0 || (mine[0], mine[1]) != ahead;
            self.transfer(root, behind)?;
        }
        self.has_state = true;
        self.commit()?;
        match (self.probed, self.warm) {
            (false, _) => self.probe(),
            (true, false) => self.warm_up(),
            (true, true) => Ok(()),
        }
    }

    /// Copies the root's state to the members that are behind. All members take part.
    fn transfer(&mut self, root: usize, behind: bool) -> Result<(), Fault> {
        let is_root = self.group.rank() == Some(root);
        let scattered = self.optimizers.as_ref().is_some_and(|all| all.len() == self.group.size());
        let mut text = if is_root {
            let Engine { machines, probed, resumed_from, .. } = self;
            let header = Header {
                machines: machines.clone(),
                probed: *probed,
                resumed_from: *resumed_from,
                optimizers: scattered,
            };
            serde_json::to_vec(&header).map_err(|error| self.failed(error.into()))?
        } else {
            Vec::new()
        };
        let mut len = [text.len() as u64];
        self.group.broadcast(&mut len, root)?;
        text.resize(len[0] as usize, 0);
        self.group.broadcast(&mut text, root)?;
        let header: Header = serde_json::from_slice(&text).map_err(|error| self.failed(error.into()))?;
        for part in Part::ALL {
            let mut values = vec![R::Element::default(); self.layout.len(part)];
            self.replica.read(part, &mut values).map_err(|error| self.failed(error))?;
            self.group.broadcast(&mut values, root)?;
            if behind && !is_root {
                self.replica.write(part, &values).map_err(|error| self.failed(error))?;
            }
        }
        let mut momentum = self.committed.momentum.clone();
        self.group.broadcast(&mut momentum, root)?;
        if header.optimizers {
            let all = self.optimizers.take().map(|all| all.concat()).unwrap_or_default();
            let mut mine = vec![R::Element::default(); self.layout.optimizer];
            self.group.scatter(if is_root { &all } else { &[] }, &mut mine, root)?;
            self.replica.write(Part::Optimizer, &mine).map_err(|error| self.failed(error))?;
        }
        self.optimizers = None;
        if behind && !is_root {
            self.committed.momentum = momentum;
            self.machines = header.machines;
            self.machines.ledger.restore();
            self.probed = header.probed;
            self.resumed_from = header.resumed_from;
        }
        Ok(())
    }

    /// Takes the state of a checkpoint.
    pub(super) fn resume(&mut self, checkpoint: Checkpoint) -> Result<()> {
        let path = checkpoint.path().to_owned();
        let refuse = |detail: String| Err(TrainError::Checkpoint { path: path.clone(), detail });
        let SavedState { layout, ranks, probed, machines, .. } = &checkpoint.state;
        if *layout != self.layout {
            return refuse("it is of another model: choose another folder".into());
        }
        let (found, asked) = (machines.ledger.samples(), self.around.settings.samples);
        if found != asked {
            return refuse(format!(
                "it has {found} samples an epoch, and this run {asked}: choose another folder"
            ));
        }
        let tensors: SavedTensors<R::Element> = checkpoint.tensors()?;
        let write = |replica: &mut R| {
            replica.write(Part::Parameters, &tensors.parameters)?;
            replica.write(Part::Buffers, &tensors.buffers)?;
            tensors.optimizers.first().map_or(Ok(()), |first| replica.write(Part::Optimizer, first))
        };
        write(&mut self.replica).map_err(|error| self.failed(error))?;
        if tensors.momentum.len() == self.committed.momentum.len() {
            self.committed.momentum.clone_from(&tensors.momentum);
        }
        let same_settings = machines.first_batch == self.around.settings.batch
            && machines.cadence.is_some() == self.machines.cadence.is_some()
            && machines.growth == self.machines.growth
            && machines.planner.settings().fixed == self.around.settings.shares;
        self.resumed_from = Some(machines.step());
        if *ranks == self.around.world.size() && same_settings {
            self.machines = machines.clone();
            self.machines.ledger.restore();
            self.machines.all_present();
            self.probed = *probed;
        } else {
            self.machines.continue_from(machines.clone());
        }
        if tensors.optimizers.len() == self.around.world.size() && tensors.optimizers.len() > 1 {
            self.optimizers = Some(tensors.optimizers.clone());
        }
        self.has_state = true;
        tracing::info!("continues from {}", path.display());
        Ok(())
    }

    /// Writes a checkpoint if one is due. The leader writes; with local steps the others send it their optimizer states.
    pub(super) fn save_checkpoint(&mut self, at_the_end: bool) -> Result<(), Fault> {
        let settings = self.around.settings.clone();
        let Some(folder) = &settings.checkpoint else { return Ok(()) };
        let (step, last) = (self.machines.step(), self.machines.checkpointed);
        let every = settings.checkpoint_every;
        let due = if at_the_end { step != last || step == 0 } else { step / every != last / every };
        if !due {
            return Ok(());
        }
        self.machines.checkpointed = step;
        let read = |part| -> Result<Vec<R::Element>> {
            let mut values = vec![R::Element::default(); self.layout.len(part)];
            let rank = self.around.rank;
            self.replica.read(part, &mut values).map_err(|error| TrainError::Replica { rank, error })?;
            Ok(values)
        };
        let optimizer = read(Part::Optimizer)?;
        let leads = self.is_leader();
        let mut optimizers = Vec::new();
        if settings.policy == Policy::Cadence && !optimizer.is_empty() {
            let mut all =
                vec![R::Element::default(); if leads { optimizer.len() * self.group.size() } else { 0 }];
            self.group.gather(&optimizer, &mut all, 0)?;
            optimizers.extend(all.chunks_exact(optimizer.len()).map(<[_]>::to_vec));
        } else {
            optimizers.push(optimizer);
        }
        if !leads {
            return Ok(());
        }
        let tensors = SavedTensors {
            parameters: read(Part::Parameters)?,
            buffers: read(Part::Buffers)?,
            optimizers,
            momentum: self.committed.momentum.clone(),
        };
        let state = SavedState {
            version: 1,
            layout: self.layout.clone(),
            ranks: self.around.world.size(),
            probed: self.probed,
            machines: self.machines.clone(),
        };
        // A full disk does not end a training that goes well: the report says so.
        self.checkpoint_error =
            Checkpoint::write(folder, &state, &tensors).err().map(|error| error.to_string());
        if let Some(error) = &self.checkpoint_error {
            tracing::warn!("{error}");
        }
        Ok(())
    }
}

/// Returns whether this rank itself is the one that was too late.
pub(super) fn blames(error: &CommError, rank: usize) -> bool {
    matches!(error, CommError::TooLate { .. }) || error.ranks() == [rank]
}

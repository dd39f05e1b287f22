//! The task of a run over the pieces of one proof.

use std::{ops::Range, sync::Arc};

use ark_bn254::{Fr, G1Projective, G2Projective};
use evener_device::{Device, DeviceId, DeviceKind, Result as DeviceResult};
use evener_schedule::{Chunk, Resident, Results, Task};

use super::{
    super::{Engines, ProvingKey, Secrets, key_cache::KeyCache, prove::Sums},
    pieces::{Part, Piece, Sum, joined},
    proof::{SharedMaker, SharedProof},
    quarantine::Quarantine,
};
use crate::error::Result;

/// A sum over some points, in the group of its [`Sum`].
#[derive(Debug, Clone, Copy)]
pub enum PartSum {
    /// In the first group.
    G1(G1Projective),
    /// In the second group.
    G2(G2Projective),
}

impl PartSum {
    /// Whether both are the same point.
    pub(super) fn is(&self, other: &PartSum) -> bool {
        match (self, other) {
            (PartSum::G1(one), PartSum::G1(other)) => one == other,
            (PartSum::G2(one), PartSum::G2(other)) => one == other,
            _ => false,
        }
    }
}

impl Sums {
    /// Adds a part of a sum.
    pub(super) fn add(&mut self, sum: Sum, part: &PartSum) {
        match (sum, part) {
            (Sum::A, PartSum::G1(part)) => self.a += part,
            (Sum::B1, PartSum::G1(part)) => self.b_g1 += part,
            (Sum::L, PartSum::G1(part)) => self.l += part,
            (Sum::H, PartSum::G1(part)) => self.h += part,
            (Sum::B2, PartSum::G2(part)) => self.b_g2 += part,
            // A sum in the wrong group is left out, and the proof does not verify.
            _ => {}
        }
    }
}

/// A piece of a proof.
#[derive(Clone)]
pub(super) struct Item {
    pub(super) proof: Arc<SharedProof>,
    pub(super) piece: Piece,
}

/// What a device computed at once: the result of each piece of a chunk.
pub(super) struct ChunkResult {
    /// The pieces.
    pub(super) chunk: Range<u64>,
    pub(super) device: DeviceId,
    /// The sums; `None` if they were not computed, because the witness was refused.
    pub(super) sums: Option<Vec<(Part, PartSum)>>,
    /// The scalars of the quotient, or the witness's error, if the quotient is one of the pieces.
    pub(super) quotient: Option<Result<Arc<Secrets<Fr>>>>,
}

/// Computes pieces of proofs with one key.
#[derive(Clone)]
pub(super) struct PieceTask {
    name: Arc<str>,
    key: Arc<ProvingKey>,
    engines: Arc<dyn Engines>,
    keys: Arc<KeyCache>,
    quarantine: Arc<Quarantine>,
}

impl PieceTask {
    pub(super) fn new(
        key: Arc<ProvingKey>,
        engines: Arc<dyn Engines>,
        keys: Arc<KeyCache>,
        quarantine: Arc<Quarantine>,
    ) -> Self {
        let name = format!("groth16 shared, domain 2^{}, {} wires", key.domain().ilog2(), key.wires());
        PieceTask { name: name.into(), key, engines, keys, quarantine }
    }
}

/// A worker's engine.
pub(super) struct State {
    device: DeviceId,
    may_hang: bool,
    maker: SharedMaker,
}

impl Task for PieceTask {
    type Input = Item;
    type Output = Arc<ChunkResult>;
    type State = State;

    fn name(&self) -> &str {
        &self.name
    }

    fn state_id(&self) -> Option<u64> {
        // All tasks of a job have the same key.
        Some(0)
    }

    fn can_use(&self, device: &Device) -> bool {
        self.engines.can_use(device) && self.quarantine.allows(device.id())
    }

    fn prepare(&self, device: &Device) -> DeviceResult<State> {
        self.prepare_with(device, &Resident::default())
    }

    fn prepare_with(&self, device: &Device, _: &Resident) -> DeviceResult<State> {
        let maker = self.keys.prepare(device, |shared| self.engines.open(device, &self.key, shared))?;
        let (device, may_hang) = (device.id().clone(), self.may_hang(device));
        Ok(State { device, may_hang, maker: Arc::new(maker.into()) })
    }

    fn workers(&self, _: &Device) -> usize {
        // A second worker would halve the chunks, which are then slower.
        1
    }

    fn may_hang(&self, device: &Device) -> bool {
        device.describe().kind != DeviceKind::Cpu
    }

    fn costs(&self, items: &[Item]) -> Option<Vec<f64>> {
        Some(items.iter().map(|item| item.piece.cost(&self.key)).collect())
    }

    fn run<'s>(
        &self,
        state: &'s mut State,
        chunk: &Chunk<'_, Item>,
        results: &mut Results<'s, Arc<ChunkResult>>,
    ) -> DeviceResult<()> {
        // Clones, so that a device that hangs does not hold the memory of the run's caller.
        let items: Vec<Item> = chunk.read(|items| items.to_vec())?;
        let Some(Item { proof, .. }) = items.first() else { return Ok(()) };
        let mut result =
            ChunkResult { chunk: chunk.range(), device: state.device.clone(), sums: None, quotient: None };
        let parts = joined(items.iter().map(|item| &item.piece));
        let has_quotient = items.iter().any(|item| item.piece == Piece::Quotient);
        if has_quotient || !proof.is_refused() {
            proof.work(&state.maker, state.may_hang, |maker| {
                if has_quotient {
                    let quotient = maker.make_quotient(&self.key, proof)?;
                    if quotient.is_err() {
                        proof.refuse();
                    }
                    result.quotient = Some(quotient.map(Arc::new));
                }
                if parts.is_empty() {
                    result.sums = Some(Vec::new());
                } else if !proof.is_refused() {
                    let sums = maker.add_up(&self.key, proof, &parts)?;
                    result.sums = Some(parts.into_iter().zip(sums).collect());
                }
                DeviceResult::Ok(())
            })?;
        }
        let result = Arc::new(result);
        results.extend(items.iter().map(|_| result.clone()));
        Ok(())
    }
}

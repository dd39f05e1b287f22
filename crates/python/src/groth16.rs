//! Groth16 proofs.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use evener_schedule::Cancel;
use evener_zk::{
    Error,
    format::{public_from_json, public_to_json},
    groth16::{Proof, Proved, Prover as ZkProver, ProvingKey, VerifyingKey, Witness, WitnessSource},
};
use pyo3::{prelude::*, pybacked::PyBackedBytes};

use crate::{
    errors::from_zk,
    interrupt::{run_detached, run_interruptibly},
    pools::pool,
};

/// A witness: a file, or its contents.
#[derive(FromPyObject)]
enum WitnessInput {
    Contents(PyBackedBytes),
    File(PathBuf),
}

impl WitnessInput {
    fn read(&self) -> Result<Witness, Error> {
        match self {
            WitnessInput::Contents(bytes) => Witness::from_wtns("witness", bytes),
            WitnessInput::File(path) => Witness::read(path),
        }
    }

    fn source(self) -> WitnessSource {
        match self {
            WitnessInput::File(path) => WitnessSource::file(path),
            contents => match contents.read() {
                Ok(witness) => witness.into(),
                Err(error) => WitnessSource::read_by(move || Err(error.clone())),
            },
        }
    }
}

/// A proof and its public values, as JSON.
type ProofJson = (String, String);

fn to_json(proved: &Proved) -> ProofJson {
    (proved.proof.to_json().to_string(), public_to_json(&proved.public).to_string())
}

/// Proves witnesses of one circuit.
#[pyclass(module = "evener._evener", frozen)]
pub(crate) struct Prover {
    devices: Option<String>,
    key: Arc<ProvingKey>,
    /// The prover and the token that cancels it. A token that was used cannot be used again, so both are made anew then.
    prover: Mutex<Arc<(ZkProver, Cancel)>>,
}

fn new_prover(devices: Option<&str>, key: &Arc<ProvingKey>) -> Result<Arc<(ZkProver, Cancel)>, Error> {
    let cancel = Cancel::new();
    Ok(Arc::new((ZkProver::load(&pool(devices)?, key.clone()).cancel(&cancel), cancel)))
}

impl Prover {
    fn run<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&ZkProver) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        let current = self.prover.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let result = run_interruptibly(py, &current.1, || work(&current.0));
        if result.is_err() {
            let made = new_prover(self.devices.as_deref(), &self.key).map_err(|error| from_zk(&error))?;
            *self.prover.lock().unwrap_or_else(PoisonError::into_inner) = made;
        }
        result?.map_err(|error| from_zk(&error))
    }
}

#[pymethods]
impl Prover {
    #[new]
    #[pyo3(signature = (zkey, devices = None, allow_unsafe_key = false))]
    fn new(
        py: Python<'_>,
        zkey: PathBuf,
        devices: Option<String>,
        allow_unsafe_key: bool,
    ) -> PyResult<Prover> {
        let selection = devices.clone();
        let made = run_detached(py, move || {
            let read = if allow_unsafe_key { ProvingKey::read_unsafe } else { ProvingKey::read };
            let key = Arc::new(read(zkey)?);
            Ok((new_prover(selection.as_deref(), &key)?, key))
        })?;
        let (prover, key) = made.map_err(|error: Error| from_zk(&error))?;
        Ok(Prover { devices, key, prover: Mutex::new(prover) })
    }

    /// Proves a witness, and verifies the proof.
    fn prove(&self, py: Python<'_>, witness: WitnessInput) -> PyResult<ProofJson> {
        self.run(py, |prover| Ok(to_json(&prover.prove(witness.read()?)?)))
    }

    /// Proves witnesses. Returns a proof or an exception for each.
    fn prove_batch(
        &self,
        py: Python<'_>,
        witnesses: Vec<WitnessInput>,
    ) -> PyResult<Vec<(Option<ProofJson>, Option<PyErr>)>> {
        let sources: Vec<WitnessSource> = witnesses.into_iter().map(WitnessInput::source).collect();
        let batch = self.run(py, |prover| prover.prove_each(sources, |_, _| ()))?;
        let both = |result: &Result<Proved, Error>| match result {
            Ok(proved) => (Some(to_json(proved)), None),
            Err(error) => (None, Some(from_zk(error))),
        };
        Ok(batch.results().iter().map(both).collect())
    }

    /// The key that verifies the proofs, as JSON.
    fn verification_key(&self) -> String {
        self.key.verifying_key().to_json().to_string()
    }

    /// The numbers of constraints, wires and public values.
    fn sizes(&self) -> (usize, usize, usize) {
        (self.key.constraints(), self.key.wires(), self.key.public())
    }
}

/// Verifies a proof; all three are JSON of snarkjs. Returns whether it is valid, and fails if any cannot be read.
#[pyfunction]
pub(crate) fn verify_groth16(
    py: Python<'_>,
    key: &str,
    proof: &str,
    public: &str,
    allow_unsafe_key: bool,
) -> PyResult<bool> {
    let verified = py.detach(|| {
        let key = VerifyingKey::from_json("verification key", key.as_bytes(), allow_unsafe_key)?;
        let public = public_from_json("public inputs", public.as_bytes())?;
        key.verify(&Proof::from_json("proof", proof.as_bytes())?, &public)
    });
    match verified {
        Ok(()) => Ok(true),
        Err(Error::InvalidProof) => Ok(false),
        // Numbers and points that are in no field or group belong to no valid proof.
        Err(Error::InvalidValue { .. }) => Ok(false),
        Err(error) => Err(from_zk(&error)),
    }
}

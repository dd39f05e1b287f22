//! Merkle roots, trees and inclusion proofs.

use std::path::PathBuf;

use evener_merkle::{
    Builder, Digest, Error, Hash, LeafFile, Leaves, MerkleTree as Tree, Proof, Rule, Scheme,
};
use evener_schedule::Cancel;
use pyo3::{exceptions::PyValueError, prelude::*, pybacked::PyBackedBytes};

use crate::{errors::from_merkle, interrupt::run_interruptibly, lent::Lent, pools::pool};

/// Leaves as Python's part of the package gives them.
#[derive(FromPyObject)]
pub(crate) enum Input {
    /// The address and the number of bytes of memory that the caller keeps alive.
    Lent((usize, usize)),
    /// Bytes.
    Bytes(PyBackedBytes),
    /// One object a leaf.
    List(Vec<PyBackedBytes>),
    /// A file.
    File(PathBuf),
}

/// What a tree is made of and with.
struct Request<'a> {
    input: &'a Input,
    leaf_size: usize,
    scheme: Scheme,
}

impl Request<'_> {
    /// Calls a function with the leaves.
    fn with_leaves<T>(&self, then: impl FnOnce(&Leaves<'_>) -> Result<T, Error>) -> Result<T, Error> {
        match self.input {
            Input::Lent((address, bytes)) => {
                let lent = Lent { address: *address, bytes: *bytes };
                then(&Leaves::fixed_size(lent.read(), self.leaf_size)?)
            }
            Input::Bytes(bytes) => then(&Leaves::fixed_size(bytes, self.leaf_size)?),
            Input::List(leaves) => then(&Leaves::slices(leaves.iter().map(|leaf| &**leaf))),
            Input::File(path) => then(&Leaves::file(LeafFile::open(path)?, self.leaf_size)?),
        }
    }
}

fn scheme(hash: &str, rule: &str) -> Result<Scheme, Error> {
    Scheme::new(hash.parse::<Hash>()?, rule.parse::<Rule>()?)
}

fn build<T: Send>(
    py: Python<'_>,
    request: &Request<'_>,
    devices: Option<&str>,
    then: impl FnOnce(&Builder, &Leaves<'_>) -> Result<T, Error> + Send,
) -> PyResult<T> {
    let cancel = Cancel::new();
    let built = run_interruptibly(py, &cancel, || {
        let builder = Builder::new(&pool(devices)?).scheme(request.scheme).cancel(&cancel);
        request.with_leaves(|leaves| then(&builder, leaves))
    })?;
    built.map_err(|error| from_merkle(&error))
}

/// Builds the root over leaves.
#[pyfunction]
#[pyo3(signature = (input, leaf_size, hash, rule, devices = None))]
pub(crate) fn merkle_root(
    py: Python<'_>,
    input: Input,
    leaf_size: usize,
    hash: &str,
    rule: &str,
    devices: Option<&str>,
) -> PyResult<[u8; 32]> {
    let scheme = scheme(hash, rule).map_err(|error| from_merkle(&error))?;
    let request = Request { input: &input, leaf_size, scheme };
    Ok(build(py, &request, devices, |builder, leaves| builder.root(leaves))?.into_value().0)
}

/// A Merkle tree with all its nodes.
#[pyclass(module = "evener._evener", frozen)]
pub(crate) struct MerkleTree(Tree);

#[pymethods]
impl MerkleTree {
    #[new]
    #[pyo3(signature = (input, leaf_size, hash, rule, devices = None))]
    fn new(
        py: Python<'_>,
        input: Input,
        leaf_size: usize,
        hash: &str,
        rule: &str,
        devices: Option<&str>,
    ) -> PyResult<MerkleTree> {
        let scheme = scheme(hash, rule).map_err(|error| from_merkle(&error))?;
        let request = Request { input: &input, leaf_size, scheme };
        Ok(MerkleTree(build(py, &request, devices, |builder, leaves| builder.tree(leaves))?.into_value()))
    }

    /// Reads a tree from a file.
    #[staticmethod]
    fn load(py: Python<'_>, path: PathBuf) -> PyResult<MerkleTree> {
        py.detach(|| Tree::load(path)).map(MerkleTree).map_err(|error| from_merkle(&error))
    }

    /// Writes the tree to a file.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        py.detach(|| self.0.save(path)).map_err(|error| from_merkle(&error))
    }

    /// The root.
    fn root(&self) -> PyResult<[u8; 32]> {
        let none = || PyValueError::new_err("a tree without leaves has no root by this rule");
        Ok(self.0.root().ok_or_else(none)?.0)
    }

    /// The number of leaves.
    fn leaves(&self) -> u64 {
        self.0.leaves()
    }

    /// An inclusion proof of a leaf, as JSON.
    fn proof(&self, index: u64) -> PyResult<String> {
        let proof = self.0.proof(index).map_err(|error| from_merkle(&error))?;
        serde_json::to_string(&proof).map_err(|error| PyValueError::new_err(error.to_string()))
    }
}

/// Verifies that the tree with this root has the leaf at the proof's index. Fails with `InvalidProof` if not.
#[pyfunction]
pub(crate) fn verify_inclusion(proof: &str, root: [u8; 32], leaf: PyBackedBytes) -> PyResult<()> {
    let proof: Proof = serde_json::from_str(proof)
        .map_err(|error| PyValueError::new_err(format!("not an inclusion proof: {error}")))?;
    proof.verify_leaf(&Digest(root), &leaf).map_err(|error| from_merkle(&error))
}

"""Merkle roots, trees and inclusion proofs, hashed by all devices together."""

from __future__ import annotations

import json
import os
from typing import Any, Dict, Optional, Sequence, Union

from . import _evener
from ._arrays import as_array, selection

__all__ = ["InclusionProof", "MerkleTree", "merkle_root"]


def _input(data: Any) -> Any:
    """Leaves as the Rust part takes them, and what must be kept alive."""
    if isinstance(data, os.PathLike):
        return os.fspath(data), data
    if isinstance(data, bytes):
        return data, data
    if isinstance(data, str):
        raise TypeError("leaves are bytes, not a text: encode it, or use pathlib.Path for a file")
    if isinstance(data, (bytearray, memoryview)) or hasattr(data, "__array_interface__") or hasattr(data, "__dlpack__"):
        try:
            import numpy
        except ImportError:
            copied = bytes(data)
            return copied, copied
        array = numpy.frombuffer(data, numpy.uint8) if isinstance(data, (bytearray, memoryview)) else as_array(data, "leaves")
        array = numpy.ascontiguousarray(array)
        return (array.__array_interface__["data"][0], array.nbytes), array
    leaves = [bytes(leaf) if isinstance(leaf, (bytearray, memoryview)) else leaf for leaf in data]
    wrong = next((leaf for leaf in leaves if not isinstance(leaf, bytes)), None)
    if wrong is not None:
        raise TypeError("leaves must be bytes, not %s" % type(wrong).__name__)
    return leaves, leaves


def merkle_root(
    data: Any,
    *,
    leaf_size: int = 32,
    hash: str = "sha256",
    rule: str = "rfc6962",
    devices: Union[str, Sequence[str], None] = None,
) -> bytes:
    """The Merkle root of leaves.

    `data` is bytes, an array or a file (`pathlib.Path`), cut into leaves of `leaf_size` bytes; or a list of bytes, each a leaf.
    `hash` is `sha256`, `keccak256` or `blake3`; `rule` says what is hashed: `rfc6962`, `bitcoin` or `rs-merkle`.
    """
    given, kept = _input(data)
    root = bytes(_evener.merkle_root(given, leaf_size, hash, rule, selection(devices)))
    del kept
    return root


class InclusionProof:
    """Shows that a tree has a leaf at an index, to whoever knows the root."""

    def __init__(self, fields: Dict[str, Any]) -> None:
        self._fields = fields

    @property
    def index(self) -> int:
        """The index of the leaf."""
        return int(self._fields["index"])

    @property
    def leaves(self) -> int:
        """The number of leaves of the tree."""
        return int(self._fields["leaves"])

    def check(self, root: bytes, leaf: bytes) -> None:
        """Fails with `InvalidProof` unless the tree with this root has this leaf at the proof's index."""
        if len(root) != 32:
            raise ValueError("a root has 32 bytes, not %d" % len(root))
        _evener.verify_inclusion(self.to_json(), bytes(root), bytes(leaf))

    def verify(self, root: bytes, leaf: bytes) -> bool:
        """Whether the tree with this root has this leaf at the proof's index."""
        try:
            self.check(root, leaf)
        except _evener.InvalidProof:
            return False
        return True

    def to_json(self) -> str:
        """The proof as JSON, as the command `evener merkle` writes and reads it."""
        return json.dumps(self._fields)

    @classmethod
    def from_json(cls, text: str) -> "InclusionProof":
        """Reads a proof. A proof that does not fit a tree is found by `verify`."""
        fields = json.loads(text)
        if not isinstance(fields, dict) or not {"index", "leaves", "leaf", "path"} <= set(fields):
            raise ValueError("not an inclusion proof: it has no index, leaves, leaf or path")
        return cls(fields)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InclusionProof) and other._fields == self._fields

    def __repr__(self) -> str:
        return "<evener.InclusionProof of leaf %d of %d>" % (self.index, self.leaves)


class MerkleTree:
    """A Merkle tree with all its nodes: 64 bytes a leaf. Its arguments are those of `merkle_root`."""

    def __init__(
        self,
        data: Any,
        *,
        leaf_size: int = 32,
        hash: str = "sha256",
        rule: str = "rfc6962",
        devices: Union[str, Sequence[str], None] = None,
        _tree: Optional[_evener.MerkleTree] = None,
    ) -> None:
        if _tree is not None:
            self._tree = _tree
            return
        given, kept = _input(data)
        self._tree = _evener.MerkleTree(given, leaf_size, hash, rule, selection(devices))
        del kept

    @property
    def root(self) -> bytes:
        """The root."""
        return bytes(self._tree.root())

    def __len__(self) -> int:
        return self._tree.leaves()

    def proof(self, index: int) -> InclusionProof:
        """An inclusion proof of a leaf. Fails with `IndexError` if there is no such leaf."""
        if index < 0:
            index += len(self)
        if index < 0:
            raise IndexError("a tree of %d leaves has no leaf %d" % (len(self), index - len(self)))
        return InclusionProof(json.loads(self._tree.proof(index)))

    def save(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Writes the tree to a file, as a whole or not at all."""
        self._tree.save(os.fspath(path))

    @classmethod
    def load(cls, path: Union[str, "os.PathLike[str]"]) -> "MerkleTree":
        """Reads a tree that `save` or the command `evener merkle` wrote."""
        return cls(None, _tree=_evener.MerkleTree.load(os.fspath(path)))

    def __repr__(self) -> str:
        return "<evener.MerkleTree of %d leaves>" % len(self)

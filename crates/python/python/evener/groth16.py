"""Groth16 proofs over BN254, with the files of circom and snarkjs."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, Optional, Sequence, Union

from . import _evener
from ._arrays import selection

__all__ = ["Groth16Proof", "Prover", "verify"]

#: A file, or its contents.
Witness = Union[str, "os.PathLike[str]", bytes]


@dataclass(frozen=True)
class Groth16Proof:
    """A proof and the public values that it is about, as snarkjs has them: `proof.json` and `public.json`."""

    proof: Dict[str, Any]
    public: List[str]

    def save(self, proof: Union[str, "os.PathLike[str]"], public: Union[str, "os.PathLike[str]"]) -> None:
        """Writes both files."""
        for path, value in ((proof, self.proof), (public, self.public)):
            with open(path, "w") as file:
                json.dump(value, file, indent=1)
                file.write("\n")


def _proof(made: Any) -> Groth16Proof:
    return Groth16Proof(json.loads(made[0]), json.loads(made[1]))


def _witness(witness: Witness) -> Any:
    if isinstance(witness, (bytearray, memoryview)):
        return bytes(witness)
    return witness if isinstance(witness, bytes) else os.fspath(witness)


class Prover:
    """Proves witnesses of one circuit on the devices of this machine. Make it once: devices keep the key."""

    def __init__(
        self,
        zkey: Union[str, "os.PathLike[str]"],
        *,
        devices: Union[str, Sequence[str], None] = None,
        allow_unsafe_key: bool = False,
    ) -> None:
        self._prover = _evener.Prover(os.fspath(zkey), selection(devices), allow_unsafe_key)

    @property
    def verification_key(self) -> Dict[str, Any]:
        """The key that verifies the proofs, as snarkjs' `verification_key.json` has it."""
        return json.loads(self._prover.verification_key())  # type: ignore[no-any-return]

    def prove(self, witness: Witness) -> Groth16Proof:
        """Proves a witness (a `.wtns` file or its contents), and verifies the proof.

        Fails with `ValueError` if the witness is damaged, of another circuit, or does not satisfy the circuit.
        """
        return _proof(self._prover.prove(_witness(witness)))

    def prove_batch(self, witnesses: Iterable[Witness], *, return_exceptions: bool = False) -> List[Any]:
        """Proves witnesses, spread over the devices. Returns the proofs in their order.

        The exception of the first witness that has no proof is raised after all were tried; with `return_exceptions`,
        exceptions are returned in the places of their proofs.
        """
        results: List[Any] = []
        first: Optional[BaseException] = None
        for made, error in self._prover.prove_batch([_witness(witness) for witness in witnesses]):
            if error is not None and first is None:
                first = error
            results.append(error if made is None else _proof(made))
        if first is not None and not return_exceptions:
            raise first
        return results

    def __repr__(self) -> str:
        constraints, wires, public = self._prover.sizes()
        return "<evener.Prover of %d constraints, %d wires, %d of them public>" % (constraints, wires, public)


def _json(value: Any) -> str:
    """The text of a JSON file, or of plain values."""
    if isinstance(value, (str, os.PathLike)):
        with open(value) as file:
            return file.read()
    return json.dumps(value)


def verify(key: Any, proof: Any, public: Any = None, *, allow_unsafe_key: bool = False) -> bool:
    """Whether a Groth16 proof is valid: `verify(prover.verification_key, proof)`, or with snarkjs' files.

    Each argument is a file or its plain values; a `Groth16Proof` has its public values. Fails with `ValueError` if one of them
    cannot be read as what it should be.
    """
    if isinstance(proof, Groth16Proof):
        public = proof.public if public is None else public
        proof = proof.proof
    if public is None:
        raise TypeError("the public values are missing: verify(key, proof, public)")
    return bool(_evener.verify_groth16(_json(key), _json(proof), _json(public), allow_unsafe_key))

"""Merkle trees against a plain implementation, and Groth16 proofs of snarkjs' test circuit."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import evener
import numpy as np
import pytest

DATA = Path(__file__).parent.parent.parent / "zk" / "tests" / "data"


def plain_root(leaves):
    """RFC 6962, as its text has it."""
    if not leaves:
        return hashlib.sha256().digest()
    level = [hashlib.sha256(b"\0" + leaf).digest() for leaf in leaves]
    while len(level) > 1:
        pairs = zip(level[::2], level[1::2])
        over = level[-1:] if len(level) % 2 else []
        level = [hashlib.sha256(b"\1" + left + right).digest() for left, right in pairs] + over
    return level[0]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 1000, 5000])
def test_roots_are_those_of_the_plain_implementation(count):
    data = np.random.default_rng(count).integers(0, 256, 32 * count, dtype=np.uint8)
    leaves = [data[32 * i : 32 * i + 32].tobytes() for i in range(count)]
    expected = plain_root(leaves)
    for given in (data.tobytes(), bytearray(data.tobytes()), memoryview(data.tobytes()), data, leaves):
        assert evener.merkle_root(given) == expected
    assert evener.merkle_root(data.reshape(-1, 4)[:, :4], devices="cpu") == expected


def test_leaves_of_a_file_and_of_other_sizes(tmp_path):
    file = tmp_path / "leaves"
    file.write_bytes(bytes(range(200)) * 8)
    data = file.read_bytes()
    leaves = [data[i : i + 100] for i in range(0, 1600, 100)]
    assert evener.merkle_root(file, leaf_size=100) == plain_root(leaves)
    assert evener.merkle_root([b"a", b"bcd", b""]) == plain_root([b"a", b"bcd", b""])
    with pytest.raises(FileNotFoundError):
        evener.merkle_root(tmp_path / "none")


def test_inclusion_proofs(tmp_path):
    leaves = [b"leaf %d" % number for number in range(1000)]
    tree = evener.MerkleTree(leaves)
    assert len(tree) == 1000 and tree.root == plain_root(leaves)
    for index in (0, 1, 500, 999):
        proof = tree.proof(index)
        assert proof.verify(tree.root, leaves[index]) and not proof.verify(tree.root, b"other")
        assert not proof.verify(bytes(32), leaves[index])
        assert evener.InclusionProof.from_json(proof.to_json()) == proof
    assert tree.proof(-1) == tree.proof(999)
    with pytest.raises(evener.InvalidProof):
        tree.proof(0).check(tree.root, b"other")
    with pytest.raises(IndexError):
        tree.proof(1000)
    tree.save(tmp_path / "tree")
    assert evener.MerkleTree.load(tmp_path / "tree").root == tree.root


def test_wrong_leaves_are_errors():
    with pytest.raises(ValueError, match="33 bytes"):
        evener.merkle_root(bytes(33))
    with pytest.raises(ValueError, match="md5"):
        evener.merkle_root(bytes(32), hash="md5")
    with pytest.raises(TypeError, match="encode"):
        evener.merkle_root("text")
    with pytest.raises(TypeError, match="int"):
        evener.merkle_root([1, 2])
    with pytest.raises(evener.NoDevice):
        evener.merkle_root(bytes(32 * 100_000), devices="nothere")


@pytest.fixture(scope="module")
def prover():
    return evener.Prover(DATA / "squares.zkey", devices="cpu", allow_unsafe_key=True)


def test_a_proof_is_valid_for_its_public_values_only(prover, tmp_path):
    made = prover.prove(DATA / "squares.wtns")
    key = prover.verification_key
    assert evener.verify(key, made, allow_unsafe_key=True)
    other = [str(int(made.public[0]) + 1), *made.public[1:]]
    assert not evener.verify(key, made.proof, other, allow_unsafe_key=True)
    made.save(tmp_path / "proof.json", tmp_path / "public.json")
    (tmp_path / "key.json").write_text(json.dumps(key))
    files = (tmp_path / "key.json", tmp_path / "proof.json", tmp_path / "public.json")
    assert evener.verify(*files, allow_unsafe_key=True)


def test_a_proof_of_snarkjs_is_verified():
    files = (DATA / "verification_key.json", DATA / "proof.json", DATA / "public.json")
    assert evener.verify(*files, allow_unsafe_key=True)


def test_a_batch_gives_a_proof_or_an_exception_for_each(prover):
    good = (DATA / "squares.wtns").read_bytes()
    made = prover.prove_batch([good, DATA / "squares.wtns"])
    assert all(evener.verify(prover.verification_key, proof, allow_unsafe_key=True) for proof in made)
    mixed = prover.prove_batch([good, DATA / "none.wtns", good[:-40]], return_exceptions=True)
    assert isinstance(mixed[0], evener.Groth16Proof)
    assert isinstance(mixed[1], FileNotFoundError) and isinstance(mixed[2], ValueError)
    with pytest.raises(FileNotFoundError):
        prover.prove_batch([good, DATA / "none.wtns"])


def test_files_that_are_missing_or_damaged_are_errors(tmp_path, prover):
    with pytest.raises(FileNotFoundError):
        evener.Prover(tmp_path / "none.zkey")
    with pytest.raises(ValueError):
        prover.prove(b"not a witness")
    with pytest.raises(ValueError):
        evener.verify({}, {}, [])
    with pytest.raises(TypeError, match="public"):
        evener.verify({}, {})


def test_ctrl_c_ends_a_long_root_within_a_second():
    program = (
        "import evener, numpy as np, signal, sys, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "data = np.zeros(1 << 29, np.uint8)\n"
        "evener.merkle_root(data[:1 << 20], devices='cpu')\n"
        "print('now', flush=True)\n"
        "try:\n"
        "    for _ in range(1000): evener.merkle_root(data, devices='cpu')\n"
        "except KeyboardInterrupt:\n"
        "    print('ended', flush=True)\n"
    )
    ran = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert ran.stdout.readline() == "now\n"
    time.sleep(0.5)
    began = time.monotonic()
    os.kill(ran.pid, signal.SIGINT)
    assert ran.communicate(timeout=30)[0] == "ended\n"
    # A second on a machine with nothing else to do.
    assert time.monotonic() - began < 5

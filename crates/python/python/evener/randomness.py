"""A random stream for each iteration, derived from the state before the loop and the index.

Iteration 0 draws from the stream as it stands. Each later iteration draws from its own stream,
so that results do not depend on how iterations are shared. After the loop the stream goes on
where iteration 0 left it.
"""

from __future__ import annotations

import hashlib
import pickle
import random
import sys
from typing import Any, Dict, List, Optional, Sequence, Tuple

Name = Tuple[Any, ...]


def digest(state: Any) -> bytes:
    """A short name of a generator's state."""
    return hashlib.blake2b(pickle.dumps(state, protocol=4), digest_size=32).digest()


def words(seed: bytes, index: int) -> bytes:
    """The seed of a stream of its own."""
    return hashlib.blake2b(seed + index.to_bytes(8, "little"), digest_size=32).digest()


class Source:
    """One generator of random numbers."""

    def __init__(self, name: Name) -> None:
        self.name = name

    def state(self) -> Any:
        raise NotImplementedError

    def restore(self, state: Any) -> None:
        raise NotImplementedError

    def seed(self, words: bytes) -> None:
        raise NotImplementedError

    def same(self, one: Any, other: Any) -> bool:
        return one == other


class Python(Source):
    """`random`, or an instance of `random.Random`."""

    def __init__(self, name: Name, generator: Any) -> None:
        super().__init__(name)
        self.generator = generator

    def state(self) -> Any:
        return self.generator.getstate()

    def restore(self, state: Any) -> None:
        self.generator.setstate(state)

    def seed(self, words: bytes) -> None:
        self.generator.seed(int.from_bytes(words, "little"))


class NumpyState(Source):
    """`numpy.random`'s global generator, or a captured `RandomState`."""

    def __init__(self, name: Name, generator: Any) -> None:
        super().__init__(name)
        self.generator = generator

    def state(self) -> Any:
        kind, keys, position, has_gauss, gauss = self.generator.get_state()
        return kind, keys.tobytes(), position, has_gauss, gauss

    def restore(self, state: Any) -> None:
        import numpy

        kind, keys, position, has_gauss, gauss = state
        self.generator.set_state((kind, numpy.frombuffer(keys, dtype=numpy.uint32), position, has_gauss, gauss))

    def seed(self, words: bytes) -> None:
        import numpy

        self.generator.seed(numpy.frombuffer(words, dtype=numpy.uint32))


class NumpyGenerator(Source):
    """A captured `numpy.random.Generator`."""

    def __init__(self, name: Name, generator: Any) -> None:
        super().__init__(name)
        self.generator = generator

    def state(self) -> Any:
        return self.generator.bit_generator.state

    def restore(self, state: Any) -> None:
        self.generator.bit_generator.state = state

    def same(self, one: Any, other: Any) -> bool:
        return digest(one) == digest(other)

    def seed(self, words: bytes) -> None:
        import numpy

        bits = self.generator.bit_generator
        fresh = type(bits)(numpy.random.SeedSequence(int.from_bytes(words, "little")))
        bits.state = fresh.state


class Torch(Source):
    """PyTorch's generator for the processor; those of the GPUs are seeded with it."""

    def state(self) -> Any:
        return bytes(sys.modules["torch"].get_rng_state().numpy().tobytes())

    def restore(self, state: Any) -> None:
        torch = sys.modules["torch"]
        torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))

    def seed(self, words: bytes) -> None:
        sys.modules["torch"].manual_seed(int.from_bytes(words[:8], "little") >> 1)


def of_value(name: Name, value: Any) -> Optional[Source]:
    """The source behind an object, if it is a generator of random numbers."""
    kind = type(value)
    if kind is random.Random:
        return Python(name, value)
    if kind.__module__.startswith("numpy.random"):
        if kind.__name__ == "Generator":
            return NumpyGenerator(name, value)
        if kind.__name__ == "RandomState":
            return NumpyState(name, value)
    return None


def global_sources() -> List[Source]:
    """The generators that every module shares."""
    found: List[Source] = [Python(("random",), random)]
    numpy = sys.modules.get("numpy.random")
    if numpy is not None and hasattr(numpy, "mtrand"):
        found.append(NumpyState(("numpy",), numpy.mtrand._rand))
    if "torch" in sys.modules and hasattr(sys.modules["torch"], "get_rng_state"):
        found.append(Torch(("torch",)))
    return found


def captured_sources(captured: Dict[str, Any]) -> List[Source]:
    """Generators among captured values, and among their attributes."""
    found: List[Source] = []
    for name, value in captured.items():
        source = of_value(("env", name), value)
        if source is not None:
            found.append(source)
            continue
        attributes = getattr(value, "__dict__", None)
        if type(attributes) is dict and not isinstance(value, type):
            for key, inner in attributes.items():
                source = of_value(("env", name, "." + key), inner)
                if source is not None:
                    found.append(source)
    return found


class Streams:
    """The sources that a loop draws from, and the seed of each."""

    def __init__(self, sources: Sequence[Source], seeds: Sequence[bytes], resume: Sequence[Any]) -> None:
        self.sources = list(sources)
        self.seeds = list(seeds)
        self.resume = list(resume)

    def begin(self, index: int) -> None:
        """Sets every source to the stream of an iteration."""
        for source, seed in zip(self.sources, self.seeds):
            source.seed(words(seed, index))

    def end(self) -> None:
        """Lets the streams go on where iteration 0 left them."""
        for source, state in zip(self.sources, self.resume):
            source.restore(state)

    def names(self) -> List[Name]:
        return [s.name for s in self.sources]


class Watch:
    """The states of sources at one moment, and which have changed since."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = list(sources)
        self.states = [s.state() for s in self.sources]

    def changed(self) -> List[int]:
        return [
            i for i, source in enumerate(self.sources) if not source.same(self.states[i], source.state())
        ]

    def streams(self) -> Optional[Streams]:
        """Streams for the sources that were drawn from, or None."""
        changed = self.changed()
        if not changed:
            return None
        chosen = [self.sources[i] for i in changed]
        return Streams(chosen, [digest(self.states[i]) for i in changed], [s.state() for s in chosen])


def resolve(names: Sequence[Name], captured: Dict[str, Any]) -> List[Source]:
    """The sources of the same names in another process."""
    found: List[Source] = []
    for name in names:
        if name[0] == "env":
            value = captured[name[1]]
            if len(name) == 3:
                value = value.__dict__[name[2][1:]]
            source = of_value(name, value)
        else:
            if name == ("numpy",):
                import numpy.random  # noqa: F401
            source = next((s for s in global_sources() if s.name == name), None)
        if source is None:
            raise RuntimeError(f"no random generator {name} in this process")
        found.append(source)
    return found

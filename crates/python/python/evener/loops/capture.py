"""Pickling of what a loop captures, of its items and of its records."""

from __future__ import annotations

import functools
import io
import pickle
import threading
import types
import zlib
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

import cloudpickle
from cloudpickle import cloudpickle as internals

from .reach import Reach, stable_set, user_module
from .reasons import GaveUp

ATOMS = frozenset({
    int, float, complex, bool, str, bytes, type(None), type(Ellipsis), type(NotImplemented), range,
})
Path = Tuple[Any, ...]


class Packed:
    """Pickled bytes, and the buffers that travel beside them."""

    __slots__ = ("data", "buffers")

    def __init__(self, data: bytes, buffers: Sequence[Any]) -> None:
        self.data = data
        self.buffers = list(buffers)

    def __reduce_ex__(self, protocol: int) -> Any:
        if protocol >= 5:
            return Packed, (self.data, self.buffers)
        return Packed, (self.data, [bytes(b.raw()) if isinstance(b, pickle.PickleBuffer) else b for b in self.buffers])

    def views(self, writable: bool) -> List[Any]:
        """The buffers as the unpickler takes them."""
        given = []
        for buffer in self.buffers:
            view = memoryview(buffer)
            if not writable:
                given.append(view.toreadonly())
            elif view.readonly:
                given.append(bytearray(view))
            else:
                given.append(view)
        return given


def strided(packed: Any, shape: Tuple[int, ...], strides: Tuple[int, ...], writable: bool) -> Any:
    """An array with the memory layout of the one that was sent."""
    import numpy

    low = sum(min(0, (n - 1) * s) for n, s in zip(shape, strides))
    high = sum(max(0, (n - 1) * s) for n, s in zip(shape, strides)) + packed.dtype.itemsize
    memory = numpy.empty(high - low, dtype=numpy.uint8)
    array = numpy.ndarray(shape, packed.dtype, memory, offset=-low, strides=strides)
    array[...] = packed
    array.flags.writeable = writable
    return array


def _array_layout(value: Any) -> Any:
    """The reduction of an array that neither C nor Fortran order describes."""
    if value.flags.c_contiguous or value.flags.f_contiguous or value.dtype.hasobject or value.size == 0:
        return NotImplemented
    if any(s == 0 for s in value.strides):
        return NotImplemented
    span = sum((n - 1) * abs(s) for n, s in zip(value.shape, value.strides))
    if span > 16 * value.nbytes + 4096:
        return NotImplemented
    return strided, (value.copy(order="C"), value.shape, value.strides, value.flags.writeable)


def _cached(function: Any, maxsize: Optional[int], typed: bool) -> Any:
    return functools.lru_cache(maxsize=maxsize, typed=typed)(function)


class PartialModule(types.ModuleType):
    """A copy of a user's module that holds what the sent code names."""

    def __getattr__(self, name: str) -> Any:
        if name in self.__dict__.get("__evener_others__", ()):
            raise GaveUp(f"`{self.__name__}.{name}` did not travel with the code")
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")


def make_module(name: str) -> types.ModuleType:
    return PartialModule(name)


def fill_module(module: types.ModuleType, state: Dict[str, Any]) -> None:
    module.__dict__.update(state)


class Capture(cloudpickle.Pickler):
    """Pickles the user's functions, classes and modules by value, with their state.

    Refuses what must not be copied: receivers of effects, iterators, sets of unstable order.
    """

    def __init__(self, file: Any, buffers: Optional[List[Any]], reach: Optional[Reach],
                 forbidden: Dict[int, str], named_sets: Set[int] = frozenset(),
                 known: Optional[Dict[int, Path]] = None, deep: Optional[Set[int]] = None,
                 classes: Optional[Dict[type, int]] = None) -> None:
        callback = None if buffers is None else buffers.append
        super().__init__(file, protocol=5, buffer_callback=callback)
        self.reach = reach
        self.forbidden = forbidden
        self.named_sets = named_sets
        self.known = known or {}
        self.deep = deep or set()
        self.classes = {} if classes is None else classes
        self.visited: List[Any] = []
        self.roots: List[Tuple[str, Any, Any]] = []

    def persistent_id(self, obj: Any) -> Any:
        kind = type(obj)
        if kind in ATOMS:
            return None
        number = id(obj)
        if number in self.forbidden:
            raise GaveUp(f"`{self.forbidden[number]}`, which iterations change, can be reached from what they read")
        if number in self.known:
            return self.known[number]
        if number in self.deep and kind not in _SHARED_KINDS:
            raise GaveUp(f"an item shares an object ({kind.__name__}) with what the loop captures")
        self.visited.append(obj)
        if kind is set or kind is frozenset:
            if number not in self.named_sets and not stable_set(obj):
                raise GaveUp("the order of a set cannot be kept in another process")
        elif hasattr(kind, "__next__") and not hasattr(kind, "__reduce_evener__"):
            raise GaveUp(f"it uses an iterator ({kind.__name__}), which iterations would share")
        return None

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, types.FunctionType):
            if user_module(obj.__module__) or not internals._should_pickle_by_reference(obj):
                self._function_roots(obj)
                return self._dynamic_function_reduce(obj)
            return NotImplemented
        if isinstance(obj, type):
            if by_value(obj):
                self._class_roots(obj)
                return self._class(obj)
            return super().reducer_override(obj)
        if isinstance(obj, types.ModuleType) and user_module(obj.__name__):
            return self._module(obj)
        if isinstance(obj, functools._lru_cache_wrapper) and user_module(getattr(obj, "__module__", None)):
            given = obj.cache_parameters() if hasattr(obj, "cache_parameters") else {"maxsize": 128, "typed": False}
            return _cached, (obj.__wrapped__, given["maxsize"], given["typed"])
        if type(obj).__module__ == "numpy" and type(obj).__name__ == "ndarray":
            return _array_layout(obj)
        return super().reducer_override(obj)

    def _function_roots(self, function: types.FunctionType) -> None:
        for name in internals._extract_code_globals(function.__code__):
            self.roots.append(("key", function.__globals__, name))
        for cell in function.__closure__ or ():
            self.roots.append(("cell", cell, None))
        if function.__defaults__:
            self.roots.append(("value", function.__defaults__, None))
        if function.__kwdefaults__:
            self.roots.append(("value", function.__kwdefaults__, None))
        if function.__dict__:
            self.roots.append(("value", function.__dict__, None))

    def _class_roots(self, cls: type) -> None:
        self.roots.append(("class", cls, None))

    def _class(self, cls: type) -> Any:
        """As cloudpickle does it, but with names that belong to this run.

        Its own process-wide table would give back, and overwrite, the original class when the
        copy is made in the same process.
        """
        reduced = internals._dynamic_class_reduce(cls)
        key = self.classes.setdefault(cls, len(self.classes))
        return (make_class, (reduced[0], reduced[1][:-2], key), reduced[2], None, None, _FillClass(reduced[5]))

    def _module(self, module: types.ModuleType) -> Any:
        names = self.reach.names if self.reach is not None else set()
        state = {k: v for k, v in vars(module).items() if k in names}
        state["__evener_others__"] = sorted(set(vars(module)) - set(state))
        for name in sorted(set(state) - {"__evener_others__"}):
            self.roots.append(("key", vars(module), name))
        return make_module, (module.__name__,), state, None, None, fill_module


def by_value(cls: type) -> bool:
    """Whether a class travels with its code rather than by name."""
    module = cls.__module__
    if module in ("builtins", None):
        return False
    return user_module(module) or not internals._should_pickle_by_reference(cls)


class _Session(threading.local):
    """The classes that the run being unpickled has brought along, by number."""

    classes: Optional[Dict[int, type]] = None


SESSION = _Session()


def make_class(constructor: Callable[..., type], arguments: Tuple[Any, ...], key: int) -> type:
    classes = SESSION.classes
    if classes is None:
        return constructor(*arguments, None, None)
    if key not in classes:
        classes[key] = constructor(*arguments, None, None)
    return classes[key]


class _FillClass:
    """Sets the attributes of a class the first time that it arrives."""

    def __init__(self, fill: Callable[[type, Any], Any]) -> None:
        self.fill = fill

    def __call__(self, cls: type, state: Any) -> Any:
        if "__evener_filled__" in vars(cls):
            return cls
        result = self.fill(cls, state)
        type.__setattr__(cls, "__evener_filled__", True)
        return result


_SHARED_KINDS = frozenset({
    types.FunctionType, types.BuiltinFunctionType, type, types.ModuleType, tuple, frozenset, types.CodeType,
    types.MethodType, types.CellType, property,
})


class Loader(pickle.Unpickler):
    """Unpickles, and finds what was sent as a path to something already there."""

    def __init__(self, file: Any, buffers: Sequence[Any], find: Callable[[Path], Any]) -> None:
        super().__init__(file, buffers=buffers)
        self.find = find

    def persistent_load(self, path: Path) -> Any:
        return self.find(path)


class _Stub:
    """Stands for a function, class or module in a snapshot."""

    def __init__(self, number: int) -> None:
        self.number = number


class _State(pickle.Pickler):
    """Pickles values for comparison only; code counts as unchanging."""

    def __init__(self, file: Any, buffers: List[Any], skipped: Set[int]) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffers.append)
        self.skipped = skipped

    def reducer_override(self, obj: Any) -> Any:
        if obj is _Stub:
            return NotImplemented
        if isinstance(obj, (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)):
            if not (isinstance(obj, types.BuiltinFunctionType) and not isinstance(obj.__self__, (types.ModuleType, type(None)))):
                return _Stub, (id(obj),)
        if id(obj) in self.skipped:
            return _Stub, (id(obj),)
        if type(obj) in (functools._lru_cache_wrapper, property, staticmethod, classmethod, types.CellType, types.CodeType):
            return _Stub, (id(obj),)
        if isinstance(obj, (types.GetSetDescriptorType, types.MemberDescriptorType, types.MappingProxyType)):
            return _Stub, (id(obj),)
        if hasattr(type(obj), "__evener_stub__"):
            return _Stub, (id(obj),)
        return NotImplemented


_MISSING = object()


def _current(root: Tuple[str, Any, Any]) -> Any:
    kind, holder, name = root
    if kind == "key":
        return holder.get(name, "evener: missing")
    if kind == "cell":
        try:
            return holder.cell_contents
        except ValueError:
            return "evener: missing"
    if kind == "class":
        return [
            (k, v) for k, v in vars(holder).items()
            if k not in ("__dict__", "__weakref__", "__doc__", "__module__", "_abc_impl", "__abstractmethods__", "__evener_filled__")
        ]
    return holder


class State:
    """Everything mutable that a body can reach, compared before and after iterations."""

    def __init__(self, roots: Sequence[Tuple[str, Any, Any]], skipped: Sequence[Any] = ()) -> None:
        self.roots = list(roots)
        self.skipped = {id(s) for s in skipped}
        self._kept = list(skipped)

    def snapshot(self) -> Tuple[bytes, Tuple[int, ...]]:
        buffers: List[Any] = []
        file = io.BytesIO()
        _State(file, buffers, self.skipped).dump([_current(r) for r in self.roots])
        sums = []
        for buffer in buffers:
            raw = buffer.raw()
            sums.append(len(raw) if raw.readonly else zlib.crc32(raw))
        return file.getvalue(), tuple(sums)


def paths_of(captured: Dict[str, Any]) -> Dict[int, Path]:
    """Ways to name captured objects, and the elements of captured containers, in both processes."""
    found: Dict[int, Path] = {}
    for name, value in captured.items():
        if type(value) not in ATOMS:
            found.setdefault(id(value), ("env", name))
        if type(value) in (list, tuple) and len(value) <= 100_000:
            for position, element in enumerate(value):
                if type(element) not in ATOMS:
                    found.setdefault(id(element), ("env", name, position))
        elif type(value) is dict and len(value) <= 100_000:
            for key, element in value.items():
                if type(element) not in ATOMS and type(key) in (int, str, float, bytes):
                    found.setdefault(id(element), ("env", name, key))
    return found


def item_paths(item: Any, at: Path = ("item",), depth: int = 3) -> Dict[int, Path]:
    """Ways to name an item and its parts."""
    found: Dict[int, Path] = {}
    if type(item) in ATOMS:
        return found
    found[id(item)] = at
    if depth and type(item) in (list, tuple) and len(item) <= 10_000:
        for position, element in enumerate(item):
            for number, path in item_paths(element, at + (position,), depth - 1).items():
                found.setdefault(number, path)
    return found


def walk(start: Any, path: Path) -> Any:
    for key in path:
        start = start[key]
    return start


def visited(values: Sequence[Any]) -> List[Any]:
    """All objects that these values consist of, except code."""
    pickler = _Walk(io.BytesIO(), [])
    pickler.dump(list(values))
    return pickler.visited[1:]


class _Walk(_State):
    def __init__(self, file: Any, buffers: List[Any]) -> None:
        super().__init__(file, buffers, set())
        self.visited: List[Any] = []

    def persistent_id(self, obj: Any) -> Any:
        if type(obj) not in ATOMS:
            self.visited.append(obj)
        return None

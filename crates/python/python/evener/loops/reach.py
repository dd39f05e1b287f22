"""The user's code that a loop body can reach, and what in it depends on the process."""

from __future__ import annotations

import ast
import functools
import inspect
import os
import site
import sys
import sysconfig
import textwrap
import types
from typing import Any, Dict, List, Optional, Set, Tuple

_LIBRARIES = tuple(
    os.path.realpath(p) + os.sep
    for p in {
        sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"),
        sysconfig.get_path("purelib"), sysconfig.get_path("platlib"),
        *(site.getsitepackages() if hasattr(site, "getsitepackages") else []),
    }
    if p
)
_OWN = os.path.realpath(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep


@functools.lru_cache(maxsize=None)
def _user_file(path: str) -> bool:
    real = os.path.realpath(path)
    if real.startswith(_OWN) or real.startswith(_LIBRARIES):
        return False
    return not any(part in ("site-packages", "dist-packages") for part in real.split(os.sep))


def user_module(name: Optional[str]) -> bool:
    """Whether a module is the user's own: its state travels with the code that uses it."""
    if not name or name in sys.builtin_module_names:
        return False
    if name == "__main__":
        return True
    if name.split(".")[0] in ("evener", "cloudpickle"):
        return False
    module = sys.modules.get(name)
    if module is None:
        return True
    path = getattr(module, "__file__", None)
    if path is None:
        # A namespace package, or a module made at run time.
        return not hasattr(module, "__path__") and getattr(module, "__spec__", None) is None
    return _user_file(path)


def code_names(code: types.CodeType) -> Set[str]:
    """Every name that a code object or one nested in it mentions."""
    found = set(code.co_names) | set(code.co_freevars)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= code_names(constant)
    return found


class Reach:
    """Functions, classes and modules of the user that code can reach by name."""

    def __init__(self, function: types.FunctionType, values: List[Any]) -> None:
        self.names: Set[str] = set()
        self.functions: List[types.FunctionType] = []
        self.modules: List[types.ModuleType] = []
        self._seen: Set[int] = set()
        self._todo: List[Any] = [function, *values]
        self._root = function
        before = -1
        while before != len(self.names) + len(self._seen):
            before = len(self.names) + len(self._seen)
            self._drain()
            for module in list(self.modules):
                for name in self.names & set(vars(module)):
                    self._todo.append(vars(module)[name])
        self._drain()

    def _drain(self) -> None:
        while self._todo:
            value = self._todo.pop()
            if id(value) in self._seen:
                continue
            if isinstance(value, types.FunctionType):
                if value is self._root or user_module(value.__module__):
                    self._seen.add(id(value))
                    self._function(value)
            elif isinstance(value, types.MethodType):
                self._todo += [value.__func__, value.__self__]
            elif isinstance(value, functools.partial):
                self._todo += [value.func, *value.args, *value.keywords.values()]
            elif isinstance(value, types.ModuleType):
                if user_module(value.__name__):
                    self._seen.add(id(value))
                    self.modules.append(value)
            elif isinstance(value, type):
                if user_module(value.__module__):
                    self._seen.add(id(value))
                    self._class(value)
            elif hasattr(value, "__wrapped__") and isinstance(value.__wrapped__, types.FunctionType):
                self._seen.add(id(value))
                self._todo.append(value.__wrapped__)
            else:
                kind = type(value)
                if kind.__module__ != "builtins" and user_module(kind.__module__):
                    self._todo.append(kind)

    def _function(self, function: types.FunctionType) -> None:
        self.functions.append(function)
        names = code_names(function.__code__)
        self.names |= names
        scope = function.__globals__
        self._todo += [scope[n] for n in names if n in scope]
        for cell in function.__closure__ or ():
            try:
                self._todo.append(cell.cell_contents)
            except ValueError:
                pass
        self._todo += list(function.__defaults__ or ()) + list((function.__kwdefaults__ or {}).values())

    def _class(self, cls: type) -> None:
        for value in vars(cls).values():
            if isinstance(value, (staticmethod, classmethod)):
                value = value.__func__
            if isinstance(value, property):
                self._todo += [f for f in (value.fget, value.fset) if f]
            elif isinstance(value, (types.FunctionType, type)):
                self._todo.append(value)
        self._todo += [b for b in cls.__bases__]


_ORDERLESS = frozenset("len sorted min max any all bool isinstance set frozenset".split())
_SET_METHODS = frozenset("union intersection difference symmetric_difference copy".split())
_SET_QUERIES = frozenset("issubset issuperset isdisjoint add discard update remove clear".split())


def set_order(tree: ast.AST, sets: Set[str]) -> Optional[Tuple[ast.AST, str]]:
    """The first place where the iteration order of a set can be seen.

    `sets`: names whose values are sets. Names assigned from set expressions join them.
    """
    names = set(sets)
    while True:
        more = {
            target.id
            for node in ast.walk(tree) if isinstance(node, ast.Assign) and _is_set(node.value, names)
            for target in node.targets if isinstance(target, ast.Name)
        } - names
        if not more:
            break
        names |= more
    parents: Dict[int, ast.AST] = {
        id(child): node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.expr) or not _is_set(node, names):
            continue
        if isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del)):
            continue
        parent = parents.get(id(node))
        if not _order_hidden(node, parent, names):
            return node, "the order of a set, which another process may not share, can be seen here"
    return None


def _is_set(node: ast.expr, names: Set[str]) -> bool:
    if isinstance(node, (ast.Set, ast.SetComp)):
        return True
    if isinstance(node, ast.Name):
        return node.id in names
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name):
            return node.func.id in ("set", "frozenset")
        return isinstance(node.func, ast.Attribute) and node.func.attr in _SET_METHODS and _is_set(node.func.value, names)
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, (ast.BitOr, ast.BitAnd, ast.Sub, ast.BitXor)) and (
            _is_set(node.left, names) or _is_set(node.right, names)
        )
    return False


def _order_hidden(node: ast.expr, parent: Optional[ast.AST], names: Set[str]) -> bool:
    if isinstance(parent, ast.Call):
        if node is parent.func:
            return True
        if isinstance(parent.func, ast.Name):
            return parent.func.id in _ORDERLESS and not parent.keywords or parent.func.id in ("len", "sorted") 
        return isinstance(parent.func, ast.Attribute) and (
            parent.func.attr in _SET_METHODS | _SET_QUERIES and _is_set(parent.func.value, names)
        )
    if isinstance(parent, ast.Compare):
        return True
    if isinstance(parent, ast.Attribute):
        return parent.attr in _SET_METHODS | _SET_QUERIES
    if isinstance(parent, ast.BinOp):
        return _is_set(parent, names)
    if isinstance(parent, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.UnaryOp, ast.BoolOp)):
        return not isinstance(parent, ast.Assign) or all(isinstance(t, ast.Name) for t in parent.targets)
    if isinstance(parent, (ast.If, ast.While, ast.IfExp)):
        return node is parent.test
    # Elements that are sent home are checked where they are pickled.
    return isinstance(parent, (ast.Return, ast.Tuple, ast.List, ast.Dict, ast.Yield, ast.Slice, ast.Index))


@functools.lru_cache(maxsize=512)
def _helper_complaint(code: types.CodeType, filename: str, sets: frozenset) -> Optional[str]:
    names = code_names(code)
    for name in ("id", "hash", "globals", "_getframe", "currentframe"):
        if name in names:
            return f"`{code.co_name}` uses `{name}`, which differs between processes"
    if not (sets or {"set", "frozenset"} & names or _builds_sets(code)):
        return None
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, TypeError, SyntaxError, IndentationError):
        return f"`{code.co_name}` builds sets and has no source to look at"
    found = set_order(tree, set(sets))
    return f"`{code.co_name}`: {found[1]}" if found else None


def _builds_sets(code: types.CodeType) -> bool:
    import dis

    for instruction in dis.get_instructions(code):
        if instruction.opname in ("BUILD_SET", "SET_ADD", "SET_UPDATE"):
            return True
    return any(_builds_sets(c) for c in code.co_consts if isinstance(c, types.CodeType))


def complaint(reach: Reach) -> Optional[str]:
    """Why the helper functions of a body could behave differently in another process."""
    for function in reach.functions[1:]:
        code = function.__code__
        # Methods that a library made (`dataclass`), and hashes, which only sets could show.
        if code.co_filename.startswith("<string>") or not _user_file(code.co_filename) or code.co_name == "__hash__":
            continue
        sets = frozenset(
            n for n in code_names(function.__code__)
            if isinstance(function.__globals__.get(n), (set, frozenset)) and not stable_set(function.__globals__[n])
        )
        said = _helper_complaint(function.__code__, function.__code__.co_filename, sets)
        if said:
            return said
    return None


def _same_hash(value: Any) -> bool:
    kind = type(value)
    if kind in (int, float, bool, complex):
        return True
    if kind in (str, bytes):
        return not value or os.environ.get("PYTHONHASHSEED", "random") != "random" or not sys.flags.hash_randomization
    return kind is tuple and all(_same_hash(v) for v in value)


def stable_set(value: Any) -> bool:
    """Whether a copy of the set in another process iterates in the same order."""
    if len(value) < 2:
        return True
    if type(value) not in (set, frozenset) or not all(_same_hash(v) for v in value):
        return False
    order = list(value)
    return list(type(value)(order)) == order

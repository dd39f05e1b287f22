"""Decides for each loop of a function whether its iterations are independent, and why not."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Dict, List, Optional, Set, Union

from . import effects as fx
from .effects import Effect
from .flow import exposed, path_to, read_later
from .names import (
    NESTED,
    declared,
    enclosed,
    everything,
    loads,
    own,
    parameters,
    stores,
)
from .reasons import Reason, Refused

FORBIDDEN_CALLS = {
    "locals": "reads the frame's local variables",
    "vars": "may read the frame's local variables",
    "dir": "may read the frame's local variables",
    "eval": "evaluates text", "exec": "runs text",
    "globals": "reaches every global variable",
    "input": "reads from the terminal", "breakpoint": "starts a debugger",
    "setattr": "writes an attribute", "delattr": "deletes an attribute",
    "super": "needs the class of the method",
    "id": "is another number in another process",
    "hash": "may be another number in another process",
}
FORBIDDEN_ATTRIBUTES = {"_getframe": "reads frames", "currentframe": "reads frames", "stack": "may read frames"}
WHOLE_FUNCTION = {"locals", "eval", "exec", "_getframe", "currentframe"}


@dataclass
class Plan:
    """How one loop is shared: what it captures, records and gives back."""

    number: int
    kind: str
    node: ast.For
    scope: ast.FunctionDef
    captured: List[str] = field(default_factory=list)
    effects: List[Effect] = field(default_factory=list)
    sites: Dict[int, List[int]] = field(default_factory=dict)
    live: List[str] = field(default_factory=list)
    target_live: bool = False
    yields: bool = False
    nested: bool = False
    inner: bool = False
    draws_only: bool = False
    calm: bool = False

    @property
    def receivers(self) -> List[str]:
        return sorted({e.receiver for e in self.effects if e.receiver})

    @property
    def line(self) -> int:
        return self.node.lineno


@dataclass
class Finding:
    """What the analysis says about one loop."""

    kind: str
    line: int
    column: int
    plan: Optional[Plan] = None
    reason: Optional[Reason] = None

    @property
    def parallel(self) -> bool:
        return self.plan is not None


def whole_function(definition: ast.FunctionDef) -> None:
    """Refuses functions that cannot be compiled again with the same meaning."""
    for node in ast.walk(definition):
        if isinstance(node, ast.Name) and node.id in WHOLE_FUNCTION:
            raise Refused(f"`{node.id}` {FORBIDDEN_CALLS.get(node.id, 'reads frames')}", node)
        if isinstance(node, ast.Attribute) and node.attr in WHOLE_FUNCTION:
            raise Refused(f"`{node.attr}` reads frames", node)
        for name in _identifiers(node):
            if name.startswith("__") and not name.endswith("__"):
                raise Refused(f"`{name}` is a name private to its class", node)


def _identifiers(node: ast.AST) -> List[str]:
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute):
        return [node.attr]
    if isinstance(node, ast.arg):
        return [node.arg]
    return []


def root(node: ast.AST) -> Optional[str]:
    """The name at the start of `a.b[c].d`, if there is one."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


class Scope:
    """The names of one function scope."""

    def __init__(self, definition: ast.FunctionDef, outer: Set[str]) -> None:
        self.definition = definition
        self.declared = declared(definition.body)
        self.local = (parameters(definition.args) | stores(definition.body)) - self.declared
        self.visible = self.local | outer


def analyse(number: int, kind: str, loop: ast.For, scope: Scope, path_scope: ast.AST) -> Plan:
    """Returns the plan of a loop, or raises `Refused`."""
    plan = Plan(number, kind, loop, scope.definition)
    body = loop.body
    _forbid(loop)
    targets = stores(loop.target)
    if any(isinstance(n, (ast.Attribute, ast.Subscript)) for n in ast.walk(loop.target)):
        raise Refused("its target is not a plain name", loop.target)
    declared_here = (stores(body) | targets) & scope.declared
    if declared_here:
        raise Refused(f"assigns `{min(declared_here)}`, which is declared global or nonlocal", loop)
    summed = _summed(body, targets, scope)
    assigned = (stores(body) - summed) | targets
    closures = enclosed([n for n in scope.definition.body]) if not body else _enclosed_outside(scope.definition, loop)
    for name in sorted((assigned | summed) & closures):
        raise Refused(f"a nested function outside of the loop uses `{name}`, which the loop assigns", loop)

    def shared(name: str) -> bool:
        return name not in assigned and name not in summed

    finder = _Effects(plan, shared, lambda name: name in summed)
    for statement in body:
        finder.visit(statement)
    _other_uses(plan, body, summed)
    _shared_writes(body, assigned, targets, plan)
    handled = any(isinstance(n, ast.Try) or type(n).__name__ == "TryStar" for n in own(body))
    carried = exposed(body, targets, inner_loops_run=not handled) & assigned
    for name in sorted(carried):
        raise Refused(
            f"reads `{name}`, which another iteration assigns", _first(body, name) or loop
        )
    reads = loads(body) - assigned - summed
    receivers = set(plan.receivers)
    plan.captured = sorted((reads & scope.visible) - receivers)
    used_later = read_later(path_to(path_scope, loop), path_scope.body)
    plan.live = sorted((stores(body) - summed) & used_later)
    plan.target_live = bool((targets - set(plan.live)) & used_later)
    fresh = any(isinstance(n, ast.Starred) for n in ast.walk(loop.target))
    if plan.target_live and (fresh or targets & set(plan.live)):
        plan.live = sorted(set(plan.live) | targets)
        plan.target_live = False
    if any(isinstance(n, ast.NamedExpr) for n in everything(loop.iter)):
        raise Refused("assigns a name in its iterable", loop.iter)
    plan.draws_only = _draws_only(body)
    plan.calm = _calm(plan, scope)
    return plan


CALM = frozenset(
    "abs bool bytes chr complex dict divmod enumerate float format frozenset int isinstance len list max min ord pow"
    " print range repr reversed round set slice sorted str sum tuple zip".split()
)


def _calm(plan: Plan, scope: Scope) -> bool:
    """Whether the body calls nothing that could draw random numbers, as far as its text tells.

    The names must be those of the builtins, which `Loops` checks against the module's globals.
    """
    known = {id(c) for e in plan.effects for c in _receiver_calls(e)}
    for node in everything(plan.node.body):
        if isinstance(node, (ast.With, ast.Import, ast.ImportFrom, ast.Attribute)) and not (
            isinstance(node, ast.Attribute) and any(
                isinstance(e.node, ast.Expr) and isinstance(e.node.value, ast.Call) and e.node.value.func is node
                for e in plan.effects
            )
        ):
            return False
        if isinstance(node, ast.Call) and id(node) not in known:
            if not (isinstance(node.func, ast.Name) and node.func.id in CALM and node.func.id not in scope.visible):
                return False
    return True


def _first(body: List[ast.stmt], name: str) -> Optional[ast.AST]:
    found = [
        n for n in everything(body)
        if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)
    ]
    return min(found, key=lambda n: (n.lineno, n.col_offset)) if found else None


def _enclosed_outside(definition: ast.FunctionDef, loop: ast.For) -> Set[str]:
    """Names that scopes nested in the function, outside of the loop's body, take from it.

    Comprehensions run at once, so only functions, lambdas, generators and classes count.
    """
    inside = {id(n) for s in loop.body for n in ast.walk(s)}
    found: Set[str] = set()
    for node in own(definition.body):
        if id(node) in inside or not isinstance(node, NESTED):
            continue
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp)):
            inner = [n for n in ast.walk(node) if isinstance(n, (ast.Lambda, ast.GeneratorExp)) and n is not node]
            for each in inner:
                found |= enclosed([ast.Expr(value=each)])
            continue
        if isinstance(node, ast.GeneratorExp) and getattr(node, "evener_call_argument", False):
            continue
        found |= enclosed([node])
    return found


def _forbid(loop: ast.For) -> None:
    if isinstance(loop, ast.AsyncFor):
        raise Refused("it is an `async for`", loop)
    if loop.orelse:
        raise Refused("it has an `else` clause", loop.orelse[0])
    for statement in loop.body:
        _breaks(statement, 0)
    for node in everything(loop.body):
        if isinstance(node, (ast.Await, ast.AsyncFor, ast.AsyncWith)):
            raise Refused("awaits in its body", node)
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            raise Refused(f"declares `{node.names[0]}` global or nonlocal in its body", node)
        if isinstance(node, ast.YieldFrom):
            raise Refused("has `yield from` in its body", node)
        if isinstance(node, ast.NamedExpr):
            raise Refused(f"assigns `{node.target.id}` inside an expression", node)
        if isinstance(node, ast.ClassDef):
            raise Refused("defines a class in its body", node)
        if isinstance(node, ast.Call):
            _forbid_call(node)
        if isinstance(node, ast.Attribute) and node.attr in FORBIDDEN_ATTRIBUTES:
            raise Refused(f"`{node.attr}` {FORBIDDEN_ATTRIBUTES[node.attr]}", node)
    for node in own(loop.body):
        if isinstance(node, ast.Return):
            raise Refused("returns from its body", node)
        if isinstance(node, ast.Delete):
            raise Refused("deletes in its body", node)


def _forbid_call(node: ast.Call) -> None:
    if isinstance(node.func, ast.Name) and node.func.id in FORBIDDEN_CALLS:
        raise Refused(f"`{node.func.id}` {FORBIDDEN_CALLS[node.func.id]}", node)
    if isinstance(node.func, ast.Name) and node.func.id in ("set", "frozenset"):
        return


def _breaks(node: ast.AST, depth: int) -> None:
    if isinstance(node, NESTED):
        return
    if isinstance(node, ast.Break) and depth == 0:
        raise Refused("ends early with `break`", node)
    if isinstance(node, (ast.For, ast.While, ast.AsyncFor)):
        for statement in node.body:
            _breaks(statement, depth + 1)
        for statement in node.orelse:
            _breaks(statement, depth)
        return
    for child in ast.iter_child_nodes(node):
        _breaks(child, depth)


def _summed(body: List[ast.stmt], targets: Set[str], scope: Scope) -> Set[str]:
    """Names whose only use in the body is as the target of augmented assignments."""
    augmented = {
        n.target.id for n in own(body) if isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name)
    }
    found: Set[str] = set()
    for name in augmented & scope.local - targets:
        other = [
            n for n in own(body)
            if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store)
        ]
        plain = len(other) - sum(
            1 for n in own(body)
            if isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name) and n.target.id == name
        )
        if plain == 0 and name not in _other_bindings(body):
            found.add(name)
    return found


def _other_bindings(body: List[ast.stmt]) -> Set[str]:
    names_only = {n.id for n in own(body) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    return stores(body) - names_only


class _Effects(ast.NodeVisitor):
    """Collects the effects of a body in its own scope."""

    def __init__(self, plan: Plan, shared, summed) -> None:
        self.plan = plan
        self.shared = shared
        self.summed = summed
        self.guarded = 0

    def generic_visit(self, node: ast.AST) -> None:
        if isinstance(node, NESTED):
            self._no_yield(node)
            return
        if isinstance(node, ast.stmt):
            found = fx.effect_of(node, self.shared, self.summed)
            if found:
                self._add(node, found)
                return
        if isinstance(node, (ast.Yield,)):
            raise Refused("uses the value of `yield`", node)
        guard = isinstance(node, (ast.Try, ast.With)) or type(node).__name__ == "TryStar"
        self.guarded += guard
        super().generic_visit(node)
        self.guarded -= guard

    def _no_yield(self, node: ast.AST) -> None:
        pass

    def _add(self, node: ast.stmt, found: List[Effect]) -> None:
        for effect in found:
            if self.guarded and effect.can_fail:
                what = "yields" if effect.kind == "yield" else f"changes `{effect.receiver}`"
                raise Refused(f"{what} inside `try` or `with`, which could see it fail", node)
            for part in effect.recorded:
                for inner in ast.walk(part):
                    if isinstance(inner, (ast.Yield, ast.YieldFrom)):
                        raise Refused("uses the value of `yield`", inner)
            self.plan.yields |= effect.kind == "yield"
        numbers = list(range(len(self.plan.effects), len(self.plan.effects) + len(found)))
        self.plan.effects += found
        self.plan.sites[id(node)] = numbers


def _other_uses(plan: Plan, body: List[ast.stmt], summed: Set[str]) -> None:
    receivers = set(plan.receivers)
    allowed: Set[int] = set()
    for effect in plan.effects:
        node = effect.node
        if effect.receiver is None:
            continue
        if isinstance(node, ast.AugAssign):
            holder = node.target
        elif isinstance(node, ast.Assign):
            holder = node.targets[0]
        else:
            holder = node.value.func.value
        while not isinstance(holder, ast.Name):
            holder = holder.func if isinstance(holder, ast.Call) else holder.value
        allowed.add(id(holder))
    for node in everything(body):
        if isinstance(node, ast.Name) and node.id in receivers and id(node) not in allowed:
            raise Refused(f"reads `{node.id}`, which other iterations change", node)
    for name in receivers:
        for node in everything(body):
            if isinstance(node, NESTED) and not isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
                if name in loads([node]) and any(
                    isinstance(n, ast.Name) and n.id == name for n in ast.walk(node)
                ):
                    raise Refused(f"a nested function uses `{name}`, which other iterations change", node)


def _shared_writes(body: List[ast.stmt], assigned: Set[str], targets: Set[str], plan: Plan) -> None:
    """Refuses changes, visible in the source, of what other iterations share."""
    known = {id(e.node) for e in plan.effects}
    for statement in own(body):
        if id(statement) in known:
            continue
        places: List[ast.AST] = []
        if isinstance(statement, ast.Assign):
            places = list(statement.targets)
        elif isinstance(statement, (ast.AugAssign, ast.AnnAssign)):
            places = [statement.target]
        elif isinstance(statement, (ast.For, ast.AsyncFor)):
            places = [statement.target]
        elif isinstance(statement, ast.withitem) and statement.optional_vars is not None:
            places = [statement.optional_vars]
        for place in places:
            for node in ast.walk(place):
                if not isinstance(node, (ast.Attribute, ast.Subscript)) or isinstance(node.ctx, ast.Load):
                    continue
                name = root(node)
                if name is None:
                    continue
                if name in targets:
                    raise Refused(f"changes its item `{name}`", node)
                if name not in assigned:
                    what = "an attribute of" if isinstance(node, ast.Attribute) else "something reached through"
                    raise Refused(f"changes {what} `{name}`, which iterations share", node)
    for node in own(body):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if node.func.attr not in fx.MUTATORS:
            continue
        name = root(node.func.value)
        if name is None or name in assigned - targets:
            continue
        if any(n is node for e in plan.effects for n in _receiver_calls(e)):
            continue
        if name in targets:
            raise Refused(f"may change its item `{name}` by `{node.func.attr}`", node)
        raise Refused(f"may change `{ast.unparse(node.func.value)}`, which iterations share, by `{node.func.attr}`", node)


def _receiver_calls(effect: Effect) -> List[ast.AST]:
    if not isinstance(effect.node, ast.Expr) or not isinstance(effect.node.value, ast.Call):
        return []
    call = effect.node.value
    inner = call.func.value if isinstance(call.func, ast.Attribute) else None
    return [call] + ([inner] if isinstance(inner, ast.Call) else [])


DRAWS = frozenset("random uniform randint gauss normalvariate randrange choice getrandbits betavariate expovariate triangular rand randn".split())


def _draws_only(body: List[ast.stmt]) -> bool:
    """Whether each iteration only draws single numbers and computes with them.

    Such a loop stays plain, and on the one stream it has without the decorator.
    """
    drew = False
    for node in everything(body):
        if isinstance(node, (ast.For, ast.While, ast.With, ast.Try, ast.MatMult, *NESTED)):
            return False
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name):
                if node.func.id not in ("abs", "min", "max", "int", "float", "round", "print", "len", "str"):
                    return False
            elif isinstance(node.func, ast.Attribute) and node.func.attr in DRAWS:
                if node.func.attr in ("rand", "randn") and node.args:
                    return False
                if isinstance(node.func.value, ast.Attribute) and node.args and node.func.attr != "choice":
                    return False
                drew = True
            elif isinstance(node.func, ast.Attribute) and node.func.attr in fx.METHODS:
                continue
            elif isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name) and node.func.value.id == "math":
                continue
            else:
                return False
    return drew


Listed = Union[List[Finding]]

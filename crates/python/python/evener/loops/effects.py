"""Statements of a loop body that change something outside, as sites that can be replayed."""

from __future__ import annotations

import ast
import copy
from dataclasses import dataclass, field
from typing import Callable, List, Optional

from .reasons import Refused

RECORD = "__evener_record"
VALUES = "__evener_v"
SLICE = "__evener_slice"

# Methods of the built-in containers that are replayed, and how many arguments they take.
METHODS = {"append": 1, "extend": 1, "add": 1, "discard": 1, "update": 1, "insert": 2, "appendleft": 1}
# Methods that are known to change their object: never shared.
MUTATORS = frozenset(
    "append extend add discard update insert appendleft sort reverse pop popleft popitem remove clear"
    " write writelines writerow writerows put put_nowait send seek truncate setdefault fill resize"
    " partial_fit rotate extendleft readline readlines difference_update intersection_update"
    " symmetric_difference_update move_to_end subtract close __setitem__ __iadd__".split()
)


@dataclass
class Effect:
    """One site: what the worker records there and what is run at home."""

    kind: str
    node: ast.stmt
    receiver: Optional[str]
    recorded: List[ast.expr]
    replay: List[ast.stmt] = field(default_factory=list)
    can_fail: bool = True


def value(position: int) -> ast.expr:
    """`__evener_v[position]`, the recorded value."""
    return ast.Subscript(
        value=ast.Name(id=VALUES, ctx=ast.Load()), slice=ast.Constant(value=position), ctx=ast.Load()
    )


def placed(node: ast.AST, like: ast.AST) -> ast.AST:
    """Gives every generated node the position of `like`."""
    for child in ast.walk(node):
        if isinstance(child, (ast.expr, ast.stmt, ast.excepthandler, ast.keyword, ast.arg)):
            ast.copy_location(child, like)
    return node


def key_value(node: ast.expr) -> ast.expr:
    """The expression of a subscript; slices become calls that build slice objects."""
    if isinstance(node, ast.Slice):
        parts = [p if p is not None else ast.Constant(value=None) for p in (node.lower, node.upper, node.step)]
        call = ast.Call(func=ast.Name(id=SLICE, ctx=ast.Load()), args=parts, keywords=[])
        return placed_shallow(call, node)
    if isinstance(node, ast.Tuple):
        return ast.copy_location(
            ast.Tuple(elts=[key_value(e) for e in node.elts], ctx=ast.Load()), node
        )
    return node


def placed_shallow(node: ast.expr, like: ast.AST) -> ast.expr:
    for child in [node, *ast.iter_child_nodes(node)]:
        if not hasattr(child, "lineno"):
            ast.copy_location(child, like)
    return node


def quiet(node: ast.expr) -> bool:
    """Whether an expression surely does nothing but read names and constants."""
    return isinstance(node, (ast.Name, ast.Constant)) or (
        isinstance(node, ast.UnaryOp) and quiet(node.operand)
    )


def effect_of(node: ast.stmt, shared: Callable[[str], bool], summed: Callable[[str], bool]) -> Optional[List[Effect]]:
    """The effects of a statement, or None if it is an ordinary one.

    `shared(name)`: the name is bound outside the loop and not assigned in it.
    `summed(name)`: the name is only ever the target of augmented assignments in the loop.
    """
    if isinstance(node, ast.Expr):
        return _call(node, shared) or _yield(node)
    if isinstance(node, ast.AugAssign):
        return _augmented(node, shared, summed)
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        return _assign(node, shared)
    return None


def _yield(node: ast.Expr) -> Optional[List[Effect]]:
    if not isinstance(node.value, ast.Yield):
        return None
    given = node.value.value
    recorded = [given] if given is not None else []
    again = ast.Expr(value=ast.Yield(value=value(0) if recorded else None))
    return [Effect("yield", node, None, recorded, [placed(again, node)])]


def _call(node: ast.Expr, shared: Callable[[str], bool]) -> Optional[List[Effect]]:
    call = node.value
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
        return None
    method, holder = call.func.attr, call.func.value
    if call.keywords or any(isinstance(a, ast.Starred) for a in call.args):
        return None
    if method not in METHODS or len(call.args) != METHODS[method]:
        return None
    if isinstance(holder, ast.Name) and shared(holder.id):
        again = ast.Expr(value=ast.Call(
            func=ast.Attribute(value=ast.Name(id=holder.id, ctx=ast.Load()), attr=method, ctx=ast.Load()),
            args=[value(i) for i in range(len(call.args))], keywords=[],
        ))
        return [Effect(method, node, holder.id, list(call.args), [placed(again, node)], method not in ("append", "appendleft"))]
    inner = _element(holder, shared)
    if inner is None:
        return None
    name, recorded, access = inner
    arguments = list(call.args)
    again = ast.Expr(value=ast.Call(
        func=ast.Attribute(value=access(0), attr=method, ctx=ast.Load()),
        args=[value(len(recorded) + i) for i in range(len(arguments))], keywords=[],
    ))
    first = Effect("element", node, name, recorded, [placed(ast.Expr(value=access(0)), node)])
    both = Effect("element", node, name, recorded + arguments, [placed(again, node)])
    return [both] if all(quiet(a) for a in arguments) else [first, both]


def _element(node: ast.expr, shared: Callable[[str], bool]):
    """`r[k]` or `r.setdefault(k, d)`: receiver, recorded parts, and how to write it again."""
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and shared(node.value.id):
        name = node.value.id

        def access(start: int, context: Optional[ast.expr_context] = None) -> ast.expr:
            return ast.Subscript(
                value=ast.Name(id=name, ctx=ast.Load()), slice=value(start), ctx=context or ast.Load()
            )

        return name, [key_value(node.slice)], access
    if (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        and node.func.attr == "setdefault" and isinstance(node.func.value, ast.Name)
        and shared(node.func.value.id) and len(node.args) == 2 and not node.keywords
        and not any(isinstance(a, ast.Starred) for a in node.args)
    ):
        name = node.func.value.id

        def again(start: int, context: Optional[ast.expr_context] = None) -> ast.expr:
            return ast.Call(
                func=ast.Attribute(value=ast.Name(id=name, ctx=ast.Load()), attr="setdefault", ctx=ast.Load()),
                args=[value(start), value(start + 1)], keywords=[],
            )

        return name, list(node.args), again
    return None


def _augmented(node: ast.AugAssign, shared: Callable[[str], bool], summed: Callable[[str], bool]) -> Optional[List[Effect]]:
    target = node.target
    if isinstance(target, ast.Name) and summed(target.id):
        again = ast.AugAssign(
            target=ast.Name(id=target.id, ctx=ast.Store()), op=node.op, value=value(0)
        )
        return [Effect("augment", node, target.id, [node.value], [placed(again, node)])]
    inner = _element(target, shared) if isinstance(target, ast.Subscript) else None
    if inner is None:
        return None
    name, recorded, access = inner
    again = ast.AugAssign(target=access(0, ast.Store()), op=node.op, value=value(len(recorded)))
    first = Effect("element", node, name, recorded, [placed(ast.Expr(value=access(0)), node)])
    both = Effect("augmented item", node, name, recorded + [node.value], [placed(again, node)])
    return [both] if quiet(node.value) else [first, both]


def _assign(node: ast.Assign, shared: Callable[[str], bool]) -> Optional[List[Effect]]:
    target = node.targets[0]
    if not (isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name) and shared(target.value.id)):
        return None
    again = ast.Assign(
        targets=[ast.Subscript(value=ast.Name(id=target.value.id, ctx=ast.Load()), slice=value(1), ctx=ast.Store())],
        value=value(0),
    )
    return [Effect("item", node, target.value.id, [node.value, key_value(target.slice)], [placed(again, node)])]


def receiver_nodes(effect: Effect) -> int:
    """How often the receiver's name occurs in its statement as the receiver."""
    return 1


def refuse_unless(condition: bool, sentence: str, node: ast.AST) -> None:
    if not condition:
        raise Refused(sentence, node)


def clone(node):
    return copy.deepcopy(node)

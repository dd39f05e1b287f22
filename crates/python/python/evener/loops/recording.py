"""The body of a loop as it runs in a worker: its effects are recorded."""

from __future__ import annotations

import ast
import copy
import types
from dataclasses import dataclass
from typing import Any, List, Set, Tuple

from . import effects as fx
from .analysis import Plan
from .names import NESTED, everything
from .syntax import FLAGS, KINDS, attribute_node, function_node, name_node, near, renamed, statements_at

LOCALS = "__evener_locals"


@dataclass
class Loop:
    """A plan and the code of its body."""

    plan: Plan
    code: types.CodeType
    live: List[Tuple[int, str]]
    checked: Set[int]


class _Recording(ast.NodeTransformer):
    """Replaces effects by calls of the recorder."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, NESTED):
            return node
        numbers = self.plan.sites.get(getattr(node, "evener_origin", 0))
        if numbers is None:
            return self.generic_visit(node)
        return self._recorded(node, numbers)

    def _recorded(self, node: ast.stmt, numbers: List[int]) -> List[ast.stmt]:
        effects = [self.plan.effects[n] for n in numbers]
        last = effects[-1]
        parts = [copy.deepcopy(p) for p in last.recorded]
        if last.kind == "extend":
            call = ast.Call(
                func=attribute_node(fx.RECORD, "extend"), args=[ast.Constant(value=numbers[-1]), parts[0]], keywords=[]
            )
            return [near(ast.Expr(value=call), node)]
        if len(effects) == 1:
            return [self._call(numbers[0], ast.Tuple(elts=parts, ctx=ast.Load()), node)]
        early = len(effects[0].recorded)
        first = ast.Assign(targets=[name_node("__evener_t", True)], value=ast.Tuple(elts=parts[:early], ctx=ast.Load()))
        rest = ast.BinOp(
            left=name_node("__evener_t"), op=ast.Add(), right=ast.Tuple(elts=parts[early:], ctx=ast.Load())
        )
        return [
            near(first, node), self._call(numbers[0], name_node("__evener_t"), node),
            self._call(numbers[1], rest, node),
        ]

    @staticmethod
    def _call(number: int, values: ast.expr, node: ast.stmt) -> ast.stmt:
        call = ast.Call(func=name_node(fx.RECORD), args=[ast.Constant(value=number), values], keywords=[])
        return near(ast.Expr(value=call), node)


def compiled_body(plan: Plan, original: types.CodeType) -> Loop:
    """Compiles the body of a loop as a function of the recorder, the item and what it captures."""
    body = [_marked(s) for s in plan.node.body]
    body = [r for s in body for r in _listed(_Recording(plan).visit(s))]
    once = ast.copy_location(
        ast.For(
            target=copy.deepcopy(plan.node.target),
            iter=near(ast.Tuple(elts=[name_node("__evener_item")], ctx=ast.Load()), plan.node.target),
            body=body, orelse=[], type_comment=None,
        ),
        plan.node,
    )
    live = [(len(plan.effects) + i, name) for i, name in enumerate(plan.live)]
    statements: List[ast.stmt] = [once]
    if live:
        end = statements_at(f"{fx.RECORD}.keep({LOCALS}())", plan.node)
        statements = [ast.copy_location(ast.Try(body=statements, handlers=[], orelse=[], finalbody=end), plan.node)]
    prologue = statements_at(
        f"from builtins import slice as {fx.SLICE}, locals as {LOCALS}", plan.node
    ) if live or _uses_slice(statements) else []
    definition = function_node("__evener_body", [fx.RECORD, "__evener_item", *plan.captured], prologue + statements, plan.node)
    module = ast.Module(body=[definition], type_ignores=[])
    ast.fix_missing_locations(module)
    compiled = compile(module, original.co_filename, "exec", flags=original.co_flags & FLAGS, dont_inherit=True)
    inner = next(c for c in compiled.co_consts if isinstance(c, types.CodeType))
    shown = f"<{plan.kind}>" if plan.kind in KINDS.values() else original.co_name
    return Loop(plan, renamed(inner, shown, original, {}), live, _checked(plan))


def _uses_slice(statements: List[ast.stmt]) -> bool:
    return any(isinstance(n, ast.Name) and n.id == fx.SLICE for n in everything(statements))


def _listed(value: Any) -> List[Any]:
    return value if isinstance(value, list) else [value]


def _marked(node: ast.AST) -> ast.AST:
    """A deep copy whose nodes remember which node they were copied from."""
    twin = copy.deepcopy(node)
    for original, copied in zip(ast.walk(node), ast.walk(twin)):
        copied.evener_origin = id(original)
    return twin


def _checked(plan: Plan) -> Set[int]:
    """Sites whose value is used at once, and which later statements could change."""
    found: Set[int] = set()
    last = plan.node.body[-1]
    for number, effect in enumerate(plan.effects):
        if effect.kind in ("append", "appendleft", "add", "insert", "discard", "extend"):
            continue
        if effect.node is last and effect.kind != "yield":
            continue
        if all(isinstance(p, (ast.BinOp, ast.Constant, ast.Compare, ast.JoinedStr)) for p in effect.recorded):
            continue
        found.add(number)
    return found

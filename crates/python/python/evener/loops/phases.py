"""A loop as it runs at home: some iterations plainly, the rest by workers, whose effects are replayed."""

from __future__ import annotations

import ast
import copy
from typing import Any, Dict, List

from . import effects as fx
from .analysis import Plan
from .names import everything
from .syntax import LOOPS, attribute_node, name_node, near, statements_at


def phases_of(plan: Plan, loop: ast.For, original: Any, _: Any, statement: bool) -> List[ast.stmt]:
    """The statements that run a loop in phases: some plainly, the rest by workers."""
    k = f"__evener_{plan.number}"
    begin = ast.Assign(
        targets=[name_node(k, True)],
        value=ast.Call(func=attribute_node(LOOPS, "begin"), args=[ast.Constant(value=plan.number), loop.iter], keywords=[]),
    )
    near(begin, loop.iter)
    look = [f"if {k}.wants:", "    __evener_e = {}"]
    for name in plan.captured + plan.receivers:
        look += ["    try:", f"        __evener_e[{name!r}] = {name}", "    except NameError:", "        pass"]
    look += [f"    {k}.look(__evener_e)", "    __evener_e = None"]
    outer = ast.For(
        target=name_node("__evener_c", True), iter=name_node(k), orelse=[], type_comment=None,
        body=statements_at("\n".join(look), loop) + [
            ast.If(test=attribute_node(k, "sharing"), body=_replay(plan, k, loop), orelse=_plainly(plan, loop, original)),
        ],
    )
    near(outer, loop)
    end = statements_at(f"{k} = __evener_c = None", loop)
    return [begin, outer] + end


def _plainly(plan: Plan, loop: ast.For, original: Any) -> List[ast.stmt]:
    if plan.kind in ("listcomp", "setcomp", "dictcomp"):
        # The comprehension itself, over the chunk: as fast as before.
        chunk = copy.deepcopy(original)
        chunk.generators[0].iter = near(name_node("__evener_c"), chunk.generators[0].iter)
        if plan.kind == "listcomp":
            grow: ast.stmt = ast.AugAssign(target=name_node("__evener_result", True), op=ast.Add(), value=chunk)
            return [near(grow, original)]
        if plan.kind == "dictcomp" or plan.kind == "setcomp":
            pass
    plain = copy.copy(loop)
    plain.iter = near(name_node("__evener_c"), loop.iter)
    plain.target = copy.deepcopy(loop.target)
    return [plain]


def _replay(plan: Plan, k: str, loop: ast.For) -> List[ast.stmt]:
    """Does at home, in order, what the iterations have recorded."""
    chain: List[ast.stmt] = []
    for number in reversed(range(len(plan.effects))):
        again = copy.deepcopy(plan.effects[number].replay)
        chain = [ast.If(test=_is("__evener_s", number), body=again, orelse=chain)]
    for offset, name in enumerate(plan.live):
        given = ast.Assign(targets=[name_node(name, True)], value=fx.value(0))
        chain = [ast.If(test=_is("__evener_s", len(plan.effects) + offset), body=[given], orelse=chain)]
    target = ast.Tuple(elts=[name_node("__evener_s", True), name_node(fx.VALUES, True)], ctx=ast.Store())
    inner = ast.For(target=target, iter=name_node("__evener_r"), body=chain or [ast.Pass()], orelse=[], type_comment=None)
    after: List[ast.stmt] = []
    if plan.target_live:
        after.append(ast.Assign(targets=[copy.deepcopy(plan.node.target)], value=attribute_node(k, "item")))
    after.append(ast.If(
        test=ast.Compare(left=attribute_node(k, "error"), ops=[ast.IsNot()], comparators=[ast.Constant(value=None)]),
        body=_raise(plan, k, loop), orelse=[],
    ))
    before = after[:1] if plan.target_live else []
    clear = statements_at(f"{fx.VALUES} = None", loop)
    records = ast.For(
        target=name_node("__evener_r", True),
        iter=ast.Call(func=attribute_node(k, "share"), args=[], keywords=[]),
        body=before + [inner] + clear + after[len(before):], orelse=[], type_comment=None,
    )
    return [records]


def _is(name: str, number: int) -> ast.expr:
    return ast.Compare(left=name_node(name), ops=[ast.Eq()], comparators=[ast.Constant(value=number)])


def _raise(plan: Plan, k: str, loop: ast.For) -> List[ast.stmt]:
    """Raises an iteration's exception at the line where it was raised."""
    lines: Dict[int, ast.AST] = {}
    for node in everything(plan.node.body):
        if hasattr(node, "lineno"):
            lines.setdefault(node.lineno, node)
    lines.setdefault(plan.node.target.lineno, plan.node.target)
    chain: List[ast.stmt] = [fx.placed(ast.Raise(exc=attribute_node(k, "error"), cause=None), plan.node)]
    for line, node in sorted(lines.items(), reverse=True):
        again = fx.placed(ast.Raise(exc=attribute_node(k, "error"), cause=None), node)
        chain = [ast.If(test=ast.Compare(left=attribute_node(k, "line"), ops=[ast.Eq()], comparators=[ast.Constant(value=line)]),
                        body=[again], orelse=chain)]
    handler = ast.ExceptHandler(
        type=None, name=None, body=statements_at(f"{k}.restore()\nraise", loop),
    )
    return [ast.Try(body=chain, handlers=[handler], orelse=[], finalbody=[])]

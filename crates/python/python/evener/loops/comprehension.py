"""A comprehension as the function that it is, with a loop in it."""

from __future__ import annotations

import ast
from typing import Any, List

from .names import everything, loads, stores
from .reasons import Refused
from .syntax import attribute_node, function_node, name_node, near, statements_at


def desugar(node: Any, kind: str, number: int) -> ast.FunctionDef:
    """The function that a comprehension is."""
    if any(g.is_async for g in node.generators):
        raise Refused("it is asynchronous", node)
    for inner in ast.walk(node):
        if isinstance(inner, (ast.Yield, ast.YieldFrom, ast.Await)):
            raise Refused("awaits or yields inside", inner)
        if isinstance(inner, ast.NamedExpr):
            raise Refused(f"assigns `{inner.target.id}` inside an expression", inner)
    if kind == "genexpr" and not getattr(node, "evener_call_argument", False):
        raise Refused("a generator that is not consumed where it is made", node)
    targets = stores([g.target for g in node.generators])
    for inner in everything([node.key, node.value] if kind == "dictcomp" else [node.elt]):
        if isinstance(inner, (ast.Lambda, ast.GeneratorExp)) and isinstance(inner, ast.Lambda):
            if loads([ast.Expr(value=inner)]) & targets:
                # Whether the function outlives the iteration is found when its value is pickled.
                pass
    result = "__evener_result"
    if kind == "dictcomp":
        effect: ast.stmt = ast.Expr(value=ast.Call(
            func=attribute_node(result, "__evener_pair"), args=[node.key, node.value], keywords=[]))
    elif kind == "genexpr":
        effect = ast.Expr(value=ast.Yield(value=node.elt))
    else:
        method = "append" if kind == "listcomp" else "add"
        effect = ast.Expr(value=ast.Call(func=attribute_node(result, method), args=[node.elt], keywords=[]))
    if kind == "dictcomp":
        # `d[k] = v` evaluates the value first, a dict comprehension the key.
        effect = ast.Assign(
            targets=[ast.Subscript(value=name_node(result), slice=name_node("__evener_key"), ctx=ast.Store())],
            value=node.value,
        )
        key = ast.Assign(targets=[name_node("__evener_key", True)], value=node.key)
        core: List[ast.stmt] = [key, effect]
    else:
        core = [effect]
    like = node.key if kind == "dictcomp" else node.elt
    core = [near(s, like) for s in core]
    for position, generator in reversed(list(enumerate(node.generators))):
        for condition in reversed(generator.ifs):
            core = [ast.copy_location(ast.If(test=condition, body=core, orelse=[]), condition)]
        source = generator.iter if position else near(name_node("__evener_source"), generator.iter)
        core = [ast.copy_location(
            ast.For(target=generator.target, iter=source, body=core, orelse=[], type_comment=None), generator.target)]
    statements = core
    if kind != "genexpr":
        empty = {"listcomp": "[]", "setcomp": "{*()}", "dictcomp": "{}"}[kind]
        statements = statements_at(f"{result} = {empty}", node) + core + statements_at(f"return {result}", node)
    return function_node(f"__evener_{kind}_{number}", ["__evener_source"], statements, node)

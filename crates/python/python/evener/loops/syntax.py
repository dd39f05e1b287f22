"""Generated syntax: nodes at the places of the user's own, and code objects under the user's names."""

from __future__ import annotations

import ast
import types
from typing import Any, Dict, List

from . import effects as fx

LOOPS = "__evener_loops"
ON = "__evener_on"
KINDS = {
    ast.ListComp: "listcomp", ast.SetComp: "setcomp", ast.DictComp: "dictcomp", ast.GeneratorExp: "genexpr",
}
#: Every `from __future__` flag.
FLAGS = 0x1FF0000


def renamed(code: types.CodeType, name: str, original: types.CodeType, names: Dict[str, str]) -> types.CodeType:
    qualified = getattr(original, "co_qualname", name)

    def inside(inner: types.CodeType, prefix: str) -> types.CodeType:
        shown = names.get(inner.co_name, inner.co_name)
        full = f"{prefix}.<locals>.{shown}"
        constants = tuple(inside(c, full) if isinstance(c, types.CodeType) else c for c in inner.co_consts)
        changed: Dict[str, Any] = {"co_name": shown, "co_consts": constants}
        if hasattr(inner, "co_qualname"):
            changed["co_qualname"] = full
        return inner.replace(**changed)

    constants = tuple(inside(c, qualified) if isinstance(c, types.CodeType) else c for c in code.co_consts)
    changed: Dict[str, Any] = {"co_name": name, "co_consts": constants}
    if hasattr(code, "co_qualname"):
        changed["co_qualname"] = qualified
    return code.replace(**changed)


def function_node(name: str, arguments: List[str], body: List[ast.stmt], like: ast.AST) -> ast.FunctionDef:
    definition = ast.FunctionDef(
        name=name,
        args=ast.arguments(
            posonlyargs=[], args=[ast.arg(arg=a, annotation=None) for a in arguments], vararg=None,
            kwonlyargs=[], kw_defaults=[], kwarg=None, defaults=[],
        ),
        body=body, decorator_list=[], returns=None, type_comment=None,
    )
    if "type_params" in ast.FunctionDef._fields:
        definition.type_params = []
    return ast.copy_location(definition, like)


def name_node(identifier: str, store: bool = False) -> ast.Name:
    return ast.Name(id=identifier, ctx=ast.Store() if store else ast.Load())


def attribute_node(identifier: str, attribute: str) -> ast.Attribute:
    return ast.Attribute(value=name_node(identifier), attr=attribute, ctx=ast.Load())


def statements_at(text: str, like: ast.AST) -> List[ast.stmt]:
    """Generated statements, at the position of a node of the user's."""
    parsed = ast.parse(text).body
    for statement in parsed:
        fx.placed(statement, like)
    return parsed


def near(node: Any, like: ast.AST) -> Any:
    """Positions generated nodes without moving those of the user."""
    for child in ast.walk(node):
        if isinstance(child, (ast.expr, ast.stmt)) and not hasattr(child, "lineno"):
            ast.copy_location(child, like)
    return node

"""Which names a piece of syntax reads, assigns and encloses in nested scopes."""

from __future__ import annotations

import ast
from typing import Iterable, Iterator, Set, Union

NESTED = (
    ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef,
    ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp,
)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
Nodes = Union[ast.AST, Iterable[ast.AST]]


def listed(nodes: Nodes) -> list[ast.AST]:
    return [nodes] if isinstance(nodes, ast.AST) else list(nodes)


def own(nodes: Nodes) -> Iterator[ast.AST]:
    """Walks nodes of the same scope; a nested scope is yielded but not entered.

    What a nested scope evaluates in this one (decorators, defaults, the first iterable) is.
    """
    pending = listed(nodes)
    while pending:
        node = pending.pop()
        yield node
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            pending += node.decorator_list + outer_parts(node.args)
        elif isinstance(node, ast.Lambda):
            pending += outer_parts(node.args)
        elif isinstance(node, ast.ClassDef):
            pending += node.decorator_list + node.bases + [k.value for k in node.keywords]
        elif isinstance(node, COMPREHENSIONS):
            pending.append(node.generators[0].iter)
        else:
            pending += list(ast.iter_child_nodes(node))


def outer_parts(arguments: ast.arguments) -> list[ast.AST]:
    return [d for d in arguments.defaults + arguments.kw_defaults if d is not None]


def stores(nodes: Nodes) -> Set[str]:
    """Names that this scope binds or deletes in these nodes."""
    found: Set[str] = set()
    for node in own(nodes):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {(a.asname or a.name.split(".")[0]) for a in node.names}
        elif isinstance(node, ast.ExceptHandler) and node.name:
            found.add(node.name)
        elif type(node).__name__ in ("MatchAs", "MatchStar") and node.name:
            found.add(node.name)
        elif type(node).__name__ == "MatchMapping" and node.rest:
            found.add(node.rest)
    for node in everything(nodes):
        # A walrus in a comprehension binds in the enclosing function.
        if isinstance(node, ast.NamedExpr):
            found.add(node.target.id)
    return found


def everything(nodes: Nodes) -> Iterator[ast.AST]:
    for node in listed(nodes):
        yield from ast.walk(node)


def loads(nodes: Nodes) -> Set[str]:
    """Names that these nodes or scopes nested in them may read from this scope."""
    found: Set[str] = set()
    for node in own(nodes):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
        if isinstance(node, NESTED):
            found |= free(node)
    return found


def parameters(arguments: ast.arguments) -> Set[str]:
    every = arguments.posonlyargs + arguments.args + arguments.kwonlyargs
    every += [a for a in (arguments.vararg, arguments.kwarg) if a]
    return {a.arg for a in every}


def free(node: ast.AST) -> Set[str]:
    """Names that a nested scope takes from outside."""
    if isinstance(node, COMPREHENSIONS):
        parts: list[ast.AST] = list(node.generators)
        parts += [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        bound = stores([g.target for g in node.generators])
        return loads(parts) - bound
    if isinstance(node, ast.Lambda):
        return loads(node.body) - parameters(node.args)
    if isinstance(node, ast.ClassDef):
        return loads(node.body)
    body = node.body
    outside = declared(body)
    return (loads(body) | stores(body) & outside) - ((parameters(node.args) | stores(body)) - outside)


def declared(nodes: Nodes) -> Set[str]:
    """Names declared `global` or `nonlocal` in this scope."""
    return {
        name
        for node in own(nodes)
        if isinstance(node, (ast.Global, ast.Nonlocal))
        for name in node.names
    }


def enclosed(nodes: Nodes) -> Set[str]:
    """Names that functions, lambdas and classes nested in these nodes take from this scope."""
    return {
        name for node in own(nodes) if isinstance(node, NESTED) for name in free(node)
    }

"""Definite assignment and liveness of names, over statements."""

from __future__ import annotations

import ast
from typing import List, Optional, Sequence, Set, Tuple

from .names import loads, own, stores

Assigned = Optional[Set[str]]  # None: this point is never reached


def exposed(statements: Sequence[ast.stmt], assigned: Set[str], inner_loops_run: bool = False) -> Set[str]:
    """Names that may be read before these statements have assigned them.

    `inner_loops_run`: loops inside count as running at least once. A worker in which one does
    not finds the name unbound and gives up, unless a handler in the body hides that.
    """
    reads: _Reads = _Reads()
    reads.inner_loops_run = inner_loops_run
    _block(statements, set(assigned), reads)
    return set(reads)


def after(statements: Sequence[ast.stmt], assigned: Set[str]) -> Assigned:
    """Names that are surely assigned after these statements."""
    return _block(statements, set(assigned), _Reads())


class _Reads(set):
    """The names found so far."""

    inner_loops_run = False


def _block(statements: Sequence[ast.stmt], assigned: Assigned, reads: _Reads) -> Assigned:
    for statement in statements:
        if assigned is None:
            return None
        assigned = _statement(statement, assigned, reads)
    return assigned


def _read(node: object, assigned: Set[str], reads: _Reads) -> None:
    if isinstance(node, (ast.AST, list)):
        reads |= loads(node) - assigned


def _meet(one: Assigned, other: Assigned) -> Assigned:
    if one is None:
        return other
    return one if other is None else one & other


def _statement(node: ast.stmt, assigned: Set[str], reads: _Reads) -> Assigned:
    if isinstance(node, ast.If):
        _read(node.test, assigned, reads)
        return _meet(_block(node.body, set(assigned), reads), _block(node.orelse, set(assigned), reads))
    if isinstance(node, (ast.For, ast.AsyncFor)):
        _read(node.iter, assigned, reads)
        _read(node.target, assigned, reads)
        done = _block(node.body, assigned | stores(node.target), reads)
        _block(node.orelse, set(assigned), reads)
        return assigned | stores(node.target) | (done or set()) if reads.inner_loops_run else assigned
    if isinstance(node, ast.While):
        _read(node.test, assigned, reads)
        done = _block(node.body, set(assigned), reads)
        _block(node.orelse, set(assigned), reads)
        return assigned | (done or set()) if reads.inner_loops_run else assigned
    if isinstance(node, (ast.With, ast.AsyncWith)):
        for item in node.items:
            _read(item.context_expr, assigned, reads)
            if item.optional_vars is not None:
                _read(item.optional_vars, assigned, reads)
                assigned = assigned | stores(item.optional_vars)
        return _block(node.body, assigned, reads)
    if isinstance(node, ast.Try) or type(node).__name__ == "TryStar":
        return _try(node, assigned, reads)
    if type(node).__name__ == "Match":
        return _match(node, assigned, reads)
    if isinstance(node, (ast.Raise, ast.Return)):
        _read(node, assigned, reads)
        return None
    if isinstance(node, (ast.Continue, ast.Break)):
        return None
    if isinstance(node, ast.Delete):
        _read(node, assigned, reads)
        return assigned - stores(node)
    _read(node, assigned, reads)
    bound = stores(node)
    if isinstance(node, ast.AnnAssign) and node.value is None:
        bound = set()
    return assigned | bound


def _try(node: ast.Try, assigned: Set[str], reads: _Reads) -> Assigned:
    done = _block(node.body, set(assigned), reads)
    if done is not None:
        done = _block(node.orelse, done, reads)
    for handler in node.handlers:
        known = set(assigned)
        _read(handler.type, known, reads)
        if handler.name:
            known.add(handler.name)
        handled = _block(handler.body, known, reads)
        if handled is not None and handler.name:
            handled = handled - {handler.name}
        done = _meet(done, handled)
    ended = _block(node.finalbody, set(assigned), reads)
    if ended is None or done is None:
        return None
    return done | (ended - assigned)


def _match(node: ast.stmt, assigned: Set[str], reads: _Reads) -> Assigned:
    _read(node.subject, assigned, reads)
    done: Assigned = set(assigned)
    for case in node.cases:
        known = assigned | stores(case.pattern)
        _read(case.pattern, known, reads)
        _read(case.guard, known, reads)
        done = _meet(done, _block(case.body, known, reads))
    return done


def read_later(path: List[Tuple[ast.AST, str, int]], scope_body: List[ast.stmt]) -> Set[str]:
    """Names that may be read after the loop at the end of `path`, before they are assigned again.

    `path` holds (parent, field, position) from the scope's body down to the loop.
    """
    live: Set[str] = set()
    assigned: Set[str] = set()
    for parent, field, position in reversed(path):
        block: List[ast.stmt] = getattr(parent, field)
        live |= exposed(block[position + 1:], assigned)
        rest = after(block[position + 1:], assigned)
        if isinstance(parent, (ast.For, ast.AsyncFor, ast.While)):
            # The next iteration of an enclosing loop, whose first part may not assign.
            live |= loads(parent) if isinstance(parent, ast.While) else set()
            live |= exposed(parent.body, assigned)
        if isinstance(parent, ast.Try) or type(parent).__name__ == "TryStar":
            # An exception can leave the block anywhere, so nothing counts as assigned.
            if field == "body":
                for handler in parent.handlers:
                    live |= exposed(handler.body, set())
                live |= exposed(parent.orelse, assigned)
            if field != "finalbody":
                live |= exposed(parent.finalbody, set())
        if rest is None:
            # Falls out of the function, or jumps to an enclosing loop: be careful about the latter.
            if not any(isinstance(n, (ast.Continue, ast.Break)) for n in own(block[position + 1:])):
                leaving_try = any(isinstance(p, ast.Try) for p, _, _ in path)
                if not leaving_try:
                    return live
        else:
            assigned = rest
    return live


def path_to(scope: ast.AST, loop: ast.stmt) -> List[Tuple[ast.AST, str, int]]:
    """(parent, field, position) from the scope's body down to the loop."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        block = getattr(scope, field, None)
        if not isinstance(block, list):
            continue
        for position, node in enumerate(block):
            if node is loop:
                return [(scope, field, position)]
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                continue
            if field in ("handlers", "cases"):
                below = path_to(node, loop)
                if below:
                    # The handler's own block; its siblings do not follow it.
                    return below
                continue
            below = path_to(node, loop)
            if below:
                return [(scope, field, position)] + below
    return []

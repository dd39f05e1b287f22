"""Compiles a function again, with its loops shared between workers."""

from __future__ import annotations

import ast
import copy
import types
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Set, Tuple

from .analysis import Finding, Plan, Scope, analyse, whole_function
from .comprehension import desugar
from .names import COMPREHENSIONS, NESTED
from .phases import phases_of
from .reasons import Reason, Refused
from .recording import Loop, compiled_body
from .source import Text, tree_of
from .syntax import FLAGS, KINDS, LOOPS, ON, function_node, name_node, near, renamed


@dataclass
class Rewritten:
    """A function whose loops ask `Loops` what to do."""

    function: Optional[types.FunctionType]
    loops: List[Loop]
    findings: List[Finding]


def examine(function: types.FunctionType, source: Text) -> Tuple[ast.FunctionDef, List[Finding], "_Rewriter"]:
    """Analyses every loop of a function."""
    definition = tree_of(function, source)
    return examine_tree(definition, set(function.__code__.co_freevars))


def examine_tree(definition: ast.FunctionDef, outer: Set[str]) -> Tuple[ast.FunctionDef, List[Finding], "_Rewriter"]:
    whole_function(definition)
    rewriter = _Rewriter(definition, outer)
    body = rewriter.block(definition.body, definition)
    changed = copy.copy(definition)
    changed.body = body
    return changed, rewriter.findings, rewriter


def rewrite(function: types.FunctionType, source: Text, loops: Any) -> Rewritten:
    """Returns the function compiled with shared loops; `loops` is what the code asks."""
    changed, findings, rewriter = examine(function, source)
    if not rewriter.plans:
        return Rewritten(None, [], findings)
    code = function.__code__
    made = [compiled_body(plan, code) for plan in rewriter.plans]
    new = _compile(changed, code, rewriter)
    cells = dict(zip(code.co_freevars, function.__closure__ or ()))
    cells[LOOPS] = types.CellType(loops)
    cells[ON] = types.CellType(loops.on)
    closure = tuple(cells[name] for name in new.co_freevars)
    result = types.FunctionType(new, function.__globals__, function.__name__, function.__defaults__, closure)
    result.__kwdefaults__ = function.__kwdefaults__
    result.__qualname__ = function.__qualname__
    result.__module__ = function.__module__
    result.__doc__ = function.__doc__
    result.__dict__.update(function.__dict__)
    result.__annotations__ = function.__annotations__
    return Rewritten(result, made, findings)


def _compile(definition: ast.FunctionDef, original: types.CodeType, rewriter: "_Rewriter") -> types.CodeType:
    definition = copy.copy(definition)
    name = definition.name if definition.name.isidentifier() else "__evener_lambda"
    definition.name = name
    definition.decorator_list = []
    definition.returns = None
    definition.args = _bare(definition.args)
    if hasattr(definition, "type_params"):
        definition.type_params = []
    factory = function_node("__evener_factory", [LOOPS, ON, *original.co_freevars], [definition], definition)
    module = ast.Module(body=[factory], type_ignores=[])
    ast.fix_missing_locations(module)
    compiled = compile(module, original.co_filename, "exec", flags=original.co_flags & FLAGS, dont_inherit=True)
    outer = next(c for c in compiled.co_consts if isinstance(c, types.CodeType))
    inner = next(c for c in outer.co_consts if isinstance(c, types.CodeType) and c.co_name == name)
    return renamed(inner, original.co_name, original, rewriter.names)


def _bare(arguments: ast.arguments) -> ast.arguments:
    """The parameters without annotations, and with placeholders as defaults."""
    bare = copy.deepcopy(arguments)
    for argument in bare.posonlyargs + bare.args + bare.kwonlyargs + [a for a in (bare.vararg, bare.kwarg) if a]:
        argument.annotation = None
    bare.defaults = [ast.Constant(value=None) for _ in bare.defaults]
    bare.kw_defaults = [None if d is None else ast.Constant(value=None) for d in bare.kw_defaults]
    return bare


class _Rewriter:
    """Rewrites statements, scope by scope."""

    def __init__(self, definition: ast.FunctionDef, outer: Set[str]) -> None:
        self.findings: List[Finding] = []
        self.plans: List[Plan] = []
        self.names: Dict[str, str] = {}
        self.scope = Scope(definition, outer)
        self.depth = 0
        self.inside = 0
        for node in ast.walk(definition):
            if isinstance(node, ast.Call):
                for argument in node.args:
                    if isinstance(argument, ast.GeneratorExp):
                        argument.evener_call_argument = True

    def block(self, statements: List[ast.stmt], path_scope: ast.AST) -> List[ast.stmt]:
        result: List[ast.stmt] = []
        for statement in statements:
            result += self.statement(statement, path_scope)
        return result

    def statement(self, node: ast.stmt, path_scope: ast.AST) -> List[ast.stmt]:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            return [node]
        if isinstance(node, ast.For):
            return self._for(node, path_scope)
        if isinstance(node, ast.While):
            self.findings.append(Finding(
                "while", node.lineno, node.col_offset, reason=Reason(
                    "a `while` loop: which iterations there are is only known by running them",
                    node.lineno, node.col_offset)))
        if isinstance(node, ast.AsyncFor):
            self.findings.append(Finding("async for", node.lineno, node.col_offset, reason=Reason(
                "it is an `async for`", node.lineno, node.col_offset)))
        changed = copy.copy(node)
        loop = isinstance(node, (ast.While, ast.AsyncFor))
        self.depth += loop
        for name in ("body", "orelse", "finalbody"):
            if isinstance(getattr(node, name, None), list):
                setattr(changed, name, self.block(getattr(node, name), path_scope))
        if isinstance(node, ast.Try) or type(node).__name__ == "TryStar":
            changed.handlers = [self._clause(h, path_scope) for h in node.handlers]
        if type(node).__name__ == "Match":
            changed.cases = [self._clause(c, path_scope) for c in node.cases]
        self.depth -= loop
        definitions: List[ast.stmt] = []
        changed = self._expressions(changed, definitions)
        return definitions + [changed]

    def _clause(self, node: Any, path_scope: ast.AST) -> Any:
        changed = copy.copy(node)
        changed.body = self.block(node.body, path_scope)
        return changed

    def _expressions(self, node: ast.stmt, definitions: List[ast.stmt]) -> ast.stmt:
        """Replaces comprehensions in the expressions of a statement."""
        for name, value in ast.iter_fields(node):
            if name in ("body", "orelse", "finalbody", "handlers", "cases"):
                continue
            if isinstance(value, ast.AST):
                setattr(node, name, self._expression(value, definitions))
            elif isinstance(value, list):
                setattr(node, name, [
                    self._expression(v, definitions) if isinstance(v, ast.AST) else v for v in value
                ])
        return node

    def _expression(self, node: ast.AST, definitions: List[ast.stmt]) -> ast.AST:
        if isinstance(node, COMPREHENSIONS):
            return self._comprehension(node, definitions)
        if isinstance(node, NESTED):
            return node
        changed = copy.copy(node)
        for name, value in ast.iter_fields(node):
            if isinstance(value, ast.AST):
                setattr(changed, name, self._expression(value, definitions))
            elif isinstance(value, list):
                setattr(changed, name, [
                    self._expression(v, definitions) if isinstance(v, ast.AST) else v for v in value
                ])
        return changed

    def _comprehension(self, node: Any, definitions: List[ast.stmt]) -> ast.AST:
        kind = KINDS[type(node)]
        finding = Finding(kind, node.lineno, node.col_offset)
        self.findings.append(finding)
        number = len(self.plans)
        try:
            desugared = desugar(node, kind, number)
            loop = next(n for n in desugared.body if isinstance(n, ast.For))
            scope = Scope(desugared, self.scope.visible)
            plan = analyse(number, kind, loop, scope, desugared)
        except Refused as refused:
            finding.reason = refused.reason
            return node
        plan.nested = self.depth > 0
        plan.inner = self.inside > 0
        finding.plan = plan
        self.plans.append(plan)
        self.names[desugared.name] = f"<{kind}>"
        shared = copy.copy(desugared)
        shared.body = [s for n in desugared.body for s in ([n] if n is not loop else phases_of(plan, loop, node, [loop], False))]
        definitions.append(shared)
        call = ast.Call(func=name_node(desugared.name), args=[node.generators[0].iter], keywords=[])
        choice = ast.IfExp(test=_on(number), body=call, orelse=copy.deepcopy(node))
        return near(choice, node)

    def _for(self, node: ast.For, path_scope: ast.AST) -> List[ast.stmt]:
        finding = Finding("for", node.lineno, node.col_offset)
        self.findings.append(finding)
        number = len(self.plans)
        plan: Optional[Plan] = None
        try:
            plan = analyse(number, "for", node, self.scope, path_scope)
        except Refused as refused:
            finding.reason = refused.reason
        if plan is not None:
            plan.nested = self.depth > 0
            plan.inner = self.inside > 0
            finding.plan = plan
            self.plans.append(plan)
        self.depth += 1
        self.inside += plan is not None
        changed = copy.copy(node)
        changed.body = self.block(node.body, path_scope)
        changed.orelse = self.block(node.orelse, path_scope)
        self.inside -= plan is not None
        self.depth -= 1
        definitions: List[ast.stmt] = []
        changed.iter = self._expression(node.iter, definitions)
        if plan is None:
            return definitions + [changed]
        phases = phases_of(plan, changed, node, None, True)
        if not plan.nested:
            return definitions + phases
        either = ast.If(test=_on(number), body=phases, orelse=[copy.deepcopy(node)])
        return definitions + [near(either, node)]


def _on(number: int) -> ast.expr:
    return ast.Subscript(value=name_node(ON), slice=ast.Constant(value=number), ctx=ast.Load())

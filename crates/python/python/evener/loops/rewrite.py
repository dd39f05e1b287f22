"""Compiles a function again, with its loops shared between workers."""

from __future__ import annotations

import ast
import copy
import types
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Set, Tuple

from . import effects as fx
from .analysis import Finding, Plan, Scope, analyse, whole_function
from .names import COMPREHENSIONS, NESTED, everything, loads, own, parameters, stores
from .reasons import Reason, Refused
from .source import Text, tree_of

LOOPS = "__evener_loops"
ON = "__evener_on"
KINDS = {
    ast.ListComp: "listcomp", ast.SetComp: "setcomp", ast.DictComp: "dictcomp", ast.GeneratorExp: "genexpr",
}
FLAGS = 0x1FF0000  # every `from __future__` flag


@dataclass
class Loop:
    """A plan and the code of its body."""

    plan: Plan
    code: types.CodeType
    live: List[Tuple[int, str]]
    checked: Set[int]


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
    made = [_loop(plan, code) for plan in rewriter.plans]
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
    factory = _function("__evener_factory", [LOOPS, ON, *original.co_freevars], [definition], definition)
    module = ast.Module(body=[factory], type_ignores=[])
    ast.fix_missing_locations(module)
    compiled = compile(module, original.co_filename, "exec", flags=original.co_flags & FLAGS, dont_inherit=True)
    outer = next(c for c in compiled.co_consts if isinstance(c, types.CodeType))
    inner = next(c for c in outer.co_consts if isinstance(c, types.CodeType) and c.co_name == name)
    return _renamed(inner, original.co_name, original, rewriter.names)


def _renamed(code: types.CodeType, name: str, original: types.CodeType, names: Dict[str, str]) -> types.CodeType:
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


def _bare(arguments: ast.arguments) -> ast.arguments:
    """The parameters without annotations, and with placeholders as defaults."""
    bare = copy.deepcopy(arguments)
    for argument in bare.posonlyargs + bare.args + bare.kwonlyargs + [a for a in (bare.vararg, bare.kwarg) if a]:
        argument.annotation = None
    bare.defaults = [ast.Constant(value=None) for _ in bare.defaults]
    bare.kw_defaults = [None if d is None else ast.Constant(value=None) for d in bare.kw_defaults]
    return bare


def _function(name: str, arguments: List[str], body: List[ast.stmt], like: ast.AST) -> ast.FunctionDef:
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


def _name(identifier: str, store: bool = False) -> ast.Name:
    return ast.Name(id=identifier, ctx=ast.Store() if store else ast.Load())


def _attribute(identifier: str, attribute: str) -> ast.Attribute:
    return ast.Attribute(value=_name(identifier), attr=attribute, ctx=ast.Load())


def _statements(text: str, like: ast.AST) -> List[ast.stmt]:
    """Generated statements, at the position of a node of the user's."""
    parsed = ast.parse(text).body
    for statement in parsed:
        fx.placed(statement, like)
    return parsed


# The body, as it runs in a worker.


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
                func=_attribute(fx.RECORD, "extend"), args=[ast.Constant(value=numbers[-1]), parts[0]], keywords=[]
            )
            return [_near(ast.Expr(value=call), node)]
        if len(effects) == 1:
            return [self._call(numbers[0], ast.Tuple(elts=parts, ctx=ast.Load()), node)]
        early = len(effects[0].recorded)
        first = ast.Assign(targets=[_name("__evener_t", True)], value=ast.Tuple(elts=parts[:early], ctx=ast.Load()))
        rest = ast.BinOp(
            left=_name("__evener_t"), op=ast.Add(), right=ast.Tuple(elts=parts[early:], ctx=ast.Load())
        )
        return [
            _near(first, node), self._call(numbers[0], _name("__evener_t"), node),
            self._call(numbers[1], rest, node),
        ]

    @staticmethod
    def _call(number: int, values: ast.expr, node: ast.stmt) -> ast.stmt:
        call = ast.Call(func=_name(fx.RECORD), args=[ast.Constant(value=number), values], keywords=[])
        return _near(ast.Expr(value=call), node)


def _near(node: Any, like: ast.AST) -> Any:
    """Positions generated nodes without moving those of the user."""
    for child in ast.walk(node):
        if isinstance(child, (ast.expr, ast.stmt)) and not hasattr(child, "lineno"):
            ast.copy_location(child, like)
    return node


def _loop(plan: Plan, original: types.CodeType) -> Loop:
    """Compiles the body of a loop as a function of the recorder, the item and what it captures."""
    body = [_marked(s) for s in plan.node.body]
    body = [r for s in body for r in _listed(_Recording(plan).visit(s))]
    once = ast.copy_location(
        ast.For(
            target=copy.deepcopy(plan.node.target),
            iter=_near(ast.Tuple(elts=[_name("__evener_item")], ctx=ast.Load()), plan.node.target),
            body=body, orelse=[], type_comment=None,
        ),
        plan.node,
    )
    live = [(len(plan.effects) + i, name) for i, name in enumerate(plan.live)]
    statements: List[ast.stmt] = [once]
    if live:
        end = _statements(f"{fx.RECORD}.keep({LOCALS}())", plan.node)
        statements = [ast.copy_location(ast.Try(body=statements, handlers=[], orelse=[], finalbody=end), plan.node)]
    prologue = _statements(
        f"from builtins import slice as {fx.SLICE}, locals as {LOCALS}", plan.node
    ) if live or _uses_slice(statements) else []
    definition = _function("__evener_body", [fx.RECORD, "__evener_item", *plan.captured], prologue + statements, plan.node)
    module = ast.Module(body=[definition], type_ignores=[])
    ast.fix_missing_locations(module)
    compiled = compile(module, original.co_filename, "exec", flags=original.co_flags & FLAGS, dont_inherit=True)
    inner = next(c for c in compiled.co_consts if isinstance(c, types.CodeType))
    shown = f"<{plan.kind}>" if plan.kind in KINDS.values() else original.co_name
    return Loop(plan, _renamed(inner, shown, original, {}), live, _checked(plan))


LOCALS = "__evener_locals"


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


# The function, as it runs at home.


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
            desugared = _desugar(node, kind, number)
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
        shared.body = [s for n in desugared.body for s in ([n] if n is not loop else _phases(plan, loop, node, [loop], False))]
        definitions.append(shared)
        call = ast.Call(func=_name(desugared.name), args=[node.generators[0].iter], keywords=[])
        choice = ast.IfExp(test=_on(number), body=call, orelse=copy.deepcopy(node))
        return _near(choice, node)

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
        phases = _phases(plan, changed, node, None, True)
        if not plan.nested:
            return definitions + phases
        either = ast.If(test=_on(number), body=phases, orelse=[copy.deepcopy(node)])
        return definitions + [_near(either, node)]


def _on(number: int) -> ast.expr:
    return ast.Subscript(value=_name(ON), slice=ast.Constant(value=number), ctx=ast.Load())


def _desugar(node: Any, kind: str, number: int) -> ast.FunctionDef:
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
            func=_attribute(result, "__evener_pair"), args=[node.key, node.value], keywords=[]))
    elif kind == "genexpr":
        effect = ast.Expr(value=ast.Yield(value=node.elt))
    else:
        method = "append" if kind == "listcomp" else "add"
        effect = ast.Expr(value=ast.Call(func=_attribute(result, method), args=[node.elt], keywords=[]))
    if kind == "dictcomp":
        # `d[k] = v` evaluates the value first, a dict comprehension the key.
        effect = ast.Assign(
            targets=[ast.Subscript(value=_name(result), slice=_name("__evener_key"), ctx=ast.Store())],
            value=node.value,
        )
        key = ast.Assign(targets=[_name("__evener_key", True)], value=node.key)
        core: List[ast.stmt] = [key, effect]
    else:
        core = [effect]
    like = node.key if kind == "dictcomp" else node.elt
    core = [_near(s, like) for s in core]
    for position, generator in reversed(list(enumerate(node.generators))):
        for condition in reversed(generator.ifs):
            core = [ast.copy_location(ast.If(test=condition, body=core, orelse=[]), condition)]
        source = generator.iter if position else _near(_name("__evener_source"), generator.iter)
        core = [ast.copy_location(
            ast.For(target=generator.target, iter=source, body=core, orelse=[], type_comment=None), generator.target)]
    statements = core
    if kind != "genexpr":
        empty = {"listcomp": "[]", "setcomp": "{*()}", "dictcomp": "{}"}[kind]
        statements = _statements(f"{result} = {empty}", node) + core + _statements(f"return {result}", node)
    return _function(f"__evener_{kind}_{number}", ["__evener_source"], statements, node)


def _phases(plan: Plan, loop: ast.For, original: Any, _: Any, statement: bool) -> List[ast.stmt]:
    """The statements that run a loop in phases: some plainly, the rest by workers."""
    k = f"__evener_{plan.number}"
    begin = ast.Assign(
        targets=[_name(k, True)],
        value=ast.Call(func=_attribute(LOOPS, "begin"), args=[ast.Constant(value=plan.number), loop.iter], keywords=[]),
    )
    _near(begin, loop.iter)
    look = [f"if {k}.wants:", "    __evener_e = {}"]
    for name in plan.captured + plan.receivers:
        look += ["    try:", f"        __evener_e[{name!r}] = {name}", "    except NameError:", "        pass"]
    look += [f"    {k}.look(__evener_e)", "    __evener_e = None"]
    outer = ast.For(
        target=_name("__evener_c", True), iter=_name(k), orelse=[], type_comment=None,
        body=_statements("\n".join(look), loop) + [
            ast.If(test=_attribute(k, "sharing"), body=_replay(plan, k, loop), orelse=_plainly(plan, loop, original)),
        ],
    )
    _near(outer, loop)
    end = _statements(f"{k} = __evener_c = None", loop)
    return [begin, outer] + end


def _plainly(plan: Plan, loop: ast.For, original: Any) -> List[ast.stmt]:
    if plan.kind in ("listcomp", "setcomp", "dictcomp"):
        # The comprehension itself, over the chunk: as fast as before.
        chunk = copy.deepcopy(original)
        chunk.generators[0].iter = _near(_name("__evener_c"), chunk.generators[0].iter)
        if plan.kind == "listcomp":
            grow: ast.stmt = ast.AugAssign(target=_name("__evener_result", True), op=ast.Add(), value=chunk)
            return [_near(grow, original)]
        if plan.kind == "dictcomp" or plan.kind == "setcomp":
            pass
    plain = copy.copy(loop)
    plain.iter = _near(_name("__evener_c"), loop.iter)
    plain.target = copy.deepcopy(loop.target)
    return [plain]


def _replay(plan: Plan, k: str, loop: ast.For) -> List[ast.stmt]:
    """Does at home, in order, what the iterations have recorded."""
    chain: List[ast.stmt] = []
    for number in reversed(range(len(plan.effects))):
        again = copy.deepcopy(plan.effects[number].replay)
        chain = [ast.If(test=_is("__evener_s", number), body=again, orelse=chain)]
    for offset, name in enumerate(plan.live):
        given = ast.Assign(targets=[_name(name, True)], value=fx.value(0))
        chain = [ast.If(test=_is("__evener_s", len(plan.effects) + offset), body=[given], orelse=chain)]
    target = ast.Tuple(elts=[_name("__evener_s", True), _name(fx.VALUES, True)], ctx=ast.Store())
    inner = ast.For(target=target, iter=_name("__evener_r"), body=chain or [ast.Pass()], orelse=[], type_comment=None)
    after: List[ast.stmt] = []
    if plan.target_live:
        after.append(ast.Assign(targets=[copy.deepcopy(plan.node.target)], value=_attribute(k, "item")))
    after.append(ast.If(
        test=ast.Compare(left=_attribute(k, "error"), ops=[ast.IsNot()], comparators=[ast.Constant(value=None)]),
        body=_raise(plan, k, loop), orelse=[],
    ))
    before = after[:1] if plan.target_live else []
    clear = _statements(f"{fx.VALUES} = None", loop)
    records = ast.For(
        target=_name("__evener_r", True),
        iter=ast.Call(func=_attribute(k, "share"), args=[], keywords=[]),
        body=before + [inner] + clear + after[len(before):], orelse=[], type_comment=None,
    )
    return [records]


def _is(name: str, number: int) -> ast.expr:
    return ast.Compare(left=_name(name), ops=[ast.Eq()], comparators=[ast.Constant(value=number)])


def _raise(plan: Plan, k: str, loop: ast.For) -> List[ast.stmt]:
    """Raises an iteration's exception at the line where it was raised."""
    lines: Dict[int, ast.AST] = {}
    for node in everything(plan.node.body):
        if hasattr(node, "lineno"):
            lines.setdefault(node.lineno, node)
    lines.setdefault(plan.node.target.lineno, plan.node.target)
    chain: List[ast.stmt] = [fx.placed(ast.Raise(exc=_attribute(k, "error"), cause=None), plan.node)]
    for line, node in sorted(lines.items(), reverse=True):
        again = fx.placed(ast.Raise(exc=_attribute(k, "error"), cause=None), node)
        chain = [ast.If(test=ast.Compare(left=_attribute(k, "line"), ops=[ast.Eq()], comparators=[ast.Constant(value=line)]),
                        body=[again], orelse=chain)]
    handler = ast.ExceptHandler(
        type=None, name=None, body=_statements(f"{k}.restore()\nraise", loop),
    )
    return [ast.Try(body=chain, handlers=[handler], orelse=[], finalbody=[])]

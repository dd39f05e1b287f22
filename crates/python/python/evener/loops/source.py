"""The syntax tree of a function object."""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Union

from .reasons import Refused

Function = Union[ast.FunctionDef, ast.AsyncFunctionDef]


@dataclass(frozen=True)
class Text:
    """A function's source, as text that can travel to a process without the file."""

    text: str
    first_line: int
    indent: int


def text_of(function: FunctionType) -> Text:
    """Reads the source through `inspect`, which knows files, notebooks and the REPL."""
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError, IndexError, SyntaxError) as error:
        raise Refused(f"its source is not available ({error})") from None
    text = "".join(lines)
    dedented = textwrap.dedent(text)
    head, dedented_head = text.split("\n", 1)[0], dedented.split("\n", 1)[0]
    return Text(dedented, max(first, 1), len(head) - len(dedented_head))


def tree_of(function: FunctionType, source: Text) -> ast.FunctionDef:
    """The function's definition, with the line numbers of its file.

    A lambda becomes a definition with one `return`.
    """
    try:
        module = ast.parse(source.text)
    except SyntaxError:
        # A line of a larger expression: `f = decorate(lambda x: ...,`.
        module = _parse_fragment(source.text)
    ast.increment_lineno(module, source.first_line - 1)
    if source.indent:
        for node in ast.walk(module):
            if hasattr(node, "col_offset"):
                node.col_offset += source.indent
            if getattr(node, "end_col_offset", None) is not None:
                node.end_col_offset += source.indent
    code = function.__code__
    if code.co_name == "<lambda>":
        return _lambda(module, code)
    found = [
        node
        for node in ast.walk(module)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.name == code.co_name
        and code.co_firstlineno in (node.lineno, _first_decorator(node))
    ]
    if len(found) != 1:
        raise Refused("its source does not contain the definition that runs")
    if isinstance(found[0], ast.AsyncFunctionDef):
        raise Refused("it is an async function", found[0])
    _same_code(found[0], code)
    return found[0]


def _first_decorator(node: Function) -> int:
    return min([d.lineno for d in node.decorator_list] + [node.lineno])


def _parse_fragment(text: str) -> ast.Module:
    start = text.find("lambda")
    for end in range(len(text), start, -1):
        try:
            return ast.parse("\n" * text[:start].count("\n") + "(" + text[start:end] + ")")
        except SyntaxError:
            continue
    raise Refused("its source cannot be parsed by itself")


def _lambda(module: ast.Module, code: CodeType) -> ast.FunctionDef:
    found = [
        node
        for node in ast.walk(module)
        if isinstance(node, ast.Lambda)
        and node.lineno == code.co_firstlineno
        and _arguments(node.args) == code.co_varnames[: _count(code)]
    ]
    if len(found) != 1:
        raise Refused("more than one lambda on its line, or none: cannot tell which it is")
    node = found[0]
    body = ast.copy_location(ast.Return(value=node.body), node.body)
    definition = ast.FunctionDef(
        name="<lambda>", args=node.args, body=[body], decorator_list=[], returns=None,
        type_comment=None,
    )
    if "type_params" in ast.FunctionDef._fields:
        definition.type_params = []
    return ast.copy_location(definition, node)


def _count(code: CodeType) -> int:
    flags = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_argcount + code.co_kwonlyargcount + flags


def _arguments(arguments: ast.arguments) -> tuple[str, ...]:
    plain = [a.arg for a in arguments.posonlyargs + arguments.args + arguments.kwonlyargs]
    return tuple(plain + [a.arg for a in (arguments.vararg, arguments.kwarg) if a])


def _same_code(node: ast.FunctionDef, code: CodeType) -> None:
    """Refuses source that changed on disk, or that belongs to another function."""
    if _arguments(node.args) != code.co_varnames[: _count(code)]:
        raise Refused("its source does not match its code (was the file changed?)", node)


def signature_line(function: FunctionType) -> str:
    """`file:line name`, for messages."""
    code = function.__code__
    return f"{code.co_filename}:{code.co_firstlineno} {function.__qualname__}"

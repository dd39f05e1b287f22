"""Loops made from a grammar: the decorated function does what the plain one does."""

from __future__ import annotations

import linecache
import os
import textwrap

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .compare import compare

NAMES = ["a", "b", "c"]


def atoms(names):
    return st.one_of(
        st.sampled_from(names), st.integers(-3, 9).map(str), st.sampled_from(["0.5", "'t'", "k", "len(box)", "-1"]),
    )


@st.composite
def expressions(draw, names, depth=2):
    if depth == 0 or draw(st.integers(0, 2)) == 0:
        return draw(atoms(names))
    one = draw(expressions(names, depth - 1))
    other = draw(expressions(names, depth - 1))
    return draw(st.sampled_from([
        f"({one} + {other})", f"({one} * {other})", f"helper({one})", f"({one} if {other} else {one})", f"[{one}, {other}]",
        f"max([helper(z) for z in ({one}, {other})])", f"({one}, {other})", f"loud({one})", f"str({one})", f"({one} // {other})",
        f"[v for v in ({one}, {other}) if v]", f"d0.get({one})", f"sorted([{one}, {other}], key=lambda q: (q == {one}, 0))",
    ]))


@st.composite
def statements(draw, names, depth):
    value = draw(expressions(names))
    key = draw(expressions(names, 1))
    kind = draw(st.integers(0, 19))
    if kind == 0:
        return [f"out.append({value})"]
    if kind == 1:
        return [f"total += {value}"]
    if kind == 2:
        return [f"table[{key}] = {value}"]
    if kind == 3:
        return [f"seen.add({value})"]
    if kind == 4:
        return [f"groups[{key}].append({value})"]
    if kind == 5:
        return [f"counts[{key}] += 1"]
    if kind == 6:
        return [f"print({value}, sep='')"]
    if kind == 7:
        return [f"out.extend({value})"]
    if kind == 8 and depth:
        return [f"if {value}:", *indent(draw(blocks(names, depth - 1))), "else:", *indent(draw(blocks(names, depth - 1)))]
    if kind == 9 and depth:
        return [f"for {draw(st.sampled_from(NAMES))} in range(2):", *indent(draw(blocks(names, depth - 1)))]
    if kind == 10 and depth:
        handler = draw(st.sampled_from(["except ValueError:", "except Exception as err:", "finally:"]))
        return ["try:", *indent(draw(blocks(names, depth - 1))), handler, *indent([f"{draw(st.sampled_from(NAMES))} = {value}"])]
    if kind == 11:
        return ["continue"]
    if kind == 12:
        return [f"box.append({value})"]
    if kind == 13:
        return [f"raise_if({value})"]
    if kind == 14:
        return [f"cell[0] += {value}"]
    if kind == 15:
        return [f"text += str({value})"]
    if kind == 16:
        return [f"table.setdefault({key}, []).append({value})"]
    return [f"{draw(st.sampled_from(NAMES))} = {value}"]


def blocks(names, depth):
    return st.lists(statements(names, depth), min_size=1, max_size=3).map(lambda parts: [l for p in parts for l in p])


def indent(lines):
    return ["    " + line for line in lines]


@st.composite
def functions(draw):
    target, source = draw(st.sampled_from([
        ("x", "xs"), ("i, x", "enumerate(xs, start=2)"), ("x, y", "zip(xs, xs[1:])"), ("x", "range(len(xs))"), ("x", "d0"),
        ("x, y", "d0.items()"), ("x", "reversed(xs)"), ("x", "(z for z in xs)"), ("x", "map(helper, xs)"),
    ]))
    names = ["x"] + [n for n in ("i", "y") if n in target] + NAMES
    body = draw(blocks(names, 2))
    shape = draw(st.integers(0, 4))
    if shape == 0:
        value = draw(expressions(["x"]))
        wrap = draw(st.sampled_from(["[%s]", "{%s}", "sum(%s)", "list(%s)", "any(%s)", "max((%s), default=0)", "dict((%s))", "str([%s])"]))
        condition = draw(st.sampled_from(["", " if x", " if helper(x)"]))
        inner = f"{value} for x in xs{condition}"
        lines = [f"a = {wrap % inner}"]
    else:
        prefix = draw(st.lists(st.sampled_from(["a = 1", "b = []", "c = 'c'", "box = out", "b = box"]), max_size=2))
        lines = prefix + [f"for {target} in {source}:", *indent(body)]
        if shape == 1:
            lines = ["try:", *indent(lines), "except ValueError as caught:", *indent(["out.append(caught.args)"])]
    after = draw(st.sampled_from(["return out, total, table, seen, groups, counts, cell, text", "return locals_of(a, b)", "return x, out", "return a, b, c, total"]))
    return textwrap.dedent("""
        def made(xs, d0, out, table, groups, box, cell, k=3):
            total, seen, text = 0, set(), ''
            counts = collections.Counter()
        """).strip().splitlines() + indent(lines) + indent([after])


HELPERS = '''
import collections

def helper(v):
    if v == 7:
        raise ValueError("seven", v)
    return v * 2 if isinstance(v, (int, float)) else v

def loud(v):
    print("loud", v)
    return v

def raise_if(v):
    if v:
        raise ValueError("raised", v)

def locals_of(*values):
    return values
'''

_number = 0


def build(lines):
    """A function from text, with a source that `inspect` finds."""
    global _number
    _number += 1
    name = f"<generated {_number}>"
    text = HELPERS + "\n".join(lines) + "\n"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    scope: dict = {"__name__": "generated_module"}
    exec(compile(text, name, "exec"), scope)
    return scope["made"]


def arguments():
    import collections

    return [3, 0, 1, 7, 2, "s", 4], {1: [2], "s": "t", 2: 0.5}, [], {}, collections.defaultdict(list), [1], [0]


def check(lines):
    compare(build(lines), make=arguments)


@settings(max_examples=int(os.environ.get("EVENER_TEST_EXAMPLES", "300")), deadline=None, suppress_health_check=list(HealthCheck))
@given(functions())
def test_loops_from_a_grammar(lines):
    check(lines)

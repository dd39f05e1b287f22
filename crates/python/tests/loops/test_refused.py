"""Loops whose iterations depend on each other, or on the process: the reason and its place."""

from __future__ import annotations

import pytest

import evener

from .compare import compare


def refused(function, words, line=None):
    """The sentence of the first refused loop contains `words`."""
    explanation = evener.explain(function)
    sentences = [f.reason.sentence for f in explanation.findings if f.reason] + [explanation.refused or ""]
    assert any(words in s for s in sentences), (words, str(explanation))


def test_carried():
    def f(xs):
        previous = 0
        out = []
        for x in xs:
            out.append(x - previous)
            previous = x
        return out

    refused(f, "reads `previous`, which another iteration assigns")
    compare(f, [1, 2, 3, 4], parallel=False)


def test_swap():
    def f(n):
        a, b = 0, 1
        for _ in range(n):
            a, b = b, a + b
        return a

    refused(f, "reads `a`, which another iteration assigns")
    compare(f, 10, parallel=False)


def test_break():
    def f(xs):
        for x in xs:
            if x > 2:
                break
        return x

    refused(f, "break")
    compare(f, [1, 2, 3, 4], parallel=False)


def test_inner_break_is_fine():
    def f(xs):
        out = []
        for x in xs:
            for y in range(10):
                if y * y > x:
                    break
            out.append(y)
        return out

    compare(f, [1, 20, 50, 4], parallel=True)


def test_return():
    def f(xs):
        for x in xs:
            if x > 2:
                return x

    refused(f, "returns from its body")
    compare(f, [1, 2, 3, 4], parallel=False)


def test_else():
    def f(xs):
        for x in xs:
            pass
        else:
            return "else"

    refused(f, "else")


def test_global():
    def f(xs):
        global GLOBAL
        for x in xs:
            GLOBAL = x

    refused(f, "global")


def test_attribute():
    def f(self, xs):
        for x in xs:
            self.total = x

    refused(f, "an attribute of `self`")


def test_through_self():
    def f(self, xs):
        for x in xs:
            self.results.append(x)

    refused(f, "may change `self.results`")


def test_reads_of_the_receiver():
    def f(xs):
        out = []
        for x in xs:
            out.append(len(out))
        return out

    refused(f, "reads `out`, which other iterations change")
    compare(f, [1, 2, 3, 4], parallel=False)

    def g(xs):
        out = [0]
        for x in xs:
            out.append(out[-1] + x)
        return out

    refused(g, "reads `out`")
    compare(g, [1, 2, 3, 4], parallel=False)

    def h(xs):
        total = 0
        out = []
        for x in xs:
            total += x
            out.append(total)
        return out

    refused(h, "reads `total`")
    compare(h, [1, 2, 3, 4], parallel=False)


def test_seen_before():
    def f(xs):
        seen = set()
        out = []
        for x in xs:
            if x not in seen:
                seen.add(x)
                out.append(x)
        return out

    refused(f, "reads `seen`")
    compare(f, [1, 2, 1, 3, 2], parallel=False)


def test_self_reference_of_arrays():
    def f(a):
        for i in range(1, len(a)):
            a[i] = a[i] + a[i - 1]
        return a

    refused(f, "reads `a`")
    compare(f, [1, 2, 3, 4], parallel=False)


def test_while():
    def f(n):
        while n > 1:
            n = n // 2 if n % 2 == 0 else 3 * n + 1
        return n

    refused(f, "while")


def test_walrus_del_locals_eval():
    def a(xs):
        return [y for x in xs if (y := x)]

    def b(xs):
        for x in xs:
            y = [x]
            del y

    def c(xs):
        for x in xs:
            print(locals())

    def d(xs):
        return [eval(x) for x in xs]

    refused(a, "inside an expression")
    refused(b, "deletes")
    refused(c, "locals")
    refused(d, "eval")


def test_async():
    async def f(xs):
        for x in xs:
            await x

    refused(f, "async")


def test_closures_over_what_the_loop_assigns():
    def f(xs):
        def current():
            return x

        out = []
        for x in xs:
            out.append(current())
        return out

    refused(f, "nested function outside")
    compare(f, [1, 2, 3, 4], parallel=False)


def test_yield_with_a_value_and_in_try():
    def f(xs):
        for x in xs:
            got = yield x
            print(got)

    def g(xs):
        for x in xs:
            try:
                yield x
            finally:
                print("closed")

    refused(f, "value of `yield`")
    refused(g, "inside `try`")


def test_effects_that_a_handler_could_see():
    def f(xs):
        d = {}
        for x in xs:
            try:
                d[x] = 1
            except TypeError:
                print("unhashable")
        return d

    refused(f, "inside `try`")
    compare(f, [1, [2], 3], parallel=False)


def test_nonlocal_in_a_nested_function():
    def f(xs):
        n = 0

        def count():
            nonlocal n
            n += 1
            return n

        return [count() for _ in xs]

    compare(f, [1, 2, 3, 4], parallel=False)


def test_strict():
    @evener.parallel(strict=True)
    def f(xs):
        for x in xs:
            if x:
                break

    with pytest.raises(evener.NotParallel, match="break"):
        f([1])

    @evener.parallel(strict=True)
    def g(xs):
        return [x + 1 for x in xs]

    assert g([1, 2]) == [2, 3]


def test_private_names():
    class C:
        def f(self, xs):
            return [self.__secret + x for x in xs]

        __secret = 1

    refused(C.f, "private to its class")
    compare(C.f, parallel=False, make=lambda: (C(), [1, 2, 3]))


def test_explain_says_line_and_column(tmp_path):
    file = tmp_path / "script.py"
    file.write_text("def f(xs):\n    out = []\n    for x in xs:\n        if x:\n            break\n        out.append(x)\n    return out\n")
    (explanation,) = evener.explain_file(str(file))
    (finding,) = explanation.findings
    assert (finding.line, finding.reason.line, finding.reason.column) == (3, 5, 12)
    assert "line 3, column 5, for: plain: ends early with `break` (5:13)" in str(explanation)


def test_a_generator_that_sees_what_iterations_change():
    def f(n):
        seen, out = [], []

        def numbers():
            for i in range(n):
                seen.append(len(out))
                yield i

        for i in numbers():
            out.append(i)
        return seen, out

    compare(f, 12, parallel=False)

    def g(n):
        out = []

        def numbers():
            try:
                yield from range(n)
            finally:
                out.append("closed")

        for i in numbers():
            out.append(i)
        return out

    compare(g, 12, parallel=False)

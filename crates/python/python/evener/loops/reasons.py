"""Why a loop is not parallel."""

from __future__ import annotations

import ast
from dataclasses import dataclass


class NotParallel(Exception):
    """Raised with `strict=True` when a loop cannot be shared between workers."""


class GaveUp(BaseException):
    """Ends an iteration whose result a worker must not compute.

    A `BaseException`, so that `except Exception` in the user's code lets it pass.
    """

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence


@dataclass(frozen=True)
class Reason:
    """One sentence about one place in the source."""

    sentence: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        if not self.line:
            return self.sentence
        return f"line {self.line}, column {self.column + 1}: {self.sentence}"


class Refused(Exception):
    """Carries a `Reason` out of the analysis of one loop."""

    def __init__(self, sentence: str, node: ast.AST | None = None) -> None:
        super().__init__(sentence)
        self.reason = Reason(
            sentence, getattr(node, "lineno", 0), getattr(node, "col_offset", 0)
        )

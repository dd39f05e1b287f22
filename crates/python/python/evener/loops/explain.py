"""Says beforehand which loops are shared, and why the others are not."""

from __future__ import annotations

import ast
import types
from dataclasses import dataclass, field
from typing import Any, List, Optional

from .analysis import Finding
from .reasons import Refused
from .rewrite import examine, examine_tree
from .source import Text, text_of


@dataclass
class Explanation:
    """What the analysis says about one function."""

    name: str
    filename: str
    line: int
    findings: List[Finding] = field(default_factory=list)
    refused: Optional[str] = None

    @property
    def parallel(self) -> bool:
        """Whether at least one loop is shared."""
        return any(f.parallel for f in self.findings)

    def __str__(self) -> str:
        lines = [f"{self.filename}:{self.line} {self.name}"]
        if self.refused:
            lines.append(f"  runs plainly: {self.refused}")
        elif not self.findings:
            lines.append("  has no loop")
        for finding in sorted(self.findings, key=lambda f: (f.line, f.column)):
            place = f"  line {finding.line}, column {finding.column + 1}, {finding.kind}: "
            if finding.reason is not None:
                lines.append(f"{place}plain: {finding.reason.sentence} ({finding.reason.line}:{finding.reason.column + 1})")
            else:
                lines.append(place + _shared(finding))
        return "\n".join(lines)


def _shared(finding: Finding) -> str:
    plan = finding.plan
    said = "parallel"
    if plan.draws_only:
        return "plain: its iterations only draw single random numbers, too little to share"
    if plan.receivers:
        said += "; replays changes of " + ", ".join(f"`{n}`" for n in plan.receivers if not n.startswith("__evener"))
        said = said[:-len("; replays changes of ")] if said.endswith(" of ") else said
    if plan.yields and plan.kind == "for":
        said += "; yields in order"
    captured = [n for n in plan.captured if not n.startswith("__evener")]
    if captured:
        said += "; reads " + ", ".join(f"`{n}`" for n in captured)
    if plan.live:
        said += "; gives back " + ", ".join(f"`{n}`" for n in plan.live)
    return said


def explain_function(function: types.FunctionType, source: Optional[Text] = None) -> Explanation:
    code = function.__code__
    made = Explanation(function.__qualname__, code.co_filename, code.co_firstlineno)
    try:
        _, made.findings, _ = examine(function, source or text_of(function))
    except Refused as refused:
        made.refused = str(refused.reason)
    return made


def explain(function: Any) -> Explanation:
    """Says for every loop of a function whether it is parallel, and why not."""
    while not isinstance(function, types.FunctionType):
        inner = getattr(function, "_function", None) or getattr(function, "__func__", None) or getattr(function, "__wrapped__", None)
        if inner is None or inner is function:
            raise TypeError(f"evener.explain takes a function, not {type(function).__name__}")
        function = inner
    return explain_function(function)


def explain_file(filename: str) -> List[Explanation]:
    """Explains every function of a file, without running it."""
    with open(filename, "rb") as file:
        tree = ast.parse(file.read(), filename)
    found: List[Explanation] = []
    _visit(tree, "", set(), filename, found)
    return found


def _visit(node: ast.AST, prefix: str, outer: set, filename: str, found: List[Explanation]) -> None:
    from .analysis import Scope

    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            made = Explanation(prefix + child.name, filename, child.lineno)
            visible = set(outer)
            if isinstance(child, ast.AsyncFunctionDef):
                made.refused = "it is an async function"
            else:
                visible |= Scope(child, outer).visible
                try:
                    _, made.findings, _ = examine_tree(child, outer)
                except Refused as refused:
                    made.refused = str(refused.reason)
            if made.findings or made.refused:
                found.append(made)
            _visit(child, f"{prefix}{child.name}.<locals>.", visible, filename, found)
        elif isinstance(child, ast.ClassDef):
            _visit(child, f"{prefix}{child.name}.", outer, filename, found)
        else:
            _visit(child, prefix, outer, filename, found)

"""How the package is written: what its own source files say."""

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

import hf_posenc

_BLANK = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
_LONGEST = 40
_LONGER: set[str] = set()
"""Functions that may be longer, as `file: name`; this list may only shrink."""


def _lengths(source: str) -> Iterator[tuple[str, int]]:
    """The lines of code of each function: without signature, docstring, comments and blank lines."""
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _BLANK:
            code.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[ast.get_docstring(node) is not None :]
            first = body[0].lineno if body else node.end_lineno
            yield node.name, sum(first <= line <= node.end_lineno for line in code)


def test_no_function_is_longer_than_40_lines():
    package = Path(hf_posenc.__file__).parent
    longer = {
        f"{path.relative_to(package)}: {name}"
        for path in package.rglob("*.py")
        for name, lines in _lengths(path.read_text(encoding="utf-8"))
        if lines > _LONGEST
    }
    assert longer == _LONGER, "make small named steps of each that is new, and take away those that are short now"

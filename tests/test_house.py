"""The house's rules for the package's text: docstrings, names, imports, and a thought a line."""

import ast
import io
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import hf_posenc

PACKAGE = Path(hf_posenc.__file__).parent
MODULES = {
    path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
    for path in sorted(PACKAGE.rglob("*.py"))
}
NODES = [(name, node) for name, module in MODULES.items() for node in ast.walk(module)]
SAYS_NOTHING = {"found", "one", "own", "rest", "how", "alike", "told", "alternate"}
SHARED = {
    "__all__": "Python's",
    "logger": "of each module",
}
"""Public names that may stand in several modules, with the reason."""
PACKED = {
    "checkpoints": 5,
    "comparison": 22,
    "inference": 2,
    "kernels": 2,
    "model": 19,
    "schemes": 18,
    "training": 20,
    "the root": 7,
}
"""How many assignments of several computed values are left, by room: a list that may only shrink."""
_BLANK = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
_LONGEST = 40
_LONGER: set[str] = set()
"""Functions that may be longer, as `file: name`; this list may only shrink."""


def assigned(node: ast.AST) -> str | None:
    """The name that a node gives to a function, a class, an argument, a variable or an attribute."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.name
    if isinstance(node, ast.arg):
        return node.arg
    if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
        return node.id if isinstance(node, ast.Name) else node.attr
    return None


def defined(module: ast.Module) -> Iterator[str]:
    """The names that a module's own statements define."""
    for statement in module.body:
        targets = [getattr(statement, "target", None), *getattr(statement, "targets", ())]
        nodes = [statement, *(node for target in targets if target for node in ast.walk(target))]
        yield from filter(None, map(assigned, nodes))


def is_packed(node: ast.AST) -> bool:
    """True for `a, b = f(x), y`: several names get a tuple that is written out, with a call in it."""
    return (
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Tuple)
        and any(isinstance(target, ast.Tuple) for target in node.targets)
        and any(isinstance(part, ast.Call) for part in ast.walk(node.value))
    )


def test_a_docstring_begins_with_a_verb_or_a_noun():
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = [(name, ast.get_docstring(node) or "") for name, node in NODES if isinstance(node, documented)]
    assert [place for place in texts if re.match(r"(What|Whether|How|The same of)\b", place[1])] == []


def test_a_name_says_what_it_holds():
    names = [(file, node.lineno, name) for file, node in NODES if (name := assigned(node))]
    assert [place for place in names if place[2].strip("_") in SAYS_NOTHING] == []


def test_imports_of_the_package_are_relative_but_in_the_command_lines_room():
    absolute = [
        (file, node.lineno)
        for file, node in NODES
        if (isinstance(node, ast.ImportFrom) and not node.level and f"{node.module}.".startswith("hf_posenc."))
        or (isinstance(node, ast.Import) and any(f"{alias.name}.".startswith("hf_posenc.") for alias in node.names))
    ]
    assert [place for place in absolute if not place[0].startswith("cli/")] == []


def test_an_assignment_is_of_one_thing():
    files = Counter(file for file, node in NODES if is_packed(node))
    packed: Counter[str] = Counter()
    for file, count in files.items():
        packed[file.partition("/")[0] if "/" in file else "the root"] += count
    assert {place: count for place, count in packed.items() if count > PACKED.get(place, 0)} == {}


def test_a_public_name_means_one_thing():
    """A command is called as the public function that it runs."""
    places = defaultdict(set)
    for file, module in MODULES.items():
        for name in defined(module):
            if name not in SHARED and not (file.startswith("cli/") and name in hf_posenc.__all__):
                places[name].add(file)
    assert {name: files for name, files in places.items() if len(files) > 1 and not name.startswith("_")} == {}


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

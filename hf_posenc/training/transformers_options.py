"""The options of transformers' `TrainingArguments`, read from its source: importing it takes seconds."""

import ast
import builtins
import contextlib
import functools
import importlib.util
from dataclasses import field, fields, make_dataclass
from pathlib import Path
from typing import Any, Literal


@functools.cache
def with_transformers(options: type) -> type:
    """A dataclass of ours with all options of transformers' `TrainingArguments`, made without importing it."""
    body: Any = getattr(_source("training_args").get("TrainingArguments"), "body", ())
    lines: list[Any] = [line for line in body if isinstance(line, ast.AnnAssign)]
    try:
        declared = [(line.target.id, _type(line.annotation), _field(line.value)) for line in lines]
    except (AttributeError, TypeError, ValueError, KeyError):
        declared = []
    if not declared:  # they are written in another way
        from transformers import TrainingArguments

        declared = [(item.name, item.type, field(default=None)) for item in fields(TrainingArguments)]
    own = {item.name for item in fields(options)} | {"label_names"}  # of the data: what 0, 1, ... mean
    return make_dataclass(options.__name__, [item for item in declared if item[0] not in own], bases=(options,))


class _Names(dict[str, Any]):
    """What the names in an annotation stand for: enumerations are choices, other classes of transformers words."""

    def __missing__(self, name: str) -> Any:
        if hasattr(builtins, name):
            raise KeyError(name)  # evaluation looks there next
        values = enumeration(name)
        return Literal[values] if values else str


def _type(annotation: ast.expr) -> Any:
    """The type that an annotation names."""
    return eval(ast.unparse(annotation), {}, _Names(Any=Any, Literal=Literal))  # of a library that is run anyway


def _field(value: Any) -> Any:
    """The field of an option of transformers: its default and the parser's settings, where they are written down."""
    words = {word.arg: word.value for word in value.keywords}
    settings = {key.value: node for key, node in zip(words["metadata"].keys, words["metadata"].values, strict=True)}
    return field(default=_literals(words).get("default"), metadata=_literals(settings))


def _literals(nodes: dict[str, ast.expr]) -> dict[str, Any]:
    """What is written down, without what would have to be computed."""
    read = {}
    for name, node in nodes.items():
        with contextlib.suppress(ValueError):
            read[name] = ast.literal_eval(node)
    return read


@functools.cache
def _source(module: str) -> dict[str, ast.ClassDef]:
    """The classes of a module of transformers, as source: importing it takes seconds."""
    spec = importlib.util.find_spec("transformers")
    assert spec is not None
    assert spec.origin is not None
    text = (Path(spec.origin).parent / f"{module}.py").read_text(encoding="utf-8")
    return {node.name: node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)}


def enumeration(name: str) -> tuple[str, ...]:
    """The values of one of transformers' enumerations; empty if it has moved."""
    node = _source("trainer_utils").get(name) or _source("training_args").get(name)
    values = (line.value for line in (node.body if node else ()) if isinstance(line, ast.Assign))
    return tuple(value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str))

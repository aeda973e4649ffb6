"""Options are declared once: by one dataclass field, which everything else reads."""

import ast
import json
import re
from dataclasses import fields
from pathlib import Path

import pytest
from transformers import TrainingArguments

from hf_posenc.data.options import DataArguments
from hf_posenc.errors import UserError, dashed
from hf_posenc.finetuning.options import OptionParser, make_arguments, parse_overrides
from hf_posenc.options import declarations
from hf_posenc.training.arguments import RunArguments
from hf_posenc.training.options import (
    ModelArguments,
    RunOptions,
)
from hf_posenc.training.transformers_options import with_transformers

ROOT = Path(__file__).parents[1]


def test_what_is_read_without_pytorch_is_what_transformers_reads():
    early, late = (
        {
            action.dest: action
            for action in OptionParser((ModelArguments, kind))._actions
            if action.dest != "label_names"
        }
        for kind in (with_transformers(RunOptions), RunArguments)
    )
    assert early.keys() == late.keys()
    for name, action in late.items():
        assert set(early[name].option_strings) == set(action.option_strings), name
        assert early[name].nargs == action.nargs, name
        assert early[name].choices is None or list(early[name].choices) == list(action.choices), name


@pytest.mark.parametrize("source", ["", "class TrainingArguments:\n    output_dir: str = 5\n"])
def test_a_transformers_that_is_written_in_another_way_is_imported(monkeypatch, source):
    classes = {node.name: node for node in ast.parse(source).body}
    monkeypatch.setattr("hf_posenc.training.transformers_options._source", lambda module: classes)
    made = with_transformers.__wrapped__(RunOptions)
    assert {item.name for item in fields(made)} == {item.name for item in fields(RunArguments)} - {"label_names"}


def test_every_option_of_ours_says_what_it_is():
    for kind in (DataArguments, ModelArguments, RunOptions):
        assert declarations(kind).keys() == {item.name for item in fields(kind)}
        for item in fields(kind):
            assert item.metadata["help"].startswith(item.metadata["option"].line)
            assert item.metadata["help"].endswith((".", "?")), item.name


def test_options_of_transformers_keep_their_defaults_unless_it_is_said():
    theirs = {item.name: item.default for item in fields(TrainingArguments)}
    other = {item.name for item in fields(RunOptions) if theirs.get(item.name, item.default) != item.default}
    assert other == {
        *("eval_strategy", "learning_rate", "load_best_model_at_end", "logging_strategy", "num_train_epochs"),
        *("eval_accumulation_steps", "hub_strategy"),
        *("per_device_eval_batch_size", "per_device_train_batch_size", "save_strategy", "save_total_limit"),
        "warmup_steps",
    }


@pytest.mark.parametrize("name", ["data_seed", "adam_beta1", "label_smoothing_factor", "seed", "max_steps"])
def test_a_number_out_of_range_is_refused_in_python_too(name, tmp_path):
    with pytest.raises(UserError, match=f"{dashed(name)} -7 is out of range. Give "):
        make_arguments(output_dir=str(tmp_path), **{name: -7})


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.name
)
def test_pages_name_options_of_train_that_exist(page):
    parser = OptionParser((DataArguments, ModelArguments, with_transformers(RunOptions)))
    known = {option for action in parser._actions for option in action.option_strings} | {"--help-all"}
    text = page.read_text(encoding="utf-8")
    for command in re.findall(r"(?:hf-posenc train|-m hf_posenc.cli train)((?:[^`\n#|]|\\\n)*)", text):
        for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", command):
            assert option in known, f"{page.name}: {option} in train{command}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('position_embedding_kwargs={"rms":1,"std":2}', {"position_embedding_kwargs": {"rms": 1, "std": 2}}),
        ('a={"rms": 1, "std": [2, 3]} , b=gelu,c=1e-6', {"a": {"rms": 1, "std": [2, 3]}, "b": "gelu", "c": 1e-6}),
        ('a="x,y=z",b=true,c=null', {"a": "x,y=z", "b": True, "c": None}),
        ("a=007,b=1x,", {"a": "007", "b": "1x"}),
        ("", {}),
        (None, {}),
    ],
)
def test_overrides_may_be_json_with_commas(text, expected):
    assert parse_overrides(text, [*"abc", "position_embedding_kwargs"]) == expected


@pytest.mark.parametrize("text", ["a", "a=1,b", "d=1", '{"a": 1}', 'a={"rms":1,"std"'])
def test_overrides_that_say_nothing_are_refused(text):
    with pytest.raises(UserError, match="--config-overrides .*: give name=value,name=value with fields"):
        parse_overrides(text, "abc")


def test_the_default_of_a_switch_and_json_reach_the_dataclasses(tmp_path):
    options = {"output_dir": str(tmp_path), "position_embedding_kwargs": json.dumps({"std": 1})}
    _, model, training = make_arguments(**options)
    assert (model.position_embedding_kwargs, training.baseline, training.bf16) == ({"std": 1}, True, False)
    with pytest.raises(UserError, match="--rope-parameters '1' is no JSON object"):
        make_arguments(rope_parameters="1", output_dir=str(tmp_path))

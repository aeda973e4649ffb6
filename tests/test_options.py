"""Options are declared once, as fields of one dataclass, which the command line, Python and plans read."""

import re
from dataclasses import asdict, fields
from pathlib import Path

import pytest

import hf_posenc
from hf_posenc import UserError
from hf_posenc.files import write_json
from hf_posenc.options import Options, recorded

pytestmark = pytest.mark.usefixtures("spelt_by_train")


def test_every_option_has_a_help():
    for item in fields(Options):
        *_, option = item.type.__metadata__
        assert option.help, item.name


def test_each_option_by_which_data_is_read_is_one_of_reading():
    """Which options a command has, test_names.py compares with its function."""
    which = ("data", "data_config", "validation", "test", "validation_share", "max_rows", "problem_type")
    rooms = (Path(hf_posenc.__file__).parent / "data").glob("*.py")
    used = {name for room in rooms for name in re.findall(r"\boptions\.(\w+)", room.read_text())}
    assert used & {item.name for item in fields(Options)} - {*which} == {*hf_posenc.options.READING}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        *(({name: -7}, f"--{name.replace('_', '-')} -7 is out of range. Give ") for name in ("seed", "max_steps")),
        ({"seed": 2**32}, "--seed 4294967296 is out of range. Give a whole number from 0 to 4294967295"),
        ({"max_steps": 0}, "--max-steps 0 is out of range. Give a whole number from 1."),
        ({"max_rows": 1.5}, "--max-rows 1.5 is out of range"),
        ({"epochs": "3"}, "--epochs '3' is out of range. Give a positive number"),
        ({"patience": True}, "--patience True is out of range"),
        ({"max_length": 2}, "--max-length 2 is out of range. Give a whole number from 3."),
        ({"validation_share": 1}, "--validation-share 1 is out of range. Give a number from 0 to below 1"),
        ({"learning_rate": float("nan")}, "--learning-rate nan is out of range. Give a number from 0 to 1"),
        ({"word_rate": 1e4}, "--word-rate 10000.0 is out of range. Give a number from 0 to 1000"),
        ({"problem_type": "words"}, "--problem-type 'words' is unknown. Choose one of single_label_classification,"),
        ({"max_steps": 9, "epochs": 1.0}, "--epochs 1.0 has no effect beside --max-steps. Leave it out."),
        ({"size": "huge"}, "--size 'huge' is unknown. Choose one of tiny, mini, small, base."),
        ({"schedule": "steps"}, "--schedule 'steps' is unknown. Choose one of linear, cosine, constant,"),
        ({"delimiter": ";;"}, "--delimiter ';;' can't separate columns. Give one character, or tab."),
        ({"delimiter": '"'}, "--delimiter '\"' can't separate columns."),
        ({"label_delimiter": ""}, "--label-delimiter '' separates no labels. Leave it out"),
        ({"label_names": "yes"}, "--label-names 'yes' must list each label once, in order: no,yes."),
        ({"label_names": "a,b,a"}, "--label-names 'a,b,a' must list each label once, in order: no,yes."),
        ({"scheme_kwargs": "{"}, "--scheme-kwargs '{' is no JSON"),
        ({"scheme_kwargs": "1"}, "--scheme-kwargs '1' is no JSON object. Give one"),
        ({"set": ["a"]}, "--set 'a' assigns nothing. Write --set weight_decay=0.01."),
        ({"": 1}, "Unknown option ''"),
        ({"learnin_rate": 1}, "Unknown option 'learnin_rate'. Did you mean 'learning_rate'? `hf-posenc train --help`"),
        ({"weight_decay": 1}, "fields of TrainingArguments and of the configuration go into --set weight_decay"),
    ],
)
def test_a_value_that_is_not_accepted_is_refused_with_what_is(values, message):
    with pytest.raises(UserError, match=re.escape(message)):
        Options.of(**values)


def test_options_that_are_said_are_told_from_defaults_and_json_is_read():
    words = ["weight-decay=.1", "optim=sgd", 'rope_parameters={"a": 1}', "tf32=False", "run_name=None"]
    options = Options(set=words, scheme_kwargs='{"std": 1}')
    values = {"weight_decay": 0.1, "optim": "sgd", "rope_parameters": {"a": 1}, "tf32": False, "run_name": None}
    assert options.assigned == values
    assert options.changed() == {"set": options.assigned, "scheme_kwargs": {"std": 1}}
    assert Options(**asdict(options)) == options


def test_a_record_names_folders_where_an_option_is_a_path_and_nowhere_else():
    given = {"data": "/home/me/a.csv", "label_names": "/m/01abc,/m/02x", "join": "/ ", "pretrained": "me/mine"}
    kept = {**given, "data": "a.csv"}
    assert recorded({**given, "set": {"deepspeed": "/home/me/ds.json", "seed": 1}}) == {
        **kept,
        "set": {"deepspeed": "ds.json", "seed": 1},
    }
    assert recorded({"data": "sub/a.csv"}, keep_relative=True) == {"data": "sub/a.csv"}


def test_a_file_of_the_longest_name_is_written(tmp_path):
    path = tmp_path / ("é" * 125 + ".json")
    write_json(path, {})
    assert [*tmp_path.iterdir()] == [path]

"""Arguments of another type than the signature says are refused by name, in every public function and option."""

import inspect
from dataclasses import fields
from typing import Any

import pandas as pd
import pytest

import hf_posenc
from hf_posenc import UserError
from hf_posenc.errors import fits
from hf_posenc.options import Options

NEEDED: dict[str, dict[str, Any]] = {
    "train": {"data": "d.csv", "output": "new"},
    "predict": {"checkpoint": "m"},
    "evaluate": {"checkpoint": "m", "data": "d.csv"},
    "load": {"checkpoint": "m"},
    "convert": {"source": "m"},
    "export": {"checkpoint": "m", "output": "new", "to": "onnx"},
    "publish": {"checkpoint": "m", "repo_id": "a/b"},
    "compare": {"data": "d.csv", "output": "new", "schemes": "rope"},
    "plot": {"source": "rope"},
    "check_scheme": {"scheme": "rope"},
}
"""The public functions that do what commands do, with what each needs."""


def of_a_wrong_type() -> list[Any]:
    """Each parameter of each of these functions, with a value of no type that it takes."""
    cases = []
    for name in NEEDED:
        for parameter in inspect.signature(getattr(hf_posenc, name)).parameters.values():
            typed = parameter.annotation not in (Any, inspect.Parameter.empty)
            if typed and parameter.kind is not parameter.VAR_KEYWORD:
                cases.append(pytest.param(name, parameter.name, id=f"{name}-{parameter.name}"))
    return cases


@pytest.mark.parametrize(("function", "parameter"), of_a_wrong_type())
def test_an_argument_of_another_type_is_refused_by_name(function, parameter, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=rf"^{parameter}=.* is of type object\. Give ") as refused:
        getattr(hf_posenc, function)(**{**NEEDED[function], parameter: object()})
    assert refused.value.parameter == parameter
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("name", [item.name for item in fields(Options) if item.name != "set"])
def test_an_option_of_another_type_is_refused_by_name(name):
    with pytest.raises(UserError, match=rf"^{name}=") as refused:
        Options.of(**{name: object()})
    assert refused.value.parameter == name


def test_methods_and_fit_refuse_other_types_too(tmp_path):
    with pytest.raises(UserError, match="^output=3 is of type int"):
        hf_posenc.fit(["a", "b"], [0, 1], output=3)
    with pytest.raises(UserError, match="^overwrite=True is for an output"):
        hf_posenc.fit(["a", "b"], [0, 1], overwrite=True)
    with pytest.raises(UserError, match="^folder=3 is of type int"):
        hf_posenc.Comparison(3)


def test_names_may_be_a_list_and_texts_a_column():
    options = Options.of(text_column=["a", "b,c"], label_names=("no", "yes"))
    assert (options.named_labels, options.text_column) == (("no", "yes"), '["a", "b,c"]')
    assert Options.of(set="weight_decay=0.1").assigned == {"weight_decay": 0.1}
    for table in ({"text": ["a"]}, pd.DataFrame({"text": ["a"]})):
        with pytest.raises(UserError, match="texts is of type .*load.* reads tables"):
            hf_posenc.predict("m", table)
    with pytest.raises(UserError, match="only=\\[\\] names no check"):
        hf_posenc.check_scheme("none", only=[])
    with pytest.raises(UserError, match="texts holds 3, which is no text"):
        hf_posenc.predict("m", pd.Series(["a", 3]))


@pytest.mark.parametrize(("name", "value"), [("batch_size", 0), ("top_k", 0), ("threshold", 2.0)])
def test_a_number_out_of_range_is_refused(name, value, tmp_path):
    with pytest.raises(UserError, match=f"{name}=.* is out of range"):
        hf_posenc.predict(tmp_path, ["a"], **{name: value})


def test_types_that_fit():
    assert fits(1, float)
    assert not fits(True, int)
    assert not fits("ab", list[str])
    assert not fits(["a", 1], list[str])

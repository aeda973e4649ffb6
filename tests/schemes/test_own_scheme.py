"""A scheme from its author's file: registered, trained, saved, used again; what can't work is refused at the start."""

import copy
import importlib
import json
import logging
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn, ones

from hf_posenc import (
    SCHEMES,
    AddedPosition,
    DistanceBias,
    PosEncClassifier,
    PosEncConfig,
    PosEncModel,
    PositionScheme,
    RotatedPosition,
    Tokens,
    UserError,
    convert,
    load,
    register_scheme,
    train,
)
from tests.support.common import schemes_restored, tiny_config
from tests.support.own_schemes import TakesRopeParameters

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "own_scheme" / "recency.py"
MINE = """
import torch
from hf_posenc import PositionScheme

class Mine(PositionScheme):
    def embed(self, x, tokens):
        return x + tokens.positions.unsqueeze(-1) / 100
"""


@pytest.fixture(autouse=True)
def _as_it_was():
    with schemes_restored():
        yield


class Sound(PositionScheme):
    def embed(self, x, tokens):
        return x


def made(monkeypatch, scheme):
    monkeypatch.setitem(SCHEMES, "own", scheme)
    return PosEncModel(PosEncConfig.from_size("tiny", vocab_size=9, position_embedding_type="own"))


def written(folder: Path, text: str, name: str = "mine.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.slow
def test_train_predict_and_plot_take_a_scheme_from_a_file(run, tmp_path):
    out = tmp_path / "run"
    rows = "".join(
        f"{text} {row},{label}\n" for row in range(20) for text, label in (("good film", "yes"), ("bad film", "no"))
    )
    data = written(tmp_path, "text,label\n" + rows, "data.csv")
    arguments = ("--scheme-file", EXAMPLE, "--scheme", "learned+recency", "--data", data)
    code, _, err = run("train", *arguments, "--max-steps", 2, "-o", out, "--set", "position_augmentation=shift")
    assert code == 0, err
    assert json.loads((out / "config.json").read_text())["position_augmentation"] == "shift"
    del SCHEMES["recency"]  # from here on, as in a process that has never seen the file
    untrusted = "trust_remote_code=True); if you have the class"
    more = ("--pretrained", out, "--data", data, "-o", tmp_path / "more")
    for command in (("predict", out, "good film"), ("train", *more)):
        code, _, err = run(*command)
        assert code == 2
        assert untrusted in err
        assert "Traceback" not in err
        assert "damaged" not in err
    with pytest.raises(UserError, match=r"with from_pretrained\(\.\.\., trust_remote_code=True\); if you have"):
        load(out)
    code, text, _ = run("predict", out, "good film", "--trust-remote-code", "--json")
    assert code == 0
    assert json.loads(text)["label"] in ("yes", "no")
    code, _, err = run("evaluate", out, "--data", data, "--trust-remote-code")
    assert code == 0, err
    code, _, err = run("plot", out, "-o", tmp_path / "out.png", "--trust-remote-code")
    assert code == 0, err
    assert (tmp_path / "out.png").stat().st_size > 10_000
    code, text, _ = run("check", "recency", "--scheme-file", EXAMPLE, "--only", "order", "--only", "shift")
    assert code == 0
    assert "2 of 2 checks ran" in text


def test_training_leaves_a_checkpoints_own_scheme_by_its_file(tmp_path):
    file = written(tmp_path, MINE)
    register_scheme(file, "leaves")
    rows = {"text": ["a b", "b a"] * 4, "label": ["x", "y"] * 4}
    data = written(tmp_path, "text,label\n" + "".join(map("{},{}\n".format, *rows.values())), "data.csv")
    given = {"max_steps": 1, "validation_share": 0, "baselines": False, "verbose": 0, "scheme_file": str(file)}
    train(str(data), tmp_path / "own", scheme="leaves", **given)
    del SCHEMES["leaves"]  # as in a process that has never seen the file
    done = train(str(data), tmp_path / "rope", pretrained=str(tmp_path / "own"), scheme="rope", **given)
    assert done.model.config.position_embedding_type == "rope"
    assert "leaves" in SCHEMES
    with pytest.raises(UserError, match="defines leaves, which isn't used"):
        train(str(data), tmp_path / "more", pretrained=str(tmp_path / "rope"), **given)


def test_training_refuses_at_the_start_what_could_not_be_saved_at_the_end(run, tmp_path):
    path = written(tmp_path, "from hf_posenc import PosEncModel\n" + MINE)
    arguments = ("--scheme-file", path, "--scheme", "mine", "--data", "blimp_order")
    code, _, err = run("train", *arguments, "-o", tmp_path / "run")
    assert code == 2
    assert "mine.py, line 1: 'from hf_posenc import PosEncModel' can't travel" in err
    assert not (tmp_path / "run").exists()


def test_a_class_is_named_by_itself_or_by_the_config(tmp_path):
    path = written(tmp_path, MINE + "\nclass Other(Mine):\n    name = 'other'\n", "two.py")
    assert register_scheme(path, "rope+first") == ["first", "other"]
    assert register_scheme(path) == ["first", "other"]  # again: nothing happens
    assert SCHEMES["first"].__name__ == "Mine"


def test_a_class_without_a_name_may_be_the_base_of_others(tmp_path):
    path = written(tmp_path, MINE + "\nclass Based(Mine):\n    name = 'based'\n", "based.py")
    assert register_scheme(path) == register_scheme(path, "based+rope") == ["based"]


@pytest.mark.parametrize(
    ("name", "text", "kind", "message"),
    [
        ("nothing.txt", "", None, "isn't named like a module"),
        ("my-scheme.py", MINE, "mine", "isn't named like a module. Rename it"),
        ("mine.py", "x = 1", "mine", "defines no scheme. It needs a class that inherits"),
        ("mine.py", "import torch\nraise RuntimeError('no')", "mine", "can't be imported: RuntimeError: no"),
        ("mine.py", "def f(:", "mine", "can't be imported: SyntaxError"),
        ("mine.py", MINE, None, "isn't clear what to call Mine.*`name = 'mine'`"),
        ("mine.py", MINE, "rope", "isn't clear what to call Mine"),
        ("mine.py", MINE + "\nclass Second(Mine):\n    pass\n", "mine", "isn't clear what to call Mine, Second"),
        ("mine.py", MINE.replace("def embed", "def forward"), "mine", "Mine overrides no hook"),
        ("mine.py", MINE.replace("def embed", "name = 'rope'\n    def embed"), "mine", "taken by RotaryPosition"),
    ],
)
def test_files_that_hold_no_usable_scheme_are_refused(tmp_path, name, text, kind, message):
    path = written(tmp_path, text, name)
    before = dict(SCHEMES)
    with pytest.raises(ValueError, match=message):
        register_scheme(path, kind)
    assert before == SCHEMES
    with pytest.raises(ValueError, match="is no file"):
        register_scheme(tmp_path / "none.py", kind)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        *((name, "can't name a scheme. Use letters, digits") for name in (5, None, "", "a b", "a+b", "1a")),
        *((name, "is an attribute of PositionScheme") for name in ("bias", "train", "parts", "max_length")),
    ],
)
def test_what_is_no_plain_word_or_taken_names_no_scheme(name, reason):
    with pytest.raises(ValueError, match=re.escape(f"name={name!r} {reason}")):
        register_scheme(type("Mine", (PositionScheme,), {"embed": lambda self, x, tokens: x}), name)


class WithBuffer(Sound):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.zeros(3))


class WithList(Sound):
    def __init__(self, *, num_layers):
        super().__init__()
        self.parts = [nn.Linear(1, 1) for _ in range(num_layers)]


class WithDict(Sound):
    def __init__(self, *, num_layers):
        super().__init__()
        self.parts = {layer: nn.Linear(1, 1) for layer in range(num_layers)}


class Demanding(Sound):
    def __init__(self, *, width):
        super().__init__()


class WithHookForChild(Sound):
    def __init__(self):
        super().__init__()
        self.bias = nn.Embedding(3, 1)


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
        (WithBuffer, "WithBuffer.table is a buffer.*Compute it from Python numbers"),
        (WithList, "WithList.parts is a Python list or dict of modules, whose weights nobody would .*nn.ModuleList"),
        (WithDict, "WithDict.parts is a Python list or dict of modules, whose weights nobody would .*nn.ModuleDict"),
        (Demanding, r"position_embedding_kwargs={} doesn't fit 'own'.*'width'"),
        (WithHookForChild, "WithHookForChild.bias is a child with the name of a hook. Rename it"),
    ],
)
def test_a_buffer_a_list_of_modules_and_the_like_are_refused(monkeypatch, scheme, message):
    with pytest.raises(ValueError, match=message):
        made(monkeypatch, scheme)


@pytest.mark.parametrize(
    ("base", "hook", "result", "message"),
    [
        (PositionScheme, "bias", ones(1, 3, 5, 5), "returns (1, 3, 5, 5). Give (1 or B, 2 or 1, S, S)"),
        (PositionScheme, "bias", ones(1, 1, 6, 6), "returns (1, 1, 6, 6). Give (1 or B, 2 or 1, S, S), S = 5"),
        (PositionScheme, "embed", None, "embed returns None. Give the hidden states back"),
        (DistanceBias, "of_distance", ones(1, 9), "Mine.of_distance returns (1, 9) for 9 distances. Give (R, H)"),
        (DistanceBias, "of_distance", None, "Mine.of_distance returns None for 9 distances"),
        (AddedPosition, "encodings", None, "Mine.encodings must return (..., 128) for positions (...)"),
        (AddedPosition, "encodings", ones(5, 3), "Mine.encodings must return (..., 128) for positions (...)"),
        (RotatedPosition, "angles", None, "Mine.angles must return (..., r/2) for positions (...)"),
        (RotatedPosition, "angles", ones(5, 33), "Mine.angles turns 66 of a head's 64 entries"),
    ],
)
def test_what_a_hook_gives_wrong_is_named(monkeypatch, base, hook, result, message):
    model = made(monkeypatch, type("Mine", (base,), {hook: lambda *_: result}))
    with pytest.raises(ValueError, match=re.escape(message)):
        model(torch.ones(1, 5, dtype=torch.int64))


class OwnStd(Sound):
    def __init__(self, *, std: float = 0.5, rms: float = 3.0):
        super().__init__()
        self.std, self.rms = std, rms


def test_own_arguments_keep_their_defaults_whatever_they_are_called(monkeypatch):
    model = made(monkeypatch, OwnStd)
    assert (model.position.std, model.position.rms) == (0.5, 3.0)
    assert model.config.position_embedding_kwargs == {"std": 0.5, "rms": 3.0}


def test_a_scheme_that_changes_positions_in_place_leaves_the_callers_alone(monkeypatch):
    class Doubles(PositionScheme):
        def embed(self, x, tokens):
            return x + tokens.positions.mul_(2)[..., None]

    positions = torch.arange(5)[None]
    made(monkeypatch, Doubles)(torch.ones(1, 5, dtype=torch.int64), position_ids=positions)
    assert positions.tolist() == [[0, 1, 2, 3, 4]]


@pytest.mark.parametrize("given", [{"scheme": "rope+mine"}, {}], ids=["without a name", "with a name"])
def test_a_checkpoint_of_a_users_own_scheme_is_converted_by_the_file(given, tmp_path):
    path = written(tmp_path, MINE if given else MINE + "    name = 'mine'\n")
    register_scheme(path, "mine")
    config = PosEncConfig.from_size("tiny", vocab_size=9, position_embedding_type="rope+mine")
    PosEncModel(config).save_pretrained(tmp_path / "saved")
    del SCHEMES["mine"]  # as in a process that has never seen the file
    message = "'mine' of its author's own.* scheme_file='mine.py', with scheme='rope\\+mine' if its class has no name"
    with pytest.raises(UserError, match=message):
        convert(tmp_path / "saved", measure=False)
    done = convert(tmp_path / "saved", tmp_path / "out", scheme_file=path, **given, measure=False)
    assert done.model.config.position_embedding_type == "rope+mine"
    assert (tmp_path / "out" / "mine.py").is_file()


def test_a_scheme_file_imports_from_files_beside_it(tmp_path):
    written(tmp_path, "STEP = 7\n", "steps.py")
    path = written(tmp_path, "from .steps import STEP\n" + MINE.replace("100", "STEP"), "stepping.py")
    assert register_scheme(path, "stepping") == ["stepping"]
    model = PosEncModel(PosEncConfig.from_size("tiny", vocab_size=9, position_embedding_type="stepping"))
    model.save_pretrained(tmp_path / "saved")
    assert (tmp_path / "saved" / "steps.py").read_text() == "STEP = 7\n"
    absolute = written(tmp_path, "import steps\n" + MINE, "absolute.py")
    with pytest.raises(ValueError, match="No module named 'steps'. It lies beside the file: write 'from .steps import"):
        register_scheme(absolute, "absolute")


def test_a_scheme_that_is_defined_again_takes_the_place_of_the_one_before():
    """As where a notebook's cell runs twice; another class of that name is still refused."""

    def cell(step):
        class Here(PositionScheme):
            def embed(self, x, tokens):
                return x + step * tokens.positions.unsqueeze(-1)

        register_scheme(Here, "here")
        return PosEncModel(PosEncConfig.from_size("tiny", vocab_size=9, position_embedding_type="here")).position

    first, second = cell(1), cell(2)
    zero, ones = torch.zeros(1, 2, 4), Tokens.from_positions(torch.ones(1, 2, dtype=torch.int64))
    assert float(first.embed(zero, ones).sum()) == 8
    assert float(second.embed(zero, ones).sum()) == 16
    assert SCHEMES["here"] is type(second)

    class Other(type(second)):
        pass

    with pytest.raises(ValueError, match="name='here' is taken by Here"):
        register_scheme(Other, "here")


def test_a_model_is_saved_with_the_code_it_runs_whatever_is_registered_since(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    file = written(tmp_path, MINE.replace("Mine", "Edited"), "edited_scheme.py")
    module = importlib.import_module("edited_scheme")
    register_scheme(module.Edited, "edited")
    config = PosEncConfig.from_size("tiny", vocab_size=9, position_embedding_type="edited")
    first = PosEncModel(config)
    file.write_text(file.read_text().replace("100", "1000"))
    register_scheme(importlib.reload(module).Edited, "edited")
    second = PosEncModel(config)
    for part, step in ((first, "/ 100\n"), (second, "/ 1000\n"), (first, "/ 100\n")):
        part.save_pretrained(tmp_path / "saved")
        assert (tmp_path / "saved" / "edited_scheme.py").read_text().endswith(step)
    PosEncModel(config).config.save_pretrained(tmp_path / "alone")
    assert (tmp_path / "alone" / "edited_scheme.py").read_text().endswith("/ 1000\n")
    assert b"edited_scheme" not in pickle.dumps(config)


HELPED = MINE.replace("x + ", "x + (lambda: 0.5)() * ").replace("Mine", "Stale")


@pytest.mark.parametrize(
    ("old", "new", "is_refused"),
    [("/ 100", "/ 50", True), ("0.5", "0.7", True), ("import torch", "import torch  # as it is\n", False)],
)
def test_a_class_whose_file_was_edited_since_its_import_is_refused(monkeypatch, tmp_path, old, new, is_refused):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "stale_scheme", raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # which shows no edit of the same second and size
    file = written(tmp_path, HELPED, "stale_scheme.py")
    importlib.invalidate_caches()
    module = importlib.import_module("stale_scheme")
    file.write_text(HELPED.replace(old, new))
    if is_refused:
        with pytest.raises(UserError, match="The file of Stale has changed since it was imported. Reload it"):
            register_scheme(module.Stale, "stale")
        assert "stale" not in SCHEMES
        module = importlib.reload(module)
    assert register_scheme(module.Stale, "stale") == ["stale"]


def test_the_class_of_a_module_and_the_same_file_are_one_scheme(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    text = MINE.replace("Mine(PositionScheme):", 'Twice(PositionScheme):\n    name = "twice_read"')
    file = written(tmp_path, text, "twice_scheme.py")
    module = importlib.import_module("twice_scheme")
    assert register_scheme(module.Twice) == register_scheme(file) == ["twice_read"]
    assert SCHEMES["twice_read"] is module.Twice
    other = written(tmp_path, text.replace("100", "50"), "other_scheme.py")
    with pytest.raises(UserError, match="name='twice_read' is taken by Twice"):
        register_scheme(other)
    unnamed = written(tmp_path, MINE, "unnamed_scheme.py")
    register_scheme(importlib.import_module("unnamed_scheme").Mine, "unnamed")
    assert register_scheme(unnamed, "learned+unnamed") == ["unnamed"]


def test_a_pickled_estimator_brings_its_scheme_file(tmp_path, monkeypatch):
    file = written(tmp_path, MINE)
    options = {"scheme": "pickled", "scheme_file": str(file), "max_steps": 1, "validation_share": 0}
    fitted = PosEncClassifier(**options).fit(["a b", "b a"], ["x", "y"])
    assert copy.deepcopy(fitted).get_params() == fitted.get_params()
    for unfitted in (PosEncClassifier(scheme_file=str(file)), PosEncClassifier(scheme_file="gone.py", scheme="rope")):
        assert pickle.loads(pickle.dumps(unfitted)).get_params() == copy.copy(unfitted).get_params()
    before, written_down = fitted.predict_proba(["a b"]), pickle.dumps(fitted)
    for name in [name for name in sys.modules if name.startswith("scheme_files_")]:  # as in another process
        monkeypatch.delitem(sys.modules, name)
    with schemes_restored():
        del SCHEMES["pickled"]
        read = pickle.loads(written_down)
        assert type(read.model_.model.position) is SCHEMES["pickled"] is not type(fitted.model_.model.position)
        assert read.predict_proba(["a b"]) == pytest.approx(before)
        read.save(tmp_path / "saved")
        assert (tmp_path / "saved" / "mine.py").is_file()
        file.unlink()
        copy.deepcopy(read)


def test_a_scheme_of_a_users_own_takes_rope_parameters(tmp_path):
    register_scheme(TakesRopeParameters, "takes_rope")
    for parameters, theta in ((None, 10000.0), ({"rope_theta": 500.0}, 500.0)):
        config = tiny_config("takes_rope", rope_parameters=parameters)
        model = PosEncModel(config)
        assert model.position.theta == theta
        model.save_pretrained(tmp_path / str(theta))
        again = PosEncModel.from_pretrained(tmp_path / str(theta))
        assert again.position.theta == theta
        assert again.config.rope_parameters == config.rope_parameters


@pytest.mark.slow
def test_the_example_does_all_of_it(tmp_path):
    done = subprocess.run(
        [sys.executable, EXAMPLE.with_name("run.py"), "--output", tmp_path / "run", "--max-steps", "3"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={"PATH": "", "HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert "checks ran" in done.stdout
    assert "CombinedPosition" in done.stdout
    assert "'label':" in done.stdout


MAIN = """
import torch
from hf_posenc import *

class Here(PositionScheme):
    def embed(self, x, tokens):
        return x + tokens.positions.unsqueeze(-1)

register_scheme(Here, "here")
model = PosEncModel(PosEncConfig.from_size("tiny", vocab_size=9, position_embedding_type="here"))
print(model(torch.tensor([[1, 2]])).last_hidden_state.shape)
model.save_pretrained("out")
"""


def test_a_class_of_the_main_script_works_but_cannot_be_saved(tmp_path, monkeypatch, capsys, caplog):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    monkeypatch.setitem(SCHEMES, "here", None)
    del SCHEMES["here"]
    with pytest.raises(ValueError, match="Here is defined in __main__, whose code can't travel with a model. Move the"):
        exec(MAIN, {"__name__": "__main__"})
    assert "torch.Size([1, 2, 128])" in capsys.readouterr().out
    assert "Here is defined in __main__, whose code can't be saved with a model. To train" in caplog.text
    assert not (tmp_path / "out").exists()


class Asks(PositionScheme):
    """Writes down what its hooks get, and whether autocast is on."""

    def __init__(self):
        super().__init__()
        self.got, self.seen = {}, {}

    def _note(self, hook, tokens, **more):
        shapes = {name: tuple(getattr(tokens, name).shape) for name in ("positions", "is_first", "sequence", "lengths")}
        self.seen[hook] = tokens.hidden_states
        self.got[hook] = {**shapes, **more, "autocast": torch.is_autocast_enabled("cpu")}

    def embed(self, hidden_states, tokens):
        self._note("embed", tokens, ids=tokens.input_ids.tolist())
        return hidden_states

    def rotary(self, tokens):
        self._note("rotary", tokens, ids=tokens.input_ids.tolist())
        with pytest.raises(ValueError, match="for bias and layer_bias"):
            tokens.distances()

    def rotate(self, q, k, state, layer):
        return q, k

    def bias(self, tokens):
        self._note("bias", tokens, ids=tokens.input_ids.tolist(), distances=tuple(tokens.distances().shape))

    def layer_bias(self, q, k, tokens, layer):
        self._note("layer_bias", tokens, hidden_states=tuple(tokens.hidden_states.shape))


class NoneToo(Asks):
    """Beside another."""


@pytest.mark.parametrize("name", ["asks", "asks+none_too"])
def test_hooks_see_tokens_in_their_own_layout_what_layers_begin_with_and_positions_outside_autocast(name):
    register_scheme(Asks, "asks")
    register_scheme(NoneToo, "none_too")
    model = PosEncModel(PosEncConfig.from_size("tiny", vocab_size=20, position_embedding_type=name)).eval()
    scheme = model.position if name == "asks" else model.position.asks
    ids, mask = torch.tensor([[5, 6, 7], [8, 9, 0]]), torch.tensor([[1, 1, 1], [1, 1, 0]])
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        first = model(ids, attention_mask=mask, output_hidden_states=True).hidden_states[0][mask == 1]
    assert scheme.seen["embed"] is None
    assert torch.equal(scheme.seen["rotary"][0], first)
    assert torch.equal(scheme.seen["bias"][mask == 1], first)
    token = {"positions": (1, 5), "is_first": (1, 5), "sequence": (1, 5), "lengths": (1, 5)}
    rows = {"positions": (1, 3), "is_first": (1, 3), "sequence": (2, 3), "lengths": (2, 3)}
    assert scheme.got == {
        "embed": {**token, "ids": [[5, 6, 7, 8, 9]], "autocast": True},
        "rotary": {**token, "ids": [[5, 6, 7, 8, 9]], "autocast": False},
        "bias": {**rows, "ids": [[5, 6, 7], [8, 9, 0]], "distances": (1, 3, 3), "autocast": False},
        "layer_bias": {**rows, "hidden_states": (2, 3, 128), "autocast": True},
    }

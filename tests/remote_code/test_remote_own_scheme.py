"""A user's own scheme travels with its checkpoint: to those who lack hf_posenc, or the file alone."""

import contextlib
import json
import logging
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModel, AutoModelForSequenceClassification

from hf_posenc import SCHEMES, PosEncConfig, PosEncModel, PositionScheme, Tokens, register_scheme
from tests.support.common import schemes_restored
from tests.support.remote_code import (
    AUTO_MAP,
    BATCH,
    EXAMPLE,
    OWN,
    STRIPES,
    assert_same_outputs,
    code_of,
    outputs,
    own_schemes,
)


@pytest.fixture(scope="module")
def registered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Both schemes are registered, as in their author's process."""
    with own_schemes(tmp_path_factory.mktemp("author")):
        yield


@pytest.fixture
def saved(own: dict[str, tuple[Path, dict[str, Tensor]]], registered: None) -> dict[str, Path]:
    return {name: folder for name, (folder, _) in own.items()}


def schemes_in(folder: Path) -> set[str]:
    """The schemes that a checkpoint's table names."""
    (table,) = re.findall("^SCHEMES = .*", (folder / "scheme_table.py").read_text(), re.MULTILINE)
    return set(re.findall(r"[\"']([\w+]+)[\"']: \w+", table))


def test_what_is_saved_says_what_it_holds(saved):
    for name, folder in saved.items():
        assert schemes_in(folder) == {*OWN[name].split("+"), OWN[name]}
        assert json.loads((folder / "config.json").read_text())["auto_map"] == AUTO_MAP
    folder = saved["two"]
    text = (folder / "stripes.py").read_text()
    assert "hf_posenc" not in text
    expected = STRIPES.replace("from hf_posenc import", "from .scheme_added import")
    assert text == expected.replace("from  hf_posenc.model.scheme_math", "from .scheme_math")
    assert (folder / "stripe_width.py").read_text() == "WIDTH = 3\n"
    expected = EXAMPLE.read_text().replace("from hf_posenc import", "from .scheme_base import")
    assert (folder / "recency.py").read_text() == expected
    assert not list(folder.glob(".*"))


def test_a_configuration_carries_the_code_too(registered, tmp_path):
    config = PosEncConfig(position_embedding_type="recency")
    config.save_pretrained(tmp_path)
    assert (tmp_path / "recency.py").is_file()
    config.position_embedding_type, config.position_embedding_kwargs = "rope", None
    config.save_pretrained(tmp_path)
    assert schemes_in(tmp_path) == {"rope"}


def test_another_scheme_on_loading_leaves_the_code_behind(saved, monkeypatch):
    monkeypatch.delitem(SCHEMES, "recency")
    config = PosEncConfig.from_pretrained(saved["recency"], position_embedding_type="alibi")
    assert set(code_of(PosEncModel(config).config)) == set(code_of(PosEncConfig(position_embedding_type="alibi")))


def test_changed_code_is_loaded_anew(saved, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.delitem(SCHEMES, "recency")
    folder = shutil.copytree(saved["recency"], tmp_path / "checkpoint")
    first = PosEncModel.from_pretrained(folder, trust_remote_code=True)
    text = (folder / "recency.py").read_text()
    (folder / "recency.py").write_text(text.replace("return -self", "return -2 * self"))
    second = PosEncModel.from_pretrained(folder, trust_remote_code=True)
    places = torch.arange(4)[None]
    torch.testing.assert_close(
        second.position.bias(Tokens.from_positions(places)), 2 * first.position.bias(Tokens.from_positions(places))
    )


@pytest.mark.parametrize("name", OWN)
def test_where_hf_posenc_is_installed_a_trusted_checkpoint_answers_and_its_configuration_builds(
    own, registered, name, tmp_path, monkeypatch
):
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    for mine in ("recency", "stripes"):
        monkeypatch.delitem(SCHEMES, mine)
    folder, answers = own[name]
    model = AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=True)
    assert_same_outputs(outputs(model, BATCH), answers)
    untrusted = (
        r"its code \(recency.Recency\) comes with .*trust_remote_code=True.*register_scheme\(Scheme, 'recency'\)"
    )
    with pytest.raises(ValueError, match=untrusted):
        AutoModelForSequenceClassification.from_pretrained(folder)
    config = PosEncConfig.from_pretrained(folder, trust_remote_code=True)
    expected = load_file(folder / "model.safetensors")
    built = AutoModel.from_config(config).state_dict()
    assert {f"model.{key}": weight.shape for key, weight in built.items()} == {
        key: weight.shape for key, weight in expected.items() if key.startswith("model.")
    }
    config.save_pretrained(tmp_path / "config")
    assert (tmp_path / "config" / "recency.py").read_text() == (folder / "recency.py").read_text()
    with pytest.raises(ValueError, match="or the configuration by PosEncConfig, with from_pretrained"):
        AutoModel.from_config(PosEncConfig.from_pretrained(folder))


def own_module(folder: Path, text: str, name: str = "my_scheme.py") -> Path:
    path = folder / name
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    return path


@contextlib.contextmanager
def registered_file(path: Path) -> Iterator[PosEncConfig]:
    """A config whose scheme `mine` is the file's."""
    with schemes_restored(path.stem, "sibling"):
        register_scheme(path, "mine")
        yield PosEncConfig.from_size("tiny", vocab_size=10, position_embedding_type="mine")


GOOD = """
import torch
from hf_posenc import PositionScheme

class Mine(PositionScheme):
    def embed(self, x, tokens):
        return x + tokens.positions.unsqueeze(-1)
"""


INNER = """
from hf_posenc import PositionScheme
def make():
    class Inner(PositionScheme):
        def embed(self, x, tokens):
            return x + 1
    return Inner
Mine = make()
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD, "scheme_factory.py has the name of a file of ours.*Rename it"),
        (
            "from hf_posenc.model.scheme_math import require\nfrom .scheme_math import twice\n" + GOOD,
            "scheme_math.py has the name of a file of ours.*Rename it",
        ),
        ("from .losses import x\n" + GOOD, "losses.py has the name of a file of ours.*Rename it"),
        ("from hf_posenc import PosEncModel\n" + GOOD, r"my_scheme.py, line 1: 'from hf_posenc"),
        ("import hf_posenc.model\n" + GOOD, r"line 1: 'import hf_posenc.model' can't travel"),
        ("from hf_posenc.model.scheme_factory import make_scheme\n" + GOOD, "may import PositionScheme"),
        (GOOD + "    def f(self):\n        import hf_posenc\n", r"'import hf_posenc' can't travel"),
        ('"""It says\nfrom .ghost import nothing\n"""\n' + GOOD, "reads like an import of 'ghost'"),
        (INNER, "defined inside another class or a function"),
        (
            GOOD.replace("import torch\n", "import torch; "),
            "line 2: 'from hf_posenc import PositionScheme' can't travel with a model.* Give it a line of its own",
        ),
        (
            "from hf_posenc.model.scheme_math import __doc__\n" + GOOD,
            "the public names of hf_posenc.model.scheme_math, scheme_network and scheme_vectors, and nothing else",
        ),
        (
            "import sibling\n" + GOOD,
            r"line 1: 'import sibling' can't travel.* sibling needn't be installed .*from .helper import",
        ),
        (
            "x = 1; from .sibling import x\n" + GOOD,
            "'from .sibling import x' can't travel.* first on their line.*a line of its own",
        ),
        ("import torch, einops\n" + GOOD, "einops needn't .*; the standard library, torch, transformers, numpy are"),
    ],
)
def test_code_that_would_not_load_elsewhere_is_refused_before_anything_is_written(tmp_path, monkeypatch, text, message):
    for name in ("sibling.py", "losses.py", "scheme_math.py"):
        (tmp_path / name).write_text("x = twice = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    path = own_module(tmp_path, text, "scheme_factory.py" if text == GOOD else "my_scheme.py")
    with registered_file(path) as config:
        model = PosEncModel(config)
        for save in (model.save_pretrained, model.config.save_pretrained):
            with pytest.raises(ValueError, match=message):
                save(tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "text",
    ["\x0c" + GOOD, '"""\u2028"""\n' + GOOD, "# \x85 \x1c\n" + GOOD, "\ufeff" + GOOD, GOOD.replace("\n", "\r\n")],
)
def test_lines_are_those_that_python_counts(tmp_path, text):
    with registered_file(own_module(tmp_path, text)) as config:
        config.save_pretrained(tmp_path / "out")
    written = (tmp_path / "out" / "my_scheme.py").read_bytes().decode()
    expected = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("from hf_posenc", "from .scheme_base")
    assert written == expected


ADDED = """
class Mine(Added):
    def encodings(self, positions):
        return positions.unsqueeze(-1).expand(*positions.shape, 128).float()
"""


@pytest.mark.parametrize(
    ("imports", "expected"),
    [
        (
            "from hf_posenc import AddedPosition, PositionScheme, RotatedPosition, Tokens\nAdded = AddedPosition\n",
            [
                "from .scheme_added import AddedPosition",
                "from .scheme_base import PositionScheme, Tokens",
                "from .scheme_rotated import RotatedPosition",
            ],
        ),
        (
            "if True:\n    from hf_posenc import (\n        AddedPosition as Added,  # é\n"
            "        RotatedPosition as Rotated,\n        PositionScheme,\n    ); x = 1\n",
            [
                "    from .scheme_added import AddedPosition as Added",
                "    from .scheme_rotated import RotatedPosition as Rotated",
                "    from .scheme_base import PositionScheme; x = 1",
            ],
        ),
        (
            "from hf_posenc import PositionScheme; from hf_posenc import Tokens\n"
            "from hf_posenc import AddedPosition as Added\n",
            ["from .scheme_base import PositionScheme; from .scheme_base import Tokens"],
        ),
    ],
)
def test_one_import_of_what_several_files_have_travels_as_a_line_for_each(imports, expected, tmp_path):
    places = torch.tensor([[1, 2, 3]])
    with registered_file(own_module(tmp_path, imports + ADDED)) as config:
        model = PosEncModel(config).eval()
        model.save_pretrained(tmp_path / "out")
    lines = (tmp_path / "out" / "my_scheme.py").read_text().split("\n")
    first = lines.index(expected[0])
    assert lines[first : first + len(expected)] == expected
    loaded = PosEncModel.from_pretrained(tmp_path / "out", trust_remote_code=True)
    torch.testing.assert_close(loaded(places).last_hidden_state, model(places).last_hidden_state)


def test_a_file_edited_while_its_model_trains_travels_as_it_was(tmp_path):
    path = own_module(tmp_path, GOOD)
    with registered_file(path) as config:
        path.write_text(GOOD.replace("x + tokens.positions", "x - tokens.positions"))
        config.save_pretrained(tmp_path / "out")
    assert "x + tokens.positions" in (tmp_path / "out" / "my_scheme.py").read_text()


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A checkpoint with a scheme `mine` of its own."""
    author = tmp_path / "author"
    author.mkdir()
    with registered_file(own_module(author, GOOD)) as config:
        PosEncModel(config).save_pretrained(tmp_path / "theirs")
    return tmp_path / "theirs"


@pytest.mark.parametrize(
    ("file", "change", "warns"),
    [
        ("my_scheme.py", "", False),
        ("my_scheme.py", "x - tokens.positions", True),
        ("other.py", "x - tokens.positions", True),
    ],
)
def test_a_registered_scheme_that_differs_from_the_checkpoints_is_said_and_saved(
    file, change, warns, theirs, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    ours = GOOD.replace("x + tokens.positions", change or "x + tokens.positions")
    with registered_file(own_module(tmp_path, ours, file)):
        model = PosEncModel.from_pretrained(theirs)
        model.save_pretrained(tmp_path / "again")
    assert (change or "x + tokens.positions") in (tmp_path / "again" / file).read_text()
    lines = [line for line in caplog.messages if "'mine'" in line]
    assert len(lines) == warns
    if warns:
        assert "my_scheme.py" in lines[0]
        assert str(theirs) in lines[0]
        assert f"{Path(file).stem}.Mine, which is registered here, runs, and is what saving writes" in lines[0]
        assert "in a process that doesn't register 'mine', with trust_remote_code=True" in lines[0]


def test_a_class_of_the_main_module_that_stands_in_for_the_checkpoints_is_said(theirs, monkeypatch, caplog):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    embed = {"embed": lambda self, x, positions: x, "__module__": "__main__"}
    monkeypatch.setitem(SCHEMES, "mine", type("Mine", (PositionScheme,), embed))
    PosEncModel.from_pretrained(theirs)
    assert "my_scheme.py" in caplog.text
    assert "__main__.Mine, which is registered here, runs" in caplog.text

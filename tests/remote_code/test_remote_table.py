"""A checkpoint carries the code that it uses, and no more; its table names the schemes, and is believed only as far."""

import importlib
import json
import secrets
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.dynamic_module_utils import get_class_from_dynamic_module

from hf_posenc import SCHEMES, PosEncConfig, PosEncModel, PositionScheme, register_scheme
from tests.support.common import perturb, schemes_restored, tiny_config
from tests.support.remote_code import AUTO_MAP, BUILTIN, CODE, HEAD, code_of, tiny_model

MODEL = {
    f"{name}.py" for name in ("modeling_posenc", "configuration_posenc", "attention", "unpadding", "scheme_factory")
}
MODEL |= {"losses.py", "scheme_base.py", "scheme_math.py", "scheme_table.py", "seam.py"}
PLACES = torch.arange(6)[None]
GONE = "from .gone import Mine\nSCHEMES = {'mine': Mine}\n"
TOOLS = {
    "scheme_vectors.py": {"sinusoidal", "lspe", "fourier"},
    "scheme_network.py": {"lspe", "fourier", "fire", "mlp_bias"},
    "scheme_distance.py": {"relative_key", "relative_key_query"},
}

MINE = """
from hf_posenc import PositionScheme
from .mine_step import STEP

class Mine(PositionScheme):
    def embed(self, hidden_states, tokens):
        return hidden_states + STEP * tokens.positions.unsqueeze(-1)
"""


@pytest.mark.parametrize("scheme", [*BUILTIN, "learned+t5"])
def test_a_checkpoint_has_the_code_of_its_own_schemes_alone(scheme):
    classes = {base for name in scheme.split("+") for base in SCHEMES[name].__mro__}
    own = {f"{base.__module__.rpartition('.')[2]}.py" for base in classes if issubclass(base, PositionScheme)}
    own |= {file for file, names in TOOLS.items() if names & {*scheme.split("+")}}
    if "+" in scheme:
        own |= {"scheme_combined.py"}
    assert set(code_of(tiny_config(scheme))) == MODEL | own


MOST_LINES = {"rope": 2580, "learned": 2365}
"""Whoever trusts a checkpoint has to read all of this first, so it is kept short."""


@pytest.mark.parametrize("scheme", MOST_LINES)
def test_what_has_to_be_read_before_a_checkpoint_is_trusted_is_short(scheme):
    lines = {name: len(text.splitlines()) for name, text in code_of(tiny_config(scheme)).items()}
    assert sum(lines.values()) <= MOST_LINES[scheme], lines
    assert lines["configuration_posenc.py"] <= 251
    assert lines["modeling_posenc.py"] <= 630
    assert lines["scheme_table.py"] <= 8


def test_all_of_the_folder_travels():
    configs = [tiny_config(scheme) for scheme in (*BUILTIN, "learned+t5")]
    configs.append(tiny_config("rope", position_augmentation="shift", token_dropout=3))
    travelling = set().union(*(code_of(config) for config in configs))
    assert {path.name for path in CODE.glob("*.py")} - travelling == {"__init__.py"}


@pytest.mark.parametrize("augmentation", ["none", "shift", "random"])
def test_a_checkpoint_has_the_position_augmentation_that_it_was_saved_with(tmp_path, augmentation):
    config = tiny_config("learned", position_augmentation=augmentation, hidden_dropout_prob=0.0)
    model = PosEncModel(config)
    model.save_pretrained(tmp_path)
    assert (tmp_path / "augmentation.py").exists() == (augmentation != "none")
    bundled = get_class_from_dynamic_module("modeling_posenc.PosEncModel", str(tmp_path)).from_pretrained(tmp_path)
    others = {"shift", "random"} - {augmentation}
    for other in others:
        with pytest.raises(ValueError, match=f"position_augmentation='{other}' is unknown. Choose one of none"):
            bundled.config.position_augmentation = other
    ids = torch.arange(2, 12)[None]
    outputs = []
    for each in (model, bundled):
        torch.manual_seed(0)
        outputs.append(each.train()(ids)[0])
    torch.testing.assert_close(*outputs, atol=1e-6, rtol=1e-6)
    assert torch.allclose(outputs[1], bundled.eval()(ids)[0], atol=1e-6) == (augmentation == "none")


def test_a_checkpoint_has_token_dropout_where_it_was_trained_with_it(tmp_path):
    """As ESM-2 was: the mask token is 3."""
    ids = torch.tensor([[5, 3, 7, 3, 9, 4]])
    outputs = []
    for mask_token in (None, 3):
        folder = tmp_path / str(mask_token)
        model = perturb(PosEncModel(tiny_config("rope", token_dropout=mask_token))).eval()
        model.save_pretrained(folder)
        assert (folder / "token_dropout.py").exists() == (mask_token is not None)
        bundled = get_class_from_dynamic_module("modeling_posenc.PosEncModel", str(folder)).from_pretrained(folder)
        assert type(bundled.config) is not PosEncConfig
        outputs.append(bundled.eval()(ids)[0])
        torch.testing.assert_close(outputs[-1], model(ids)[0], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(*outputs, atol=1e-3)


def test_a_checkpoints_own_code_computes_a_gated_network(tmp_path):
    model = perturb(PosEncModel(tiny_config("rope", mlp_gated=True, attention_bias=False))).eval()
    model.save_pretrained(tmp_path)
    bundled = get_class_from_dynamic_module("modeling_posenc.PosEncModel", str(tmp_path)).from_pretrained(tmp_path)
    assert type(bundled.config) is not PosEncConfig
    assert bundled.tp_plan.keys() == model.tp_plan.keys() >= {"layers.*.up"}
    ids = torch.arange(2, 12)[None]
    # In float64: in float32 the package's kernels round otherwise, by 1.1e-6 on some processors.
    torch.testing.assert_close(bundled.eval().double()(ids)[0], model.double()(ids)[0], atol=1e-12, rtol=1e-12)


def author(folder: Path, step: int, table: str | None = None) -> Path:
    """A checkpoint with a scheme `mine` of its author's own, in two files."""
    source = folder / "author"
    source.mkdir(parents=True)
    (source / "mine.py").write_text(MINE)
    (source / "mine_step.py").write_text(f"STEP = {step}\n")
    with schemes_restored("author"), pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        register_scheme(importlib.import_module("author.mine").Mine, "mine")
        tiny_model("mine", HEAD).save_pretrained(folder / "checkpoint")
    if table is not None:
        (folder / "checkpoint" / "scheme_table.py").write_text(table)
    return folder / "checkpoint"


def added(model: Any) -> Tensor:
    return model.base_model.position.embed(torch.zeros(1, 6, 4), SimpleNamespace(positions=PLACES))


def test_schemes_of_one_name_are_never_mixed_up(tmp_path):
    folders = [author(tmp_path / str(step), step) for step in (1, 2)]
    models = [PosEncModel.from_pretrained(folder, trust_remote_code=True) for folder in folders]
    for number in (0, 1, 0):
        again = PosEncModel.from_pretrained(folders[number], trust_remote_code=True)
        models[number].save_pretrained(tmp_path / "again")
        saved = PosEncModel.from_pretrained(tmp_path / "again", trust_remote_code=True)
        for model in (models[number], again, saved, PosEncModel(models[number].config)):
            assert torch.equal(added(model), (number + 1.0) * PLACES.unsqueeze(-1).expand(1, 6, 4))
    other = PosEncModel.from_pretrained(folders[1], config=models[0].config, trust_remote_code=True)
    assert torch.equal(added(other)[..., 0], 2.0 * PLACES)
    back = PosEncModel.from_pretrained(folders[0], config=other.config, trust_remote_code=True)
    assert torch.equal(added(back)[..., 0], 1.0 * PLACES)
    config = PosEncConfig.from_pretrained(folders[0], trust_remote_code=True)
    for number, folder in enumerate(folders, start=1):
        of_config = PosEncModel.from_pretrained(folder, config=config, trust_remote_code=True)
        assert torch.equal(added(of_config)[..., 0], float(number) * PLACES)
    assert "mine" not in SCHEMES


def test_the_table_is_that_of_the_checkpoints_revision(tmp_path):
    cached = tmp_path / "hub" / "models--me--mine"
    commits = {step: secrets.token_hex(20) for step in (1, 2)}  # transformers keeps a commit's code between processes
    for step, commit in commits.items():
        shutil.copytree(author(tmp_path / str(step), step), cached / "snapshots" / commit)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(commits[2])
    options: dict[str, Any] = {"cache_dir": tmp_path / "hub", "local_files_only": True, "trust_remote_code": True}
    for step, revision in ((2, "main"), (1, commits[1]), (2, commits[2])):
        model = PosEncModel.from_pretrained("me/mine", revision=revision, **options)
        assert torch.equal(added(model)[..., 0], step * PLACES.float())


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (GONE, "scheme_table.py, which names its code, can't be .*gone.py"),
        ("def f(:", "position_embedding_type='mine' is unknown.*Nor is it in the scheme_table.py of"),
        ("SCHEMES = {}\n", "position_embedding_type='mine' is unknown.*Nor is it in the scheme_table.py of"),
    ],
)
def test_a_table_that_is_wrong_is_said_in_one_sentence(tmp_path, table, message):
    folder = author(tmp_path, 1, table)
    with pytest.raises(ValueError, match=message):
        PosEncModel.from_pretrained(folder, trust_remote_code=True)


@pytest.fixture
def bundled(tmp_path: Path) -> Any:
    """The model's class of a checkpoint with RoPE, as strangers have it."""
    tiny_config("rope").save_pretrained(tmp_path / "rope")
    return get_class_from_dynamic_module("modeling_posenc.PosEncModel", str(tmp_path / "rope"))


def test_the_checkpoints_own_class_says_what_its_table_lacks(bundled):
    bundled(bundled.config_class())
    message = "'alibi' isn't in this checkpoint's scheme_table.py.*import hf_posenc"
    with pytest.raises(ValueError, match=message):
        bundled(bundled.config_class(position_embedding_type="alibi"))
    assert not hasattr(bundled.config_class, "from_size")  # hf_posenc has the sizes
    config = bundled.config_class(position_embedding_type="rope", position_embedding_kwargs={"std": 1})
    with pytest.raises(ValueError, match="'std': 1.*doesn't fit 'rope':.*arguments and defaults are {'interleaved'"):
        bundled(config)


def test_the_checkpoints_own_class_names_the_code_and_saves_what_lies_beside_it(bundled, tmp_path):
    config = bundled.config_class(auto_map={"AutoModel": "me/code--modeling_posenc.PosEncModel"})
    config.save_pretrained(tmp_path / "again")
    assert config.auto_map == AUTO_MAP
    written = {path.name: path.read_text() for path in (tmp_path / "again").glob("*.py")}
    assert written.keys() >= MODEL
    del written["scheme_table.py"]
    assert written == {name: (CODE / name).read_text() for name in written}


@pytest.mark.parametrize("config", [None, "{}", "[]", '{"model_type": "bert"}'])
def test_code_is_not_saved_over_files_of_others(tmp_path, config):
    model = PosEncModel(tiny_config("rope"))
    theirs = {"attention.py": "x = 1\n"} | ({"config.json": config} if config else {})
    for name, text in theirs.items():
        (tmp_path / name).write_text(text)
    for save in (model.save_pretrained, model.config.save_pretrained):
        with pytest.raises(ValueError, match=r"holds no checkpoint of ours, but a file attention\.py.* another folder"):
            save(tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == theirs
    (tmp_path / "attention.py").write_text((CODE / "attention.py").read_text())
    model.save_pretrained(tmp_path)
    (tmp_path / "attention.py").write_text("x = 1\n")  # as an older version had it
    model.save_pretrained(tmp_path)
    assert (tmp_path / "attention.py").read_text() == (CODE / "attention.py").read_text()


def test_a_scheme_is_not_saved_over_its_own_source(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(MINE.replace("from .mine_step import STEP\n", "STEP = 1\n"))
    written = file.read_text()
    with schemes_restored("mine"):
        register_scheme(file, "mine")
        with pytest.raises(
            ValueError, match=r"holds the file that a scheme was imported from.* Save into another folder"
        ):
            tiny_config("mine").save_pretrained(tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["mine.py"]
    assert file.read_text() == written


def test_a_scheme_that_this_version_lacks_says_which_has_it(tmp_path):
    PosEncModel(PosEncConfig.from_size("tiny", position_embedding_type="alibi")).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for version, needs in (("9.1.0", True), ("0.0.1", False)):
        (tmp_path / "config.json").write_text(
            json.dumps({**config, "position_embedding_type": "wavelet", "posenc_version": version})
        )
        with pytest.raises(ValueError, match="'wavelet' is unknown") as error:
            PosEncModel.from_pretrained(tmp_path)
        assert ("It needs hf_posenc 9.1.0, which wrote it; this is " in str(error.value)) == needs

"""`--scheme-file`: a scheme of one's own is compared like any other, and never with runs of another version of it."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from comparison_harness import TOY, quiet, read_run, toy

from hf_posenc import POSITIONS, PosEncConfig, register_scheme_file
from hf_posenc.comparison import execute, load_plan, load_runs, read_plan
from hf_posenc.comparison.report import write_report
from hf_posenc.errors import UserError

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_scheme" / "recency.py"


@pytest.fixture(autouse=True)
def forget():
    """What a process has registered and imported ends with it."""
    before, modules = dict(POSITIONS), set(sys.modules)

    def end():
        POSITIONS.clear()
        POSITIONS.update(before)
        for name in ("recency", "mine"):
            if name not in modules:
                sys.modules.pop(name, None)

    yield end
    end()


@pytest.fixture
def own(tmp_path):
    """A copy of the example, to be edited."""
    return Path(shutil.copy(EXAMPLE, tmp_path / "recency.py"))


@pytest.mark.slow
def test_a_scheme_from_a_file_is_compared(tmp_path, own, forget, command):
    (tmp_path / "plan.yaml").write_text(json.dumps({**TOY, "schemes": ["none"]}))  # JSON is YAML
    results, words = tmp_path / "out", ["--schemes", "none,recency", "--scheme-file", own]
    code, _, err = command("compare", "-o", results, "--plan", tmp_path / "plan.yaml", *words)
    assert code == 0, err
    none, recency = (read_run(results, f"probes-{name}-seed0") for name in ("none", "recency"))
    assert none["status"] == recency["status"] == "done"
    assert recency["positional_parameters"] == 2
    (file,) = load_plan(results).scheme_files
    assert (file.path, file.schemes) == (str(own), ("recency",))
    assert recency["settings"]["scheme_code"] == {"recency": file.sha256}
    assert "scheme_code" not in none["settings"]

    # The report needs neither the file nor the class.
    forget()
    own.unlink()
    pytest.importorskip("matplotlib")
    assert "`recency`" in write_report(results).read_text()


def test_runs_of_an_edited_file_are_refused(tmp_path, own, forget, pretended):
    fields = {"schemes": ["none", "recency"], "scheme_files": str(own)}
    execute(toy(**fields), tmp_path / "out", console=quiet())
    assert len(execute(toy(**fields), tmp_path / "out", console=quiet()).skipped) == 2  # the same again
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(tmp_path / "out", elsewhere)

    own.write_text(own.read_text() + "# edited\n")
    with pytest.raises(UserError, match="has changed since this process read it. Start a new one"):
        toy(**fields)
    forget()
    edited = toy(**fields)
    with pytest.raises(UserError, match="holds another plan: it differs in the code of recency. Runs of both don't"):
        execute(edited, tmp_path / "out", console=quiet())
    # Without the scheme the folder can be used, and keeps what it says of it.
    execute(toy(schemes=["t5"]), tmp_path / "out", console=quiet())
    assert load_plan(tmp_path / "out").schemes == ("none", "recency", "t5")
    assert load_plan(tmp_path / "out").code().keys() == {"recency"}
    with pytest.raises(UserError, match="isn't the one that the plan names: its content has changed"):
        read_plan(load_plan(tmp_path / "out").to_dict())

    # Merged by hand: a run of the edited file among those of the first.
    execute(edited, tmp_path / "new", console=quiet())
    name = "runs/probes-recency-seed0"
    shutil.copytree(tmp_path / "new" / name, elsewhere / name, dirs_exist_ok=True)
    with pytest.raises(UserError, match="probes-recency-seed0' is a run of another plan .* differs in scheme_code"):
        load_runs(elsewhere, load_plan(elsewhere))


def test_a_plan_is_the_same_after_its_json(own):
    plan = toy(schemes=["none", "recency", "learned+recency"], scheme_files=[str(own)])
    assert plan.settings("learned+recency") == plan.settings("recency") != plan.settings("none")
    assert "scheme_files" in plan.to_dict()
    assert "scheme_files" not in toy().to_dict()
    assert read_plan(plan.to_dict()) == plan
    assert read_plan(plan.to_dict(), checked=False) == plan


def test_a_checkpoint_of_ones_own_scheme_needs_the_file(tmp_path, own, forget):
    fields = {"schemes": ["recency"], "pretrained": str(tmp_path / "{scheme}")}
    register_scheme_file(own, "recency")
    PosEncConfig.from_preset("tiny", position_embedding_type="recency").save_pretrained(tmp_path / "recency")
    assert toy(**fields, scheme_files=[str(own)]).code().keys() == {"recency"}
    forget()
    with pytest.raises(UserError, match="isn't a scheme of hf_posenc. Give the file that defines it: --scheme-file"):
        toy(**fields)


MINE = """
from hf_posenc import PositionScheme


class Mine(PositionScheme):
    def embed(self, x, tokens):
        return x + 1
"""


@pytest.mark.parametrize(
    ("text", "schemes", "message"),
    [
        (None, ["none", "mine"], "mine.py' is no file"),
        ("x = 1\n", ["none", "mine"], "defines no scheme"),
        ("import nothing_like_this\n", ["none", "mine"], "can't be imported: ModuleNotFoundError"),
        (MINE + "    name = 'mine'\n", ["none", "rope"], "defines mine, and the schemes are"),
        (MINE, ["none", "rope"], "it isn't clear what to call Mine"),
        (MINE, ["none", "mine", "other"], "it isn't clear what to call Mine"),
        (MINE + "    name = 'rope'\n", ["none", "rope"], "name='rope' is taken"),
        (MINE.replace("import P", "import PosEncModel, P"), ["none", "mine"], "can't travel with a model"),
        (MINE + "    def __init__(self): 1 / 0\n", ["none", "mine"], "'mine' can't be built: ZeroDivisionError"),
    ],
)
def test_files_that_can_not_be_compared_are_refused_before_any_run(tmp_path, text, schemes, message):
    path = tmp_path / "mine.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=message):
        toy(schemes=schemes, scheme_files=[str(path)])

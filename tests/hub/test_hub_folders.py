"""What is published, exported or recorded of a comparison names no folder of the machine that made it."""

from collections.abc import Callable
from pathlib import Path

import pytest

import hf_posenc

SECRET = "customer_acme_secret"
SMALL = "--max-steps 1 --no-bf16 --device cpu"
TRAIN = f"train --data {{here}}/d.csv {SMALL} -o {{here}}"
HEAL = "convert {here}/trained --scheme alibi --heal {here}/d.csv --max-steps 1 -o {here}"
PUBLISHED = {
    "trained": [],
    "further": [f"{TRAIN}/further --pretrained {{here}}/trained --tokenizer {{here}}/trained"],
    "swapped": [f"{TRAIN}/swapped --pretrained {{here}}/trained --scheme alibi --allow-other-tokens"],
    "converted": ["convert {here}/trained -o {here}/converted"],
    "healed": [f"{HEAL}/healed --eval-texts {{here}}/e.csv"],
    "of healed": [f"{HEAL}/healed", f"{TRAIN}/of_healed --pretrained {{here}}/healed --test {{here}}/e.csv"],
}
"""How checkpoints come about, after the first training; the last words name the folder."""
BERT = "--scheme learned --set norm_position=post --set classifier_pooling=cls --set classifier_hidden_act=tanh"
EXPORTED = {
    "native": "--to native",
    "onnx": "--to onnx",
    "int8": "--to onnx --quantize int8 --evaluate {here}/e.csv --largest-drop 1",
}


@pytest.fixture
def command(run, tmp_path, monkeypatch) -> Callable[[str], str]:
    """Runs a command on a trained checkpoint in a folder whose name is to stay here, which is `{here}`."""
    here = tmp_path / "home_of_somebody" / SECRET
    here.mkdir(parents=True)
    for name in ("d", "e"):
        rows = "".join(f"a good film {name}{number},g\na bad film {name}{number},b\n" for number in range(20))
        (here / f"{name}.csv").write_text(f"text,label\n{rows}")
    monkeypatch.setenv("HOME", str(here.parent))
    monkeypatch.chdir(here)

    def call(words: str) -> str:
        code, out, err = run(*words.format(here=here).split())
        assert code == 0, err
        return out

    call(f"{TRAIN}/trained --validation {{here}}/e.csv {BERT}")
    return call


def named_in(path: Path, tmp_path: Path) -> list[str]:
    """The folders of this machine that a file names."""
    package = str(Path(hf_posenc.__file__).parent.parent)
    return [name for name in (SECRET, "home_of_somebody", str(tmp_path), package) if name.encode() in path.read_bytes()]


def check_published(command: Callable[[str], str], folder: Path, tmp_path: Path) -> None:
    line = command(f"publish {folder} --repo-id me/mine --dry-run").splitlines()[0]
    sent = line.removeprefix("Would be sent: ").replace("README.md", "README.hub.md").split(", ")
    files = [folder / name for name in sent if name != "SHA256SUMS"]
    assert {"config.json", "README.hub.md"} <= {path.name for path in files}
    others = [path for path in (folder / "conversion.json", folder / "README.md") if path.is_file()]
    assert {path.name: named_in(path, tmp_path) for path in (*files, *others) if named_in(path, tmp_path)} == {}


@pytest.mark.parametrize(
    "kind", [kind if kind == "further" else pytest.param(kind, marks=pytest.mark.slow) for kind in PUBLISHED]
)
def test_what_is_published_names_no_folder_of_this_machine(kind, command, tmp_path):
    for words in PUBLISHED[kind]:
        command(words)
    check_published(command, Path(kind.replace(" ", "_")).absolute(), tmp_path)


@pytest.mark.slow
def test_what_fit_saves_names_no_folder_of_this_machine(command, tmp_path):
    options = {"pretrained": str(Path("trained").absolute()), "max_steps": 1, "bf16": False, "device": "cpu"}
    fitted = hf_posenc.fit([f"a film {number}" for number in range(40)], ["g", "b"] * 20, baselines=False, **options)
    fitted.save(Path("fitted").absolute())
    check_published(command, Path("fitted").absolute(), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("words", EXPORTED.values(), ids=EXPORTED)
def test_what_is_exported_names_no_folder_of_this_machine(words, command, tmp_path):
    pytest.importorskip("onnx")
    command(f"export {{here}}/trained -o {{here}}/exported {words}")
    files = [path for path in Path("exported").rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"config.json", "README.md"}
    assert {str(path): named_in(path, tmp_path) for path in files if named_in(path, tmp_path)} == {}


@pytest.mark.slow
def test_what_a_comparison_records_names_no_folder_and_the_same_command_goes_on(command, tmp_path):
    options = '{"max_steps":1,"tokenizer":"TOKENIZER"}'.replace("TOKENIZER", str(Path("trained").absolute()))
    words = "compare -o {here}/compared --data {here}/d.csv --pretrained {here}/trained --seeds 1 --options"
    words += f" {options.replace('{', '{{').replace('}', '}}')} --schemes"
    assert "2 runs made" in command(f"{words} none,learned")
    assert "1 runs made, 2 were there" in command(f"{words} none,learned,alibi")
    records = [path for path in Path("compared").rglob("*") if path.suffix in (".json", ".csv", ".png")]
    assert {path.name for path in records} >= {"plan.json", "results.csv", "d-alibi-seed0.json"}
    assert {str(path): named_in(path, tmp_path) for path in records if named_in(path, tmp_path)} == {}

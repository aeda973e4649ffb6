"""What people install is the wheel: it holds the package, all of it, and works without the checkout."""

import ast
import importlib.metadata
import importlib.util
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from safetensors.torch import load_file, save_file

from tests.support.common import tiny_config
from tests.support.remote_code import BATCH, BUILTIN, PROJECT, clean_environment, code_of

ROOT, MINILM = Path(__file__).parents[2], "sentence-transformers/all-MiniLM-L6-v2"

USE = """
import sys
import torch
import transformers
from safetensors.torch import load_file, save_file
import hf_posenc

batch = load_file("batch.safetensors")
found = {}
for scheme in hf_posenc.SCHEMES:
    config = hf_posenc.PosEncConfig.from_size("tiny", vocab_size=100, position_embedding_type=scheme)
    model = hf_posenc.PosEncForSequenceClassification(config).eval()
    model.save_pretrained(scheme)
    again = transformers.AutoModelForSequenceClassification.from_pretrained(scheme)
    assert type(again) is hf_posenc.PosEncForSequenceClassification
    with torch.no_grad():
        found[scheme + " built"] = model(**batch).logits
        found[scheme + " loaded"] = again(**batch).logits
save_file(found, "logits.safetensors")
print(hf_posenc.__file__, hf_posenc.__version__)
"""


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=clean_environment(cwd / "home"),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, f"{command} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("wheel")
    # With the build backend at hand nothing has to be downloaded.
    isolation = ["--no-isolation"] if importlib.util.find_spec("hatchling") else []
    run(sys.executable, "-m", "build", "--wheel", *isolation, "--outdir", place, ROOT, cwd=place)
    return next(place.glob("hf_posenc-*.whl"))


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    metadata = {name for name in names if name.partition("/")[0].endswith(".dist-info")}
    sources = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "hf_posenc").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {"hf_posenc/py.typed", "hf_posenc/model/modeling_posenc.py"} <= sources
    assert names - metadata == sources
    assert any(name.endswith("licenses/LICENSE") for name in metadata)
    assert any(name.endswith("licenses/hf_posenc/data/blimp_order/README.md") for name in metadata)
    assert wheel.stat().st_size < 1e6
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, cwd=ROOT)


def test_every_page_names_the_same_version(wheel):
    version = wheel.name.split("-")[1]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {version} " in (ROOT / "CHANGELOG.md").read_text()


@pytest.fixture(scope="session")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment in which the wheel is installed."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=home).strip())
    # The dependencies are those of this environment: a folder on sys.path whose own .pth files aren't read.
    (site / "dependencies.pth").write_text(str(Path(torch.__file__).parents[1]) + "\n")
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=home)
    return python


@pytest.mark.slow
def test_the_wheel_works_without_the_checkout(wheel, python, tmp_path):
    save_file(BATCH, tmp_path / "batch.safetensors")
    file, version = run(python, "-c", USE, cwd=tmp_path).split()[-2:]
    assert Path(file).is_relative_to(python.parents[1])
    assert wheel.name.startswith(f"hf_posenc-{version}-")
    logits = load_file(tmp_path / "logits.safetensors")
    for scheme in BUILTIN:
        torch.testing.assert_close(logits[f"{scheme} loaded"], logits[f"{scheme} built"], rtol=0, atol=1e-6)
        code = code_of(tiny_config(scheme))
        assert {path.name: path.read_text() for path in (tmp_path / scheme).glob("*.py")} == code


@pytest.mark.slow
def test_the_script_for_uv_trains_with_the_wheel(python, tmp_path):
    script = ROOT / "examples" / "train_uv.py"
    (header,) = re.findall(r"^# /// script\n(.*?)^# ///$", script.read_text(), re.DOTALL | re.MULTILINE)
    asked = tomllib.loads(re.sub("^# ?", "", header, flags=re.MULTILINE))
    assert [Requirement(line).name for line in asked["dependencies"]] == ["hf-posenc"]
    rows = "".join(f"{word} film {n},{word}\n" for n in range(20) for word in ("good", "bad"))
    (tmp_path / "mine.csv").write_text(f"text,label\n{rows}")
    words = "--data mine.csv --output runs/mine --pretrained none --epochs 1".split()
    assert "accuracy" in run(python, script, *words, cwd=tmp_path)
    code = code_of(tiny_config("rope"))
    assert {path.name: path.read_text() for path in (tmp_path / "runs/mine").glob("*.py")} == code


def test_the_wheel_requires_all_that_the_package_imports():
    """What modules import at their beginning, without an extra."""
    required = {canonicalize_name(Requirement(line).name) for line in PROJECT["dependencies"]}
    distributions = importlib.metadata.packages_distributions()
    missing = set()
    for path in (ROOT / "hf_posenc").rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and not node.level else []
            packages = {name.partition(".")[0] for name in names} - {"hf_posenc", *sys.stdlib_module_names}
            missing |= {name for name in packages if not required & {*map(canonicalize_name, distributions[name])}}
    assert missing == {"ray"}  # of a module that is imported where `ray` is asked for

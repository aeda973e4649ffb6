"""What people install is the wheel: it holds the package, all of it, and works without the checkout."""

import importlib.util
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
import torch
from common import tiny_config
from remote_code_harness import BATCH, BUILTIN, clean_environment
from safetensors.torch import load_file, save_file

from hf_posenc.schemes.support import code_files

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


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
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


def test_every_page_names_the_same_version(wheel: Path) -> None:
    version = wheel.name.split("-")[1]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {version} " in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.slow
def test_the_wheel_works_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    home = tmp_path / "environment"
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    # The dependencies are those of this environment: a folder on sys.path whose own .pth files aren't read.
    (site / "dependencies.pth").write_text(str(Path(torch.__file__).parents[1]) + "\n")
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    save_file(BATCH, tmp_path / "batch.safetensors")
    file, version = run(python, "-c", USE, cwd=tmp_path).split()[-2:]
    assert Path(file) == site / "hf_posenc" / "__init__.py"
    assert wheel.name.startswith(f"hf_posenc-{version}-")
    logits = load_file(tmp_path / "logits.safetensors")
    for scheme in BUILTIN:
        torch.testing.assert_close(logits[f"{scheme} loaded"], logits[f"{scheme} built"], rtol=0, atol=1e-6)
        code = code_files(tiny_config(scheme))
        assert {path.name: path.read_text() for path in (tmp_path / scheme).glob("*.py")} == code
    start = (ROOT / "docs" / "index.md").read_text()
    ((code, output),) = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", start, flags=re.DOTALL)
    assert run(python, "-c", code, cwd=tmp_path) == output


@pytest.fixture
def uv(tmp_path: Path) -> dict[str, str]:
    """The environment of a `uv run` that finds packages where pip does; skips without uv.

    pip's folders of wheels go first: on a machine whose PyTorch came from one, uv doesn't download gigabytes for GPUs.
    """
    if not shutil.which("uv", path=Path(sys.executable).parent):
        pytest.skip("uv isn't installed: it is in the extra dev.")
    of_pip = run(sys.executable, "-m", "pip", "config", "list", cwd=tmp_path)
    folders, indexes = (re.findall(rf"\.{key}='(.+)'", of_pip) for key in ("find-links", "index-url"))
    places = [f'url = "{place}"\nformat = "flat"' for place in " ".join(folders).split()]
    places += [f'url = "{index}"\ndefault = true' for index in indexes[:1]]
    (tmp_path / "uv.toml").write_text("".join(f"[[index]]\n{place}\n" for place in places))
    environment = clean_environment(tmp_path / "home")
    return environment | {"UV_CONFIG_FILE": str(tmp_path / "uv.toml"), "UV_PYTHON": sys.executable}


@pytest.mark.slow
def test_one_command_of_uv_trains_with_the_wheel(wheel: Path, uv: dict[str, str], tmp_path: Path) -> None:
    """uv makes an environment of what the script's header and the wheel's metadata name, and of nothing else."""
    (tmp_path / "dist").mkdir()
    shutil.copy(wheel, tmp_path / "dist")
    # In a folder of its own, so that uv doesn't take the environment that it made for an older wheel.
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    rows = "".join(f"{word} film {n},{word}\n" for n in range(20) for word in ("good", "bad"))
    (tmp_path / "mine.csv").write_text(f"text,label\n{rows}")
    command = "uv run --find-links dist examples/train_uv.py --data mine.csv --output runs/mine"
    words = [str(Path(sys.executable).parent / "uv"), *command.split()[1:], "--pretrained", "none", "--epochs", "1"]
    done = subprocess.run(words, cwd=tmp_path, env=uv, capture_output=True, text=True, timeout=580)
    if unreachable := re.search("Failed to fetch.*|.*error sending request.*", done.stderr):
        pytest.skip(f"There is no package index: {unreachable[0]}")
    assert done.returncode == 0, done.stderr[-4000:]
    assert "accuracy" in done.stdout
    code = code_files(tiny_config("rope"))
    assert {path.name: path.read_text() for path in (tmp_path / "runs/mine").glob("*.py")} == code

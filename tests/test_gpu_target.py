"""`make gpu` starts on a bare image: torch, transformers and, where it is, pytest."""

import json
import os
import subprocess
import sys

import pytest

from tests import gpu

BARE = """
import runpy, sys
sys.modules.update(dict.fromkeys(sys.argv.pop(1).split(",")))  # as if they weren't installed
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
OTHERS = "accelerate,datasets,evaluate,hypothesis,matplotlib,pandas,peft,psutil,pyarrow,scipy,sklearn,threadpoolctl"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(gpu.ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def run_bare(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Without what hf_posenc requires beside torch and transformers."""
    assert arguments[0] == "-m"
    command = [sys.executable, "-c", BARE, OTHERS, *arguments[1:]]
    return subprocess.run(command, cwd=gpu.ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_the_tests_marked_gpu_are_collected_on_a_bare_image(monkeypatch, capsys):
    installed = gpu.missing
    monkeypatch.setattr(gpu, "missing", lambda *names: [name for name in names if name != "pytest"])
    arguments = gpu.pytest_arguments()
    assert capsys.readouterr().out == (
        "Skipped tests/training/test_training_scale.py: it needs accelerate, datasets, evaluate, sklearn, not "
        "installed here.\n"
    )
    assert {"tests/model/test_backends.py", "tests/model_cards/test_benchmark.py"} <= set(arguments)
    done = run_bare([*arguments, "--collect-only", "-q"])
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("test_every_backend_gives_the_float32_numbers_on_a_gpu", "test_unpadded_modernbert_on_a_gpu"):
        assert name in done.stdout
    monkeypatch.setattr(gpu, "missing", installed)
    assert "tests/training/test_training_scale.py" in gpu.pytest_arguments()


@pytest.mark.slow  # two processes that import PyTorch
def test_the_benchmark_and_its_targets_run_on_a_bare_image(tmp_path):
    arguments = ["--contenders", "bert,rope,rope:plain", "--sizes", "tiny", "--works", "2x8", "--modes", "training"]
    arguments += ["--rounds", "1", "--device", "cpu", "-o", str(tmp_path / "bare.json")]
    done = run_bare(["-m", "model_cards.benchmark", *arguments])
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "bare.json").read_text())
    assert [row["contender"] for row in results["rows"]] == ["bert", "rope", "rope:plain"]
    done = run_bare([*gpu.BENCHMARK[:2], "--help"])
    assert done.returncode == 0, done.stderr

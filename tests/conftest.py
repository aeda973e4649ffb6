"""What all tests share: offline, quiet, one thread count, seeded, and two small schemes that use the bias hooks."""

import gc
import io
import os
import signal
import sys

# A shell starts what runs in its background deaf to Ctrl-C, and so would be the processes that are interrupted here.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes that tests start; two tests run at once

import pytest
import torch

import hf_posenc
from tests.support.common import BUILTIN
from tests.support.own_schemes import LayerDistance, Slope

# The models here are tiny: a second thread costs more than it brings.
torch.set_num_threads(1)

assert "test_slope" not in BUILTIN  # the published ones, listed before these
hf_posenc.register_scheme(Slope, "test_slope")
hf_posenc.register_scheme(LayerDistance, "test_layer_distance")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="module")
def _keep_what_is_there():
    """No collection need look again at the millions of objects that imports and earlier files made.

    accelerate, dynamo and the exporters collect garbage often, half a second each.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """A slice of the package data as files, to be read alone."""
    from tests.support.training import order_files  # which needs more than the model's tests

    return order_files(tmp_path_factory.mktemp("files"))


@pytest.fixture
def run(monkeypatch, capsys):
    """`hf-posenc` with these words in this process: (exit code, standard output, standard error)."""
    from hf_posenc import cli

    def call(*words: object, stdin: str = "", columns: int = 200) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["hf-posenc", *map(str, words)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode(errors="surrogateescape"))))
        monkeypatch.setenv("COLUMNS", str(columns))
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        return int(stopped.value.code or 0), *capsys.readouterr()

    return call


@pytest.fixture
def spelt_by_train():
    """Messages name parameters as `hf-posenc train` takes them, though a test calls Python."""
    import typer

    from hf_posenc import cli, errors
    from hf_posenc.cli.spelling import CommandLineSpelling

    with errors.spelling(CommandLineSpelling(typer.main.get_command(cli.app).commands, "train")):
        yield

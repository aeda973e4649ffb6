"""What the tests of schemes share: the command line, run in this process."""

import sys

import pytest

from hf_posenc import cli


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs a command: exit code, standard output, standard error."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["hf-posenc", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "300")
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        return int(stopped.value.code or 0), *capsys.readouterr()

    return call

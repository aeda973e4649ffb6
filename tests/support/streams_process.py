"""Runs commands, each in a fork of this process, with the streams that a shell would give it; prints what became of it.

A fork needn't import PyTorch again. Cases come as JSON: the words of a command, and how a shell would write it.
"""

import json
import os
import sys
import tempfile
import traceback
from pathlib import Path


def left_pipe() -> int:
    """A pipe whose reader has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def redirect(way: str, files: dict[int, Path]) -> None:
    targets = {number: os.open(path, os.O_CREAT | os.O_WRONLY) for number, path in files.items()}
    if "> /dev/full" in way:
        targets[2 if way == "2> /dev/full" else 1] = os.open("/dev/full", os.O_WRONLY)
    if "| true" in way:
        targets[1] = left_pipe()
    if way.startswith("2>&1"):
        targets[2] = targets[1]
    for number, target in targets.items():
        os.dup2(target, number)
    sys.stdout = open(1, "w", encoding="ascii" if way == "ascii" else "utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    if way == ">&-":
        os.close(1)
        sys.stdout = None


def run(words: list[str]) -> int:
    from hf_posenc import cli

    sys.argv[1:] = words
    code: object = "no exit"
    try:
        cli.main()
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.flush()  # as the interpreter does at its end
    return code if isinstance(code, int) else 99


def main() -> None:
    cases = json.loads(sys.argv[1])
    sys.argv = ["hf-posenc"]
    import hf_posenc.cli
    import hf_posenc.finetuning.prediction
    import hf_posenc.finetuning.train  # noqa: F401

    for words, way in cases:
        with tempfile.TemporaryDirectory() as folder:
            files = {number: Path(folder, str(number)) for number in (1, 2)}
            if (child := os.fork()) == 0:
                try:
                    redirect(way, files)
                    os._exit(run(words))
                except BaseException:
                    os._exit(98)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            out, err = (files[number].read_text(encoding="utf-8") for number in (1, 2))
            print(json.dumps([code, out, err]), flush=True)


if __name__ == "__main__":
    main()

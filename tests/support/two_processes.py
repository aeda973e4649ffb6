"""Runs a script or module in two processes as torchrun does: `python two_processes.py MODULE,MODULE [-m] NAME WORDS`.

Both are copies of one process that has imported these modules, which takes longer than what tests have them do. After
a word `--then` comes what two further processes run when these have ended.
"""

import gc
import importlib
import itertools
import os
import runpy
import signal
import socket
import sys


def run_twice(words: list[str]) -> int:
    """Runs it in both; returns 0, or the exit code of the first that fails."""
    with socket.socket() as place:
        place.bind(("localhost", 0))
        port = place.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    running = set()
    for rank in ("0", "1"):
        child = os.fork()
        if child == 0:
            os.environ |= {"RANK": rank, "LOCAL_RANK": rank}
            run = runpy.run_module if words[0] == "-m" else runpy.run_path
            sys.argv = words[words[0] == "-m" :]
            run(sys.argv[0], run_name="__main__")
            sys.exit()
        running.add(child)
    while running:
        child, status = os.wait()
        running.remove(child)
        if code := os.waitstatus_to_exitcode(status):
            for other in running:
                os.kill(other, signal.SIGKILL)
            return abs(code)
    return 0


def main(modules: str, *words: str) -> int:
    """Imports, and runs one after the other; returns 0, or the exit code of the first that fails."""
    for name in modules.split(","):
        importlib.import_module(name)
    gc.freeze()  # what is there needn't be looked at again
    commands = [list(group) for is_end, group in itertools.groupby(words, "--then".__eq__) if not is_end]
    return next((code for command in commands if (code := run_twice(command))), 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""Runs a module as on a bare GPU image: `python bare_process.py MODULE [ARGUMENTS]`.

Only what torch, transformers and pytest themselves require can be imported, and hf_posenc.
"""

import importlib.metadata
import re
import runpy
import sys
from importlib.machinery import PathFinder


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def required_by(*names: str) -> set[str]:
    """These distributions and all that they require, without extras."""
    required, todo = set(), [canonical(name) for name in names]
    while todo:
        name = todo.pop()
        if name not in required:
            required.add(name)
            try:
                lines = importlib.metadata.requires(name) or []
            except importlib.metadata.PackageNotFoundError:  # of another system
                continue
            todo += [canonical(re.match(r"[\w.-]+", line)[0]) for line in lines if "extra ==" not in line]
    return required


KEPT = required_by("torch", "transformers", "pytest")
HIDDEN = {
    module
    for module, owners in importlib.metadata.packages_distributions().items()
    if not KEPT & {canonical(owner) for owner in owners}
} - {"hf_posenc", "tests", "docs", "test"}


class BareFinder(PathFinder):
    """Finds nothing of the other packages."""

    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        return None if fullname.partition(".")[0] in HIDDEN else super().find_spec(fullname, path, target)


if __name__ == "__main__":
    sys.meta_path[sys.meta_path.index(PathFinder)] = BareFinder
    assert {"datasets", "evaluate", "accelerate", "sklearn", "pandas"} <= HIDDEN
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)

"""The tests that docs/promises.md names are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LINES = [line for line in (ROOT / "docs" / "promises.md").read_text().splitlines() if line.startswith("| ")]
PROMISES = [line.split(" | ") for line in LINES if line != "| promise | test |"]


@pytest.mark.parametrize(("promise", "tests"), PROMISES, ids=[promise[2:50] for promise, _ in PROMISES])
def test_a_promise_names_tests_that_are_there(promise, tests):
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", tests)
    assert named, promise
    for file, test in named:
        assert re.search(rf"^def {test}\(" if test else "^def test_", (ROOT / file).read_text(), re.MULTILINE), test

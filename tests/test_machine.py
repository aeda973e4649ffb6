"""What a result says of the machine and the code that made it."""

import subprocess

from hf_posenc import machine


def test_the_commit_is_that_of_the_code_and_of_no_repository_around_it(tmp_path, monkeypatch):
    def git(*words: str) -> str:
        person = ("-c", "user.name=a", "-c", "user.email=a@b")
        return subprocess.run(["git", *person, *words], cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    here = machine.commit.__wrapped__
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    assert here(package) is None  # no repository
    git("init", "-q")
    (tmp_path / "other").write_text("")
    git("add", "other")
    git("commit", "-q", "-m", "other")
    assert here(package) is None  # a repository that the package isn't part of, such as one with .venv in it
    git("add", "package")
    git("commit", "-q", "-m", "package")
    head = git("rev-parse", "HEAD").strip()
    assert here(package) == head
    (package / "__init__.py").write_text("changed = True\n")
    assert here(package) == f"{head}-dirty"
    monkeypatch.setattr(machine, "commit", lambda: here(package))
    assert machine.short_commit() == f"{head[:12]}-dirty"

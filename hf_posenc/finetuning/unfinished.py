"""Answers that a stopped run leaves behind, so that the same command goes on where it was."""

import contextlib
import glob
import importlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from ..data.inputs import Text
from ..errors import UserError, disk_error, is_local, one_line
from ..files import WRITING
from .backends import PACKAGES

if TYPE_CHECKING:
    from .prediction import Classifier, Prediction

ENDING = ".unfinished"
"""What the file of answers is called beside the output: a line that says what they are of, and one for each."""
_FLUSH_EVERY = 256


class Unfinished:
    """The answers of a run that was stopped, and those of this one after them.

    Args:
        path: the file.
        facts: what answers depend on: those in the file are kept if they are of the same.
    """

    def __init__(self, path: Path, facts: Mapping[str, Any]) -> None:
        self.path = path
        self.kept, size = _whole_lines(path, facts)
        """Answers of the earlier run."""
        self.differences = _differences(path, facts) if path.is_file() and not size else []
        """What the file of an earlier run is of, where that isn't this one: its answers are thrown away."""
        self.count = self.kept
        """Answers in the file."""
        self._handle = path.open("r+" if size else "w", encoding="utf-8", newline="\n")
        if size:
            self._handle.seek(size)
            self._handle.truncate()
        else:
            self._handle.write(_line(facts))
            self._handle.flush()  # else a run that is killed before its first answers looks like another one

    def go_on(
        self, inputs: Iterable[Text], predict: Callable[[Iterator[Text]], Iterable["Prediction"]]
    ) -> Iterator["Prediction"]:
        """Predictions of all inputs, in order: the answers that there are, and then what `predict` gives of the rest.

        A killed process loses the last few hundred at most.
        """
        from .prediction import Prediction

        remaining = iter(inputs)
        with self.path.open(encoding="utf-8") as lines:
            for line in islice(lines, 1, 1 + self.kept):
                yield Prediction(next(remaining), json.loads(line))
        for prediction in predict(remaining):
            self._handle.write(_line(prediction.answer))
            self.count += 1
            if self.count % _FLUSH_EVERY == 0:
                self._handle.flush()
            yield prediction

    def close(self, done: bool) -> None:
        """Keeps the file, unless all is done or there is no answer in it."""
        with contextlib.suppress(OSError):  # a full disk
            self._handle.close()
        if done or not self.count:
            self.path.unlink(missing_ok=True)


@contextlib.contextmanager
def unfinished_answers(output: str, facts: Mapping[str, Any], say: Callable[[str], object]) -> Iterator[Unfinished]:
    """The unfinished answers for an output file; if the block ends without an error, nothing is unfinished.

    Args:
        output: the file that the whole run writes.
        facts: see `facts_of`.
        say: gets a line where a run goes on, and where it is stopped.

    Raises:
        UserError: another process is writing the same output, or the folder can't be written.
    """
    path = Path(output + ENDING)
    lock = FileLock(f"{path}.lock")
    with contextlib.ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(lock.acquire(timeout=0))
            stack.callback(Path(lock.lock_file).unlink, missing_ok=True)
            for left in path.parent.glob(f".{glob.escape(Path(output).name)}-????????{WRITING}"):
                left.unlink()  # the output of a run that was killed, as far as it had come
            unfinished = Unfinished(path, facts)
        except Timeout as error:
            if not Path(lock.lock_file).exists():  # the lock waits for a folder that nobody may write to
                raise UserError(f"--output {output!r}: its folder can't be written. Name another file.") from error
            raise UserError(f"Another process is writing --output {output!r}. Wait for it, or name another.") from error
        except OSError as error:
            raise UserError(f"--output {output!r} can't be written: {disk_error(error) or one_line(error)}.") from error
        done = False
        try:
            if unfinished.differences:
                say(f"{path} is of another run ({'; '.join(unfinished.differences)}): starting anew.")
            if unfinished.kept:
                say(f"Going on after {unfinished.kept:,} answers of a run that was stopped.")
            yield unfinished
            done = True
        finally:
            unfinished.close(done)
            if unfinished.count and not done:
                say(f"{unfinished.count:,} answers are kept in {path}: the same command goes on.")


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str) + "\n"


def _whole_lines(path: Path, facts: Mapping[str, Any]) -> tuple[int, int]:
    """How many answers a file has before the first damaged line, and their bytes; (0, 0) if they are of other facts."""
    count, size = -1, 0
    with contextlib.suppress(FileNotFoundError), path.open("rb") as handle:
        for line in handle:
            if not line.endswith(b"\n") or (count < 0 and line != _line(facts).encode()) or not _is_object(line):
                break
            count, size = count + 1, size + len(line)
    return max(count, 0), size


def _differences(path: Path, facts: Mapping[str, Any]) -> list[str]:
    """Which facts in a file are others: names, with both values where these are short."""
    with path.open("rb") as handle:
        line = handle.readline()
    if not _is_object(line):
        return ["its facts can't be read"]
    earlier, now = json.loads(line), json.loads(_line(facts))
    return [
        f"another {name}"
        if isinstance(now.get(name), list | dict)
        else f"{name} {earlier.get(name)}, now {now.get(name)}"
        for name in {**earlier, **now}
        if earlier.get(name) != now.get(name)
    ]


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line.decode()), dict)
    except ValueError:
        return False


def facts_of(checkpoint: str, file: str, classifier: "Classifier", **options: Any) -> dict[str, Any]:
    """What answers depend on: file and checkpoint (sizes, times of change), backend, device, versions, options."""
    of_checkpoint: Any = getattr(classifier.model.config, "_commit_hash", None)
    if is_local(checkpoint):
        paths = sorted(path for path in Path(checkpoint).rglob("*") if path.is_file())
        of_checkpoint = [[str(path.relative_to(checkpoint)), *_stamp(path)] for path in paths]
    of_file = [str(Path(file).resolve()), *_stamp(Path(file))]
    packages = ("hf_posenc", "transformers", "torch", *filter(None, [PACKAGES.get(classifier.backend)]))
    versions = {name: importlib.import_module(name).__version__ for name in packages}
    where = {"backend": classifier.backend, "device": str(classifier.model.device), **versions}
    return {"file": of_file, "checkpoint": of_checkpoint, **where, **options}


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns

"""Publishes a checkpoint's folder on the Hub: checked before the upload, loaded back after it."""

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import CommitInfo, CommitOperationAdd, CommitOperationDelete, HfApi, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled, RevisionNotFoundError
from huggingface_hub.hf_api import RepoFile

from hf_posenc.errors import Interrupted, UserError, one_line

from .card import pinned_commit, published_card
from .collecting import CHECKSUMS, Checkpoint, collect
from .other_files import stale_files, unknown_files
from .verifying import download, load_back


@dataclass(frozen=True)
class Published:
    """The result of `publish`."""

    repo_id: str
    revision: str
    """The commit that was loaded back; the card pins it."""
    url: str
    """URL of that commit, or of the pull request."""
    files: tuple[str, ...]
    left_out: tuple[str, ...]
    """Files of the folder that weren't sent, because they aren't a part of the model."""
    changed: bool
    """False: the repository already had every file."""


def publish(
    checkpoint: str | Path,
    repo_id: str,
    *,
    private: bool | None = None,
    create_pr: bool = False,
    revision: str | None = None,
    token: str | None = None,
    endpoint: str | None = None,
    trust_remote_code: bool = False,
    commit_message: str = "Upload a PosEnc model",
) -> Published:
    """Publishes a checkpoint's folder, and loads it back.

    It sends weights (safetensors only), config, code, tokenizer, results, a sentence-transformer's modules, license,
    plots of the positions and the confusion matrix, checksums and the card, by their names, and no other file of the
    folder. Files of an earlier `publish` are replaced. A repository with other files that may be loaded,
    or run, with the model is refused. The folder is loaded here before anything is sent. Afterwards the commit is
    downloaded, and a fresh process, without hf_posenc or a token, loads it and compares weights, outputs and
    tokenizer. Only then does the card pin the commit. After an error, run it again: it sends what is missing.

    Args:
        checkpoint: a folder that `save_pretrained` or training wrote.
        repo_id: `owner/name`; made if it doesn't exist.
        private: whether a repository that is made here is private. None: the owner's default.
        create_pr: open a pull request instead of changing the branch.
        revision: the branch, made if it doesn't exist; None: `main`.
        token: None: the one of `hf auth login` or HF_TOKEN.
        endpoint: None: HF_ENDPOINT, or the Hub.
        trust_remote_code: run the folder's code here although it differs from this hf_posenc's: it has a custom
            scheme, or is of another version.
        commit_message: the title of the commit.

    Raises:
        UserError: the folder isn't a whole checkpoint of PosEnc; the repository holds foreign files; the Hub refuses,
            or can't be reached; the files that arrived differ from those sent. The message says what has been
            published, and what to do.
    """
    if create_pr and revision is not None:
        raise UserError("create_pr and revision exclude each other: a pull request is opened against main.")
    api = HfApi(endpoint=endpoint, token=token, library_name="hf_posenc")
    secret = token or get_token()
    with tempfile.TemporaryDirectory(prefix="hf_posenc-publish-") as name:
        place = Path(name)
        collected = collect(Path(checkpoint), place / "checkpoint", trust_remote_code)
        unpinned_card = _card(collected, repo_id, None)
        with _as_user_error(repo_id, secret, "Nothing was published."):
            if not create_pr:  # a pull request is for an existing repository, perhaps somebody else's
                repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
            target = _Target(api, repo_id, revision or "main", create_pr, secret)
            if not create_pr and target.branch != "main" and not target.branch.startswith("refs/"):
                api.create_branch(repo_id, branch=target.branch, exist_ok=True)
            before = str(api.model_info(repo_id, revision=target.branch).sha)
            operations = _operations(collected, unpinned_card, target, before, place / "cache")
        sent = target.commit(operations, commit_message, before)
        with _as_user_error(repo_id, secret, f"The files are there as commit {sent.oid}, but it isn't verified."):
            _refuse_unknown_files(target.files(sent.oid), collected.files)
            download(api, repo_id, sent.oid, collected.folder, collected.files, place / "cache")
            load_back(place, repo_id, sent.oid, collected)
        with _as_user_error(repo_id, secret, f"Commit {sent.oid} was verified, but its card may not say so yet."):
            is_pinned = sent.oid == before and _is_pinned(collected, target, sent.oid, place / "cache")
            if not is_pinned:
                api.create_commit(
                    repo_id,
                    [CommitOperationAdd("README.md", _card(collected, repo_id, sent.oid).encode())],
                    commit_message="Pin the verified commit in the card",
                    revision=(sent.pr_revision if create_pr else None) or target.branch,
                    parent_commit=sent.oid,
                )
    return Published(
        repo_id=repo_id,
        revision=sent.oid,
        url=sent.pr_url or f"{api.endpoint}/{repo_id}/tree/{sent.oid}",
        files=(*collected.files, "README.md"),
        left_out=collected.left_out,
        changed=not is_pinned,
    )


@dataclass
class _Target:
    """The repository, branch and account that a checkpoint goes to."""

    api: HfApi
    repo_id: str
    branch: str
    create_pr: bool
    secret: str | None

    def files(self, revision: str) -> dict[str, str]:
        """The files of a commit, in all its folders, with git's hash of their content."""
        listed = self.api.list_repo_tree(self.repo_id, revision=revision, recursive=True)
        return {entry.path: entry.blob_id for entry in listed if isinstance(entry, RepoFile)}

    def text(self, name: str, revision: str, cache: Path) -> str:
        path = self.api.hf_hub_download(self.repo_id, name, revision=revision, cache_dir=cache)
        return Path(path).read_text(encoding="utf-8", errors="replace")

    def commit(self, operations: list[Any], message: str, parent: str) -> CommitInfo:
        """Commits the files; if the answer is lost, the error says whether the commit arrived."""
        with _as_user_error(self.repo_id, self.secret, lambda error: self._state(error, parent)):
            return self.api.create_commit(
                self.repo_id,
                operations,
                commit_message=message,
                revision=self.branch,
                create_pr=self.create_pr,
                parent_commit=parent,
            )

    def _state(self, error: BaseException, parent: str) -> str:
        answered = _hub_error(error)
        if answered is not None and answered.response.status_code < 500:
            return "Nothing was published."
        page = f"{self.api.endpoint}/{self.repo_id}"
        if self.create_pr:
            return f"Whether the pull request was opened isn't known: look at {page}/discussions before that."
        page += f"/commits/{self.branch}"
        try:
            now = self.api.model_info(self.repo_id, revision=self.branch, timeout=10).sha
        except Exception:  # anything may have lost the answer
            return f"Whether the commit was made isn't known: look at {page}."
        if now == parent:
            return "Nothing was published."
        return f"The files may be there as commit {now}, which isn't verified: look at {page}."


def _operations(checkpoint: Checkpoint, card: str, target: _Target, parent: str, cache: Path) -> list[Any]:
    """The commit's additions and deletions; refuses to leave foreign files beside them."""
    present = target.files(parent)
    checksums = target.text(CHECKSUMS, parent, cache) if CHECKSUMS in present else ""
    deleted = stale_files(present, checkpoint.files, checksums)
    _refuse_unknown_files({*present} - {*deleted}, checkpoint.files)
    operations: list[Any] = [CommitOperationAdd(name, checkpoint.folder / name) for name in checkpoint.files]
    if "README.md" not in present:
        operations.append(CommitOperationAdd("README.md", card.encode()))
    return operations + [CommitOperationDelete(name) for name in deleted]


def _card(checkpoint: Checkpoint, repo_id: str, revision: str | None) -> str:
    return published_card(
        checkpoint.source,
        repo_id,
        checkpoint.model,
        auto_class=checkpoint.auto_class,
        revision=revision,
        picture=checkpoint.picture,
        own_code=checkpoint.own_code,
    )


def _is_pinned(checkpoint: Checkpoint, target: _Target, revision: str, cache: Path) -> bool:
    """Whether the card there already pins a commit with the same files."""
    text = target.text("README.md", revision, cache)
    pinned = pinned_commit(text)
    if pinned is None or text != _card(checkpoint, target.repo_id, pinned):
        return False
    try:
        now, then = (target.files(commit) for commit in (revision, pinned))
    except RevisionNotFoundError:  # the history was rewritten
        return False
    return {**now, "README.md": ""} == {**then, "README.md": ""}


def _refuse_unknown_files(present: Iterable[str], sent: tuple[str, ...]) -> None:
    if names := unknown_files(present, sent):
        more = f" and {len(names) - 20} more" if len(names) > 20 else ""
        raise UserError(
            "the repository holds files that aren't this model's, and that may be loaded, or run, with it: "
            f"{', '.join(map(repr, names[:20]))}{more}. Give another repository; or, if it is yours and you need them "
            "no longer, delete them: `hf repos delete-files`."
        )


@contextmanager
def _as_user_error(repo_id: str, secret: str | None, state: str | Callable[[BaseException], str]) -> Iterator[None]:
    """Turns any error into one line: what is wrong, what has been published, what to do."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        outcome = state if isinstance(state, str) else state(error)
        if isinstance(error, KeyboardInterrupt):
            raise Interrupted(f"{repo_id}: {outcome}") from None
        reason = one_line(error) if isinstance(error, UserError) else _describe_error(error)
        raise UserError(_without_secret(f"{repo_id}: {reason} {outcome}", secret)) from None


def _describe_error(error: BaseException) -> str:
    again = "Run it again: what has arrived isn't sent again."
    if (answered := _hub_error(error)) is not None:
        status = answered.response.status_code
        answer = answered.server_message or answered.response.headers.get("X-Error-Message") or ""
        answer = f" ({one_line(Exception(answer))})" if answer else ""
        if status == 401:
            return f"the Hub takes no such token{answer}, or there is none. Set HF_TOKEN, or log in: `hf auth login`."
        if status == 403:
            return f"the token may not write there{answer}. Use one with write permission, or --create-pr."
        if status in (409, 412):
            return f"the repository was changed meanwhile{answer}. Run it again, on top of that."
        if status == 404:
            return f"there is no such repository or revision{answer}. Check the name and the token."
        if status >= 500 or status == 429:
            return f"the Hub answered {status}{answer}. {again}"
        return f"the Hub refused with {status}{answer}."
    if isinstance(error, HFValidationError):
        return f"isn't a name of a repository: {one_line(error)} Give owner/name."
    chain = list(_causes(error))
    if any(isinstance(e, OfflineModeIsEnabled) for e in chain):
        return "the Hub can't be reached in offline mode. Unset HF_HUB_OFFLINE."
    root = chain[-1]
    return f"the connection broke off: {type(root).__name__}: {one_line(root)}. {again}"


def _hub_error(error: BaseException) -> HfHubHTTPError | None:
    return next((e for e in _causes(error) if isinstance(e, HfHubHTTPError) and e.response is not None), None)


def _causes(error: BaseException | None) -> Iterable[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _without_secret(text: str, secret: str | None) -> str:
    return text.replace(secret, "hf_...") if secret else text

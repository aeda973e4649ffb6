"""Publishes a checkpoint's folder on the Hub: checked before the upload, loaded back after it."""

import contextlib
import glob
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import torch
from huggingface_hub import CommitInfo, HfApi
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from ..checkpoints.keeper import output_folder
from ..errors import Interrupted, UserError, checks_types, one_line, spell, without_tokens
from ..files import expanded, sha256
from ..isolated_load import Answer, load_isolated
from .card import CardFields, published_card
from .collecting import CHECKSUMS, TEXT, Upload, collect

DRAFT = "README.hub.md"
"""The card that a dry run writes into the folder."""
_HARMLESS = re.compile(
    r"\.gitattributes|\.gitignore|CITATION\.cff|(LICENSE|NOTICE|requirements)(\.txt)?"
    r"|(?!(?i:vocab|merges))[^/\\\n]*\.txt|[^/\\\n]*\.(md|rst|png|jpe?g|gif|svg|webp|pdf|csv|tsv|jsonl|log|ipynb)"
    r"|\w*results\.json|trainer_state\.json|conversion\.json"
)
"""Files that no loader reads. Any other file may be a tokenizer, an adapter or other weights."""
_STALE = re.compile(r"(model|pytorch_model)(-\d+-of-\d+)?\.(safetensors|bin)(\.index\.json)?")
"""Weights of an earlier upload, which would be loaded instead of or beside the new ones."""
_READ_FOLDERS = ("additional_chat_templates", "chat_templates", "custom_generate", "onnx", "openvino")
"""Folders whose files loaders or servers take, of graphs instead of the weights."""
_KEPT = (
    *("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "LANG", "LC_ALL", "TMPDIR"),
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "MKL_THREADING_LAYER", "KMP_DUPLICATE_LIB_OK"),
    *("SYSTEMROOT", "TEMP", "TMP", "USERNAME", "PROCESSOR_ARCHITECTURE"),  # Windows
)
"""The environment variables that Python and PyTorch need. Others aren't passed on: they may hold a password."""


@dataclass(frozen=True)
class Publication:
    """Account of what `publish` sent, or after a dry run would send.

    Attributes:
        url: of the commit that was loaded back, or of the pull request. None: it was a dry run.
        revision: that commit, which the card pins. None: it was a dry run.
        files: what was sent.
        left_out: files of the folder that aren't a part of the model, and stay here.
        deleted: files of an earlier upload that would have been loaded beside the new ones.
        draft: the card's file, written by a dry run. None: it wasn't one.
    """

    url: str | None
    revision: str | None
    files: tuple[str, ...]
    left_out: tuple[str, ...]
    draft: str | None = None
    deleted: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Lines for the terminal."""
        left_out = ", ".join(self.left_out)
        if self.draft is not None:
            kept = [f"Would stay here: {left_out}"] if left_out else []
            return "\n".join([f"Would be sent: {', '.join(self.files)}", *kept, f"The card: {self.draft}"])
        kept = [f"Not sent: {left_out}"] if left_out else []
        gone = [f"Deleted there, of an earlier upload: {', '.join(self.deleted)}"] if self.deleted else []
        return "\n".join([*kept, *gone, f"Published and verified: {self.url}"])


@checks_types
def publish(
    checkpoint: str | Path,
    repo_id: str,
    *,
    private: bool | None = None,
    create_pr: bool = False,
    revision: str | None = None,
    token: str | None = None,
    commit_message: str = "Upload a PosEnc model",
    license: str | None = None,
    language: str | Sequence[str] | None = None,
    dataset: str | Sequence[str] | None = None,
    dry_run: bool = False,
    trust_remote_code: bool = False,
) -> Publication:
    """Publishes a checkpoint's folder, and loads it back.

    It sends weights (safetensors only), config, code, tokenizer, results, a conversion's report, a
    sentence-transformer's modules, license, the confusion matrix, checksums and the card, by their names, and no other
    file of the folder, which is loaded here first. Files of an earlier `publish` are replaced; a repository with other
    files that may be loaded, or run, with the model is refused. Afterwards a fresh process, without hf_posenc or a
    token, loads the commit and compares what it answers. Only then is the card sent, which pins the commit. After an
    error, run it again.

    Args:
        checkpoint: a folder that `save_pretrained` or training wrote.
        repo_id: `owner/name`; made if it doesn't exist.
        private: whether the repository, which is made here unless it exists, is private. None: the owner's default.
        create_pr: open a pull request instead of changing the branch.
        revision: the branch, made if it doesn't exist; None: `main`.
        token: None: the one of `hf auth login` or HF_TOKEN.
        commit_message: the title of the commit.
        license: of the model, by the Hub's name of it, such as `apache-2.0`; None: as the folder's card has it.
        language: of its texts, by its code, such as `en`; several as a list. None: as the card has it.
        dataset: what it was trained on, by its name on the Hub; several as a list. None: as the card has it.
        dry_run: send nothing; check the folder, and write the card into it as README.hub.md, unless you have a file of
            that name.
        trust_remote_code: run the folder's code here although it differs from this hf_posenc's: it has a custom
            scheme, or is of another version.

    Returns:
        What was sent and where it is; printed, it is what the command says.

    Raises:
        UserError: the folder isn't a whole checkpoint of PosEnc; the repository holds foreign files; the Hub refuses,
            or can't be reached; the files that arrived differ from those sent. The message says what has been
            published.
        Interrupted: Ctrl-C; the message says the same.
    """
    _check_target(repo_id, create_pr, revision, private)
    fields = CardFields(license, _names("language", language), _names("dataset", dataset))
    api = HfApi(token=token)
    branch = revision or "main"
    try:
        with tempfile.TemporaryDirectory() as temporary:
            place = Path(temporary)
            sent = collect(Path(expanded(checkpoint)), place / "checkpoint", trust_remote_code)
            card = published_card(sent, repo_id, "the commit that is checked", fields)  # or refused, before it is sent
            files = (*sent.files, "README.md")
            if dry_run:
                with output_folder(sent.source, check=lambda _: None) as output:
                    output.add(DRAFT, card)
                return Publication(None, None, files, sent.left_out, draft=str(sent.source / DRAFT))
            if not create_pr:  # a pull request is for an existing repository, perhaps somebody else's
                repo_id = _make_repository(api, repo_id, private, branch)
            commit, deleted = _upload(api, repo_id, branch, sent, place / "cache", commit_message, create_pr)
            with _leaves(f"The files are there as commit {commit.oid}, but it isn't verified."):
                refuse_unknown_files(api.list_repo_files(repo_id, revision=commit.oid), sent.files)
                verify_upload(api, repo_id, commit.oid, sent, place)
            with _leaves(f"Commit {commit.oid} was verified, but its card may not say so yet."):
                api.upload_file(
                    path_or_fileobj=published_card(sent, repo_id, commit.oid, fields).encode(),
                    path_in_repo="README.md",
                    repo_id=repo_id,
                    commit_message="Pin the verified commit in the card",
                    revision=commit.pr_revision if create_pr else branch,
                    parent_commit=commit.oid,
                )
            url = commit.pr_url or f"{api.endpoint}/{repo_id}/tree/{commit.oid}"
            return Publication(url, commit.oid, files, sent.left_out, deleted=deleted)
    except (Exception, KeyboardInterrupt) as error:
        outcome = getattr(error, "__notes__", ["Nothing was published."])[-1]
        if isinstance(error, KeyboardInterrupt):
            raise Interrupted(f"{repo_id}: {outcome}") from None
        kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        text = f"{repo_id}: {kind}{one_line(error)}".rstrip(" .:")
        raise UserError(without_tokens(f"{text}. {outcome}", token)) from None


def _make_repository(api: HfApi, repo_id: str, private: bool | None, branch: str) -> str:
    """Makes a repository and a branch where they are missing; returns its whole name.

    Raises:
        UserError: it was there and isn't as private as was asked, which the Hub ignores then.
    """
    repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
    is_private = bool(api.model_info(repo_id).private)
    if private is not None and is_private != private:
        raise UserError(
            f"is for a repository that is made here, and {repo_id} is {'private' if is_private else 'public'} already. "
            "Leave it out, give another repository, or change its visibility in its settings on the Hub.",
            parameter="private",
            value=private,
        )
    if branch != "main" and not branch.startswith("refs/"):
        api.create_branch(repo_id, branch=branch, exist_ok=True)
    return repo_id


@contextlib.contextmanager
def _leaves(outcome: str) -> Iterator[None]:
    """Notes in whatever is raised inside what has been published then."""
    try:
        yield
    except BaseException as error:
        error.add_note(outcome)
        raise


def _upload(
    api: HfApi, repo_id: str, branch: str, sent: Upload, cache: Path, message: str, create_pr: bool
) -> tuple[CommitInfo, tuple[str, ...]]:
    """Sends the files in one commit, which also deletes those of earlier uploads that they replace, and names these."""
    before = str(api.model_info(repo_id, revision=branch).sha)
    stale = _stale_files(api, repo_id, before, sent.files, cache)
    page = f"{api.endpoint}/{repo_id}/{'discussions' if create_pr else f'commits/{branch}'}"
    with _leaves(f"Whether it arrived isn't known: look at {page} before you try again."):
        commit = api.upload_folder(
            repo_id=repo_id,
            folder_path=sent.folder,
            allow_patterns=[glob.escape(name) for name in sent.files],
            delete_patterns=[glob.escape(name) for name in stale],
            commit_message=message,
            revision=None if create_pr else branch,
            create_pr=create_pr,
            parent_commit=before,
        )
    if create_pr and commit.pr_revision is None:
        raise UserError("the repository holds these files already: there is nothing to propose.")
    return commit, tuple(sorted(stale))


def _stale_files(api: HfApi, repo_id: str, revision: str, sent: tuple[str, ...], cache: Path) -> set[str]:
    """Files of earlier uploads that this one replaces: weights, and all that an earlier `publish` sent.

    Raises:
        UserError: other files there, which stay, would be loaded with the model.
    """
    present = set(api.list_repo_files(repo_id, revision=revision))
    earlier: set[str] = set()
    if CHECKSUMS in present:
        sums = Path(api.hf_hub_download(repo_id, CHECKSUMS, revision=revision, cache_dir=cache))
        listed = {line.partition("  ")[2] for line in sums.read_text(encoding="utf-8", errors="replace").splitlines()}
        earlier = listed if "configuration_posenc.py" in listed else set()
    stale = {n for n in present - {*sent, "README.md"} if n in earlier or _STALE.fullmatch(n)}
    refuse_unknown_files(present - stale, sent)
    return stale


def refuse_unknown_files(present: Iterable[str], sent: Iterable[str]) -> None:
    """Refuses files of other origin that would be loaded or run with the repository.

    Names are compared as they are: on a disk that ignores case, `Config.json` is `config.json`.
    """
    if unknown := sorted(name for name in {*present} - {*sent, "README.md"} if not _is_harmless(name)):
        raise UserError(
            "the repository holds files that aren't this model's, and that may be loaded, or run, with it: "
            f"{', '.join(map(repr, unknown))}. Give another repository; or, if it is yours and you need them no "
            "longer, delete them: `hf repos delete-files`."
        )


def _is_harmless(name: str) -> bool:
    folder, slash, _ = name.partition("/")
    if not slash:
        return _HARMLESS.fullmatch(name) is not None
    is_read = folder.lower() in _READ_FOLDERS
    return not is_read and PurePosixPath(name).suffix.lower() != ".py" and "\\" not in name


def verify_upload(api: HfApi, repo_id: str, revision: str, sent: Upload, place: Path) -> None:
    """Downloads a commit into an empty cache in `place`, and loads it without hf_posenc, network or token.

    Raises:
        UserError: a file, the output or the token ids aren't those that were sent.
        IsolatedLoadFailed: it can't be loaded.
    """
    for name in sent.files:
        path = api.hf_hub_download(repo_id, name, revision=revision, cache_dir=place / "cache")
        if sha256(path) != sha256(sent.folder / name):
            raise UserError(f"{name} isn't the file that was sent: its sha256 differs. Run it again.")
    answer = load_isolated(
        place,
        repo_id,
        sent.auto_class,
        texts=None if sent.token_ids is None else [TEXT],
        inputs={"input_ids": sent.input_ids},
        environment=environment(place),
        options={"revision": revision},
    )
    if difference := _difference(answer, sent):
        raise UserError(f"loading it back failed: {difference}.")


def _names(parameter: str, given: str | Sequence[str] | None) -> tuple[str, ...]:
    """Names for the card's metadata; refuses one that the Hub wouldn't take there."""
    names = (given,) if isinstance(given, str) else tuple(given or ())
    for name in names:
        _check_name(parameter, name, "is no name on the Hub. Give one such as `en`, or for a data set `owner/name`.")
    return names


def _check_target(repo_id: str, create_pr: bool, revision: str | None, private: bool | None) -> None:
    """Refuses a name that the Hub doesn't take, and a branch or a visibility for a pull request."""
    _check_name("repo_id", repo_id, "is no name of a repository. Give owner/name.")
    if create_pr and revision is not None:
        both = f"{spell('create_pr')} and {spell('revision')}"
        raise UserError(f"{both} exclude each other: a pull request has a branch of its own. Give one of them.")
    if create_pr and private is not None:
        ours = f"is for a repository that is made here, and {spell('create_pr')} for one that exists. Leave it out."
        raise UserError(ours, parameter="private", value=private)


def _check_name(parameter: str, name: str, wanted: str) -> None:
    """Refuses a name that the Hub doesn't take."""
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise UserError(wanted, parameter=parameter, value=name) from error


def _difference(answer: Answer, sent: Upload) -> str | None:
    """The first difference from what was sent, or None."""
    atol = 1e-5 * max(1.0, float(sent.output.abs().max()))  # a regression's numbers may be in the thousands
    is_alike = (answer.output.shape, answer.output.dtype) == (sent.output.shape, sent.output.dtype)
    if not is_alike or not torch.allclose(answer.output, sent.output, atol=atol):
        return "with the same files and input it gives another output"
    if sent.token_ids is not None and answer.token_ids != [sent.token_ids]:
        return f"the tokenizer reads {TEXT!r} differently"
    return None


def environment(place: Path) -> dict[str, str]:
    """The environment of the loading process: a home without a token, and a cache in place of the Hub."""
    home = str(place / "home")
    settings = {"HOME": home, "USERPROFILE": home, "HF_HOME": home, "HF_HUB_CACHE": str(place / "cache")}
    settings |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return {name: os.environ[name] for name in _KEPT if name in os.environ} | settings

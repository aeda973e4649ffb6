"""A Hub on loopback, for the genuine client: enough of its HTTP interface to publish to and to load from.

It is strict where the Hub is: git's own object names, sha256 checked on upload, a commit that names what was never
uploaded is refused, files are stored at another origin, which must not be shown a token, and a request that it doesn't
know fails the test. Large files come by LFS: xet is the client's own affair.
"""

import base64
import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

WRITER, READER, STRANGER = "hf_writerWRITERwriter", "hf_readerREADERreader", "hf_nobody"
"""Tokens: of `me`, who may write to `me/...`; of `you`, who may read; and one that nobody was given."""
USERS = {WRITER: "me", READER: "you"}
LARGE = (".safetensors", ".bin", ".pt", ".pkl", ".png", ".onnx")


Files = dict[str, bytes]
"""The files of a commit by their paths; those of `LARGE` are stored elsewhere, by their sha256."""


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def git_name(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def entry(path: str, content: bytes) -> dict[str, Any]:
    """What a listing says of a file."""
    fields = {"type": "file", "path": path, "oid": git_name(content), "size": len(content)}
    if path.endswith(LARGE):
        fields["lfs"] = {"oid": sha256(content), "size": len(content), "pointerSize": 130}
    return fields


@dataclass
class Repo:
    private: bool = False
    commits: dict[str, Files] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    pulls: list[str] = field(default_factory=list)
    """Titles of the pull requests."""

    def add(self, ref: str, files: Files, title: str) -> str:
        sha = git_name(f"{ref} {title} {len(self.commits)} {sorted(files)}".encode())
        self.commits[sha], self.refs[ref] = files, sha
        return sha

    def resolve(self, revision: str) -> str | None:
        return revision if revision in self.commits else self.refs.get(revision)


@dataclass
class Fault:
    """What goes wrong with the next `times` requests that match."""

    method: str
    pattern: str
    status: int | None = None
    """None: the connection is cut in the middle of the request's body."""
    times: int = 1
    message: str = "made to fail"
    change: Callable[[bytes], bytes] | None = None
    """Alters what is sent instead."""


class Request(NamedTuple):
    method: str
    path: str
    token: str | None


class Stop(Exception):
    """Ends a request with an error."""

    def __init__(self, status: int, message: str, code: str | None = None, **headers: str) -> None:
        self.status, self.message = status, message
        self.headers = {"X-Error-Message": message, **({"X-Error-Code": code} if code else {}), **headers}


class Hub:
    """The server's memory; `url` is what HF_ENDPOINT must say."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.objects: dict[str, bytes] = {}
        self.requests: list[Request] = []
        self.faults: list[Fault] = []
        self.problems: list[str] = []
        self.lock = threading.RLock()

    @contextlib.contextmanager
    def running(self) -> Iterator["Hub"]:
        handlers = [type(n, (kind,), {"hub": self}) for n, kind in (("Api", Api), ("Storage", Storage))]
        servers = [ThreadingHTTPServer(("127.0.0.1", 0), handler) for handler in handlers]
        self.url = f"http://127.0.0.1:{servers[0].server_port}"
        self.storage_url = f"http://localhost:{servers[1].server_port}"
        for server in servers:
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        try:
            yield self
        finally:
            for server in servers:
                server.shutdown()
                server.server_close()

    def fail(self, method: str, pattern: str, status: int | None = None, **more: Any) -> None:
        self.faults.append(Fault(method, pattern, status, **more))

    def made(self, method: str, pattern: str) -> list[Request]:
        return [r for r in self.requests if r.method == method and re.search(pattern, r.path)]

    def files(self, repo: str, revision: str = "main") -> dict[str, bytes]:
        """What a repository holds, large files included."""
        repository = self.repos[repo]
        sha = repository.resolve(revision)
        assert sha is not None, f"{repo} has no {revision}"
        return repository.commits[sha]


def no_token_lies_in(hub: Hub) -> None:
    for repo in hub.repos.values():
        for files in repo.commits.values():
            for path, content in files.items():
                assert not any(token.encode() in content for token in USERS), path


class Handler(BaseHTTPRequestHandler):
    """Reads a request, looks for a fault, answers."""

    hub: Hub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a body waits 40 ms behind its headers otherwise

    def log_message(self, *_: Any) -> None:
        pass

    def handle_one_request(self) -> None:
        with contextlib.suppress(ConnectionError):
            super().handle_one_request()

    def do(self) -> None:
        split = urlsplit(self.path)
        self.query = {key: values[0] for key, values in parse_qs(split.query).items()}
        header = self.headers.get("Authorization")
        self.token = header.removeprefix("Bearer ") if header else None
        self.hub.requests.append(Request(self.command, split.path, self.token))
        fault = next((f for f in self.hub.faults if self._hit(f, split.path)), None)
        if fault:
            fault.times -= 1
        size = int(self.headers.get("Content-Length") or 0)
        if fault and fault.status is None and fault.change is None and size:
            self.rfile.read(size // 2)
            self.close_connection = True
            return self.connection.close()
        self.body = self._read_chunked() if "chunked" in self.headers.get("Transfer-Encoding", "") else b""
        self.body = self.body or self.rfile.read(size)
        self.fault = fault
        try:
            if fault and fault.status:
                raise Stop(fault.status, fault.message)
            self.answer(unquote(split.path))
        except Stop as stop:
            self.send(stop.status, {"error": stop.message}, **stop.headers)

    do_GET = do_HEAD = do_POST = do_PUT = do

    def _hit(self, fault: Fault, path: str) -> bool:
        return fault.times > 0 and fault.method == self.command and re.search(fault.pattern, path) is not None

    def _read_chunked(self) -> bytes:
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def answer(self, path: str) -> None:
        for method, pattern, name in self.routes:
            if method == self.command and (match := re.fullmatch(pattern, path)):
                with self.hub.lock:
                    return getattr(self, name)(**match.groupdict())
        self.hub.problems.append(f"{self.command} {path}: the fixture doesn't know this")
        raise Stop(501, "unknown to the fixture")

    routes: tuple[tuple[str, str, str], ...] = ()

    def json(self) -> Any:
        return json.loads(self.body)

    def send(self, status: int, value: Any = b"", **headers: str) -> None:
        kind, data = "application/octet-stream", value
        if not isinstance(value, bytes):
            kind, data = "application/json", json.dumps(value).encode()
        if self.fault and self.fault.change and self.command != "HEAD":
            data = self.fault.change(data)
        self.send_response(status)
        for name, text in {"Content-Type": kind, "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


class Api(Handler):
    """The Hub itself."""

    _id = r"(?P<repo>[\w.-]+/[\w.-]+)"
    routes = (
        ("GET", "/api/agent-harnesses", "nothing"),
        ("POST", "/api/repos/create", "create"),
        ("POST", "/api/validate-yaml", "validate"),
        ("POST", rf"/api/models/{_id}/preupload/(?P<revision>.+)", "preupload"),
        ("POST", rf"/api/models/{_id}/commit/(?P<revision>.+)", "commit"),
        ("POST", rf"/api/models/{_id}/branch/(?P<name>.+)", "new_branch"),
        ("GET", rf"/api/models/{_id}/tree/(?P<revision>refs/pr/\d+|[^/]+)(?:/(?P<path>.+))?", "tree"),
        ("GET", rf"/api/models/{_id}(?:/revision/(?P<revision>.+))?", "info"),
        ("POST", rf"/{_id}\.git/info/lfs/objects/batch", "lfs_batch"),
        ("HEAD", rf"/{_id}/resolve/(?P<revision>refs/pr/\d+|[^/]+)/(?P<path>.+)", "file"),
        ("GET", rf"/{_id}/resolve/(?P<revision>refs/pr/\d+|[^/]+)/(?P<path>.+)", "file"),
    )

    # ---- who may do what ----------------------------------------------------------------------------------------

    def user(self) -> str | None:
        if self.token is not None and self.token not in USERS:
            raise Stop(401, "Invalid credentials in Authorization header")
        return USERS.get(self.token or "")

    def repository(self, name: str, write: bool = False) -> Repo:
        user = self.user()
        repository = self.hub.repos.get(name)
        if repository is None or (repository.private and user != name.split("/")[0]):
            raise Stop(404 if user else 401, "Repository not found", "RepoNotFound")
        if write and user is None:
            raise Stop(401, "Invalid username or password.")
        pull = "create_pr" in self.query or "/refs/pr/" in unquote(self.path)  # anybody may propose
        if write and user != name.split("/")[0] and not pull:
            raise Stop(403, f"You don't have the rights to write to {name}")
        return repository

    def at(self, repo: Repo, revision: str) -> str:
        sha = repo.resolve(revision)
        if sha is None:
            raise Stop(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return sha

    # ---- repositories -------------------------------------------------------------------------------------------

    def nothing(self) -> None:
        raise Stop(404, "not here")

    def create(self) -> None:
        asked, user = self.json(), self.user()
        owner = asked.get("organization") or user
        if user is None:
            raise Stop(401, "Invalid username or password.")
        if owner != user:
            raise Stop(403, f"You don't have the rights to create a model under the namespace {owner!r}.")
        name = f"{owner}/{asked['name']}"
        url = {"url": f"{self.hub.url}/{name}", "name": name}
        if name in self.hub.repos:
            return self.send(409, {**url, "error": "You already created this model repo"})
        repo = self.hub.repos[name] = Repo(private=asked.get("visibility") == "private")
        attributes = "".join(f"*{suffix} filter=lfs diff=lfs merge=lfs -text\n" for suffix in LARGE)
        repo.add("main", {".gitattributes": attributes.encode()}, "initial commit")
        return self.send(200, url)

    def info(self, repo: str, revision: str | None = None) -> None:
        repository = self.repository(repo)
        sha = self.at(repository, revision or "main")
        files = repository.commits[sha]
        siblings = [{"rfilename": path} for path in sorted(files)]
        self.send(200, {"id": repo, "sha": sha, "private": repository.private, "siblings": siblings, "tags": []})

    def tree(self, repo: str, revision: str, path: str | None = None) -> None:
        repository = self.repository(repo)
        files = repository.commits[self.at(repository, revision)]
        within = f"{path}/" if path else ""
        self.send(200, [entry(*item) for item in sorted(files.items()) if item[0].startswith(within)])

    # ---- references ---------------------------------------------------------------------------------------------

    def new_branch(self, repo: str, name: str) -> None:
        repository = self.repository(repo, write=True)
        asked = self.json() if self.body else {}
        if name in repository.refs:
            raise Stop(409, f"Reference {name} already exists")
        repository.refs[name] = self.at(repository, asked.get("startingPoint", "main"))
        self.send(200, {})

    def _open(self, repo: Repo, title: str) -> int:
        repo.pulls.append(title)
        repo.refs[f"refs/pr/{len(repo.pulls)}"] = repo.refs["main"]
        return len(repo.pulls)

    # ---- writing ------------------------------------------------------------------------------------------------

    def validate(self) -> None:
        self.send(200, {"errors": [], "warnings": []})

    def preupload(self, repo: str, revision: str) -> None:
        repository = self.repository(repo, write=True)
        files = repository.commits[self.at(repository, revision)]
        answers = []
        for asked in self.json()["files"]:
            known = entry(asked["path"], files[asked["path"]]) if asked["path"] in files else None
            mode = "lfs" if asked["path"].endswith(LARGE) else "regular"
            oid = known and known.get("lfs", known)["oid"]
            answers.append({"path": asked["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        self.send(200, {"files": answers})

    def lfs_batch(self, repo: str) -> None:
        # Whoever opens a pull request may upload too: the batch doesn't say which it is for.
        if self.user() is None:
            raise Stop(401, "Invalid username or password.")
        self.repository(repo)
        answers = []
        for asked in self.json()["objects"]:
            oid = asked["oid"]
            answer = {"oid": oid, "size": asked["size"]}
            if oid not in self.hub.objects:
                answer["actions"] = {"upload": {"href": f"{self.hub.storage_url}/put/{oid}"}}
            answers.append(answer)
        self.send(200, {"transfer": "basic", "objects": answers})

    def commit(self, repo: str, revision: str) -> None:
        pull = "create_pr" in self.query
        repository = self.repository(repo, write=True)
        lines = [json.loads(line) for line in self.body.splitlines()]
        assert lines[0]["key"] == "header"
        header = lines[0]["value"]
        if revision not in repository.refs:
            raise Stop(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        if "parentCommit" in header and header["parentCommit"] != repository.refs[revision]:
            raise Stop(412, "A commit has happened since. Please refresh and try again.")
        files = dict(repository.commits[repository.refs[revision]])
        for line in lines[1:]:
            value = line["value"]
            path = value["path"]
            if line["key"] == "file":
                content = base64.b64decode(value["content"])
                if path.endswith(LARGE):
                    raise Stop(400, f"{path}: large files must be uploaded by LFS")
                files[path] = content
            elif line["key"] == "lfsFile":
                if value["oid"] not in self.hub.objects:
                    raise Stop(400, f"{path}: pointer to a missing object {value['oid']}")
                files[path] = self.hub.objects[value["oid"]]
            elif line["key"] == "deletedFile":
                if files.pop(path, None) is None:
                    raise Stop(404, "A file with this name doesn't exist", "EntryNotFound")
            else:
                assert line["key"] == "deletedFolder", line["key"]
                files = {name: old for name, old in files.items() if not name.startswith(path.rstrip("/") + "/")}
        if pull:
            revision = f"refs/pr/{self._open(repository, header['summary'])}"
        sha = repository.add(revision, files, header["summary"])
        url = f"{self.hub.url}/{repo}"
        answer = {"success": True, "commitOid": sha, "commitUrl": f"{url}/commit/{sha}", "hookOutput": ""}
        if pull:
            answer["pullRequestUrl"] = f"{url}/discussions/{len(repository.pulls)}"
        self.send(200, answer)

    # ---- reading ------------------------------------------------------------------------------------------------

    def file(self, repo: str, revision: str, path: str) -> None:
        repository = self.repository(repo)
        sha = self.at(repository, revision)
        commit = {"X-Repo-Commit": sha}
        if path not in repository.commits[sha]:
            raise Stop(404, "Entry not found", "EntryNotFound", **commit)
        content = repository.commits[sha][path]
        if not path.endswith(LARGE):
            return self.send(200, content, ETag=f'"{git_name(content)}"', **commit)
        headers = {**commit, "X-Linked-Size": str(len(content)), "X-Linked-ETag": f'"{sha256(content)}"'}
        headers["Location"] = f"{self.hub.storage_url}/get/{sha256(content)}"
        return self.send(302, b"", **headers)


class Storage(Handler):
    """Where large files lie: another origin, whose addresses are signed, and which must never see a token."""

    routes = (
        ("PUT", r"/put/(?P<oid>\w+)", "put"),
        ("GET", r"/get/(?P<oid>\w+)", "get"),
        ("HEAD", r"/get/(?P<oid>\w+)", "get"),
    )

    def answer(self, path: str) -> None:
        if self.token is not None:
            self.hub.problems.append(f"{self.command} {path}: a token was sent to the storage")
            raise Stop(400, "Only one auth mechanism allowed")
        super().answer(path)

    def put(self, oid: str) -> None:
        if sha256(self.body) != oid:
            raise Stop(400, "BadDigest")
        self.hub.objects[oid] = self.body
        self.send(200, b"", ETag=f'"{hashlib.md5(self.body).hexdigest()}"')

    def get(self, oid: str) -> None:
        data = self.hub.objects.get(oid)
        if data is None:
            raise Stop(404, "NoSuchKey")
        return self.send(200, data, ETag=f'"{oid}"')

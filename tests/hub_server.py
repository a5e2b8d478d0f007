"""A hub of the tests' own on 127.0.0.1, for the real huggingface_hub: HF_ENDPOINT names its address.

It lists models, describes repositories with the sizes and LFS hashes of their files, and answers for a file
as the hub does: a redirect that carries commit, size and hash, to a storage on another host name with ranges.
It serves as an HTTP proxy too. What may go wrong with a hub is set in its attributes, at any time::

    with HubServer() as hub:
        hub.add("owner/name-GGUF", {"name-Q4_K_M.gguf": data}, licence="mit", gated="manual")
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlsplit

COMMIT = "a" * 40
STALL_LIMIT_S = 60


class Request(NamedTuple):
    """What was asked: ``path`` with its query, ``token`` as it stood in the header."""

    method: str
    path: str
    range: str | None
    token: str | None


@dataclass(slots=True)
class Repository:
    """A repository with the bytes of its files by path; ``gated`` is "", "auto" or "manual"."""

    name: str
    files: dict[str, bytes]
    licence: str | None = "apache-2.0"
    gated: str = ""
    is_private: bool = False
    parameters: int = 0  # of its models
    downloads: int = 0
    likes: int = 0
    updated: str = "2025-01-01T00:00:00.000Z"
    commit: str = COMMIT
    readers: set[str] = field(default_factory=set)  # the tokens that may read it where it is gated or private
    sizes: dict[str, int] = field(default_factory=dict)  # what the hub says where that is not the truth
    hashes: dict[str, str] = field(default_factory=dict)
    in_git: set[str] = field(default_factory=set)  # files without LFS, for which the hub knows no SHA-256

    def size(self, file: str) -> int:
        """The file's size, as the hub tells it."""
        return self.sizes.get(file, len(self.files[file]))

    def sha256(self, file: str) -> str:
        """The file's hash, as the hub tells it."""
        return self.hashes.get(file) or hashlib.sha256(self.files[file]).hexdigest()

    def git_hash(self, file: str) -> str:
        """The file's name in git, which is the ETag of a file without LFS."""
        data = self.files[file]
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class HubServer(ThreadingHTTPServer):
    """The hub; a context manager that listens meanwhile."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, Repository] = {}
        self.requests: list[Request] = []
        self.tokens: set[str] | None = None  # the valid ones; None: every token is
        self.refusal: tuple[int, dict[str, str]] | None = None  # status and headers, whatever is asked
        self.is_hub = True  # else a login page answers
        self.has_ranges = True
        self.cut_at: int | None = None  # the next download ends at this byte
        self.broken_after_cut = False  # and from then on the hub is down
        self.stall_at: int | None = None  # every download waits at this byte for go_on
        self.go_on = threading.Event()
        self.bytes_per_s: int | None = None  # of each download

    def __enter__(self) -> HubServer:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.go_on.set()
        self.shutdown()
        self.server_close()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that is gone is what some of the tests are about."""

    @property
    def address(self) -> str:
        """The value for HF_ENDPOINT."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def add(self, name: str, files: Mapping[str, bytes], **facts: object) -> Repository:
        """Add a repository, or put another in its place; ``facts`` are the other fields of Repository."""
        self.repositories[name] = Repository(name, dict(files), **facts)  # type: ignore[arg-type]
        return self.repositories[name]

    def downloads(self) -> list[str | None]:
        """The ranges of the downloads so far, in order; None where the whole file was asked for."""
        return [
            asked.range
            for asked in self.requests
            if asked.method == "GET" and asked.path.startswith("/storage")
        ]


class _Handler(BaseHTTPRequestHandler):
    server: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        hub = self.server
        url = urlsplit(self.path)
        path = url.path + (f"?{url.query}" if url.query else "")
        self.token = self.headers["Authorization"]
        hub.requests.append(Request(self.command, path, self.headers["Range"], self.token))
        if url.path.startswith("/storage/"):
            return self.send_data(unquote(url.path.removeprefix("/storage/")))
        if hub.refusal:
            return self.send(*hub.refusal)
        if not hub.is_hub:
            return self.send(200, {"Content-Type": "text/html"}, b"<html>log in</html>")
        if self.token and hub.tokens is not None and self.bearer not in hub.tokens:
            return self.send(401, {"X-Error-Message": "Invalid credentials in Authorization header"})
        if url.path == "/api/models":
            return self.send_list(parse_qs(url.query))
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/([^/]+))?", url.path):
            return self.send_facts(found[1], unquote(found[2] or "main"))
        if found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", url.path):
            return self.send_file(found[1], unquote(found[2]), unquote(found[3]))
        return self.send(404, {})

    @property
    def bearer(self) -> str:
        return (self.token or "").removeprefix("Bearer ")

    def send(self, status: int, headers: Mapping[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def send_json(self, value: object) -> None:
        self.send(200, {"Content-Type": "application/json"}, json.dumps(value).encode())

    def send_list(self, query: Mapping[str, list[str]]) -> None:
        words = query.get("search", [""])[0].casefold().split()
        found = [
            repository
            for repository in self.server.repositories.values()
            if all(word in repository.name.casefold() for word in words) and not repository.is_private
        ]
        tags = [tag for tag in query["filter"] if tag != "gguf"]
        found = [one for one in found if all(tag == f"license:{one.licence}" for tag in tags)]
        if query.get("gated") == ["false"]:
            found = [one for one in found if not one.gated]
        if "num_parameters" in query:
            most = int(query["num_parameters"][0].removeprefix("max:"))
            found = [one for one in found if 0 < one.parameters <= most]
        orders = {"downloads": "downloads", "likes": "likes", "lastModified": "updated"}
        order = orders[query.get("sort", ["downloads"])[0]]
        found.sort(key=lambda repository: getattr(repository, order), reverse=True)
        limit = int(query.get("limit", ["100"])[0])
        self.send_json([self.facts(repository) for repository in found[:limit]])

    def send_facts(self, name: str, revision: str) -> None:
        if not (repository := self.repository(name, revision)):
            return
        siblings = []
        for file in repository.files:
            size = repository.size(file)
            facts: dict[str, object] = {"rfilename": file, "size": size, "blobId": repository.git_hash(file)}
            if file not in repository.in_git:
                facts["lfs"] = {"sha256": repository.sha256(file), "size": size, "pointerSize": 135}
            siblings.append(facts)
        self.send_json(self.facts(repository) | {"siblings": siblings})

    def facts(self, repository: Repository) -> dict[str, object]:
        tags = ["gguf"] + ([f"license:{repository.licence}"] if repository.licence else [])
        return {
            "id": repository.name,
            "modelId": repository.name,
            "sha": repository.commit,
            "private": repository.is_private,
            "gated": repository.gated or False,
            "downloads": repository.downloads,
            "likes": repository.likes,
            "lastModified": repository.updated,
            "tags": tags,
        }

    def repository(self, name: str, revision: str) -> Repository | None:
        """The repository, unless it is answered that it can't be had."""
        repositories = self.server.repositories
        repository = repositories.get(name)
        if repository is None:
            renamed = next((known for known in repositories if known.casefold() == name.casefold()), None)
            if renamed:
                self.send(307, {"Location": self.path.replace(name, renamed)})
                return None
        if repository is None or (repository.is_private and self.bearer not in repository.readers):
            # So that nobody learns what is private, the hub tells the two apart for nobody.
            self.send(404 if self.token else 401, {"X-Error-Code": "RepoNotFound"})
            return None
        if revision not in ("main", repository.commit):
            self.send(404, {"X-Error-Code": "RevisionNotFound"})
            return None
        return repository

    def send_file(self, name: str, revision: str, file: str) -> None:
        if not (repository := self.repository(name, revision)):
            return None
        if repository.gated and self.bearer not in repository.readers:
            return self.send(403 if self.token else 401, {"X-Error-Code": "GatedRepo"})
        if file not in repository.files:
            return self.send(404, {"X-Error-Code": "EntryNotFound"})
        if file in repository.in_git:
            etag = f'"{repository.git_hash(file)}"'
            headers = {"X-Repo-Commit": repository.commit, "ETag": etag}
            data = repository.files[file]
            return self.send(200, headers | {"Content-Length": str(len(data))}, data)
        # Another host name, as the hub's storage is.
        storage = f"http://localhost:{self.server.server_address[1]}/storage/{name}/{quote(file)}"
        return self.send(
            302,
            {
                "Location": storage,
                "X-Repo-Commit": repository.commit,
                "X-Linked-Etag": f'"{repository.sha256(file)}"',
                "X-Linked-Size": str(repository.size(file)),
            },
        )

    def send_data(self, place: str) -> None:
        hub = self.server
        owner, name, file = place.split("/", 2)
        data = hub.repositories[f"{owner}/{name}"].files[file]
        start = 0
        if (asked := re.fullmatch(r"bytes=(\d+)-", self.headers["Range"] or "")) and hub.has_ranges:
            start = int(asked[1])
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        if hub.cut_at is not None:
            cut, hub.cut_at = hub.cut_at, None
            self.wfile.write(data[start:cut])
            self.close_connection = True
            if hub.broken_after_cut:
                hub.refusal = (500, {})
            return
        if hub.stall_at is not None and start <= hub.stall_at < len(data):
            self.write(data[start : hub.stall_at])
            hub.go_on.wait(STALL_LIMIT_S)
            start = hub.stall_at
        self.write(data[start:])

    def write(self, data: bytes) -> None:
        if self.server.bytes_per_s is None:
            self.wfile.write(data)
            return
        step = max(self.server.bytes_per_s // 20, 1)
        for start in range(0, len(data), step):
            self.wfile.write(data[start : start + step])
            time.sleep(0.05)

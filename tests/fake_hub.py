"""A hub on 127.0.0.1 that works with huggingface_hub's snapshot_download, and can misbehave.

It serves files from memory. It can truncate a file, stall, or refuse requests.
It has no Xet storage: files are sent over plain HTTP.
"""

import hashlib
import json
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

CHUNK_BYTES = 1 << 14


def tiny_model_files(payload_bytes: int = 64) -> dict[str, bytes]:
    """The files of a model repository, with one bfloat16 tensor, and two that no model needs."""
    tensor = {"dtype": "BF16", "shape": [payload_bytes // 2], "data_offsets": [0, payload_bytes]}
    header = json.dumps({"model.norm.weight": tensor}).encode()
    config = {"model_type": "llama", "hidden_size": 32, "max_position_embeddings": 4096}
    return {
        "config.json": json.dumps(config).encode(),
        "tokenizer.json": b"{}",
        "tokenizer_config.json": b"{}",
        "chat_template.jinja": b"{{ messages }}",
        "model.safetensors": struct.pack("<Q", len(header)) + header + bytes(payload_bytes),
        "README.md": b"# not needed",
        "modeling.py": b"raise SystemExit('code from the hub was run')",
    }


def git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclass
class FakeRepo:
    """A repository. `claimed_bytes` are sizes that the API reports instead of the true ones."""

    files: dict[str, bytes]
    is_gated: bool = False
    claimed_bytes: dict[str, int] = field(default_factory=dict)

    @property
    def commit(self) -> str:
        return hashlib.sha1(b"".join(self.files.values())).hexdigest()


@dataclass
class FakeHub:
    """The server, as a context manager. `sent_names` are of files, in order of arrival."""

    repos: dict[str, FakeRepo] = field(default_factory=dict)
    cut_off_after_bytes: dict[str, int] = field(default_factory=dict)
    seconds_per_chunk: float = 0.0
    always_answer: tuple[int, bytes] | None = None
    sent_names: list[str] = field(default_factory=list)

    def __enter__(self) -> "FakeHub":
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        is_api = parts[:2] == ["api", "models"]
        repo_id, name = "/".join(parts[2:4] if is_api else parts[:2]), "/".join(parts[4:])
        repo = self.hub.repos.get(repo_id)
        if self.hub.always_answer is not None:
            self._send(*self.hub.always_answer)
        elif repo is None:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif is_api:
            found = json.dumps(_listing(repo_id, repo, is_tree=parts[4:5] == ["tree"]))
            self._send(200, found.encode(), {"Content-Type": "application/json"})
        elif repo.is_gated:
            self._send(403, b"{}", {"X-Error-Code": "GatedRepo"})
        elif name not in repo.files:
            self._send(404, b"{}", {"X-Error-Code": "EntryNotFound"})
        else:
            if self.command == "GET":
                self.hub.sent_names.append(name)
            headers = {"X-Repo-Commit": repo.commit, "ETag": f'"{git_sha1(repo.files[name])}"'}
            self._send(200, repo.files[name], headers, self.hub.cut_off_after_bytes.get(name))

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _send(
        self,
        status: int,
        body: bytes,
        headers: dict[str, str] | None = None,
        cut_off_after_bytes: int | None = None,
    ) -> None:
        self.send_response(HTTPStatus(status))
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        self.close_connection = cut_off_after_bytes is not None
        with suppress(OSError):
            for start in range(0, len(body[:cut_off_after_bytes]), CHUNK_BYTES):
                self.wfile.write(body[:cut_off_after_bytes][start : start + CHUNK_BYTES])
                time.sleep(self.hub.seconds_per_chunk)


def _listing(repo_id: str, repo: FakeRepo, *, is_tree: bool) -> object:
    """What the API answers. In a tree, a name is a path; of a model, it is that of a sibling."""
    at, tag = ("path", "oid") if is_tree else ("rfilename", "blobId")
    sizes = {name: len(data) for name, data in repo.files.items()} | repo.claimed_bytes
    files: list[dict[str, object]] = [
        {"type": "file", "size": sizes[name], at: name, tag: git_sha1(data)}
        for name, data in repo.files.items()
    ]
    return files if is_tree else {"id": repo_id, "sha": repo.commit, "siblings": files}


def put_in_cache(hub_cache: Path, repo_id: str, files: dict[str, bytes]) -> Path:
    """Lay out a repository like an older library, without a list of files; returns the snapshot."""
    commit = "a" * 40
    repo = hub_cache / f"models--{repo_id.replace('/', '--')}"
    snapshot = repo / "snapshots" / commit
    for directory in (snapshot, repo / "refs", repo / "blobs"):
        directory.mkdir(parents=True, exist_ok=True)
    (repo / "refs" / "main").write_text(commit)
    for name, data in files.items():
        blob = repo / "blobs" / git_sha1(data)
        blob.write_bytes(data)
        (snapshot / name).symlink_to(Path("..", "..", "blobs", blob.name))
    return snapshot

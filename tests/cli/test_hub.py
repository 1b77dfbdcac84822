"""`hf:org/name` through the real client, against a hub of one repository on this machine."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.checkpoints.tiny import GPT2
from tests.cli.conftest import Run

pytestmark = pytest.mark.slow

CONFIG = json.dumps({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], **GPT2}).encode()
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(BaseHTTPRequestHandler):
    """Answers for `tiny/gpt2` alone, at revision `main`."""

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, *, body: bool) -> None:
        known = self.path == f"/tiny/gpt2/resolve/{self.path.split('/')[-2]}/config.json"
        known = known and self.path.split("/")[-2] in ("main", COMMIT)
        self.send_response(200 if known else 404)
        if known:
            self.send_header("ETag", '"a1"')
            self.send_header("X-Repo-Commit", COMMIT)
        else:
            self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Length", str(len(CONFIG) if known else 0))
        self.end_headers()
        if known and body:
            self.wfile.write(CONFIG)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def endpoint() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


FETCH = "import sys; from tiebeam.cli.hub import config_file; print(config_file(sys.argv[1]))"


def fetched(name: str, home: Path, **env: str) -> Path:
    """The file that the client of a process of its own finds: it reads its settings when it is imported."""
    done = process("-c", FETCH, name, home=home, **env)
    assert done.returncode == 0, done.stderr
    found = Path(done.stdout.strip())
    assert found.read_bytes() == CONFIG
    return found


def inspect(name: str, home: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return process("-m", "tiebeam.cli", "inspect", f"hf:{name}", "--meta", "--format", "json", home=home, **env)


def process(*args: str, home: Path, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if "proxy" not in k.lower() and not k.startswith("HF_")}
    path = os.pathsep.join(p for p in sys.path if p)
    return subprocess.run(
        [sys.executable, *args],
        capture_output=True,
        text=True,
        check=False,
        env={**clean, "PYTHONPATH": path, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1", **env},
    )


def test_what_was_fetched_is_found_in_the_cache_and_inspected(
    endpoint: str, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = fetched("tiny/gpt2", tmp_path, HF_ENDPOINT=endpoint)
    assert fetched("tiny/gpt2", tmp_path, HF_HUB_OFFLINE="1") == first
    assert fetched("tiny/gpt2", tmp_path, HF_ENDPOINT="http://127.0.0.1:9") == first  # where the hub does not answer
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    ran = run("inspect", "hf:tiny/gpt2", "--meta", "--format", "json")
    assert ran.code == 0, ran.err
    report = json.loads(ran.out)
    assert (report["tables"][0]["vocab"], report["tables"][0]["width"]) == (96, 32)


def test_a_revision_may_be_named(endpoint: str, tmp_path: Path) -> None:
    assert fetched(f"tiny/gpt2@{COMMIT}", tmp_path, HF_ENDPOINT=endpoint).parent.name == COMMIT


@pytest.mark.parametrize(
    ("name", "env", "message"),
    [
        ("tiny/gpt2", {"HF_HUB_OFFLINE": "1"}, "cannot be reached"),
        ("tiny/gpt2", {"HF_ENDPOINT": "http://127.0.0.1:9"}, "cannot be reached"),
        ("bad//name", {}, "names no repository"),
    ],
    ids=["offline", "unreachable", "invalid"],
)
def test_without_the_hub_the_message_says_what_to_do(
    tmp_path: Path, name: str, env: dict[str, str], message: str
) -> None:
    done = inspect(name, tmp_path, **env)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.startswith("TargetError: ")
    assert len(done.stderr.splitlines()) <= 4


def test_an_unknown_repository_is_said_to_be_unknown(endpoint: str, tmp_path: Path) -> None:
    done = inspect("tiny/other", tmp_path, HF_ENDPOINT=endpoint)
    assert done.returncode == 2
    assert "the config of 'hf:tiny/other' cannot be fetched" in done.stderr

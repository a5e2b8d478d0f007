"""The server without the page: other sites, other routes, and whatever one may send to Gradio's own API."""

from __future__ import annotations

import json
import math
import secrets
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.ui.conftest import Served
from tests.ui.fakes import FakeShelf, Script

TARGET = FakeShelf.path("starter")
PICKS = {"preset": "", "target": TARGET, "mode": "plain", "draft": ""}


def status(address: str, method: str = "GET", **headers: str) -> int:
    request = urllib.request.Request(address, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code


@dataclass
class Api:
    """Calls the page's events and server functions as any program on this machine could."""

    address: str
    config: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        with urllib.request.urlopen(self.address + "config", timeout=30) as reply:
            self.config = json.load(reply)
        self._ids = {
            part["props"].get("elem_id"): part["id"] for part in self.config["components"] if part["props"]
        }

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            f"{self.address}gradio_api/{path}",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.load(reply)

    def send(self, part: str, event: str, about: Any, change: dict[str, Any] | None = None) -> dict[str, Any]:
        """Trigger an event with the inputs' first values, those in ``change`` replaced; its last message."""
        known = {one["id"]: one["props"] for one in self.config["components"]}
        found = next(one for one in self.config["dependencies"] if [self._ids[part], event] in one["targets"])
        changed = {self._ids[name]: value for name, value in (change or {}).items()}
        data = [changed.get(id_, known[id_].get("value")) for id_ in found["inputs"]]
        session = secrets.token_hex(5)
        self._post(
            "queue/join",
            {
                "data": data,
                "fn_index": found["id"],
                "session_hash": session,
                "event_data": about,
                "trigger_id": self._ids[part],
            },
        )
        stream = f"{self.address}gradio_api/queue/data?session_hash={session}"
        with urllib.request.urlopen(stream, timeout=60) as lines:
            for line in lines:
                if line.startswith(b"data:"):
                    message: dict[str, Any] = json.loads(line[5:])
                    if message["msg"] in ("process_completed", "unexpected_error"):
                        return message
        raise AssertionError("the stream ended without an end")

    def ask(self, picks: Any = PICKS, tab: Any = "tab", text: Any = "Hi", **change: Any) -> dict[str, Any]:
        return self.send("chat", "ask", {"tab": tab, "text": text}, {"setup": picks, **change})

    def serve(self, part: str, function: str, /, **asked: Any) -> dict[str, Any]:
        """Call a server function of a script."""
        body = {"data": asked, "component_id": self._ids[part], "fn_name": function, "session_hash": "s"}
        answer: dict[str, Any] = json.loads(self._post("component_server", body))
        return answer


@pytest.fixture
def api(fake: Served) -> Api:
    fake.client.script = Script(["Hello"])
    return Api(fake.address)


# Who may ask


def test_the_server_listens_on_this_machine_alone(fake: Served) -> None:
    assert fake.address.startswith("http://127.0.0.1:")


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": "localhost.evil.example:7860"},
        {"Host": "evil@127.0.0.1.example"},
        {"Host": "[::1"},
        {"Host": ""},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "http://localhost.evil.example"},
        {"Origin": "file://"},
        {"Origin": "http://[::1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"},
    ],
    ids=str,
)
def test_another_site_is_refused_whatever_it_calls_itself(fake: Served, headers: dict[str, str]) -> None:
    assert status(fake.address, **headers) == 403
    assert status(fake.address + "gradio_api/queue/join", "POST", **headers) == 403


def test_a_link_from_another_site_opens_the_page_and_no_form_does(fake: Served) -> None:
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert status(fake.address, **link) == 200
    assert status(fake.address + "gradio_api/queue/join", "POST", **link) == 403


@pytest.mark.parametrize(
    "path",
    [
        "gradio_api/file=/etc/passwd", "gradio_api/file=pyproject.toml", "gradio_api/file/pyproject.toml",
        "gradio_api/file=https://example.com/", "gradio_api/proxy=https://example.com/",
        "gradio_api/upload", "gradio_api/upload_progress", "gradio_api/info", "gradio_api/openapi.json",
        "gradio_api/run/ask", "gradio_api/call/ask", "gradio_api/api/ask",
        "gradio_api/stream/1/2/3/playlist-file",
        "gradio_api/custom_component/1/client/component/index.js", "gradio_api/deep_link", "gradio_api/token",
        "gradio_api/queue/status", "gradio_api/vibe-code", "monitoring", "openapi.json", "docs", "login",
        "svelte/..%2f..%2froutes.py", "dev/reload", "manifest.json",
    ],
)  # fmt: skip
def test_routes_without_a_use_are_not_there(fake: Served, path: str) -> None:
    assert status(fake.address + path) == 404
    assert status(fake.address + path, "POST") == 404


@pytest.mark.parametrize(
    "path", ["static/..%2f..%2froutes.py", "assets/..%2f..%2froutes.py", "static//etc/passwd"]
)
def test_no_way_leads_out_of_the_pages_files(fake: Served, path: str) -> None:
    assert status(fake.address + path) in (403, 404)


def test_nothing_that_a_text_may_become_reaches_another_machine(fake: Served) -> None:
    with urllib.request.urlopen(fake.address, timeout=30) as reply:
        policy = reply.headers["content-security-policy"]
        assert reply.headers["x-content-type-options"] == "nosniff"
    assert policy.startswith("default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:;")
    assert "frame-ancestors 'none'" in policy
    assert "http" not in policy


# What may be asked


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "/models/../etc/passwd", "starter", "/models", "\0", "x" * 5000]
)
@pytest.mark.parametrize("role", ["target", "draft"])
def test_only_a_listed_model_can_be_asked(api: Api, fake: Served, role: str, path: str) -> None:
    made = api.ask({**PICKS, "mode": "draft", "draft": FakeShelf.path("small-draft"), role: path})
    assert "is not among the models here" in json.dumps(made["output"])
    assert fake.client.runs == []


def test_a_listed_model_answers(api: Api, fake: Served) -> None:
    assert "Hello" in json.dumps(api.ask()["output"])
    assert str(fake.client.runs[0].load.target) == TARGET


@pytest.mark.parametrize("tab", ["", "*", "another", None, 0, ["tab"], {"tab": 1}])
def test_no_tab_gets_anothers_text(api: Api, tab: Any) -> None:
    api.ask(tab="the-secret-tab", text="the secret")
    assert "the secret" not in json.dumps(api.send("chat", "opened", {"tab": tab}))
    assert "the secret" in json.dumps(api.send("chat", "opened", {"tab": "the-secret-tab"}))


NUMBERS = (
    "n_draft", "p_min", "ngram_min", "ngram_max", "n_ctx", "temperature", "top_k", "top_p", "min_p",
    "repeat_penalty", "presence_penalty", "frequency_penalty", "repeat_last_n", "seed", "max_tokens",
    "threads", "gpu_layers", "draft_gpu_layers",
)  # fmt: skip
ODD = [
    None,
    -1,
    0,
    1,
    1e9,
    1e308,
    -1e308,
    2**63,
    10**400,
    math.nan,
    math.inf,
    True,
    "",
    "x",
    "1e3",
    "9" * 5000,
    [],
    {},
]


@pytest.mark.parametrize("name", NUMBERS)
def test_whatever_a_number_is_the_answer_or_the_reason_comes(api: Api, fake: Served, name: str) -> None:
    for odd in ODD:
        fake.client.runs.clear()
        made = api.ask({**PICKS, "mode": "draft", "draft": FakeShelf.path("small-draft")}, **{name: odd})
        told = json.dumps(made["output"])
        if fake.client.runs:
            assert "Hello" in told, odd
        else:
            assert '\\"failed\\"' in told or made["success"] is False, odd
    assert "Hello" in json.dumps(api.ask()["output"])


@pytest.mark.parametrize(
    "picks", [None, "", [], {}, {"target": 5}, {**PICKS, "mode": "?"}, {**PICKS, "target": []}]
)
def test_whatever_is_picked_the_reason_comes(api: Api, fake: Served, picks: Any) -> None:
    made = api.ask(picks)
    assert '\\"failed\\"' in json.dumps(made["output"]) or made["success"] is False
    assert fake.client.runs == []
    assert "Hello" in json.dumps(api.ask()["output"])


@pytest.mark.parametrize("text", ["", " ", "\ud800", "\0", "<img src=x>", "\u202eabc", "y" * 1_000_000])
def test_whatever_is_asked_reaches_the_model_as_it_is(api: Api, fake: Served, text: str) -> None:
    api.ask(text=text)
    assert fake.client.runs[0].request.messages[-1].content == text


@pytest.mark.parametrize("part", ["compare", "models", "make-draft"])
@pytest.mark.parametrize("asked", [{}, {"do": "no such act"}, {"do": "begin", "more": 1}, {"do": []}])
def test_a_wrong_question_of_a_script_is_answered(api: Api, part: str, asked: dict[str, Any]) -> None:
    name = {"compare": "compare", "models": "models", "make-draft": "drafts"}[part]
    assert "error" in api.serve(part, name, **asked)


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "..", ".", "", "a/b", "\0"])
@pytest.mark.parametrize("act", ["show", "replays", "remove", "go_on"])
def test_no_file_but_a_comparison_is_read_or_removed(api: Api, act: str, name: str) -> None:
    told = api.serve("compare", "compare", do=act, id=name)
    assert "root:" not in json.dumps(told)
    assert "error" in told


def test_no_draft_is_made_of_or_at_another_place(api: Api) -> None:
    plan = {"do": "plan", "target": TARGET, "type": "", "skip": "", "name": ""}
    outside = api.serve("make-draft", "drafts", **{**plan, "target": "/etc/passwd"})
    assert "is not among the models here" in outside["error"]
    told = api.serve("make-draft", "drafts", do="search", target="/etc/passwd", minutes="1")
    assert "is not among the models here" in told["error"]

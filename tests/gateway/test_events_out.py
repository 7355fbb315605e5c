"""Events out of a running cluster: webhooks, annotations, traces, the log over HTTP, and docs/events-out.md."""

import base64
import hashlib
import hmac
import http.server
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared.bus.server.accounts import read_credentials
from tests.bounds import LONG_S, WAIT_S
from tests.docs.page import ROOT, first_missing, steps
from tests.gateway.test_http import Gateway, job

PAGE = (ROOT / "docs" / "events-out.md").read_text(encoding="utf-8")
KEY = b"0123456789abcdef0123456789abcdef"
#: Of the events that the targets want, those that every submission makes.
WANTED = {"job.registered", "plan.committed", "evaluation.ended"}


class Targets:
    """A server that is every target: a webhook that fails once, Grafana that stores, then fails once, a collector."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any], bool]] = []
        self.annotations: dict[str, int] = {}
        self.spans: dict[str, dict[str, Any]] = {}
        self.failed: set[str] = set()
        self.tokens: set[str] = set()
        targets = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                tag = httpx.URL(self.path).params["tags"]
                found = [{"id": 1}] * targets.annotations.get(tag, 0)
                self._answer(200, json.dumps(found).encode())

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                self._answer(targets.take(self.path, dict(self.headers), body), b"{}")

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def take(self, path: str, headers: dict[str, str], body: bytes) -> int:
        """Store what was sent; each path fails at its first request."""
        is_first = path not in self.failed
        self.failed.add(path)
        value = json.loads(body)
        if path == "/hook":
            if is_first:
                return 503
            told = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
            wanted = "v1," + base64.b64encode(hmac.digest(KEY, told, hashlib.sha256)).decode()
            self.events.append(
                (headers["webhook-id"], value, wanted == headers["webhook-signature"])
            )
        elif path == "/grafana/api/annotations":
            self.tokens.add(headers["Authorization"])
            tag = value["tags"][-1]
            self.annotations[tag] = self.annotations.get(tag, 0) + 1
            if is_first:
                return 500
        else:
            for resource in value["resourceSpans"]:
                for one in resource["scopeSpans"][0]["spans"]:
                    self.spans[one["spanId"]] = one
        return 200

    def end(self) -> None:
        """Stop serving."""
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


def settings(targets: Targets, page_port: int) -> str:
    """The page's own webhook, and one target of each kind; https is refused by nothing that is tested here."""
    page = re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    local = "allow_http = true\nallow_private = true\n"
    hook = f'[[webhook]]\nname = "hook"\nurl = "http://127.0.0.1:{targets.port}/hook"\n'
    parts = [
        page[0].replace(":8099/", f":{page_port}/"),
        hook + 'secret_file = "hook.key"\nkinds = ["job.", "evaluation.", "plan."]\n' + local,
        page[1].replace("https://grafana.example", f"http://127.0.0.1:{targets.port}/grafana")
        + local,
        page[2].replace(":4318/", f":{targets.port}/"),
    ]
    return "".join(parts).replace('"deployment.ended", "node.drain"', '"job.registered"')


class Out:
    """The cluster with its targets."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.targets = Targets()
        (folder / "pager.key").write_bytes(base64.b64encode(KEY) + b"\n")
        (folder / "hook.key").write_bytes(KEY + b"\n")
        (folder / "grafana.token").write_text("glsa_token\n")
        program = re.findall(
            r"^```py\n# The receiver of a webhook.\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL
        )[0]
        # A port of its own, that the program binds; the test only has to know it.
        program = program.replace(
            "http.server.HTTPServer((", "server = http.server.HTTPServer(("
        ).replace(
            ", Receiver).serve_forever()",
            ", Receiver)\nprint(server.server_port, flush=True)\nserver.serve_forever()",
        )
        self.receiver = subprocess.Popen(
            [sys.executable, "-c", program, "0"],
            cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert self.receiver.stdout is not None
        port = int(self.receiver.stdout.readline())
        file = folder / "events-out.toml"
        file.write_text(settings(self.targets, port))
        self.gateway = Gateway(folder, CARAVAN_GATEWAY_EVENTS_OUT=str(file))
        self.up = self.gateway.up

    def rows(self) -> dict[str, dict[str, Any]]:
        """The targets by name."""
        found = self.gateway.read("/v1/caravan/webhooks")
        return {one["name"]: one for one in found["targets"]} if found else {}

    def is_sent(self, seq: int) -> bool:
        """Whether every target has all up to a seq."""
        states = [(one["seq"] >= seq, one["status"]) for one in self.rows().values()]
        return states == [(True, "ok")] * 4

    def end(self) -> None:
        """End everything."""
        self.gateway.end()
        self.receiver.kill()
        self.receiver.wait()
        assert self.receiver.stdout is not None
        self.receiver.stdout.close()
        self.targets.end()


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Out]:
    """One cluster for the file, with a job that runs."""
    one = Out(tmp_path_factory.mktemp("events-out"))
    # A new subscription begins with the next record: what came before its start is not sent.
    begun = one.up.data_dir / "gateway" / "outgoing"
    one.up.until(lambda: len(list(begun.glob("*.json"))) == 4, "every target has begun")
    code, found = one.up.run("job", "run", str(ROOT / "examples" / "hello.nomad.hcl"))
    assert code == 0, found
    # Where the node joined before the job, one evaluation does it; else a second one that the node wakes.
    one.up.until(
        lambda: {kind for _, _, kind in in_the_log(one)} >= WANTED, "the evaluation has ended"
    )
    seq = one.up.ask("cluster")["seq"]
    one.up.until(lambda: one.is_sent(seq), "all is sent")
    yield one
    one.end()


def in_the_log(out: Out) -> list[tuple[int, int, str]]:
    """Of the events that the targets want: seq, place in the record, and type."""
    found: list[tuple[int, int, str]] = []
    for line in out.gateway.http.get("/v1/caravan/log", params={"from": "1"}).text.splitlines():
        value = json.loads(line)
        for n, event in enumerate(value["record"].get("events", ())):
            if event["type"].startswith(("job.", "evaluation.", "plan.")):
                found.append((value["seq"], n, event["type"]))
    return found


def test_events_are_delivered_in_order_and_signed(out: Out) -> None:
    """The target failed at first: nothing is missing, ids rise, each request is signed."""
    ids = [(int(one[0].split("/")[1]), int(one[0].split("/")[2])) for one in out.targets.events]
    assert ids == sorted(set(ids))
    assert all(is_signed for _, _, is_signed in out.targets.events)
    wanted = in_the_log(out)
    assert {kind for _, _, kind in wanted} >= WANTED
    assert ids == [one[:2] for one in wanted]
    assert [one[1]["type"] for one in out.targets.events] == [f"caravan.{one[2]}" for one in wanted]
    assert out.rows()["hook"]["failed"] >= 1
    rest = json.dumps([one[1] for one in out.targets.events])
    assert '"spec"' not in rest


def test_an_annotation_is_made_once_though_its_answer_was_lost(out: Out) -> None:
    """Grafana had stored it and answered 500: the next attempt finds it."""
    assert list(out.targets.annotations.values()) == [1]
    assert out.targets.tokens == {"Bearer glsa_token"}
    assert out.rows()["grafana"]["failed"] == 1


@pytest.fixture(scope="module")
def page_outputs(out: Out) -> list[tuple[str, str]]:
    """The commands of the page, in order, each with what it does not print as it should."""
    (out.folder / "caravan").write_text(f'#!/bin/sh\nexec {sys.executable} -m services.cli "$@"\n')
    (out.folder / "caravan").chmod(0o755)
    env = {**out.up.env, "PATH": f"{out.folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    found = []
    for step in steps(PAGE):
        done = subprocess.run(
            ["sh", "-ec", step.command], cwd=out.folder, env=env, text=True,
            capture_output=True, check=False, timeout=LONG_S,
        )  # fmt: skip
        missing = first_missing(step.shown, done.stdout)
        found.append((step.command, missing and f"{missing}\n{done.stdout}\n{done.stderr}"))
    return found


def test_the_page_does_what_it_says(out: Out, page_outputs: list[tuple[str, str]]) -> None:
    """Its commands print what it shows, and its receiver prints the events that it verified."""
    assert len(page_outputs) >= 3
    assert [one for one in page_outputs if one[1]] == []
    assert out.receiver.stdout is not None
    assert "hello version 0" in out.receiver.stdout.readline()


def test_live_spans_are_those_of_the_log(out: Out, page_outputs: list[tuple[str, str]]) -> None:
    """The gateway's export and `log trace` of the page make the same spans, the second overwrites the first."""
    assert page_outputs
    offline = {}
    for line in (out.folder / "spans.jsonl").read_text().splitlines():
        for one in json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"]:
            offline[one["spanId"]] = one
    assert len(offline) > 5
    seq = max(int(one["attributes"][0]["value"]["intValue"]) for one in offline.values())
    out.up.until(lambda: out.is_sent(seq), "all spans are sent")
    assert offline.items() <= out.targets.spans.items()
    assert {"job.registered", "evaluation", "plan", "allocation"} <= {
        one["name"] for one in offline.values()
    }


def test_a_submission_is_in_the_trace_of_its_sender(out: Out, tmp_path: Path) -> None:
    """A header `traceparent` over HTTP becomes the parent of a span that `log trace` writes from the recorded log."""
    trace, span = secrets.token_hex(16), secrets.token_hex(8)
    headers = {"traceparent": f"00-{trace}-{span}-01"}
    body = {"Job": job("traced", "true", "batch")}
    answer = out.gateway.http.put("/v1/jobs", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    file = tmp_path / "spans.jsonl"
    assert out.up.run("log", "trace", "--otlp", str(file))[0] == 0
    spans = [
        one
        for line in file.read_text().splitlines()
        for one in json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"]
    ]
    (mine,) = [one for one in spans if one["traceId"] == trace]
    assert mine["parentSpanId"] == span
    (link,) = mine["links"]
    (root,) = [one for one in spans if one["spanId"] == link["spanId"]]
    assert (root["name"], root["traceId"]) == ("job.registered", link["traceId"])
    out.gateway.stop("traced")


def test_the_log_is_streamed_and_resumed(out: Out) -> None:
    """JSON lines from any seq, server-sent events behind an id, and what is written while a reader follows."""
    http_client, end = out.gateway.http, out.up.ask("cluster")["seq"]
    whole = http_client.get("/v1/caravan/log", params={"from": "1"}).text.splitlines()
    assert [json.loads(line)["seq"] for line in whole][:end] == list(range(1, end + 1))
    part = http_client.get("/v1/caravan/log", params={"from": "3", "to": "5"}).text.splitlines()
    assert part == whole[2:5]
    headers = {"Accept": "text/event-stream", "Last-Event-ID": str(end)}
    with http_client.stream(
        "GET", "/v1/caravan/log", params={"job": "streamed"}, headers=headers
    ) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert "content-encoding" not in answer.headers
        out.gateway.run("streamed", "true", "batch")
        lines = (line for line in answer.iter_lines() if line.startswith(("id: ", "data: ")))
        found = [(next(lines), json.loads(next(lines).removeprefix("data: "))) for _ in range(2)]
    assert [one[0] for one in found] == [f"id: {one[1]['seq']}" for one in found]
    assert found[0][1]["record"]["events"][0]["type"] == "job.registered"
    out.gateway.stop("streamed")
    assert http_client.get("/v1/caravan/log").status_code == 400
    assert out.gateway.plain.get("/v1/caravan/log").status_code == 403


def test_a_login_that_may_not_read_the_log_is_refused(out: Out) -> None:
    """The bus knows an agent's login, and does not let it read the log: 403 for the caller, too."""
    path = out.up.data_dir / "credentials" / "agent-node-1.json"
    user, password = read_credentials(path).node_login("node-1")
    headers = {"X-Nomad-Token": f"{user}:{password}"}
    answer = out.gateway.plain.get("/v1/caravan/log", params={"from": "1"}, headers=headers)
    assert (answer.status_code, "Permission denied" in answer.text) == (403, True)


def test_one_gateway_sends_and_a_start_resumes(out: Out) -> None:
    """Of two with the file one sends; killed, it loses nothing: what came meanwhile is delivered, in order."""
    url = out.folder / "second.url"
    env = {
        **out.up.env,
        "CARAVAN_CREDENTIALS": str(out.up.data_dir / "credentials" / "gateway.json"),
        "CARAVAN_NATS_URL": out.up.said["url"],
        "CARAVAN_GATEWAY_EVENTS_OUT": str(out.folder / "events-out.toml"),
        "CARAVAN_GATEWAY_STATE_DIR": str(out.folder / "second"),
        "CARAVAN_GATEWAY_URL_FILE": str(url),
        "CARAVAN_GATEWAY_PORT": "0",
    }
    with (out.folder / "second.log").open("wb") as log:
        second = subprocess.Popen(
            [sys.executable, "-m", "services.cli", "run", "gateway"], env=env, stderr=log
        )
    try:
        out.up.until(lambda: url.exists() and bool(url.read_text()), "the second gateway listens")
        headers = {"X-Nomad-Token": out.gateway.token}
        with httpx.Client(base_url=url.read_text().strip(), headers=headers) as client:

            def of_second() -> dict[str, Any]:
                answer = client.get("/v1/caravan/webhooks")
                return dict(answer.json()) if answer.status_code == 200 else {"targets": []}

            out.up.until(
                lambda: [one["status"] for one in of_second()["targets"]] == ["ok"] * 4,
                "the second one stands by",
            )
            assert of_second()["is_sending"] is False
            before = len(out.targets.events)
            state = out.up.data_dir / "gateway" / "outgoing" / "hook.json"
            assert json.loads(state.read_text())["seq"] > 0
            instance = _instance(out.up.data_dir / "logs" / "gateway.log")
            os.kill(int(instance.split("-")[1]), signal.SIGKILL)
            out.up.until(lambda: bool(of_second()["is_sending"]), "the second one sends")
            verdict = out.up.run("job", "run", "--detach", str(_batch(out.folder)))[1]
            index = int(verdict["modify_index"])
            ids = lambda: [int(one[0].split("/")[1]) for one in out.targets.events[before:]]  # noqa: E731
            out.up.until(lambda: index in ids(), "the event arrives")
            assert ids() == sorted(ids())
            assert all(is_signed for _, _, is_signed in out.targets.events)
            assert max(out.targets.annotations.values()) == 1
    finally:
        second.terminate()
        assert second.wait(WAIT_S) == 0


def _instance(log: Path) -> str:
    """Name of the newest instance that wrote into a log of a service."""
    return re.findall(r'"instance":"([^"]+)"', log.read_text())[-1]


def _batch(folder: Path) -> Path:
    """A job file."""
    task = {"Name": "main", "Driver": "raw_exec", "Config": {"command": "/bin/true"}}
    job = {"ID": "late", "Type": "batch", "TaskGroups": [{"Name": "g", "Tasks": [task]}]}
    path = folder / "late.json"
    path.write_text(json.dumps(job))
    return path

"""The gateway of a running cluster over HTTP: logins, conventions of Nomad's API, streams, and what it refuses."""

import asyncio
import base64
import http.client
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import websockets

from shared.bus.server.accounts import node_user, read_credentials
from tests.bounds import WAIT_S
from tests.bus.up import Up

#: Prints a line every half second, so that something can be followed.
TICKER = 'i=0; while true; do i=$((i+1)); echo "tick $i"; sleep 0.5; done'


class Gateway:
    """A running `caravan up`, its gateway's address, and a client with the login of `public`."""

    def __init__(self, folder: Path, *more: str, **env: str) -> None:
        self.up = Up(folder, *more, gateway=True, **env)
        address = self.up.data_dir / "logs" / "gateway.url"
        self.up.until(address.exists, "the gateway listens")
        self.url = address.read_text().strip()
        self.host = httpx.URL(self.url).netloc.decode()
        password = (self.up.data_dir / "credentials" / "public").read_text().strip()
        self.token = f"public:{password}"
        self.http = httpx.Client(
            base_url=self.url, headers={"X-Nomad-Token": self.token}, timeout=WAIT_S
        )
        #: sends no login.
        self.plain = httpx.Client(base_url=self.url, timeout=WAIT_S)
        self.up.until(lambda: self.read("/v1/nodes") != [], "a node")

    def read(self, path: str, **params: Any) -> Any:
        """The JSON of an answer that must be 200; None: not ready yet."""
        answer = self.http.get(path, params=params)
        if answer.status_code == 503:
            return []
        assert answer.status_code == 200, (path, answer.status_code, answer.text)
        return answer.json()

    def run(self, job_id: str, command: str, kind: str = "service") -> dict[str, Any]:
        """Register a raw_exec job and wait until its only allocation runs or is complete."""
        body = {"Job": job(job_id, command, kind)}
        answer = self.http.put("/v1/jobs", json=body)
        assert answer.status_code == 200, answer.text
        self.up.until(lambda: self.allocs(job_id, "running", "complete") != [], f"{job_id} runs")
        return dict(self.allocs(job_id, "running", "complete")[0])

    def allocs(self, job_id: str, *states: str) -> list[dict[str, Any]]:
        """Allocations of a job in some states."""
        found = self.read(f"/v1/job/{job_id}/allocations")
        return [one for one in found if one["ClientStatus"] in states]

    def end(self) -> None:
        """End the clients and the cluster."""
        self.http.close()
        self.plain.close()
        self.up.end()

    def stop(self, job_id: str) -> None:
        """Stop and purge a job."""
        assert self.http.delete(f"/v1/job/{job_id}", params={"purge": "true"}).status_code == 200


def job(job_id: str, command: str, kind: str = "service") -> dict[str, Any]:
    """A job of one raw_exec task, as a client of Nomad writes it."""
    task = {
        "Name": "main",
        "Driver": "raw_exec",
        "Config": {"command": "/bin/sh", "args": ["-c", command]},
        "Resources": {"CPU": 10, "MemoryMB": 16},
    }
    group = {"Name": "g", "Count": 1, "Tasks": [task]}
    return {"ID": job_id, "Name": job_id, "Type": kind, "TaskGroups": [group]}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One cluster for the file."""
    found = Gateway(tmp_path_factory.mktemp("gateway"))
    yield found
    found.end()


# ---- the file of a job ----


def test_the_file_of_a_job_is_kept(gateway: Gateway) -> None:
    """What is sent in Submission is read back, in any case of its keys; without it, and for what is wrong, as Nomad."""
    text = 'job "kept" {\n  # "text"\n}\n'
    source = {"source": text, "Format": "hcl2", "VariableFlags": {"a": "b"}, "JobID": "kept"}
    body = {"Job": job("kept", "true", "batch"), "submission": source}
    assert gateway.http.put("/v1/jobs", json=body).status_code == 200
    found = gateway.read("/v1/job/kept/submission", version=0)
    assert found["Source"] == text and found["VariableFlags"] == {"a": "b"}
    assert gateway.http.put("/v1/jobs", json={"Job": job("bare", "true", "batch")}).is_success
    answer = gateway.http.get("/v1/job/bare/submission", params={"version": 0})
    assert (answer.status_code, answer.text) == (404, "job source not found")
    answer = gateway.http.put("/v1/jobs", json={**body, "submission": {"Source": 1}})
    assert (answer.status_code, "Submission.Source" in answer.text) == (400, True), answer.text
    for name in ("kept", "bare"):
        gateway.stop(name)


def test_a_parsed_job_is_as_written_or_filled_in(gateway: Gateway) -> None:
    """Canonicalize fills in defaults; without it what the file does not have is null. HCL of version 1 is refused."""
    text = 'job "parsed" {\n  group "g" {\n    task "t" { driver = "any" }\n  }\n}\n'
    body = {"JobHCL": text, "Canonicalize": True, "Unknown": 1}
    filled = gateway.http.post("/v1/jobs/parse", json=body).json()
    assert (filled["Type"], filled["TaskGroups"][0]["Count"]) == ("service", 1)
    sparse = gateway.http.post("/v1/jobs/parse", json={"JobHCL": text}).json()
    assert sparse["Name"] == "parsed" and sparse["Type"] is sparse["Priority"] is None
    assert sparse["TaskGroups"][0]["Tasks"][0]["Driver"] == "any"
    assert sparse["TaskGroups"][0]["Count"] is None
    answer = gateway.http.post("/v1/jobs/parse", json={"JobHCL": text, "hclv1": True})
    assert (answer.status_code, "Failed to parse job" in answer.text) == (400, True)


# ---- logins ----


def test_a_login_is_required_and_checked_by_the_bus(gateway: Gateway) -> None:
    """Nothing, a wrong password and nonsense are 403; all three ways to send the login work."""
    plain = gateway.plain
    assert plain.get("/v1/jobs").status_code == 403
    for wrong in ("public:wrong", "public", ":", "nobody:secret", "x" * 5_000):
        answer = plain.get("/v1/jobs", headers={"X-Nomad-Token": wrong})
        assert (answer.status_code, "Permission denied" in answer.text) == (403, True), wrong
    basic = base64.b64encode(gateway.token.encode()).decode()
    for name, value in (
        ("X-Nomad-Token", gateway.token),
        ("Authorization", f"Bearer {gateway.token}"),
        ("Authorization", f"Basic {basic}"),
    ):
        assert plain.get("/v1/jobs", headers={name: value}).status_code == 200, name
    assert plain.get("/v1/jobs", headers={"Authorization": "Basic %"}).status_code == 400


def test_logins_of_nodes_and_services_read_nothing(gateway: Gateway) -> None:
    """A node sees the jobs placed on it, over the bus; its login and those of services are refused here."""
    known = read_credentials(gateway.up.data_dir / "credentials.json")
    node_id, secret = next(iter(known.nodes.items()))
    logins = {node_user(node_id): secret, "intake": known.users["intake"]}
    for user, password in logins.items():
        answer = gateway.plain.get("/v1/jobs", headers={"X-Nomad-Token": f"{user}:{password}"})
        assert (answer.status_code, "may not read" in answer.text) == (403, True), answer.text


def test_a_code_is_exchanged_for_its_login_once(gateway: Gateway) -> None:
    """A code needs a login to be drawn, none to be exchanged, and is spent by that."""
    plain = gateway.plain
    assert plain.post("/v1/caravan/code").status_code == 403
    code = gateway.http.post("/v1/caravan/code").json()["code"]
    assert plain.post("/v1/caravan/login", json={"code": code}).json() == {"token": gateway.token}
    assert plain.post("/v1/caravan/login", json={"code": code}).status_code == 403
    assert plain.post("/v1/caravan/login", json={"code": [1]}).status_code == 403


def test_a_foreign_host_or_origin_is_refused(gateway: Gateway) -> None:
    """A name that was rebound to this address is 403 even with a login; a page elsewhere writes nothing."""
    for host in ("evil.example", "evil.example:4646", "127.0.0.1.evil.example", "[::1].evil"):
        assert gateway.http.get("/v1/jobs", headers={"Host": host}).status_code == 403, host
        assert gateway.http.get("/ui/", headers={"Host": host}).status_code == 403, host
    body = {"Job": job("cross", "true")}
    for headers in (
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": gateway.url.replace("http:", "https:").replace("127.0.0.1", "127.0.0.2")},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        assert gateway.http.put("/v1/jobs", json=body, headers=headers).status_code == 403, headers
    assert gateway.http.get("/v1/job/cross").status_code == 404
    own = {"Origin": gateway.url, "Sec-Fetch-Site": "same-origin"}
    assert gateway.http.post("/v1/caravan/code", headers=own).status_code == 200


# ---- conventions ----


def test_what_there_is_not_is_said_as_nomad_says_it(gateway: Gateway) -> None:
    """Unknown paths and objects are 404, a wrong method 405, text is plain."""
    assert gateway.http.get("/v1/nothing").status_code == 404
    answer = gateway.http.get("/v1/job/missing")
    assert (answer.status_code, answer.text) == (404, "job not found")
    assert answer.headers["content-type"].startswith("text/plain")
    answer = gateway.http.put("/v1/nodes")
    assert (answer.status_code, answer.text) == (405, "Invalid method")
    assert gateway.http.get("/v1/jobs", params={"index": "soon"}).status_code == 400
    assert gateway.http.get("/v1/jobs", params={"per_page": -1}).status_code == 400
    assert gateway.http.get("/v1/jobs", params={"filter": "ID =="}).status_code == 400


def test_bad_bodies_are_refused_and_change_nothing(gateway: Gateway) -> None:
    """No JSON, too deep, too large, too slow, no object: each a 4xx with a reason, and the gateway continues."""
    for body, status in (
        (b"", 400),
        (b"{", 400),
        (b"[]", 400),
        (b"\xff\xfe", 400),
        (b'{"Job":' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400),
        (b'{"Job": "' + b"x" * (1 << 20) + b'"}', 413),
        (b'{"Job": {"ID": 3}}', 400),
        (b'{"Job": {"ID": "a", "TaskGroups": []}}', 400),
    ):
        answer = gateway.http.put("/v1/jobs", content=body)
        assert (answer.status_code, answer.text != "") == (status, True), (body[:30], answer.text)
    assert gateway.http.get("/v1/job/a").status_code == 404


def test_garbage_on_the_socket_ends_that_connection_alone(gateway: Gateway) -> None:
    """Lines that are no HTTP, a header of a megabyte and control bytes are refused; others are answered."""
    port = int(gateway.host.rpartition(":")[2])
    for raw in (
        b"garbage\r\n\r\n",
        b"GET /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"a" * (1 << 20) + b"\r\n\r\n",
        b"GET /v1/\x00jobs HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -1\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", port), WAIT_S) as sock:
            sock.settimeout(WAIT_S)
            try:
                sock.sendall(raw)
                answer = sock.recv(200)
            except OSError:
                answer = b""
            assert not answer.startswith(b"HTTP/1.1 200"), raw[:40]
    assert gateway.http.get("/v1/jobs").status_code == 200


def test_no_path_of_the_console_leads_out_of_it(gateway: Gateway) -> None:
    """The page is served with a strict policy and without a login; a path names its own files alone."""
    answer = gateway.plain.get("/ui/")
    assert answer.status_code == 200
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    port = int(gateway.host.rpartition(":")[2])
    for path in ("/ui/../role.py", "/ui/%2e%2e/role.py", "/ui//etc/passwd", "/ui/..%2frole.py"):
        link = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
        link.request("GET", path)
        assert link.getresponse().status == 404, path
        link.close()


def test_paths_of_nomads_ui_lead_to_the_console(gateway: Gateway) -> None:
    """`nomad ui` prints them; what a browser opens then is the page of the same thing."""
    for path, place in (
        ("/ui/jobs/web@default", "job/web"),
        ("/ui/evaluations?currentEval=0f0f", "evaluation/0f0f"),
    ):
        answer = gateway.plain.get(path)
        assert (answer.status_code, answer.headers["location"]) == (307, f"/ui/#/{place}")
    assert gateway.plain.get("/ui/jobs/web@other").status_code == 404


def test_large_answers_are_compressed_and_pretty_ones_indented(gateway: Gateway) -> None:
    """Only where the client takes gzip; `pretty` changes the form alone."""
    raw = gateway.http.get("/v1/nodes", params={"resources": "true"}).json()
    node = gateway.http.get(f"/v1/node/{raw[0]['ID']}")
    assert node.headers.get("content-encoding") == "gzip"
    plain = gateway.http.get(f"/v1/node/{raw[0]['ID']}", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.json()["ID"] == node.json()["ID"]
    pretty = gateway.http.get("/v1/jobs?pretty").text
    assert pretty.endswith("\n")
    assert json.loads(pretty) == gateway.http.get("/v1/jobs").json()


def test_a_read_behind_a_write_sees_it(gateway: Gateway) -> None:
    """What a client registered it reads at once, with an index that it can wait on."""
    written = gateway.http.put("/v1/jobs", json={"Job": job("seen", "sleep 600")}).json()
    read = gateway.http.get("/v1/job/seen")
    assert read.status_code == 200
    assert read.json()["JobModifyIndex"] <= written["JobModifyIndex"]
    assert int(read.headers["X-Nomad-Index"]) >= written["JobModifyIndex"]
    assert read.headers["X-Nomad-KnownLeader"] == "true"
    gateway.stop("seen")


def test_a_blocking_query_ends_with_a_change_of_its_object(gateway: Gateway) -> None:
    """It waits while others change, answers at its own change, and at the end of its wait without one."""
    gateway.run("held", "sleep 600")
    index = int(gateway.http.get("/v1/job/held/allocations").headers["X-Nomad-Index"])
    found: list[httpx.Response] = []

    def wait() -> None:
        with httpx.Client(base_url=gateway.url, timeout=WAIT_S) as http:
            headers = {"X-Nomad-Token": gateway.token}
            params = {"index": str(index), "wait": "60s"}
            found.append(http.get("/v1/job/held/allocations", params=params, headers=headers))

    waiter = threading.Thread(target=wait)
    waiter.start()
    gateway.run("other", "sleep 600")
    gateway.stop("other")
    gateway.stop("held")
    waiter.join(WAIT_S)
    assert int(found[0].headers["X-Nomad-Index"]) > index
    params = {"index": str(10**9), "wait": "50ms"}
    assert gateway.http.get("/v1/jobs", params=params).status_code == 200


def test_lists_are_paged_filtered_and_ordered(gateway: Gateway) -> None:
    """Pages cover the list once, in order of creation, both ways; a filter sees whole objects."""
    names = [f"page-{number}" for number in range(5)]
    for name in names:
        stopped = {**job(name, "true"), "Meta": {"odd": str(int(name[-1]) % 2)}}
        stopped["TaskGroups"][0]["Count"] = 0
        answer = gateway.http.put("/v1/jobs", json={"Job": stopped})
        assert answer.status_code == 200, answer.text
    for reverse, expected in (("false", names), ("true", names[::-1])):
        seen: list[str] = []
        token = ""
        while True:
            params = {"per_page": "2", "next_token": token, "prefix": "page-", "reverse": reverse}
            answer = gateway.http.get("/v1/jobs", params=params)
            seen += [one["ID"] for one in answer.json()]
            token = answer.headers.get("X-Nomad-NextToken", "")
            if not token:
                break
        assert seen == expected, reverse
    odd = gateway.read("/v1/jobs", prefix="page-", filter='Meta["odd"] == "1"', meta="true")
    assert [one["ID"] for one in odd] == ["page-1", "page-3"]
    for name in names:
        gateway.stop(name)


def test_the_subjects_of_the_bus_are_described_and_workers_are_heard(gateway: Gateway) -> None:
    """The page and the document need no login and no foreign host; a scheduler that shows presence is listed."""
    plain = gateway.plain
    gateway.up.until(lambda: plain.get("/bus/health").status_code == 204, "the broker is connected")
    document = plain.get("/bus/asyncapi.json")
    committed = Path(__file__).parents[2] / "schemas" / "asyncapi.json"
    assert document.text == committed.read_text(encoding="utf-8")
    page = plain.get("/bus/")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert plain.get("/bus/", headers={"Host": "evil.example"}).status_code == 403
    assert plain.get("/bus/none").status_code == 404
    assert plain.get("/v1/agent/schedulers").status_code == 403
    gateway.up.until(lambda: gateway.read("/v1/agent/schedulers")["schedulers"] != [], "a worker")
    counts = gateway.http.get("/v1/metrics", params={"format": "prometheus"}).text
    assert "caravan_gateway_bus_messages_total" in counts


# ---- tasks ----


def test_a_log_is_followed_in_frames(gateway: Gateway) -> None:
    """Offsets of frames are those behind their data, as a client that resumes expects; plain text is as it is."""
    alloc = gateway.run("ticker", TICKER)["ID"]
    path = f"/v1/client/fs/logs/{alloc}"
    params = {"task": "main", "type": "stdout", "follow": "true", "origin": "start"}
    text, offset = b"", 0
    decoder = json.JSONDecoder()
    with gateway.http.stream("GET", path, params=params) as answer:
        rest = ""
        for part in answer.iter_text():
            rest += part
            while rest:
                try:
                    frame, end = decoder.raw_decode(rest)
                except ValueError:
                    break
                rest = rest[end:]
                if frame.get("Data"):
                    text += base64.b64decode(frame["Data"])
                    offset = frame["Offset"]
            if text.count(b"\n") >= 4:
                break
    assert text.startswith(b"tick 1\ntick 2\ntick 3\n")
    assert offset >= len(text)
    more = {"task": "main", "type": "stdout", "plain": "true", "offset": 7}
    assert gateway.http.get(path, params=more).text.startswith("tick 2\n")
    wrong = {"task": "none", "type": "stdout"}
    assert gateway.http.get(path, params=wrong).status_code in (400, 404)
    gateway.stop("ticker")


async def _shell(gateway: Gateway, alloc: str, token: str) -> tuple[bytes, int | None]:
    words = json.dumps(["/bin/sh", "-c", "read a; echo got $a; exit 7"])
    query = httpx.QueryParams({"task": "main", "tty": "false", "command": words})
    return await _session(gateway, f"client/allocation/{alloc}/exec", query, token)


async def _session(
    gateway: Gateway, path: str, query: httpx.QueryParams, token: str
) -> tuple[bytes, int | None]:
    url = f"ws://{gateway.host}/v1/{path}"
    out, code = b"", None
    async with websockets.connect(f"{url}?{query}&ws_handshake=true", proxy=None) as link:
        await link.send(json.dumps({"version": 1, "auth_token": token}))
        data = base64.b64encode(b"word\n").decode()
        await link.send(json.dumps({"stdin": {"data": data}}))
        async for text in link:
            frame = json.loads(text)
            out += base64.b64decode((frame.get("stdout") or {}).get("data", ""))
            if frame.get("exited"):
                code = frame["result"]["exit_code"]
    return out, code


def test_a_command_runs_beside_a_task_over_a_websocket(gateway: Gateway) -> None:
    """Its input, its output and its exit code arrive; without a login nothing runs."""
    alloc = gateway.run("exec", "sleep 600")["ID"]
    assert asyncio.run(_shell(gateway, alloc, gateway.token)) == (b"got word\n", 7)
    with pytest.raises(websockets.ConnectionClosed) as refused:
        asyncio.run(_shell(gateway, alloc, "public:wrong"))
    assert refused.value.rcvd is not None
    assert refused.value.rcvd.code == 1008
    gateway.stop("exec")


def test_an_action_runs_over_a_websocket(gateway: Gateway) -> None:
    """The actions of a job are listed; one runs with its input, and its exit code and user are an event of the task."""
    body = job("acts/on", "sleep 600")
    greet = {
        "Name": "greet",
        "Command": "/bin/sh",
        "Args": ["-c", "read a; echo $1 $a; exit 7", "x"],
    }
    greet["Args"].append("${NOMAD_TASK_NAME}")
    body["TaskGroups"][0]["Tasks"][0]["Actions"] = [greet]
    assert gateway.http.put("/v1/jobs", json={"Job": body}).is_success
    path = "acts%2Fon"
    gateway.up.until(lambda: gateway.allocs(path, "running") != [], "it runs")
    assert gateway.read(f"/v1/job/{path}/actions") == [
        {**greet, "JobID": "acts/on", "TaskGroupName": "g", "TaskName": "main"}
    ]
    alloc = gateway.allocs(path, "running")[0]["ID"]
    asked = {"action": "greet", "allocID": alloc, "group": "g", "task": "main", "command": "null"}
    query = httpx.QueryParams({**asked, "tty": "false"})
    found = asyncio.run(_session(gateway, f"job/{path}/action", query, gateway.token))
    assert found == (b"main word\n", 7)

    def events() -> list[str]:
        task = gateway.read(f"/v1/allocation/{alloc}")["TaskStates"]["main"]
        return [one["DisplayMessage"] for one in task["Events"] if one["Type"] == "Action"]

    gateway.up.until(lambda: events() == ["greet: exit code 7, by public"], "its event")
    wrong = query.set("action", "none")
    with pytest.raises(websockets.ConnectionClosed) as refused:
        asyncio.run(_session(gateway, f"job/{path}/action", wrong, gateway.token))
    assert refused.value.rcvd is not None and "no action" in refused.value.rcvd.reason
    gateway.stop(path)


def _events(gateway: Gateway, index: int, stop_at: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    params = {"index": str(index), "topic": "Job:*"}
    with gateway.http.stream("GET", "/v1/event/stream", params=params) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            value = json.loads(line)
            if value:
                found.append(value)
            if value.get("Index", 0) >= stop_at:
                return found
    return found


def test_events_are_resumed_at_any_index_without_a_gap(gateway: Gateway) -> None:
    """What was streamed from the beginning and from the middle agree, in order."""
    gateway.run("evented", "true", "batch")
    end = gateway.read("/v1/job/evented")["JobModifyIndex"]
    all_of_them = _events(gateway, 1, end)
    indexes = [one["Index"] for one in all_of_them]
    assert indexes == sorted(set(indexes))
    assert any(one["Key"] == "evented" for event in all_of_them for one in event["Events"])
    middle = indexes[len(indexes) // 2]
    assert _events(gateway, middle, end) == [one for one in all_of_them if one["Index"] >= middle]
    assert gateway.http.get("/v1/event/stream", params={"topic": "Nonsense"}).status_code == 400
    gateway.stop("evented")


def test_a_plan_changes_nothing(gateway: Gateway) -> None:
    """It says what would be placed; the job does not exist afterwards."""
    body = {"Job": job("planned", "sleep 1"), "Diff": True}
    answer = gateway.http.put("/v1/job/planned/plan", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["Annotations"]["DesiredTGUpdates"]["g"]["Place"] == 1
    assert answer.json()["Diff"]["Type"] == "Added"
    assert gateway.http.get("/v1/job/planned").status_code == 404


def test_the_gateways_own_lines_are_followed_until_the_reader_leaves(gateway: Gateway) -> None:
    """A reader hears of the next one; what belongs to other processes is refused by name."""
    path, params = "/v1/agent/monitor", {"plain": "true"}
    with gateway.http.stream("GET", path, params=params) as first:
        lines = first.iter_lines()
        assert "gateway.monitored: reader=public" in next(lines)
        with gateway.http.stream("GET", path, params={"log_json": "true"}) as second:
            frame = next(one for one in second.iter_bytes() if one != b"{}")
            line = json.loads(base64.b64decode(json.loads(frame)["Data"]))
            assert (line["event"], line["reader"]) == ("gateway.monitored", "public")
        assert "gateway.monitored" in next(lines)
    answer = gateway.http.get(path, params={"node_id": "node-1"})
    assert (answer.status_code, "node-1" in answer.text) == (501, True)
    assert gateway.plain.get(path).status_code == 403


# ---- the command line ----


def test_the_command_line_speaks_to_the_gateway_of_its_cluster(gateway: Gateway) -> None:
    """`operator api` and `ui` find it by the bus and sign in; `status` finds an allocation; a refusal exits with 1."""
    alloc = gateway.run("spoken", "echo hello; echo oops >&2; sleep 600")["ID"]
    up = gateway.up
    answer = up.documented("operator", "api", "/v1/job/spoken")
    assert (answer["status"], answer["body"]["ID"]) == (200, "spoken")
    assert up.run("operator", "api", "/v1/job/none") == (
        1,
        {"status": 404, "body": "job not found"},
    )
    url = up.documented("ui", "--print-only")["url"]
    code = url.rpartition("=")[2]
    assert url.startswith(f"{gateway.url}/ui/#")
    login = gateway.plain.post("/v1/caravan/login", json={"code": code})
    assert login.json() == {"token": gateway.token}
    assert up.run("status", alloc[:12])[1]["allocation"]["id"] == alloc
    assert up.run("status", "spoken")[1]["job"]["id"] == "spoken"
    said = up.documented("job", "logs", "spoken")
    lines = {(one["allocation"], one["stream"], one["text"]) for one in said["lines"]}
    assert lines == {(alloc, "stdout", "hello"), (alloc, "stderr", "oops")}
    gateway.stop("spoken")


# ---- the process ----


def test_a_port_in_use_ends_the_gateway_with_the_reason(gateway: Gateway) -> None:
    """Without leave to take another port it does not wait for this one."""
    port = gateway.host.rpartition(":")[2]
    env = {
        **gateway.up.env,
        "CARAVAN_GATEWAY_PORT": port,
        "CARAVAN_CREDENTIALS": str(gateway.up.data_dir / "credentials.json"),
    }
    command = (sys.executable, "-m", "services.gateway")
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.returncode == 1, (done.stdout, done.stderr)
    assert f"the gateway cannot listen on 127.0.0.1:{port}" in done.stdout + done.stderr


def test_another_namespace_has_nothing(gateway: Gateway) -> None:
    """Its lists are empty, its objects unknown, and a write to it changes nothing."""
    ids = {one["ID"] for one in gateway.read("/v1/jobs")}
    body = {"Job": job("elsewhere", "sleep 600")}
    assert gateway.http.put("/v1/jobs?namespace=other", json=body).status_code == 400
    assert gateway.read("/v1/jobs", namespace="other") == []
    for one in gateway.read("/v1/allocations")[:1]:
        answer = gateway.http.get(f"/v1/allocation/{one['ID']}?namespace=other")
        assert (answer.status_code, answer.text) == (404, "alloc not found")
    assert {one["ID"] for one in gateway.read("/v1/jobs")} == ids


def test_requests_that_cannot_be_read_end_alone(gateway: Gateway) -> None:
    """An origin that is no URL, a websocket where there is none, and an exec without a login."""
    origin = {"Origin": "http://[x"}
    assert gateway.http.post("/v1/jobs", headers=origin, json={}).status_code == 403
    answer = gateway.http.get("/v1/caravan/events", params={"from": 10**11})
    assert answer.status_code == 400

    async def refused(path: str) -> int:
        with pytest.raises(websockets.InvalidStatus) as err:
            await websockets.connect(f"ws://{gateway.host}{path}")
        return err.value.response.status_code

    alloc = "0" * 36
    where = f"/v1/client/allocation/{alloc}/exec?ws_handshake=0&task=main&command=%5B%22id%22%5D"
    assert asyncio.run(refused(where)) == 403
    assert asyncio.run(refused("/bus/x")) == 403

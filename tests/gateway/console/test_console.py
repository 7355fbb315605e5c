"""The console in a real browser on a real cluster: screens, accessibility, time, changes, archives, foreign text."""

import asyncio
import contextlib
import re
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, Route, expect

from shared.bus.connection.public_client import Client
from shared.core.runtime.replica import Replica
from tests.bounds import WAIT_S
from tests.gateway.console.browser import PATIENCE_MS, Console
from tests.gateway.console.screens import HOSTILE, RULES, Screens
from tests.gateway.test_http import job
from tests.seeds import draws

pytestmark = pytest.mark.full("a browser")
expect.set_options(timeout=PATIENCE_MS)


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 360)])
def test_no_screen_has_a_fault_of_accessibility(screens: Screens, theme: Any, width: int) -> None:
    """Each screen in each theme, by the rules of WCAG 2.2 AA; no screen is wider than a telephone."""
    size: Any = {"width": width, "height": 760}
    with screens.browser.new_context(color_scheme=theme, viewport=size) as context:
        console = Console(context, screens.gateway.url, screens.gateway.token)
        faults = []
        for place in screens.places():
            console.open(place)
            shown = console.page.evaluate("document.documentElement.scrollWidth")
            faults += [f"{place}: {shown} pixels wide"] if shown > width else []
            found = Axe().run(console.page, options=RULES)
            faults += [
                f"{place}: {one['id']}: {one['nodes'][0]['html'][:200]}"
                for one in found.response["violations"]
            ]
        for key in ("?", ":"):
            console.page.locator("main").press(key)
            console.page.get_by_role("dialog").wait_for()
            found = Axe().run(console.page, options=RULES)
            faults += [f"{key}: {one['id']}" for one in found.response["violations"]]
            console.page.keyboard.press("Escape")
        assert faults == []
        assert console.faults == []


def test_a_code_signs_in_and_a_wrong_login_is_told(screens: Screens) -> None:
    """The code leaves the address; a refused login says so and keeps nothing."""
    code = screens.gateway.http.post("/v1/caravan/code").json()["code"]
    with screens.browser.new_context() as context:
        console = Console(context, screens.gateway.url)
        console.page.goto(f"{screens.gateway.url}/ui/#/login?code={code}")
        expect(console.page.locator("h1")).to_have_text("Cluster")
        assert code not in console.page.url
    with screens.browser.new_context() as context:
        console = Console(context, screens.gateway.url)
        console.page.goto(f"{screens.gateway.url}/ui/")
        console.page.get_by_label("Login").fill("public:wrong")
        console.page.get_by_role("button", name="Sign in").click()
        expect(console.page.locator("#login-fault")).to_contain_text("Permission denied")
        assert console.page.evaluate("sessionStorage.getItem('caravan.token')") is None


def test_addresses_of_nomads_ui_open_the_same_things(screens: Screens, console: Console) -> None:
    """A job, an allocation, an evaluation, and a node by the UUID that Nomad's clients know."""
    node = screens.gateway.read("/v1/nodes")[0]
    alloc = screens.gateway.read(f"/v1/allocation/{screens.alloc}")["Name"]
    for path, title in (
        ("jobs", "Jobs"),
        ("jobs/ticker@default", "ticker"),
        (f"allocations/{screens.alloc}", alloc),
        (f"evaluations?currentEval={screens.evaluation}", f"Evaluation {screens.evaluation[:8]}"),
        (f"clients/{node['ID']}", node["Name"]),
    ):
        console.page.goto("about:blank")
        console.page.goto(f"{screens.gateway.url}/ui/{path}")
        expect(console.page.locator("main h1")).to_have_text(title)
    expect(console.page).to_have_url(re.compile("#/node/node-1$"))


def test_foreign_text_stays_text(screens: Screens, console: Console) -> None:
    """Names and log lines that look like a page are shown as they are, and load nothing."""
    console.open("job/hungry?show=source")
    expect(console.page.locator("pre")).to_contain_text(HOSTILE)
    alloc = screens.gateway.allocs("done", "complete")[0]["ID"]
    console.open(f"alloc/{alloc}?show=logs")
    expect(console.page.locator("pre.log")).to_contain_text(HOSTILE)
    expect(console.page.locator("pre.log")).to_contain_text("red")
    assert "\x1b" not in console.text()
    assert console.page.locator("img").count() == 0


def test_the_page_follows_the_cluster(screens: Screens, console: Console) -> None:
    """A job that comes and goes is shown without loading anew; a log grows under the eyes."""
    console.open("jobs")
    screens.gateway.run("comes", "sleep 600")
    expect(console.page.get_by_role("link", name="comes")).to_be_visible()
    screens.gateway.stop("comes")
    expect(console.page.get_by_role("link", name="comes")).to_have_count(0)
    console.open(f"alloc/{screens.alloc}?show=logs")
    text = console.page.locator("pre.log")
    expect(text).to_contain_text("tick ")
    newest = int(re.findall(r"tick (\d+)", text.inner_text())[-1])
    expect(text).to_contain_text(f"tick {newest + 3}\n")


def test_a_past_moment_is_the_one_of_the_log(screens: Screens, console: Console) -> None:
    """At random seqs the jobs of the page are those that `caravan job status --at` prints, and it offers no changes."""
    last = int(screens.gateway.read("/v1/caravan/time")["seq"])
    chance = draws("console")
    seqs = sorted({chance.randint(2, last) for _ in range(3)})
    for seq in seqs:
        console.open(f"jobs?at={seq}")
        rows = console.page.locator("tbody tr:has(a)").all()
        shown = [tuple(row.locator("td").all_inner_texts()[at] for at in (0, 3)) for row in rows]
        _, answer = screens.gateway.up.run("job", "status", "--at", str(seq))
        expected = [(one["id"], str(one["version"])) for one in answer["jobs"]]
        assert shown == expected, f"at {seq} of {last}"
    console.open("job/ticker?at=6")
    assert console.page.get_by_role("button", name="Stop").count() == 0
    assert console.page.get_by_role("link", name="Submit job").count() == 0


def test_the_state_of_any_moment_is_the_one_of_a_replay(screens: Screens, console: Console) -> None:
    """Behind 20 random seqs the page shows the table hashes of a replay, which are those of `caravan replay --to`."""
    chance = draws("console")
    last = screens.last_seq
    seqs = sorted({chance.randint(2, last) for _ in range(20)})
    # The driver of the browser has the loop of this thread.
    with ThreadPoolExecutor(1) as other:
        url = screens.gateway.up.client_url
        wanted = other.submit(lambda: asyncio.run(replayed(url, seqs))).result()
    for seq in seqs:
        console.open(f"log?show=state&at={seq}")
        rows = console.page.locator("tbody tr").all()
        shown = dict(row.locator("td").all_inner_texts() for row in rows)
        assert shown == wanted[seq], f"at {seq} of {last}"
    _, answer = screens.gateway.up.run("replay", "--to", str(seqs[0]))
    assert answer["tables"] == wanted[seqs[0]]


async def replayed(url: str, seqs: list[int]) -> dict[int, dict[str, str]]:
    """Table hashes behind each of these seqs."""
    replica, found = Replica(), {}
    async with Client(url) as client:
        async for record in client.read_log(1, seqs[-1]):
            replica.apply(record)
            if record.seq in seqs:
                found[record.seq] = replica.state.hashes()
    return found


def test_the_time_bar_moves_through_the_log(screens: Screens, console: Console) -> None:
    """Steps, the slider and keys change the moment in the address; now is the present again."""
    console.open("cluster?at=5")
    page = console.page
    expect(page.locator("output")).to_contain_text("past, seq 5")
    page.get_by_role("button", name="next record").click()
    expect(page.locator("output")).to_contain_text("past, seq 6")
    page.locator("main").press(",")
    page.locator("main").press(",")
    expect(page.locator("output")).to_contain_text("past, seq 4")
    page.get_by_role("slider").fill("3")
    expect(page).to_have_url(re.compile("at=3$"))
    page.get_by_role("button", name="Pin").click()
    page.locator("main").press("]")
    page.get_by_role("link", name="Compare").click()
    expect(page.locator("h1")).to_have_text("Changes")
    expect(page.get_by_role("region", name="Changes", exact=True)).to_contain_text("+")
    page.locator("main").press("n")
    expect(page.locator("output")).to_contain_text("now, seq")
    page.get_by_role("button", name="Marks").click()
    page.get_by_role("dialog").get_by_role("listitem").filter(
        has_text="ticker version 0"
    ).get_by_role("button").click()
    seq = int(re.findall(r"at=(\d+)", page.url)[0])
    expect(page.locator("output")).to_contain_text(f"past, seq {seq}")
    # The next plan is the one that places what was registered there.
    page.locator("main").press(">")
    expect(page).not_to_have_url(re.compile(f"at={seq}$"))
    after = int(re.findall(r"at=(\d+)", page.url)[0])
    events = screens.gateway.read("/v1/caravan/events", **{"from": after, "to": after})["lines"]
    assert "plan.committed" in [one["type"] for one in events]
    page.locator("main").press("<")
    expect(page).not_to_have_url(re.compile(f"at={after}$"))
    console.open("log?at=999999")
    expect(page.locator("main")).to_contain_text("seq up to")


def test_the_log_is_played(screens: Screens, console: Console) -> None:
    """A playback begins at the moment shown, continues by itself, and ends with its button."""
    console.open("cluster?at=2")
    page = console.page
    page.get_by_label("speed of playing").select_option("each record")
    page.get_by_role("button", name="play the log").click()
    expect(page.locator("output")).to_contain_text(re.compile(r"past, seq ([4-9]|\d\d)"))
    page.get_by_role("button", name="stop playing").click()
    expect(page.get_by_role("button", name="play the log")).to_be_visible()


def test_what_changed_at_a_minute_is_shown(screens: Screens, console: Console) -> None:
    """A time and a span are the seqs written in it; the first minute of the log has its first job."""
    console.open("changes")
    page = console.page
    first_ms = int(screens.gateway.read("/v1/caravan/time")["points"][0][1])
    began = page.evaluate(
        "(ms) => new Date(ms).toLocaleDateString('sv') + 'T' + new Date(ms).toLocaleTimeString('sv')",
        first_ms - first_ms % 1000,
    )
    page.get_by_label("Time", exact=True).fill(began)
    page.get_by_label("for", exact=True).select_option("1 hour")
    page.get_by_role("button", name="Show").click()
    expect(page).to_have_url(re.compile(r"from=1&to=\d+"))
    expect(page.get_by_role("region", name="Changes", exact=True)).to_contain_text("ticker")
    page.get_by_label("Time", exact=True).fill("2001-01-01T00:00:00")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_role("alert")).to_contain_text("the log has no record that old")


def test_a_what_if_is_asked_from_the_page(screens: Screens, console: Console) -> None:
    """The address of its result shows the same in another tab; what cannot be asked is said by name."""
    console.open("node/node-1")
    page = console.page
    page.get_by_role("link", name="What if it was drained").click()
    expect(page.get_by_label("Drain nodes")).to_have_value("node-1")
    page.get_by_label("Add nodes like one").fill("1xnode-1")
    page.get_by_label("Job file to submit").fill(
        'job "extra" {\n  group "g" {\n    task "t" {\n      driver = "raw_exec"\n      config {\n'
        '        command = "sleep"\n      }\n    }\n  }\n}\n'
    )
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_role("region", name="Side by side").first).to_contain_text(
        "Allocations placed"
    )
    expect(page.get_by_role("region", name="Moves").first).to_contain_text("ticker.g[0]")
    expect(page.get_by_role("region", name="Jobs", exact=True)).to_contain_text("extra")
    other = Console(page.context, screens.gateway.url, screens.gateway.token)
    other.open(page.url.partition("#/")[2])
    expect(other.page.get_by_role("region", name="Moves").first).to_contain_text("ticker.g[0]")
    assert screens.gateway.allocs("ticker", "running") != []
    console.open("what-if?drain=node-9")
    page.get_by_role("button", name="Run").click()
    expect(page.locator("main .fault")).to_contain_text("node-9")
    console.open("what-if?policy=/etc/passwd")
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_role("alert")).to_contain_text("is not NAME=VALUE")


def test_a_node_is_drained_and_comes_back(screens: Screens, console: Console) -> None:
    """The buttons of a node fit its state, and do what they say."""
    console.open("node/node-1")
    page = console.page
    page.get_by_role("button", name="Make ineligible").click()
    page.get_by_role("button", name="Make eligible").click()
    expect(page.get_by_role("button", name="Make ineligible")).to_be_visible()
    screens.gateway.run("moves", "sleep 600")
    page.get_by_label("Deadline").select_option("1 hour")
    page.get_by_role("button", name="Drain").click()
    page.get_by_role("button", name="End the drain").click()
    expect(page.get_by_role("button", name="Make ineligible")).to_be_visible()
    screens.gateway.stop("moves")


def test_a_job_is_scaled_and_reverted(screens: Screens, console: Console) -> None:
    """Another count makes a version, whose difference is shown; the first version runs again by its button."""
    gateway = screens.gateway
    gateway.run("scaled", "sleep 600", "batch")
    console.open("job/scaled")
    page = console.page
    page.get_by_label("count of g").fill("2")
    page.get_by_role("button", name="Scale").click()
    gateway.up.until(lambda: len(gateway.allocs("scaled", "running")) == 2, "two allocations")
    page.get_by_role("link", name="versions").click()
    expect(page.get_by_role("region", name="Differences").last).to_contain_text(
        "TaskGroups.0.Count"
    )
    page.get_by_role("button", name="Revert to 0").click()
    gateway.up.until(lambda: len(gateway.allocs("scaled", "running")) == 1, "one allocation")
    gateway.stop("scaled")


@contextlib.contextmanager
def archive_of(screens: Screens, folder: Path) -> Iterator[str]:
    """The console on an export of the cluster's log: the address that signs in."""
    code, answer = screens.gateway.up.run("log", "export", str(folder))
    assert code == 0, answer
    words = [sys.executable, "-m", "services.cli", "ui", "--from-file", str(folder), "--print-only"]
    env = {
        name: value for name, value in screens.gateway.up.env.items() if name != "CARAVAN_NATS_URL"
    }
    process = subprocess.Popen(
        words, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=WAIT_S)
        assert process.returncode == 130


def test_an_archive_is_opened_and_played(screens: Screens, tmp_path: Path) -> None:
    """Without a bus: the same screens and moments as the cluster has, nothing to press, and writes are refused."""
    gateway = screens.gateway
    with archive_of(screens, tmp_path / "export") as url, screens.browser.new_context() as context:
        console = Console(context, url.partition("/ui/")[0])
        page = console.page
        page.goto(url)
        expect(page.get_by_text("Archive export")).to_be_visible()
        chance = draws("console/seqs")
        seqs = sorted({chance.randint(2, screens.last_seq - 1) for _ in range(3)})
        token = page.evaluate("sessionStorage.getItem('caravan.token')")
        with httpx.Client(base_url=console.url, headers={"X-Nomad-Token": token}) as http:
            for seq in seqs:
                state = http.get("/v1/caravan/state", params={"at": seq}).json()
                assert state == gateway.read("/v1/caravan/state", at=seq)
            refused = http.put("/v1/jobs", json={"Job": job("new", "true")})
            assert (refused.status_code, "archive" in refused.text) == (403, True)
            assert http.put("/v1/node/node-1/drain", json={}).status_code == 403
        assert gateway.plain.get("/v1/jobs", headers={"X-Nomad-Token": token}).status_code == 403
        alloc, variable = f"alloc/{screens.alloc}", "variables/app%2Fdb"
        for place in ("job/ticker", "node/node-1", alloc, "jobs", "variables", variable):
            console.open(place)
            names = page.locator("main button").all_inner_texts()
            assert names == [], place
        console.open(variable)
        expect(page.locator("main")).to_contain_text("only the keeper of its cluster has the keys")
        assert page.get_by_role("link", name="logs").count() == 0
        console.open("times")
        expect(page.get_by_role("region", name="Quantiles").last).to_contain_text(
            "Request to place"
        )
        console.open("what-if?drain=node-1")
        page.get_by_role("button", name="Run").click()
        expect(page.get_by_role("region", name="Moves").first).to_contain_text("ticker.g[0]")
        console.open("jobs?at=3")
        page.locator("main").press("]")
        expect(page.locator("output")).not_to_contain_text("seq 3,")
        assert console.faults == []


def test_a_job_is_planned_submitted_and_stopped_from_the_page(
    screens: Screens, console: Console
) -> None:
    """A plan precedes a submission, a fault in the job file is shown, and the page of a job can stop it."""
    console.open("submit")
    page = console.page
    field = page.get_by_label("Job file")
    field.fill('job "paged" {')
    page.get_by_role("button", name="Plan", exact=True).click()
    expect(page.locator("#job-fault")).not_to_be_empty()
    assert page.get_by_role("button", name="Submit").is_disabled()
    field.fill(
        'job "paged" {\n  group "g" {\n    task "t" {\n      driver = "raw_exec"\n      config {\n'
        '        command = "sleep"\n        args = ["600"]\n      }\n    }\n  }\n}\n'
    )
    page.get_by_role("button", name="Plan", exact=True).click()
    expect(page.get_by_role("region", name="Plan")).to_contain_text("1 Place")
    page.get_by_role("button", name="Submit").click()
    expect(page.locator("h1")).to_have_text("paged")
    screens.gateway.up.until(
        lambda: screens.gateway.allocs("paged", "running") != [], "the job runs"
    )
    source = screens.gateway.read("/v1/job/paged/submission")
    assert source["Source"].startswith('job "paged" {\n') and source["Format"] == "hcl2"
    page.get_by_role("link", name="Plan a change").click()
    expect(page.get_by_label("Job file")).to_have_value(source["Source"])
    page.go_back()
    page.get_by_role("button", name="Stop").click()
    screens.gateway.up.until(
        lambda: screens.gateway.read("/v1/job/paged")["Status"] == "dead", "the job is dead"
    )


def test_the_file_of_a_job_is_shown_as_text(screens: Screens, console: Console) -> None:
    """The source tab shows what was written, hostile or not, with its variables; the JSON where nothing was."""
    hostile = '# <img src=x onerror="window.hit=1"> </pre><script>window.hit=1</script>\n'
    name = "<b>n</b>"
    body = {
        "Job": job("sourced", "true", "batch"),
        "Submission": {"Source": hostile, "VariableFlags": {name: hostile}, "Variables": hostile},
    }
    assert screens.gateway.http.put("/v1/jobs", json=body).status_code == 200
    assert screens.gateway.http.put("/v1/jobs", json={"Job": job("bare", "true", "batch")})
    console.open("job/sourced?show=source")
    page = console.page
    expect(page.locator("main pre").first).to_have_text(hostile)
    expect(page.get_by_role("region", name="Variables")).to_contain_text(name)
    expect(page.locator("main pre")).to_have_count(3)
    assert page.evaluate("window.hit") is None
    console.open("job/bare?show=source")
    expect(page.locator("main")).to_contain_text("was not submitted with it")
    expect(page.locator("main pre")).to_have_count(1)


def test_why_shows_what_an_eviction_costs(screens: Screens, console: Console) -> None:
    """The choice and its alternatives are rows: node, victims, priorities, work lost, jobs, and what is worse."""
    page = console.page
    choice = {
        "node": "node-1",
        "victims": 2,
        "jobs": ["low", "<i>lower</i>"],
        "highest_priority": 10,
        "priority_sum": 15,
        "work_lost": 77,
        "worse_by": "",
    }
    other = choice | {"node": "node-2", "victims": 3, "worse_by": "priority_sum"}

    def answer(route: Route) -> None:
        whole = route.fetch().json()
        given = whole | {"node": "node-1", "eviction": choice, "alternatives": [other]}
        route.fulfill(json=given)

    page.route("**/v1/caravan/why/*", answer)
    console.open(f"alloc/{screens.alloc}?show=why")
    rows = page.get_by_role("region", name="Evictions").locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.nth(0)).to_contain_text("node-1 (chosen)")
    expect(rows.nth(0)).to_contain_text("<i>lower</i>")
    expect(rows.nth(1)).to_contain_text("priority_sum")


def test_a_command_runs_beside_a_task(screens: Screens, console: Console) -> None:
    """The terminal shows output, sends what is typed, and shows the exit code."""
    console.open(f"alloc/{screens.alloc}?show=exec")
    page = console.page
    page.get_by_label("Command", exact=True).fill("/bin/sh")
    page.get_by_role("button", name="Run").click()
    page.get_by_label("Input line").fill("echo $((6*7)); exit 3")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("pre.log")).to_contain_text("42")
    expect(page.locator("pre.log")).to_contain_text("exit code 3")


def test_keys_lead_everywhere(console: Console) -> None:
    """Each page by its key, the help lists them, and a key in a field is a letter."""
    console.open("cluster")
    page = console.page
    for key, title in (
        ("j", "Jobs"),
        ("o", "Nodes"),
        ("q", "Queue"),
        ("l", "Log"),
        ("c", "Cluster"),
    ):
        page.locator("main").press(key)
        expect(page.locator("h1")).to_have_text(title)
    page.locator("main").press(":")
    page.get_by_label("Beginning of a name").fill("tick")
    expect(page.get_by_role("dialog").get_by_role("button", name="job ticker")).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("ticker")
    page.locator("main").press("?")
    expect(page.get_by_role("dialog")).to_contain_text("previous record")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    console.open("jobs")
    page.locator("main").press("/")
    page.keyboard.type("jo")
    expect(page.get_by_role("searchbox")).to_have_value("jo")
    expect(page.locator("h1")).to_have_text("Jobs")


def synthetic_fleet(nodes: int) -> bytes:
    """Columns as the gateway encodes them: every third node full, every tenth down."""
    numbers = np.arange(nodes)
    columns: dict[str, np.ndarray[Any, Any]] = {
        "cpu": np.where(numbers % 3 == 0, 65_535, 0).astype("<u2"),
        "memory": np.zeros(nodes, "<u2"),
        "disk": np.zeros(nodes, "<u2"),
        "count": (numbers % 40).astype("<u2"),
        "flags": np.where(numbers % 10 == 0, 1, 0).astype("u1"),
        "job": np.full(nodes, 255, "u1"),
        "version": np.zeros(nodes, "u1"),
    }
    header = msgspec.json.encode(
        {
            "seq": 1,
            "nodes": [f"n{at:05d}" for at in range(nodes)],
            "datacenters": ["dc1"] * nodes,
            "classes": [""] * nodes,
            "jobs": [],
            "columns": [(name, one.dtype.name) for name, one in columns.items()],
        }
    )
    raw = struct.pack("<I", len(header)) + header
    for one in columns.values():
        raw += bytes(-len(raw) % 8) + one.tobytes()
    return raw


def pixel(page: Page, place: int) -> list[int]:
    """Colour in the middle of the cell at a place."""
    return list(
        page.evaluate(
            """(place) => {
              const canvas = document.querySelector("canvas.fleet"), pen = canvas.getContext("2d");
              const scale = canvas.width / canvas.clientWidth;
              let side = Math.max(4, Math.min(36, Math.floor(Math.sqrt((canvas.clientWidth * 420) / 50000))));
              const columns = Math.floor(canvas.clientWidth / side);
              const x = (place % columns) * side + 1, y = Math.floor(place / columns) * side + 1;
              return [...pen.getImageData(Math.round(x * scale), Math.round(y * scale), 1, 1).data].slice(0, 3);
            }""",
            place,
        )
    )


def test_fifty_thousand_nodes_are_drawn(screens: Screens, console: Console) -> None:
    """Each has its cell: an idle and a full one differ, equal ones are equal, and pointing at one names it."""
    raw = synthetic_fleet(50_000)

    def answer(route: Route) -> None:
        route.fulfill(body=raw, content_type="application/octet-stream")

    console.page.route("**/v1/caravan/fleet*", answer)
    console.open("cluster?at=3")
    expect(console.page.locator('canvas[data-drawn="50000"]')).to_be_visible()
    full, idle = pixel(console.page, 3), pixel(console.page, 1)
    assert full != idle
    assert [pixel(console.page, at) for at in (9, 49_989)] == [full, full]
    assert [pixel(console.page, at) for at in (7, 49_999)] == [idle, idle]
    console.page.locator("canvas.fleet").hover(position={"x": 1, "y": 1})
    expect(console.page.locator(".pointed")).to_contain_text("n00000: down, CPU 100 %")
    for form in ("skyline", "cells"):
        console.page.get_by_label("As").select_option(form)
        expect(console.page.locator('canvas[data-drawn="50000"]')).to_be_visible()

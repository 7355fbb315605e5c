"""The console in a real browser: lists longer than a page, and what is said when the bus or the gateway is lost."""

import os
import signal

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, Route, expect

from tests.gateway.console.browser import PATIENCE_MS, Console
from tests.gateway.console.screens import RULES, Screens
from tests.gateway.test_http import job

pytestmark = pytest.mark.full("a browser")
expect.set_options(timeout=PATIENCE_MS)


def turned(page: Page, table: str, what: str, total: int) -> list[str]:
    """First cells of all rows of a list, page by page, with the keyboard alone."""
    rows = page.get_by_role("region", name=table, exact=True).locator("tbody tr")
    pages = page.get_by_role("navigation", name=f"Pages of {what}")
    found: list[str] = []
    while True:
        expect(pages).to_contain_text(
            f"{len(found) + 1} to {min(len(found) + 50, total)} of {total}"
        )
        found += rows.locator("td:first-child").all_inner_texts()
        following = pages.get_by_role("link", name="next")
        if not following.count():
            return found
        following.focus()
        page.keyboard.press("Enter")


def test_long_lists_are_paged_and_reached_by_keyboard(screens: Screens, console: Console) -> None:
    """Jobs and the allocations of one: each row stands on one page, in order; a filter begins at the first page."""
    gateway = screens.gateway
    names = [f"many-{number:02d}" for number in range(60)]
    for name in names:
        stopped = job(name, "true")
        stopped["TaskGroups"][0]["Count"] = 0
        assert gateway.http.put("/v1/jobs", json={"Job": stopped}).status_code == 200
    console.open("jobs?q=many-")
    assert turned(console.page, "Jobs", "jobs", 60) == names
    assert console.page.url.endswith("page=2")
    assert Axe().run(console.page, options=RULES).response["violations"] == []
    console.page.get_by_role("searchbox").fill("many-5")
    console.page.keyboard.press("Enter")
    expect(console.page.get_by_role("link", name="many-59")).to_be_visible()
    assert "page=" not in console.page.url
    wide = job("wide", "true", "batch")
    wide["TaskGroups"][0]["Count"] = 60
    wide["TaskGroups"][0]["Tasks"][0]["Resources"] = {"CPU": 1, "MemoryMB": 10}
    assert gateway.http.put("/v1/jobs", json={"Job": wide}).status_code == 200
    gateway.up.until(lambda: len(gateway.allocs("wide", "complete")) == 60, "60 allocations")
    console.open("job/wide")
    shown = turned(console.page, "Allocations", "allocations", 60)
    assert sorted(shown) == sorted(f"wide.g[{number}]" for number in range(60))
    for name in (*names, "wide"):
        gateway.stop(name)


def test_many_nodes_are_paged(screens: Screens, console: Console) -> None:
    """By id the gateway is asked for one page; sorted by use the pages are those of the sorted list."""
    known = screens.gateway.read("/v1/caravan/query/nodes")
    one = known["nodes"][0]
    nodes = [{**one, "id": f"n{number:03d}", "allocations": number} for number in range(120)]

    def answer(route: Route) -> None:
        params = httpx.URL(route.request.url).params
        begin, limit = int(params.get("offset", 0)), int(params["limit"])
        route.fulfill(json={**known, "nodes": nodes[begin : begin + limit], "total": len(nodes)})

    console.page.route("**/v1/caravan/query/nodes*", answer)
    ids = [str(node["id"]) for node in nodes]
    console.open("nodes")
    assert turned(console.page, "Nodes", "nodes", 120) == ids
    console.open("nodes?sort=allocations")
    assert turned(console.page, "Nodes", "nodes", 120) == ids[::-1]


def test_a_lost_bus_is_told_and_resumed(screens: Screens, console: Console) -> None:
    """The gateway lives and says so, what was shown stays, and when the bus is back the page continues by itself."""
    console.open("jobs")
    page = console.page
    expect(page.get_by_role("link", name="ticker")).to_be_visible()
    before = int(page.evaluate("Number(document.documentElement.dataset.seq)"))
    bus = screens.gateway.up.said["services"]["bus"]
    os.kill(bus, signal.SIGSTOP)
    try:
        expect(page.locator("#banner")).to_contain_text("the bus is unreachable")
        expect(page.get_by_role("link", name="ticker")).to_be_visible()
    finally:
        os.kill(bus, signal.SIGCONT)
    expect(page.locator("#banner")).to_be_empty()
    screens.gateway.run("after-the-bus", "sleep 600")
    expect(page.get_by_role("link", name="after-the-bus")).to_be_visible()
    assert int(page.evaluate("Number(document.documentElement.dataset.seq)")) > before
    screens.gateway.stop("after-the-bus")
    console.faults.clear()


def test_a_lost_gateway_is_told_and_resumed(screens: Screens, console: Console) -> None:
    """What was shown stays, a banner says so, and behind a restart the page continues by itself."""
    console.open("jobs")
    page = console.page
    os.kill(screens.gateway.up.said["services"]["gateway"], signal.SIGKILL)
    expect(page.locator("#banner")).to_contain_text("What is shown")
    expect(page.get_by_role("link", name="ticker")).to_be_visible()
    expect(page.locator("#banner")).to_be_empty()
    screens.gateway.run("later", "sleep 600")
    expect(page.get_by_role("link", name="later")).to_be_visible()
    console.faults.clear()

"""Variables in the console: a value is asked for and shown on request, and the page keeps none of it."""

import re

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, Request, expect

from shared.variable_client import new_lock_id
from tests.gateway.console.browser import PATIENCE_MS, Console
from tests.gateway.console.screens import HOSTILE, RULES, Screens

pytestmark = pytest.mark.full("a browser")
expect.set_options(timeout=PATIENCE_MS)

MARKER, TYPED = "m4rker-of-a-value", "typed-m4rker"
#: What a page may keep, and what it shows: anywhere in these a value would stay behind.
_KEPT = """JSON.stringify([document.documentElement.outerHTML, location.href, history.state, {...localStorage},
    {...sessionStorage, "caravan.token": ""},
    [...document.querySelectorAll("input, textarea")].map((one) => one.value)])"""


class Traffic:
    """Addresses and bodies of all requests of a page, and which answers had the marker."""

    def __init__(self, page: Page) -> None:
        self.sent: list[Request] = []
        page.on("request", self._note)

    def _note(self, one: Request) -> None:
        self.sent.append(one)

    def with_marker(self) -> list[str]:
        """Addresses whose answer has the marker."""
        return [
            one.url
            for one in self.sent
            if "/v1/caravan/live" not in one.url
            and (answer := one.response())
            and MARKER.encode() in answer.body()
        ]


def kept(page: Page) -> str:
    """All that the page shows and keeps."""
    return str(page.evaluate(_KEPT))


def opened(console: Console, path: str) -> Page:
    """The page of a variable, once it is there."""
    console.open(f"variables/{path.replace('/', '%2F')}")
    return console.page


def press(page: Page, name: str) -> None:
    """Press a button by its whole name."""
    page.get_by_role("button", name=name, exact=True).click()


def test_a_value_is_asked_for_and_shown_on_request_alone(
    screens: Screens, console: Console
) -> None:
    """One request has it, behind its button; the page has it while it is shown alone, not once it is left."""
    revision = screens.stored("web/token", {"token": MARKER, HOSTILE: "b"})
    page, traffic = console.page, Traffic(console.page)
    console.open("variables?q=web")
    expect(page.get_by_role("region", name="Variables")).to_contain_text("web/token")
    page.get_by_role("link", name="web/token").click()
    expect(page.locator("h1")).to_have_text("web/token")
    expect(page.locator("dl")).to_contain_text(str(revision))
    assert traffic.with_marker() == []
    press(page, "Read items")
    items = page.get_by_role("region", name="Items", exact=True).get_by_role("region")
    expect(items).to_contain_text("token")
    expect(items).to_contain_text(HOSTILE)
    (url,) = traffic.with_marker()
    assert url == f"{screens.gateway.url}/v1/var/web/token"
    assert MARKER not in kept(page)
    assert Axe().run(page, options=RULES).response["violations"] == []
    press(page, "Show the value of token")
    expect(items.locator("pre")).to_have_text(MARKER)
    press(page, "Hide the value of token")
    expect(items.locator("pre")).to_have_count(0)
    assert MARKER not in kept(page)
    press(page, "Show the value of token")
    page.get_by_role("navigation", name="Pages", exact=True).get_by_role("link", name="Log").click()
    expect(page.locator("h1")).to_have_text("Log")
    assert MARKER not in kept(page)
    page.go_back()
    expect(page.get_by_role("button", name="Read items")).to_be_visible()
    assert MARKER not in kept(page)
    press(page, "Read items")
    press(page, "Show the value of token")
    press(page, "Sign out")
    expect(page.locator("h1")).to_have_text("Sign in")
    assert MARKER not in kept(page)
    assert MARKER not in "".join(one.url + (one.post_data or "") for one in traffic.sent)


def test_a_value_is_copied_without_being_shown(screens: Screens, console: Console) -> None:
    """The clipboard has it as it is, a new line at its end too."""
    screens.stored("web/pem", {"pem": f"{MARKER}\nsecond\n"})
    page = opened(console, "web/pem")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    press(page, "Read items")
    press(page, "Copy the value of pem")
    expect(page.locator("main")).to_contain_text("pem is copied")
    assert page.evaluate("navigator.clipboard.readText()") == f"{MARKER}\nsecond\n"
    assert MARKER not in kept(page)


def test_a_variable_is_made_and_changed(screens: Screens, console: Console) -> None:
    """A path without items gets some; a change keeps the values that were not shown."""
    console.open("variables")
    page = console.page
    page.get_by_label("Path", exact=True).fill("shop/db")
    press(page, "New variable")
    expect(page.locator("main")).to_contain_text("It has no items.")
    press(page, "Store items")
    page.get_by_label("Name 1").fill("user")
    page.get_by_label("Value 1").fill(TYPED)
    press(page, "Add item")
    page.get_by_label("Name 2").fill("port")
    page.get_by_label("Value 2").fill("1\n2\n")
    press(page, "Store")
    expect(page.locator("main")).to_contain_text("Stored as revision")
    assert TYPED not in kept(page)
    press(page, "Change")
    press(page, "Show and change value 1")
    expect(page.get_by_label("Value 1")).to_have_value("1\n2\n")
    page.get_by_label("Value 1").fill("3")
    assert TYPED not in kept(page)
    press(page, "Store")
    expect(page.locator("main")).to_contain_text("Stored as revision")
    found = screens.gateway.read("/v1/var/shop/db")
    assert found["Items"] == {"user": TYPED, "port": "3"}


def test_a_conflict_shows_the_present_one_and_keeps_what_was_typed(
    screens: Screens, console: Console
) -> None:
    """A put over a newer revision needs a second press; what the other stored is masked as everything."""
    screens.stored("web/both", {"a": "1"})
    page = opened(console, "web/both")
    press(page, "Change")
    press(page, "Show and change value 1")
    page.get_by_label("Value 1").fill(TYPED)
    newer = screens.stored("web/both", {"a": MARKER, "b": "2"})
    press(page, "Store")
    alert = page.locator("main").get_by_role("alert")
    expect(alert).to_contain_text(f"Revision {newer} was stored meanwhile")
    expect(page.get_by_label("Value 1")).to_have_value(TYPED)
    assert MARKER not in kept(page)
    assert screens.gateway.read("/v1/var/web/both")["Items"] == {"a": MARKER, "b": "2"}
    alert.get_by_role("button", name="Show the value of a").click()
    expect(alert.locator("pre")).to_have_text(MARKER)
    press(page, f"Store over revision {newer}")
    expect(page.locator("main")).to_contain_text("Stored as revision")
    assert screens.gateway.read("/v1/var/web/both")["Items"] == {"a": TYPED}
    assert TYPED not in kept(page) and MARKER not in kept(page)


def test_purging_needs_the_path(screens: Screens, console: Console) -> None:
    """Its button works once the path is typed; then the path is gone from the list."""
    screens.stored("web/gone", {"a": "1"})
    page = opened(console, "web/gone")
    press(page, "Purge")
    dialog = page.get_by_role("dialog")
    button = dialog.get_by_role("button", name="Purge")
    dialog.get_by_label("Type the path").fill("web/gon")
    expect(button).to_be_disabled()
    dialog.get_by_label("Type the path").fill("web/gone")
    button.click()
    expect(page.locator("h1")).to_have_text("Variables")
    expect(page.get_by_role("link", name="web/gone")).to_have_count(0)
    assert screens.gateway.http.get("/v1/var/web/gone").status_code == 404
    opened(console, "web/gone")
    expect(page.get_by_role("region", name="Events", exact=True).last).to_contain_text(
        "variable.deleted"
    )


def test_the_past_has_no_items(screens: Screens, console: Console) -> None:
    """Neither shown nor changed there, and the page says why; going there drops what was read."""
    revision = screens.stored("web/past", {"a": MARKER})
    page = opened(console, "web/past")
    press(page, "Read items")
    press(page, "Show the value of a")
    page.get_by_role("button", name="previous record").click()
    expect(page.locator("main")).to_contain_text("at the present only")
    assert MARKER not in kept(page)
    for name in ("Read items", "Change", "Purge", "Store items"):
        assert page.get_by_role("button", name=name).count() == 0
    console.open(f"variables/web%2Fpast?at={revision - 1}")
    expect(page.locator("main")).to_contain_text("It had no items then.")


def test_a_lock_and_who_may_read_are_told(screens: Screens, console: Console) -> None:
    """Since when a path is held, without the lock's id; a locked one offers no changes; readers by the path."""
    path, mine = "nomad/jobs/ticker/g", new_lock_id()
    screens.stored(path, {"a": "1"})
    for held in (path, "web/leader"):
        body = {"Lock": {"ID": mine, "TTL": "1h", "LockDelay": "0s"}}
        answer = screens.gateway.http.put(f"/v1/var/{held}?lock-acquire", json=body)
        assert answer.status_code == 200, answer.text
    console.open("variables")
    page = console.page
    rows = page.get_by_role("region", name="Variables").get_by_role("row")
    expect(rows.filter(has_text="web/leader")).to_contain_text(re.compile(r"since seq \d+"))
    opened(console, path)
    expect(page.locator("main")).to_contain_text("the lock expires 3600 s after its last renewal")
    expect(page.get_by_role("button", name="Change")).to_be_disabled()
    readers = page.get_by_role("region", name="Who may read it")
    expect(readers).to_contain_text("every task of group g of job ticker")
    readers.get_by_role("link", name="ticker").click()
    expect(page.locator("h1")).to_have_text("ticker")
    assert mine not in kept(page)
    opened(console, "app/db")
    expect(readers).to_contain_text("no task")
    for held in (path, "web/leader"):
        released = screens.gateway.http.put(
            f"/v1/var/{held}?lock-release", json={"Lock": {"ID": mine}}
        )
        assert released.status_code == 200, released.text
    opened(console, path)
    expect(page.get_by_role("button", name="Change")).to_be_enabled()


def test_keys_alone_reach_a_value(screens: Screens, console: Console) -> None:
    """To the list, to a path by the filter, to its items and one value."""
    screens.stored("keys/only", {"a": MARKER})
    console.open("cluster")
    page = console.page
    page.locator("main").press("v")
    expect(page.locator("h1")).to_have_text("Variables")
    page.keyboard.press("/")
    page.keyboard.type("keys/")
    page.keyboard.press("Enter")
    expect(page.get_by_role("link", name="app/db")).to_have_count(0)
    page.get_by_role("link", name="keys/only").press("Enter")
    page.get_by_role("button", name="Read items").press("Enter")
    page.get_by_role("button", name="Show the value of a").press("Enter")
    expect(page.locator("pre.value")).to_have_text(MARKER)

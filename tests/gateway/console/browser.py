"""A page of the console in Debian's chromium; a script error, a policy violation or a console error fails the test."""

import contextlib
import shutil
from collections.abc import Iterator

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright

from tests import not_tested
from tests.bounds import WAIT_S

ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
#: A loaded machine is slow.
PATIENCE_MS = 1000 * WAIT_S
#: What a refused login or a missing thing prints, which tests cause on purpose.
_EXPECTED = ("Failed to load resource",)
_WATCH_POLICY = """addEventListener("securitypolicyviolation",
    (one) => console.error(`policy: ${one.violatedDirective} ${one.blockedURI} ${one.sourceFile}`));"""


@contextlib.contextmanager
def started() -> Iterator[Browser]:
    """Debian's chromium without a window."""
    path = shutil.which("chromium")
    if path is None:
        not_tested.missing_tool("chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        yield browser
        browser.close()


class Console:
    """One page, signed in with a login."""

    def __init__(self, context: BrowserContext, url: str, token: str = "") -> None:
        self.page: Page = context.new_page()
        self.url = url
        self.faults: list[str] = []
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.add_init_script(_WATCH_POLICY)
        self.page.on("pageerror", lambda err: self.faults.append(str(err)))
        self.page.on("console", self._note)
        # Dialogs ask before a change: a test that presses a button means it.
        self.page.on("dialog", lambda one: one.accept())
        if token:
            # Kept by the tab, as after signing in.
            self.page.goto(f"{url}/ui/style.css")
            self.page.evaluate("(token) => sessionStorage.setItem('caravan.token', token)", token)

    def _note(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not message.text.startswith(_EXPECTED):
            self.faults.append(message.text)

    def open(self, place: str) -> None:
        """Open a page by its address, and wait until it is shown."""
        self.page.goto("about:blank")
        self.page.goto(f"{self.url}/ui/#/{place}")
        self.page.locator("main h1").first.wait_for()

    def text(self) -> str:
        """What the page shows."""
        return self.page.locator("main").inner_text()

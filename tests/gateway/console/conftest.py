"""One cluster and one browser for each file, a tab for each test."""

from collections.abc import Iterator

import pytest

from tests.gateway.console import browser as browsers
from tests.gateway.console.browser import Console
from tests.gateway.console.screens import Screens
from tests.gateway.test_http import Gateway


@pytest.fixture(scope="module")
def screens(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Screens]:
    """One cluster and one browser for the file."""
    with browsers.started() as browser:
        gateway = Gateway(tmp_path_factory.mktemp("console"))
        try:
            yield Screens(gateway, browser)
        finally:
            gateway.end()


@pytest.fixture
def console(screens: Screens) -> Iterator[Console]:
    """A tab that is signed in; a fault of its scripts or of the policy fails the test."""
    with screens.browser.new_context() as context:
        found = Console(context, screens.gateway.url, screens.gateway.token)
        yield found
        assert found.faults == []

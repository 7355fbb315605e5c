"""docs/http.md: its table is the gateway's, and what it says is off answers so."""

import re

from services.gateway.routes.table import ENDPOINTS
from tests.docs.http_page import PAGE, with_table


def test_the_table_of_endpoints_is_the_gateways() -> None:
    """`python -m tests.docs.http_page` writes it."""
    page = PAGE.read_text(encoding="utf-8")
    assert with_table(page) == page


def test_each_endpoint_has_one_row_and_a_sentence() -> None:
    """No pattern is served twice, and each says what it is."""
    patterns = [one.pattern for one in ENDPOINTS]
    assert len(set(patterns)) == len(patterns)
    assert all(one.summary.endswith(".") for one in ENDPOINTS)
    assert all(one.read or one.write or one.delete for one in ENDPOINTS)


def test_paths_that_the_page_names_exist() -> None:
    """Every path under /v1 in the text is one of an endpoint, or the beginning of some."""
    text = PAGE.read_text(encoding="utf-8").partition("<!-- endpoints: begin -->")[0]
    named = {one.rstrip("/.") for one in re.findall(r"/v1/[\w/-]+", text)}
    known = [re.sub(r"\{\w+(:path)?\}", ".+", one.pattern) for one in ENDPOINTS]
    for path in named:
        is_served = any(re.fullmatch(one, path) for one in known)
        is_family = any(one.pattern.startswith(f"{path}/") for one in ENDPOINTS)
        assert is_served or is_family, path

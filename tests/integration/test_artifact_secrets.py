"""Logins and headers of artifacts reach the host that they are for, and no event."""

import io
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult

import pytest
import urllib3

from services.agent.executor.data_dir import DataDir
from services.agent.inputs.artifacts.addresses import AddressRules
from services.agent.inputs.artifacts.fetch_order import FetchRefused
from services.agent.inputs.artifacts.git_fetch import fetch_commit
from services.agent.inputs.artifacts.http_fetch import CheckedHttp
from shared.jobspec.artifact_source import read_source
from tests.integration.test_artifacts import home, refused, store

__all__ = ["home", "store"]
ADVERTISED = b"001e# service=git-upload-pack\n0000000eversion 2\n0000"


class RedirectedHttp(CheckedHttp):
    """Answers without a network: git.example redirects to `to`, every other host advertises a repository."""

    def __init__(self, to: str) -> None:
        secret = {"Authorization": "Bearer s"}
        super().__init__(
            AddressRules(), tls=ssl.create_default_context(), headers=secret, stall_s=1
        )
        self._to = to
        #: host, and whether it got the secret headers.
        self.told: list[tuple[str | None, bool]] = []

    def _ask(
        self, parts: SplitResult, method: str, headers: Any, body: Any, *, is_first_host: bool
    ) -> urllib3.BaseHTTPResponse:
        del method, headers, body
        self.told.append((parts.hostname, is_first_host))
        if parts.hostname == "git.example" and not parts.path.startswith("/login"):
            head = {"location": self._to}
            return urllib3.HTTPResponse(
                io.BytesIO(), status=302, headers=head, preload_content=False
            )
        kind = {"content-type": "application/x-git-upload-pack-advertisement"}
        body = b"a login page" if parts.path.startswith("/login") else ADVERTISED
        kind = {"content-type": "text/html"} if parts.path.startswith("/login") else kind
        return urllib3.HTTPResponse(
            io.BytesIO(body), headers=kind, status=200, preload_content=False
        )


def fetch(client: CheckedHttp, url: str, folder: Path) -> str:
    """Fetch a repository that cannot be fetched; returns the reason."""
    with pytest.raises(FetchRefused) as err:
        list(fetch_commit(client, url, ref="", depth=0, folder=str(folder / "repo")))
    return str(err.value)


def test_a_redirected_repository_gets_no_secret_header(tmp_path: Path) -> None:
    """What a git client asks of the host of a redirect goes without the headers of the first host."""
    client = RedirectedHttp("https://evil.example/x/info/refs?service=git-upload-pack")
    fetch(client, "https://git.example/team/app.git", tmp_path)
    assert ("git.example", True) in client.told
    assert [one for one in client.told if one[0] == "evil.example"] != []
    assert not any(is_first for host, is_first in client.told if host == "evil.example")


def test_a_login_of_a_repository_is_in_no_reason(tmp_path: Path) -> None:
    """A server that redirects to its login page is named without the login of the URL."""
    client = RedirectedHttp("https://git.example/login")
    assert "TOK" not in fetch(client, "https://bot:TOK@git.example/team/app.git", tmp_path)


@pytest.mark.parametrize("url", ["https://user:s3cr3t/abc@h/f", "https://u:s3cr3t\u2100x@h/f"])
def test_a_login_that_breaks_a_url_is_in_no_fault(url: str) -> None:
    """A password with a slash is refused without a part of it in the text."""
    with pytest.raises(ValueError, match="is not a URL") as err:
        read_source(url, {})
    assert "s3cr3t" not in str(err.value)


def test_a_header_that_cannot_be_sent_is_refused_without_its_value(
    home: DataDir, store: str
) -> None:
    """A token that ends in a line end is a fault for good, named by its header."""
    keys = {"aws_access_key_id": "a", "aws_access_key_secret": "b", "aws_access_token": "SECRET\n"}
    found = refused(home, f"s3::{store}/b/k", options=keys)
    assert "SECRET" not in str(found)
    assert not found.recoverable


def test_a_file_cannot_take_the_place_of_shared_directories(home: DataDir, store: str) -> None:
    """Destination `../alloc` with mode file would replace the directory that holds all logs."""
    found = refused(home, f"{store}/plain", mode="file", destination="../alloc")
    assert "beside the directories" in str(found)
    assert not found.recoverable

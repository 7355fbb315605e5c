"""Host volumes by request over HTTP, in Nomad's shapes."""

from pathlib import Path

import pytest

from tests.gateway.test_http import Gateway

pytestmark = pytest.mark.bus


def test_the_http_api_has_nomads_shapes(tmp_path: Path) -> None:
    """Created, listed, read and deleted; what is not built is refused."""
    gateway = Gateway(tmp_path)
    try:
        http = gateway.http
        modes = [{"AttachmentMode": "file-system", "AccessMode": "single-node-writer"}]
        wanted = {"Name": "web", "PluginID": "mkdir", "RequestedCapabilities": modes}
        answer = http.put("/v1/volume/host/create", json={"Volume": wanted})
        assert answer.status_code == 200, answer.text
        made = answer.json()
        assert (made["Volume"]["State"], made["Warnings"]) == ("ready", "")
        path = f"/v1/volume/host/{made['Volume']['ID']}"
        (listed,) = gateway.read("/v1/volumes", type="host")
        assert listed["ID"] == made["Volume"]["ID"]
        assert gateway.read("/v1/volumes", type="csi") == []
        one = gateway.read(path)
        assert (one["Name"], one["RequestedCapabilities"], one["Allocations"]) == ("web", modes, [])
        assert Path(one["HostPath"]).is_dir()
        bad = {"Volume": {**wanted, "Name": "other", "Bogus": 1}}
        assert http.put("/v1/volume/host/create", json=bad).status_code == 400
        failing = {"Volume": {**wanted, "Name": "other", "Parameters": {"size": "1"}}}
        refused = http.put("/v1/volume/host/create", json=failing)
        assert (refused.status_code, "'size'" in refused.text) == (500, True)
        assert http.put("/v1/volume/host/register", json={"Volume": wanted}).status_code == 501
        deleted = http.delete(f"{path}/delete")
        assert (deleted.status_code, deleted.json()) == (200, {})
        assert http.get(path).status_code == 404
    finally:
        gateway.end()

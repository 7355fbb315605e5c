"""What a killed `caravan up` leaves: the next one waits until it is gone, the port of the bus included."""

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from services.cli.local.processes import kill_leftover_services
from services.cli.runtime import local_clusters
from services.cli.runtime.local_clusters import LocalClusterRecord
from shared.bus.server.accounts import new_credentials
from shared.bus.server.nats_server import NatsServer, ServerSettings, port_is_free
from shared.errors import BusUnavailable
from shared.machine_lock import kernel_boot


def test_the_port_of_an_ended_bus_is_waited_for(tmp_path: Path) -> None:
    """A server that is killed holds its port for a moment after its process shows no command line any more."""
    held = socket.create_server(("127.0.0.1", 0))
    port = held.getsockname()[1]
    record = LocalClusterRecord(
        pid=0,
        url=f"nats://127.0.0.1:{port}",
        data_dir=str(tmp_path),
        cluster_id="",
        started_ns=0,
        agents={},
        services={},
    )
    (tmp_path / "up.json").write_bytes(msgspec.json.encode(record))
    assert not port_is_free(port)
    threading.Timer(0.3, held.close).start()
    kill_leftover_services(tmp_path, print)
    assert port_is_free(port)


def test_pids_of_another_boot_are_no_cluster_and_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a reboot a live process may have a noted pid: it is no cluster, and is not killed."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    child = subprocess.Popen((sys.executable, "-c", "import time; time.sleep(60)", str(tmp_path)))
    try:
        for boot, is_running in (("", True), (kernel_boot(), True), ("an-earlier-boot", False)):
            record = LocalClusterRecord(
                pid=os.getpid(),
                url="nats://127.0.0.1:1",
                data_dir=str(tmp_path),
                services={"view": child.pid},
                boot=boot,
            )
            local_clusters.write_record(record)
            assert bool(local_clusters.running_clusters()) == is_running
        kill_leftover_services(tmp_path, print)
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


def test_a_servers_pid_file_of_another_boot_is_no_lock(tmp_path: Path) -> None:
    """The pid of a server that runs now, noted before a reboot, does not keep the folder."""
    first = NatsServer(ServerSettings(data_dir=tmp_path / "a"), new_credentials())
    first.start()
    try:
        note = (tmp_path / "a" / "nats-server.pid").read_text()
        pid, boot = note.split()
        assert boot == kernel_boot()
        other = tmp_path / "b"
        other.mkdir()
        second = NatsServer(ServerSettings(data_dir=other), new_credentials())
        (other / "nats-server.pid").write_text(note)
        with pytest.raises(BusUnavailable, match="is in use"):
            second.start()
        (other / "nats-server.pid").write_text(f"{pid} an-earlier-boot\n")
        second.start()
        second.stop()
    finally:
        first.stop()

"""Pictures of the console for docs/console.md: `just screenshots`. A cluster of agents and simulated nodes, with jobs.

Not a test: it makes the cluster that the page describes, opens each screen, and writes one PNG a screen.
"""

import argparse
import base64
import struct
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import Page

from tests.gateway.console import browser as browsers
from tests.gateway.console.browser import Console
from tests.gateway.test_http import TICKER, Gateway, job

FOLDER = Path(__file__).resolve().parents[3] / "docs" / "console"
SIZE = {"width": 1180, "height": 640}
NODES = 120
PROFILE = """
nodes:
  - {class: large, count: 2, cpu_mhz: 20800, memory_mib: 65536}
  - {class: small, count: 3, cpu_mhz: 8000, memory_mib: 16384}
runs:
  - {job: "report-*", lasts: 20s}
"""
FAILS = "echo 'reading /data/input.csv'; echo 'error: /data/input.csv: no such file' >&2; exit 3"
#: name, allocations, CPU and memory of one.
SIMULATED = (("web", 160, 900, 1500), ("cache", 60, 600, 7000), ("search", 40, 2500, 4000))


def _on(body: dict[str, Any], pattern: str) -> dict[str, Any]:
    """A job on the nodes whose id matches."""
    wanted = {"LTarget": "${node.unique.id}", "RTarget": pattern, "Operand": "regexp"}
    return {**body, "Constraints": [wanted]}


def _simulated(job_id: str, count: int, cpu: int, memory: int) -> dict[str, Any]:
    body = _on(job(job_id, "sleep 86400"), "^sim-")
    group = body["TaskGroups"][0]
    group["Count"] = count
    group["Tasks"][0]["Resources"] = {"CPU": cpu, "MemoryMB": memory}
    return body


def _updated(version: int) -> dict[str, Any]:
    """A service on the agents that is updated one allocation after the other."""
    body = _on(job("shop", f"echo 'shop {version} listens'; {TICKER}"), "^node-")
    group = body["TaskGroups"][0]
    group["Count"] = 4
    group["Update"] = {"MaxParallel": 1, "MinHealthyTime": 3_000_000_000, "Canary": 1}
    group["Tasks"][0]["Env"] = {"RELEASE": f"1.{version}"}
    return body


class Scene:
    """A cluster with something on every screen."""

    def __init__(self, folder: Path) -> None:
        self.gateway = Gateway(folder, "--agents", "2")
        profile = folder / "fleet.yaml"
        profile.write_text(PROFILE)
        words = ("fleet", "--nodes", str(NODES), "--profile", str(profile))
        self._fleet = subprocess.Popen(
            [sys.executable, "-m", "services.cli", *words],
            env=self.gateway.up.env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def end(self) -> None:
        """End the nodes and the cluster."""
        self._fleet.terminate()
        self._fleet.wait()
        self.gateway.end()

    def submit(self, body: dict[str, Any]) -> None:
        """Register a job."""
        answer = self.gateway.http.put("/v1/jobs", json={"Job": body})
        assert answer.status_code == 200, answer.text

    def last_seq(self) -> int:
        """Seq of the last record."""
        return int(self.gateway.read("/v1/caravan/time")["seq"])

    def fill(self) -> dict[str, str]:
        """Run jobs; returns what addresses name."""
        gateway = self.gateway
        gateway.up.until(lambda: len(gateway.read("/v1/nodes")) > NODES, "the simulated nodes")
        for one in SIMULATED:
            self.submit(_simulated(*one))
        self.submit(_updated(1))
        failing = _on(job("import", FAILS, "batch"), "^node-")
        failing["TaskGroups"][0]["RestartPolicy"] = {"Attempts": 1, "Delay": 250_000_000}
        failing["TaskGroups"][0]["ReschedulePolicy"] = {"Attempts": 0, "Unlimited": False}
        self.submit(failing)
        self.submit(_simulated("train", 6, 15_000, 40_000))
        huge = _simulated("render", 2, 64_000, 1_000)
        self.submit(huge)
        for job_id, count in (("web", 160), ("cache", 60), ("shop", 4)):
            gateway.up.until(
                lambda job_id=job_id, count=count: len(gateway.allocs(job_id, "running")) == count,
                f"{job_id} runs",
            )
        gateway.up.until(lambda: gateway.allocs("import", "failed") != [], "import failed")
        drained = gateway.allocs("cache", "running")[0]["NodeID"]
        body = {"DrainSpec": {"Deadline": 600_000_000_000}}
        assert gateway.http.put(f"/v1/node/{drained}/drain", json=body).status_code == 200
        self.submit(_updated(2))
        gateway.up.until(
            lambda: "RequireProgressBy" in str(gateway.read("/v1/job/shop/deployment")),
            "an update",
        )
        items = {"Items": {"password": "correct horse", "user": "shop"}}
        stored = gateway.http.put("/v1/var/nomad/jobs/shop", json=items)
        assert stored.status_code == 200, stored.text
        question = {"seq": self.last_seq(), "drain": ["node-1"], "add_nodes": ["1xnode-2"]}
        asked = gateway.http.put("/v1/caravan/what-if", json=question)
        assert asked.status_code == 200, asked.text
        path = f"/v1/caravan/what-if/{asked.json()['id']}"
        gateway.up.until(
            lambda: gateway.http.get(path).json()["status"] == "done", "the what-if ends"
        )
        return {
            "what_if": asked.json()["id"],
            "seq": str(self.last_seq()),
            "alloc": gateway.allocs("shop", "running")[0]["ID"],
            "failed": gateway.allocs("import", "failed")[0]["ID"],
            "web": gateway.allocs("web", "running")[0]["ID"],
            "deployment": gateway.read("/v1/job/shop/deployment")["ID"],
            "evaluation": gateway.read("/v1/job/train/evaluations")[0]["ID"],
            "node": gateway.allocs("shop", "running")[0]["NodeName"],
        }


def places(ids: dict[str, str]) -> dict[str, str]:
    """Addresses by the name of their picture."""
    return {
        "cluster": "cluster",
        "jobs": "jobs",
        "job": "job/shop",
        "job-versions": "job/shop?show=versions",
        "deployment": f"deployment/{ids['deployment']}",
        "allocation": f"alloc/{ids['failed']}",
        "why": f"alloc/{ids['web']}?show=why",
        "logs": f"alloc/{ids['failed']}?show=logs",
        "nodes": "nodes",
        "node": f"node/{ids['node']}",
        "variable": "variables/nomad%2Fjobs%2Fshop",
        "queue": "queue",
        "evaluations": "evaluations",
        "evaluation": f"evaluation/{ids['evaluation']}",
        "log": "log",
        "changes": f"changes?from={int(ids['seq']) - 20}&to={ids['seq']}",
        "times": "times",
        "past": f"cluster?at={int(ids['seq']) // 2}",
        "what-if": "what-if?drain=node-1",
        "what-if-result": f"what-if/{ids['what_if']}",
        "submit": "submit",
    }


def settle(page: Page) -> None:
    """Wait for the time bar, and for two pictures of the screen, so that canvases are drawn."""
    page.locator("#time output").wait_for()
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


#: Decodes a picture: base64 of its pixels, four bytes each.
_DECODE = """async (png) => {
    const bitmap = await createImageBitmap(await (await fetch(`data:image/png;base64,${png}`)).blob());
    const pen = new OffscreenCanvas(bitmap.width, bitmap.height).getContext("2d");
    pen.drawImage(bitmap, 0, 0);
    const raw = new Blob([pen.getImageData(0, 0, bitmap.width, bitmap.height).data]);
    const reader = new FileReader();
    const read = new Promise((done) => (reader.onload = () => done(reader.result)));
    reader.readAsDataURL(raw);
    return (await read).split(",")[1];
}"""


def smaller(blank: Page, png: bytes) -> bytes:
    """The same picture with a palette: a screen has few colours, and the docs hold many pictures."""
    width, height = struct.unpack(">II", png[16:24])
    raw = base64.b64decode(blank.evaluate(_DECODE, base64.b64encode(png).decode()))
    pixels = np.frombuffer(raw, np.uint8).reshape(height * width, 4)[:, :3] // 15 * 15
    numbers = pixels.astype(np.int64) @ (1 << 16, 1 << 8, 1)
    colours, place, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    shades = np.stack([colours >> 16, colours >> 8 & 255, colours & 255], axis=1)
    kept = shades[np.argsort(-counts)[:256]]
    nearest = np.abs(shades[:, None, :] - kept[None, :, :]).sum(axis=2).argmin(axis=1)
    indexed = nearest.astype(np.uint8)[place.reshape(-1)].reshape(height, width)
    lines = b"".join(b"\0" + row.tobytes() for row in indexed)
    head = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    parts = ((b"IHDR", head), (b"PLTE", kept.astype(np.uint8).tobytes()))
    parts += ((b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    return png[:8] + b"".join(_chunk(*one) for one in parts)


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def main() -> None:
    """Write the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--themes", nargs="*", default=["light"])
    parser.add_argument("--width", type=int, default=SIZE["width"])
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, browsers.started() as browser:
        scene = Scene(Path(folder))
        try:
            ids = scene.fill()
            for theme in given.themes:
                size = {**SIZE, "width": given.width}
                with browser.new_context(color_scheme=theme, viewport=size) as context:
                    blank = context.new_page()
                    console = Console(context, scene.gateway.url, scene.gateway.token)
                    for name, place in places(ids).items():
                        console.open(place)
                        settle(console.page)
                        suffix = "" if len(given.themes) == 1 else f"-{theme}"
                        path = given.folder / f"{name}{suffix}.png"
                        path.write_bytes(smaller(blank, console.page.screenshot()))
        finally:
            scene.end()


if __name__ == "__main__":
    main()

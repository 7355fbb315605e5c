"""A cluster with something on every screen of the console, and a browser: what its tests start from."""

from typing import Any

from playwright.sync_api import Browser

from tests.gateway.test_http import TICKER, Gateway, job

RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}
HOSTILE = "<img src=x onerror=alert(1)>"


class Screens:
    """A cluster with something on every screen, and a browser."""

    def __init__(self, gateway: Gateway, browser: Browser) -> None:
        self.gateway = gateway
        self.browser = browser
        self.alloc = str(gateway.run("ticker", TICKER)["ID"])
        gateway.run("done", f"echo '{HOSTILE}'; printf '\\033[31mred\\033[0m\\n'", "batch")
        self.hungry()
        self.stored("app/db", {"password": "correct horse", "user": "shop"})
        self.deployment = str(gateway.read("/v1/job/ticker/deployments")[0]["ID"])
        self.evaluation = str(gateway.read("/v1/job/ticker/evaluations")[0]["ID"])
        #: a what-if, and its result.
        self.what_if = self.asked({"seq": self.last_seq, "drain": ["node-1"]})

    @property
    def last_seq(self) -> int:
        """Seq of the last record."""
        return int(self.gateway.read("/v1/caravan/time")["seq"])

    def asked(self, question: dict[str, Any]) -> str:
        """The id of a what-if that has a result."""
        http, path = self.gateway.http, "/v1/caravan/what-if"
        answer = http.put(path, json=question)
        assert answer.status_code == 200, answer.text
        name = str(answer.json()["id"])
        self.gateway.up.until(
            lambda: http.get(f"{path}/{name}").json()["status"] == "done", "the what-if ends"
        )
        return name

    def hungry(self) -> None:
        """A job that no node has room for, and whose text is hostile."""
        body = job("hungry", "true")
        group = body["TaskGroups"][0]
        group["Tasks"][0]["Resources"] = {"CPU": 10_000_000, "MemoryMB": 16}
        group["Meta"] = {HOSTILE: HOSTILE}
        assert self.gateway.http.put("/v1/jobs", json={"Job": body}).status_code == 200
        self.gateway.up.until(
            lambda: self.gateway.read("/v1/caravan/query/waiting")["total"] == 1, "a job waits"
        )

    def stored(self, path: str, items: dict[str, str]) -> int:
        """Store a variable whatever there is; returns its revision."""
        answer = self.gateway.http.put(f"/v1/var/{path}", json={"Items": items})
        assert answer.status_code == 200, answer.text
        return int(answer.json()["ModifyIndex"])

    def places(self) -> list[str]:
        """Addresses of all screens."""
        alloc = f"alloc/{self.alloc}"
        return [
            "cluster",
            "jobs",
            *(
                f"job/ticker{part}"
                for part in ("", "?show=versions", "?show=timeline", "?show=source")
            ),
            "job/hungry",
            *(
                f"{alloc}{part}"
                for part in ("", "?show=why", "?show=logs", "?show=exec", "?show=events")
            ),
            "nodes",
            "node/node-1",
            "services",
            "variables",
            "variables/app%2Fdb",
            "variables/app%2Fnone",
            "queue",
            "evaluations",
            f"evaluation/{self.evaluation}",
            f"deployment/{self.deployment}",
            "log",
            "log?show=state",
            "changes?from=1",
            "times",
            "what-if",
            f"what-if/{self.what_if}",
            "submit",
            "cluster?at=3",
        ]

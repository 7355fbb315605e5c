"""Print the targets of a running `caravan up` as Prometheus's file_sd wants them.

    python3 deploy/prometheus/targets.py DATA_DIR > targets/caravan.json

Each service writes the port of its /metrics into DATA_DIR/logs/NAME.port; what does not listen any more is left out.
"""

import json
import re
import socket
import sys
from pathlib import Path


def targets(data_dir: Path) -> list[dict[str, object]]:
    """Return one entry for each service that listens, by name."""
    found: list[dict[str, object]] = []
    for path in sorted((data_dir / "logs").glob("*.port")):
        port = int(path.read_text().strip() or 0)
        if listens(port):
            service = "agent" if path.stem.startswith("agent-") else re.sub(r"-\d+$", "", path.stem)
            labels = {"service": service, "instance_name": path.stem}
            found.append({"labels": labels, "targets": [f"127.0.0.1:{port}"]})
    return found


def listens(port: int) -> bool:
    """Tell whether a process listens on that port of loopback."""
    try:
        with socket.create_connection(("127.0.0.1", port), 0.5):
            return True
    except OSError:
        return False


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: targets.py DATA_DIR")
    print(json.dumps(targets(Path(sys.argv[1])), indent=2))

"""Ask a service of this container whether it is well: exit 0 for 200 on /health, else 1. It runs often, so it is cheap.

python3 -IS deploy/health.py [PORT]
"""

import socket
import sys


def main(port: int) -> int:
    """Return the exit code."""
    try:
        with socket.create_connection(("127.0.0.1", port), 2) as bus:
            bus.sendall(b"GET /health HTTP/1.0\r\n\r\n")
            return 0 if bus.recv(64).split(b" ", 2)[1] == b"200" else 1
    except (OSError, IndexError):
        return 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 7070))

"""`tests/common.py` of python-nomad's suite, which its source archive lacks: where the server is."""

import os

IP = os.environ["NOMAD_IP"]
NOMAD_PORT = os.environ["NOMAD_PORT"]
NOMAD_TOKEN = os.environ["NOMAD_TEST_TOKEN"]
NOMAD_NAMESPACE = "default"

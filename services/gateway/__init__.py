"""The gateway: Nomad's HTTP API on `/v1/*`, and the console. It reads by a replica of its own."""

"""Artifacts: fetched and unpacked by a helper process, moved in by the agent."""

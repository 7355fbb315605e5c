"""Commands about nodes to facts: registration, liveness, drains, reports."""

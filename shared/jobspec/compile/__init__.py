"""From a checked job to what the scheduler reads: groups, asks, ports."""

"""The life of allocations and tasks on a node: pure decisions, no IO."""

"""Templates: rendered by a helper process, written by the agent."""

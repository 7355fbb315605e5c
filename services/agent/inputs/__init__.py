"""What a task is given before it starts: the edge of the agent that prepares it."""

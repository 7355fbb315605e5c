"""Operating system processes that outlive the agent: starter, runs, sessions."""

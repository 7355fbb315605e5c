"""Services as names in DNS, answered by the agent to the tasks of its node."""

"""The task API: a unix socket in the secrets of a task, over which it reads what it may of the cluster."""

"""The task API: a unix socket in each task's secrets directory, over which the task reads what it may of the cluster."""

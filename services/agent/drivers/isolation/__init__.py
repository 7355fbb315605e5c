"""What keeps a task apart from its node: view of files, user, rights, namespaces, cgroups. Read `stages.py` first."""

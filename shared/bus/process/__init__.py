"""A role as a process: settings, health server, runner."""

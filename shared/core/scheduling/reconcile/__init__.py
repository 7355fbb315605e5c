"""What a job should run against what runs: which allocations to start, stop and replace."""

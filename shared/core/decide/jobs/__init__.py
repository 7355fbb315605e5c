"""Commands about jobs to facts: submissions, versions, dispatches, launches of children."""

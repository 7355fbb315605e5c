"""Options of drivers: which there are, checked where a job is submitted and again where it starts."""

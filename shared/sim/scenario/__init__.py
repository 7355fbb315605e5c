"""Scenarios: a cluster and its days in one file, played in virtual time, with a report.

Reading order: schema.py (the file), parser.py (its checks), traces.py (recorded workloads), arrivals.py (jobs),
faults.py, run.py, run_metrics.py (what is recorded), report.py, html_report.py.
"""

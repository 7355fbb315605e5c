"""`caravan top`: the cluster in a terminal, live or at a past moment. What is shown is pure; `app.py` draws it."""

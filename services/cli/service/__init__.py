"""`caravan service …`: services and where their instances are."""

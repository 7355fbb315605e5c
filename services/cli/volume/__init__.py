"""`caravan volume …`: volumes and claims on them."""

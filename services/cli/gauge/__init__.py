"""`caravan gauge …`: values that hold the updates of jobs back."""

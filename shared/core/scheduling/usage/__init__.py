"""Resource use while a plan is being made: tentative sums and the rows that changed."""

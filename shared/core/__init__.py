"""The pure part: tables, evolve, feasibility, scores, place, verify. No IO, no clock, no randomness."""

"""Questions about a state: what `query.<noun>` answers, for the view's present and for any past that was replayed."""

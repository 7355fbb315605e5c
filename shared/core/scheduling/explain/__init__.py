"""Why a placement was made or refused, from the log alone."""

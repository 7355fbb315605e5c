"""The commands `caravan deployment …` and what `job run` shares with them: display and following of a deployment."""

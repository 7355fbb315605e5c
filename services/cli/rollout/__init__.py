"""The commands `caravan rollout …`, and how one is followed: `job run --together` shares it."""

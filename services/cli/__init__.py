"""The caravan command."""

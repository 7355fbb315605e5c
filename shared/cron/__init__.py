"""Cron specs: what they mean, and the next instant of one in a time zone. Pure: the time is an argument."""

"""Deciding: a command against the state becomes events, or none when there is nothing to do.

`decide(state, command, now_ns)` never mutates. One file or folder a family of commands; the plan applier routes to them
and applies what they return before it asks the next. "No" is an event with a reason where the log must know, an empty
list if the request already holds.
"""

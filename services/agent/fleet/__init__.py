"""Agents by the thousand in one process, over nodes that are not there: `caravan fleet`."""

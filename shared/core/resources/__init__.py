"""One model of what an allocation takes beside CPU, memory and disk (docs/adr/0016-one-model-of-resources.md).

asks.py      what one allocation takes, and how a plan's columns say it
devices.py   models of instances, and constraints over `${device.…}`
offers.py    what nodes and the cluster offer: sums, slots, ports, cores
ports.py     which ports are held where
held.py      what allocations hold, of all of it; copies to try things out on
headroom.py  how many more of an ask each node takes
assign.py    which slots and ports one allocation gets on its node
"""

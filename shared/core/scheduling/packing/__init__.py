"""Packing of GPUs, whole and in fractions, so that little of them is left over: docs/packing.md.

gpu_packing.py        when a group is packed, and where: the policy on the fleet's devices
gpu_columns.py        the columns that the policy reads, and what one placement takes of them
hole_values.py        what a partly used GPU is still worth: the best packing of the fractions asked for
model_scarcity.py     which models will run short first
placement_costs.py    the policy, `algorithm = "fragmentation"`: the cost of each node
incremental_costs.py  one ask placed repeatedly, for counts
"""

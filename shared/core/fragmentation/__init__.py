"""Packing of GPUs, whole and in fractions, so that little of them is left over: docs/packing.md.

gpus.py      the columns a policy looks at, what one placement takes of them
workload.py  what was asked for so far, learned in arrival order
holes.py     what a partly used GPU is still worth: the best packing of the fractions asked for
scarcity.py  which models will run short first
course.py    one ask placed again and again, for counts
policy.py    our policy, `algorithm = "fragmentation"`
gradient.py  Fragmentation Gradient Descent, the baseline it is measured against
"""

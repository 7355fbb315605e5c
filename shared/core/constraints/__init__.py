"""What a constraint says about two texts: operators, and the regular expressions among them.

operators.py  `left operator right`, in each of Nomad's spellings
regex.py      patterns within their bounds, compiled once

They know no node and no table.
"""

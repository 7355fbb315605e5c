"""What a constraint says about two texts: operators, and the regular expressions among them. Knows no node and no table.

operators.py  `left operator right`, in each of Nomad's spellings
regex.py      patterns within their bounds, compiled once
"""

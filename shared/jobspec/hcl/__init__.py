"""HCL2 as job files use it: text to tree, tree to values. Independent of jobs."""

"""Networks of groups in mode bridge: namespaces, the node's bridge, ports, and the table of rules."""

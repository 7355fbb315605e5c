"""Modes of a group's network, and what a node says of the ones it has.

The compiler makes a constraint of the attribute, so that a group in mode bridge is placed only where one can be made;
the agent's fingerprint (`services/agent/network/`) sets it.
"""

HOST, BRIDGE, NONE = "host", "bridge", "none"
#: How a node makes the network of a group in mode bridge; its only value is NFT.
BRIDGE_ATTRIBUTE, NFT = "network.bridge", "nft"
#: Why a node cannot make one.
BRIDGE_OFF_ATTRIBUTE = "network.bridge.off"
#: Subnet of the node's bridge, as `172.27.64.0/20`.
BRIDGE_SUBNET_ATTRIBUTE = "network.bridge.subnet"

"""What the agent's role asks of its node for the network of a group, and what the node answers.

Only groups with `mode = "bridge"` have one: a network namespace with an address on the node's bridge, shared by their
tasks. `agent_messages.py` has the other effects, and who performs them.

What a performer promises:
- Every `PrepareNetwork` is answered once by NetworkReady, NetworkFailed or NetworkLost. With `adopt` what is missing
  inside an existing namespace is made again; where the namespace itself is gone the answer is NetworkLost, and nothing
  was made. Without it the whole network is there after NetworkReady, whatever was there before.
- After NetworkReady a NetworkLost may follow at any time; nothing is made again before the next `PrepareNetwork`.
- `CloseAlloc` removes the network, and ends a preparation under way. It is not answered: what cannot be removed is
  named in the node's log, and tried again.
"""

import msgspec


class PortMapping(msgspec.Struct, frozen=True, kw_only=True):
    """One port: `host` of the node leads to `inside` of the group."""

    label: str
    host: int
    inside: int
    #: address of the node where it is; empty: all.
    address: str = ""


class PrepareNetwork(msgspec.Struct, frozen=True, kw_only=True):
    """Make the network of an allocation, or take it over from an earlier life of the agent."""

    key: int
    #: shown id.
    alloc_id: str
    #: with the length of its prefix: `172.27.64.5/20`.
    address: str
    hostname: str = ""
    ports: tuple[PortMapping, ...] = ()
    dns_servers: tuple[str, ...] = ()
    dns_searches: tuple[str, ...] = ()
    dns_options: tuple[str, ...] = ()
    #: containers join it: the namespace is one of the container engine's.
    has_containers: bool = False
    #: tasks may be in the namespace that is there.
    adopt: bool = False


class NetworkReady(msgspec.Struct, frozen=True, kw_only=True):
    """The network is there: tasks may start in it."""

    key: int


class NetworkFailed(msgspec.Struct, frozen=True, kw_only=True):
    """The network cannot be made; the allocation fails."""

    key: int
    reason: str


class NetworkLost(msgspec.Struct, frozen=True, kw_only=True):
    """The namespace that tasks run in is not the group's any more: they end, and start in a new one."""

    key: int
    reason: str

"""When a standby sends what is due: a leader that was killed sends nothing until a standby has its lease.

A command names the instant that its sender believes in, and the plan applier acts on the first that says so. So a
second one is a comparison, not a second launch. A standby sends where the log has shown nothing of what is due for a
while. A leader or an applier that is slow must not have twice the work for it: each time that the standby did not send
all, it waits for twice as long before it sends more.
"""

#: A leader's command is in the log within some ten ms.
PATIENCE_NS = 100_000_000
#: Beyond the time in which a standby has the lease of a leader that is gone.
PATIENCE_MAX_NS = 3_200_000_000


class Patience:
    """The pause of a standby, in steady ns."""

    def __init__(self) -> None:
        self._pause_ns = PATIENCE_NS
        #: when the log showed something of what was due, or this instance sent it, last.
        self._since_ns = 0

    def begin(self, now_ns: int) -> None:
        """Wait anew: this instance begins to stand by."""
        self._pause_ns, self._since_ns = PATIENCE_NS, now_ns

    def saw_progress(self, now_ns: int) -> None:
        """Begin the pause anew: the log shows something that was due."""
        self._since_ns = now_ns

    def sent(self, now_ns: int) -> None:
        """Begin the pause anew, and double it: this instance sends what is due."""
        self._pause_ns = min(2 * self._pause_ns, PATIENCE_MAX_NS)
        self._since_ns = now_ns

    def rest(self) -> None:
        """Forget how long the pause had become: all that is due was sent."""
        self._pause_ns = PATIENCE_NS

    def ready_ns(self, due_ns: int) -> int:
        """Return when what is due first, at `due_ns`, has waited for long enough."""
        return max(due_ns, self._since_ns) + self._pause_ns

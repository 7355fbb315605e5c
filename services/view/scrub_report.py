"""Results of the scrub of the log in the view: an alarm, and numbers.

An alarm ends with a whole pass that found nothing.
"""

from shared.core.runtime.messages import LogScrubbed


class ScrubReport:
    """The last word of the scrub."""

    def __init__(self) -> None:
        #: for operators; empty: no damage is known.
        self.alarm = ""
        self._seq = 0
        self._passes = 0

    def learn(self, found: LogScrubbed) -> None:
        """Take what the scrub found."""
        self._seq = found.seq
        if found.problem:
            self.alarm = (
                f"the log is damaged on disk: {found.problem}; caravan log verify shows more"
            )
        elif found.is_pass_done:
            self._passes += 1
            self.alarm = ""

    def metrics(self) -> dict[str, float]:
        """Progress, and whether there is damage."""
        return {
            "caravan_view_scrub_damage_info": float(bool(self.alarm)),
            "caravan_view_scrub_position_seq": float(self._seq),
            "caravan_view_scrub_passes_total": float(self._passes),
        }

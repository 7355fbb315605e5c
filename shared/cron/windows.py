"""State of a deployment's update windows at an instant, by the calendars of their zones."""

from schemas.gates import UpdateWindow, WindowReading
from shared.core.state.gates import WindowState, is_new_window
from shared.cron.instants import missed_launches, next_launch
from shared.cron.spec import CronInvalid

#: Instants of one window that are counted.
_INSTANTS_MAX = 1


def new_window(known: WindowState, now_ns: int) -> WindowReading | None:
    """Say where windows stand, if that is new; None: it is not, or cannot be known here."""
    try:
        said = read_windows(known.windows, now_ns)
    except CronInvalid:
        # This machine lacks the time zone; another one may have it.
        return None
    return said if is_new_window(known, said, now_ns) else None


def read_windows(windows: tuple[UpdateWindow, ...], now_ns: int) -> WindowReading:
    """Say whether one of these windows is open, and until when. Raises CronInvalid."""
    opened: list[tuple[int, int]] = []
    for one in windows:
        at_ns, _ = missed_launches(
            (one.cron,),
            one.time_zone,
            after_ns=now_ns - one.duration_ns,
            until_ns=now_ns,
            most=_INSTANTS_MAX,
        )
        if at_ns:
            opened.append((at_ns + one.duration_ns, at_ns))
    if opened:
        until_ns, from_ns = max(opened)
        return WindowReading(is_open=True, from_ns=from_ns, until_ns=until_ns)
    coming = [next_launch((one.cron,), one.time_zone, now_ns) for one in windows]
    return WindowReading(is_open=False, until_ns=min((at for at in coming if at), default=0))

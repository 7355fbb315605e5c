"""Moves `caravan top` through the log: steps, marks, play, and going to a seq or a time."""

from services.cli.top.session import Session, Work
from shared.errors import CaravanError


class TimeControl:
    """The keys of the slider. A move that is under way is cancelled by the next one."""

    def __init__(self, session: Session, work: Work) -> None:
        self._session = session
        self._work = work
        self._is_moving = False
        self.is_playing = False

    def go(self, seq: int) -> None:
        """Show the state behind a seq."""
        self._session.line.go(seq)
        self._work(self._move(), "time")

    def go_to_time(self, text: str) -> None:
        """Show the state at a time."""
        self.stop()
        self._work(self._move_to_time(text), "time")

    def step(self, by: int) -> None:
        """Show the record before or after."""
        self.stop()
        self.go(self._session.line.seq + by)

    def jump(self, direction: int) -> None:
        """Show the mark before or after."""
        self.stop()
        self._session.line.jump(direction)
        self.go(self._session.line.seq)

    def now(self) -> None:
        """Show the end of the log."""
        self.stop()
        self.go(self._session.line.last)

    def play(self) -> None:
        """Play from here, from the beginning where this is now; or stop."""
        line = self._session.line
        if self.is_playing:
            self.stop()
            return
        if not line.at:
            self.go(line.first)
        self.is_playing = bool(line.at)

    def play_on(self) -> None:
        """Continue by one step, if it plays and the last step is shown."""
        if self.is_playing and not self._is_moving:
            self.is_playing = self._session.line.play_step()
            self.go(self._session.line.seq)

    def stop(self) -> None:
        """End playing."""
        self.is_playing = False
        self._session.is_dirty = True

    def pin(self) -> None:
        """Pin this moment, or unpin it."""
        line = self._session.line
        line.pin()
        self._session.say(f"pinned seq {line.pinned}" if line.pinned else "unpinned")

    async def _move(self) -> None:
        session, seq = self._session, self._session.line.at
        self._is_moving = True
        try:
            if seq:
                session.say(f"replaying to seq {seq}")
            session.past = await session.moments.at(seq) if seq else None
            session.say("")
        except CaravanError as err:
            self._failed(err)
        finally:
            self._is_moving = False

    async def _move_to_time(self, text: str) -> None:
        session = self._session
        session.say(f"replaying to {text}")
        try:
            session.past = await session.moments.reached(text)
        except CaravanError as err:
            self._failed(err)
            return
        session.line.go(session.shown.seq)
        session.say("")

    def _failed(self, err: CaravanError) -> None:
        """Stay where it was."""
        self.is_playing = False
        self._session.line.at = self._session.past.seq if self._session.past is not None else 0
        self._session.say(str(err))

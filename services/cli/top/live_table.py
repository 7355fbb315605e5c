"""A table that is changed in place: rows come, go and move, and only cells that differ are drawn."""

from collections.abc import Sequence

from rich.text import Text
from textual.widgets import DataTable

from services.cli.runtime.output import STYLES
from services.cli.top.listings import Row, Table


class _KeyCell(Text):
    """The first cell of a row, which knows its row: a table is sorted by its cells alone."""

    row_key = ""


class LiveTable(DataTable[Text]):
    """One table of `listings.TABLES`."""

    def __init__(self, table: Table) -> None:
        super().__init__(id=table.name, cursor_type="row", zebra_stripes=False)
        self._titles = [one.rstrip(">") for one in table.columns]
        self._right = [one.endswith(">") for one in table.columns]
        self._shown: dict[str, tuple[str, ...]] = {}

    def on_mount(self) -> None:
        """Make the columns."""
        for title, right in zip(self._titles, self._right, strict=True):
            self.add_column(Text(title, justify="right" if right else "left"), key=title)

    @property
    def row_key(self) -> str:
        """Key of the row under the cursor; empty without rows."""
        if not self.row_count:
            return ""
        return str(self.coordinate_to_cell_key(self.cursor_coordinate).row_key.value or "")

    def show(self, rows: Sequence[Row]) -> None:
        """Show these rows in this order; the cursor stays on its row."""
        at = self.row_key
        wanted = {one.key: one.cells for one in rows}
        if self._shown and self._shown.keys().isdisjoint(wanted):
            self.clear()
            self._shown = {}
        for key in [one for one in self._shown if one not in wanted]:
            self.remove_row(key)
            del self._shown[key]
        for key, cells in wanted.items():
            self._put(key, cells)
        if list(self._shown) != list(wanted):
            place = {key: number for number, key in enumerate(wanted)}
            self.sort(self._titles[0], key=lambda cell: place[cell.row_key])
            self._shown = wanted
        if at in wanted:
            self.point_at(at)

    def point_at(self, key: str) -> None:
        """Move the cursor to a row that is there."""
        if key in self._shown:
            place = self.get_row_index(key)
            if place != self.cursor_row:
                self.move_cursor(row=place, animate=False)

    def _put(self, key: str, cells: tuple[str, ...]) -> None:
        old = self._shown.get(key)
        self._shown[key] = cells
        if old is None:
            self.add_row(*(self._cell(at, key, cells) for at in range(len(cells))), key=key)
            return
        for at, (was, now) in enumerate(zip(old, cells, strict=True)):
            if was != now:
                title = self._titles[at]
                self.update_cell(key, title, self._cell(at, key, cells), update_width=True)

    def _cell(self, at: int, key: str, cells: tuple[str, ...]) -> Text:
        text, justify = cells[at], "right" if self._right[at] else "left"
        if at:
            return Text(text, STYLES.get(text, ""), justify=justify)  # type: ignore[arg-type]
        cell = _KeyCell(text, justify=justify)  # type: ignore[arg-type]
        cell.row_key = key
        return cell

"""Rows as plain dictionaries, which a notebook can show as a data frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perennial.extras import needs

if TYPE_CHECKING:
    import pandas as pd


class Table(list[dict[str, Any]]):
    """A list of rows, each a dictionary as the server sent it."""

    def to_frame(self) -> pd.DataFrame:
        """Return the rows as a pandas data frame, with a column `a.b` for member b of member a. Needs pandas."""
        with needs("pandas"):
            import pandas as pd
        return pd.json_normalize(self)

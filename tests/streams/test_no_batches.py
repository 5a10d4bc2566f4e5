"""Bodies that are almost a batch: of lines that are no records, and of columns that do not belong together."""

from dataclasses import replace

import pytest

from service.streams.batches import InvalidRecords, columns, rows
from tests.streams.test_formats import NAMED, TWO

OF_UNITS = replace(TWO, units=True)


@pytest.mark.parametrize("records", [3, 400], ids="{} records".format)
@pytest.mark.parametrize(
    ("layout", "line", "broken"),
    [
        (TWO, b'{"x":[1,2],"y":0}', b'{"x":[1\n2],"y":0}'),
        (NAMED, b'{"x":{"a":1,"b":2},"y":"u"}', b'{"x":{"a":1\n"b":2},"y":"u"}'),
        (OF_UNITS, b'{"unit":"a},{b","x":[1,2],"y":0}', b'{"unit":"a}\n{b","x":[1,2],"y":0}'),
    ],
    ids=["plain", "by name", "of units"],
)
def test_a_line_break_is_no_comma(layout, line, broken, records):
    """Two records share a line, and another one takes two: there are as many lines as records."""
    others = [line] * (records - 3)
    rows.read_rows(b"\n".join([line] * records), layout)
    for lines in ([line + b"," + line, broken, *others], [line + b"," + line, *others]):
        with pytest.raises(InvalidRecords):
            rows.read_rows(b"\n".join(lines), layout)


@pytest.mark.parametrize(
    ("layout", "body"),
    [
        (TWO, b'{"x":[[1,2,3],[4]],"y":[0,1]}'),
        (TWO, b'{"x":[[1,2],[3,4]],"y":[0]}'),
        (TWO, b'{"x":[[1,2]],"y":[0],"z":[0]}'),
        (TWO, b'{"x":[[1,2]],"y":[0],"z":0}'),
        (NAMED, b'{"x":[{"a":1,"b":2},{"a":1,"b":2}],"y":["u"]}'),
        (NAMED, b'{"x":[{"a":1,"b":2}],"y":["u"],"z":[0]}'),
        (OF_UNITS, b'{"unit":["i"],"x":[[1,2],[3,4]],"y":[0,1]}'),
    ],
    ids=["rows", "labels", "an array more", "a number more", "labels by name", "an array more by name", "units"],
)
def test_columns_that_do_not_belong_together_are_refused(layout, body):
    with pytest.raises(InvalidRecords):
        columns.read_json(body, layout)

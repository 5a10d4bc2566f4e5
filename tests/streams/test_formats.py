"""The same records in every format: the same columns, the same refusals."""

import base64
import math
import zlib
from dataclasses import replace
from random import Random

import nanoarrow
import numpy as np
import pytest

from service.streams.batches import READERS, InvalidRecords, arrow, checks, columns, rows
from service.streams.batches.checks import FEW_LABELS
from service.streams.layout import RecordLayout
from service.streams.names import Names
from service.streams.schema import stored_schema
from tests.api.formats import ARROW, JSON, NDJSON, WRITERS, Arrow, as_json, as_rows, as_stream

NAN, INF = math.nan, math.inf
PAST_FLOAT32 = 3.4028235677973366e38  # the least double that rounds to infinity
TWO = stored_schema({"features": 2, "task": {"kind": "classification", "classes": 2}}).layout()
NAMED = replace(TWO, names=Names(columns=("a", "b"), classes=("u", "v")))
REGRESSION = stored_schema({"features": 2, "task": {"kind": "regression", "bound": 1.0}}).layout()
UNLABELLED = stored_schema({"features": 2, "task": {"kind": "unlabelled"}}).layout()
CATEGORICAL = stored_schema({"task": {"kind": "categorical", "cardinality": 3}}).layout()
NOT_FINITE = "is not finite as a 32-bit float"
MISSING = "is missing (null or NaN): fill it in with a public constant, or leave the whole record out"
LABEL = "y: must be a whole number from 0 to 1"
formats = pytest.mark.parametrize("name", WRITERS)


def read(name: str, x, y, layout):
    media_type, write = WRITERS[name]
    return READERS[media_type](write(x, y), layout)


@formats
@pytest.mark.parametrize(
    ("layout", "x", "y"),
    [
        (TWO, [[1, 2.5], [-3, 0], [1e-40, -0.0]], [0, 1, 1]),
        (TWO, [[1, 2]], [1.0]),
        (REGRESSION, [[1, math.nextafter(PAST_FLOAT32, 0)], [0, 0]], [0.5, -99.25]),
        (UNLABELLED, [[1, 2], [3, 4]], None),
        (CATEGORICAL, None, [2, 0, 1]),
    ],
)
def test_the_same_records_give_the_same_columns(name, layout, x, y):
    columns = read(name, x, y, layout)
    assert list(columns) == [column for column, values in (("x", x), ("y", y)) if values is not None]
    if x is not None:
        assert columns["x"].dtype == np.float32
        assert np.array_equal(columns["x"], np.array(x, dtype=np.float32))
    if y is not None:
        assert columns["y"].dtype == (np.float32 if layout is REGRESSION else np.int32)
        assert np.array_equal(columns["y"], y)


@formats
@pytest.mark.parametrize("records", [1, 2, FEW_LABELS + 2])
def test_good_records_are_read_without_looking_for_what_is_wrong(name, records, monkeypatch):
    for module, search in ((columns, "_slowly"), (rows, "_slowly"), (checks, "_wrong_labels")):
        monkeypatch.setattr(module, search, None)
    read_again = read(name, [[1, 2]] * records, [*[0, 1] * records][:records], TWO)
    assert len(read_again["y"]) == records


@pytest.mark.parametrize("x_type", ["float16", "float32", "float64"])
def test_rows_of_a_wrong_length_do_not_change_the_precision_of_the_others(x_type):
    numbers = np.arange(4, dtype=x_type)
    part = arrow._rows(numbers, None, np.array([0, 2, 3]), np.array([True, False, False]), features=2)
    assert (part.numbers.dtype, part.numbers.tolist()) == (x_type, [[0, 1], [0, 0], [0, 0]])


@formats
@pytest.mark.parametrize(
    ("layout", "x", "y", "reasons"),
    [
        (TWO, [[1, 2], [NAN, 2]], [0, 1], [(1, f"x: column 0 {MISSING}")]),
        (TWO, [[1, -INF], [1, 2]], [0, 1], [(0, f"x: column 1 {NOT_FINITE}")]),
        (TWO, [[1, PAST_FLOAT32]], [0], [(0, f"x: column 1 {NOT_FINITE}")]),
        (TWO, [[1, 2], [1, None]], [0, 1], [(1, f"x: column 1 {MISSING}")]),
        (TWO, [[1, 2], [None, NAN]], [0, 1], [(1, f"x: column 0 {MISSING}")]),
        (TWO, [[NAN, None], [1, 2]], [0, 1], [(0, f"x: column 0 {MISSING}")]),
        (TWO, [[1, 2], [1, 2], None], [0, 1, 1], [(2, "x: must be an array of 2 numbers")]),
        (TWO, [[1, 2, 3], [1, 2, 3]], [0, 1], [(row, "x: must be an array of 2 numbers") for row in (0, 1)]),
        (TWO, [[1, 2], [1, 2]], [0, None], [(1, f"y: {MISSING}")]),
        (TWO, [[1, 2], [1, 2], [1, 2]], [2, 0, -1], [(0, LABEL), (2, LABEL)]),
        (TWO, [[1, 2], [1, 2]], [0.5, NAN], [(0, LABEL), (1, f"y: {MISSING}")]),
        (TWO, [[1, 2], [INF, 2]], [7, 7], [(0, LABEL), (1, f"x: column 0 {NOT_FINITE}"), (1, LABEL)]),
        (TWO, [[1, NAN]] * 150, [0] * 150, [(row, f"x: column 1 {MISSING}") for row in range(100)]),
        (TWO, [], [], [(None, "a batch holds at least one record")]),
        (REGRESSION, [[1, 2], [1, 2]], [PAST_FLOAT32, None], [(0, f"y: {NOT_FINITE}"), (1, f"y: {MISSING}")]),
        (CATEGORICAL, None, [0, 3], [(1, "y: must be a whole number from 0 to 2")]),
    ],
)
def test_the_same_mistakes_get_the_same_reasons(name, layout, x, y, reasons):
    with pytest.raises(InvalidRecords) as refusal:
        read(name, x, y, layout)
    assert list(refusal.value.reasons) == reasons


@formats
@pytest.mark.parametrize("wrong", [0.5, 2, -1])
def test_of_many_labels_too_each_is_looked_at(name, wrong):
    """Many are looked at as an array, not one by one."""
    y = [*[0, 1] * FEW_LABELS, wrong]
    with pytest.raises(InvalidRecords) as refusal:
        read(name, [[1, 2]] * len(y), y, TWO)
    assert list(refusal.value.reasons) == [(len(y) - 1, LABEL)]


@pytest.mark.parametrize("name", [name for name in WRITERS if name != "arrow, fixed"])
def test_rows_of_the_wrong_length_are_named(name):
    with pytest.raises(InvalidRecords) as refusal:
        read(name, [[1, 2], [], [1, 2, 3], [4, NAN], [4, 5]], [0] * 5, TWO)
    wrong = "x: must be an array of 2 numbers"
    assert list(refusal.value.reasons) == [(1, wrong), (2, wrong), (3, f"x: column 1 {MISSING}")]


@pytest.mark.parametrize("kind", [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
                         + ["float16", "float32", "float64"])  # fmt: skip
def test_arrow_numbers_of_any_type_are_taken(kind):
    y = READERS[ARROW](Arrow("fixed", x_type=kind, y_type=kind)([[1, 2], [3, 4]], [0, 1]), TWO)
    assert np.array_equal(y["x"], [[1, 2], [3, 4]])
    assert np.array_equal(y["y"], [0, 1])


@pytest.mark.parametrize("column", ['"x":[[1,[2]],[3,4]],"y":[0,1]', '"x":[[1,2],[3,4]],"y":[0,[1]]'], ids=["x", "y"])
def test_a_number_within_an_array_is_none(column):
    with pytest.raises(InvalidRecords) as refusal:
        READERS[JSON](f"{{{column}}}".encode(), TWO)
    assert [reason.partition(" is ")[2] for _, reason in refusal.value.reasons] == ["not a number"]


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (JSON, b'{"x":[[1,2]],"y":[0],"y":[1]}'),
        (JSON, '{"x":[[1,2]],"y":[0]}'.encode("utf-16")),
        (NDJSON, b'{"x":[1,2],"y":0,"y":1}'),
        pytest.param(NDJSON, b'{"x":{"a":1,"b":2},"y":0,"y":1}', id="by name"),
        (NDJSON, '{"x":[1,2],"y":0}'.encode("utf-16")),
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(kind, body):
    layout = replace(TWO, names=Names(columns=("a", "b"))) if b'"a"' in body else TWO
    with pytest.raises(InvalidRecords, match="invalid") as refusal:
        READERS[kind](body, layout)
    ((_, reason),) = refusal.value.reasons
    assert "not JSON, in UTF-8 and with each name once" in reason


class TestLines:
    def reasons(self, body: bytes) -> list:
        with pytest.raises(InvalidRecords) as refusal:
            READERS[NDJSON](body, TWO)
        return list(refusal.value.reasons)

    @pytest.mark.parametrize("end", [b"", b"\n", b"\r\n", b"\n\n"])
    def test_they_end_as_people_end_lines(self, end):
        assert len(READERS[NDJSON](b'{"x":[1,2],"y":0}\r\n{"y":1, "x":[3,4]}' + end, TWO)["x"]) == 2

    @pytest.mark.parametrize(
        "bad",
        [
            b"", b"{", b"[1,2]", b'{"x":[1,2]}', b'{"x":[1,2],"y":0,"z":0}', b'{"x":[1,2],"y":0},{"x":[1,2],"y":0}',
            b'{"x":[1,2],"y":0}{"x":[1,2],"y":0}',
        ],
    )  # fmt: skip
    def test_a_line_that_is_no_record_is_named(self, bad):
        line = b'{"x":[1,2],"y":0}'
        ((row, reason),) = self.reasons(line + b"\n" + bad + b"\n" + line)
        assert row == 1
        assert reason.startswith(("is not JSON", "must be an object with"))

    def test_a_record_is_one_line(self):
        assert self.reasons(b'{"x":[1\n2],"y":0},{"x":[1,2],"y":0}')

    def test_a_line_is_one_record_where_records_have_no_array(self):
        with pytest.raises(InvalidRecords):
            READERS[NDJSON](b'{"y":0}\n{"y":1},{"y":2}', CATEGORICAL)

    @pytest.mark.parametrize("value", ["true", '"1"', "[1]", "{}"])
    def test_what_is_no_number_is_named(self, value):
        reason = "is a text, not a number: write numbers without quotes" if value == '"1"' else "is not a number"
        assert self.reasons(f'{{"x":[1,2],"y":{value}}}'.encode()) == [(0, f"y: {reason}")]
        assert self.reasons(f'{{"x":[1,{value}],"y":0}}'.encode()) == [(0, f"x: column 1 {reason}")]


class TestArrow:
    def reason(self, body: bytes, layout=TWO) -> str:
        with pytest.raises(InvalidRecords) as refusal:
            READERS[ARROW](body, layout)
        ((row, reason),) = refusal.value.reasons
        assert row is None
        return reason

    def test_other_columns_are_refused(self):
        assert 'the columns must be "x" and "y"' in self.reason(Arrow("fixed")([[1, 2]], None))
        assert 'the columns must be "x" and' in self.reason(Arrow("fixed")([[1, 2]], [0]), UNLABELLED)

    def test_other_types_are_refused(self):
        assert '"y" must be' in self.reason(Arrow("fixed", y_type="bool_")([[1, 2]], [0]))
        assert '"x" must be' in self.reason(Arrow("fixed", x_type="bool_")([[1, 2]], [0]))

    @pytest.mark.parametrize("body", [b"", b"{}", b"\xff\xff\xff\xff\0\0\0\0", b"\xff\xff\xff\xff\xff\xff\xff\x7f" * 4])
    def test_what_is_no_stream_is_refused(self, body):
        assert self.reason(body) == "the body is not an Arrow IPC stream"

    def test_nothing_follows_the_end_of_a_stream(self):
        whole = Arrow("fixed")([[1, 2]], [0])
        assert len(READERS[ARROW](whole, TWO)["y"]) == 1
        for more in (whole, b"\0"):
            assert "bytes follow the end" in self.reason(whole + more)

    def test_buffers_that_would_grow_are_refused_before_they_do(self):
        packed = base64.b85decode(COMPRESSED)
        assert "uncompressed" in self.reason(zlib.decompress(packed), UNLABELLED)

    @pytest.mark.more
    @pytest.mark.parametrize("lists", ["fixed", "list", "large"])
    def test_no_damage_does_more_than_be_refused(self, lists):
        whole = Arrow(lists, batches=3)([[1, 2], [3, None], [5, 6], [7, 8]], [0, 1, 1, 0])
        random = np.random.default_rng(1)
        for _ in range(3000):
            body = bytearray(whole)
            for _ in range(random.integers(1, 4)):
                body[random.integers(len(body))] = random.choice([0, 1, 2, 4, 127, 128, 255, random.integers(256)])
            self.read_or_refused(bytes(body[: random.integers(len(body) // 2, len(body) + 1)]))

    @pytest.mark.more
    @pytest.mark.parametrize("lists", ["fixed", "list", "large"])
    @pytest.mark.parametrize("size", [4, 8])
    def test_no_length_or_position_is_trusted(self, lists, size):
        whole = Arrow(lists, batches=1)([[1, 2], [3, 4], [5, 6]], [0, 1, 1])
        largest = 2 ** (8 * size - 1)
        for position in range(0, len(whole), size):
            for number in (-largest, -8, -1, 0, 1, 3, 7, 8, 1000, largest // 16, largest - 8, largest - 1):
                changed = number.to_bytes(size, "little", signed=True)
                self.read_or_refused(whole[:position] + changed + whole[position + size :])

    def read_or_refused(self, body: bytes) -> None:
        try:
            columns = READERS[ARROW](body, TWO)
        except InvalidRecords:
            return
        assert columns["x"].shape == (len(columns["y"]), 2)
        assert np.isfinite(columns["x"]).all()
        assert np.isin(columns["y"], [0, 1]).all()

    def lists(self, numbers: object, *ends: int) -> bytes:
        kind = nanoarrow.list_(nanoarrow.float32())
        x = nanoarrow.c_array_from_buffers(kind, len(ends) - 1, [None, np.array(ends, np.int32)], children=[numbers])
        return as_stream({"x": kind}, (len(ends) - 1, [x]))

    def test_lists_need_not_begin_at_the_first_number(self):
        numbers = nanoarrow.c_array(np.arange(8, dtype=np.float32))
        assert np.array_equal(READERS[ARROW](self.lists(numbers, 3, 5, 7), UNLABELLED)["x"], [[3, 4], [5, 6]])
        numbers = nanoarrow.c_array([0, 1, 2, 3, 4, None, 6, 7], nanoarrow.float32())
        with pytest.raises(InvalidRecords) as refusal:
            READERS[ARROW](self.lists(numbers, 3, 5, 7), UNLABELLED)
        assert list(refusal.value.reasons) == [(1, f"x: column 0 {MISSING}")]

    @pytest.mark.parametrize("ends", [[0, 2, 100, 102, 4], [0, 2, 4, 6, 9], [-2, 0, 2, 5, 7]])
    def test_lists_elsewhere_than_within_the_numbers_are_refused(self, ends):
        right = [0, 2, 4, 6, 8]
        body = self.lists(nanoarrow.c_array(np.arange(8, dtype=np.float32)), *right)
        assert body.count(np.array(right, "<i4").tobytes()) == 1
        body = body.replace(np.array(right, "<i4").tobytes(), np.array(ends, "<i4").tobytes())
        assert self.reason(body, UNLABELLED) == "the body is not an Arrow IPC stream"

    def test_numbers_are_within_their_buffer(self):
        body = Arrow("fixed", "float32", batches=1)([[1, 2]] * 5, [0] * 5)
        ten, fewer = (np.array([0, 4 * count], "<i8").tobytes() for count in (10, 9))  # where a buffer is, and its size
        assert len(READERS[ARROW](body, TWO)["x"]) == 5
        assert self.reason(body.replace(ten, fewer, 1)) == "the body is not an Arrow IPC stream"

    def test_a_message_begins_with_its_marker_and_is_no_shorter_than_empty(self):
        body = Arrow("fixed")([[1, 2]], [0])
        length = int.from_bytes(body[4:8], "little")
        backwards = (length - len(body)).to_bytes(4, "little", signed=True)  # counted from the end, the same place
        for wrong in (b"\0" * 4 + body[4:], body[:4] + backwards + body[8:]):
            assert self.reason(wrong) == "the body is not an Arrow IPC stream"

    def test_a_damaged_schema_is_refused(self):
        damaged = zlib.decompress(base64.b85decode(DAMAGED))  # it ends a process in which nanoarrow 0.9.0 reads it
        assert self.reason(damaged) == "the body is not an Arrow IPC stream"

    @pytest.mark.more
    def test_long_columns_of_nothing_are_refused(self):
        kind = nanoarrow.fixed_size_list(nanoarrow.float32(), 0)
        x = nanoarrow.c_array_from_buffers(kind, 2**40, [None], children=[nanoarrow.c_array([], nanoarrow.float32())])
        assert '"x" must be' in self.reason(as_stream({"x": kind}, (2**40, [x])), UNLABELLED)
        many = 200_000
        with pytest.raises(InvalidRecords) as refusal:
            READERS[ARROW](
                Arrow("list")([[]] * many, None), RecordLayout.of_model({"features": many, "feature_map": None})
            )
        assert [row for row, _ in refusal.value.reasons] == list(range(100))

    def test_big_endian_numbers_and_dictionaries_are_refused(self):
        body = Arrow("fixed", batches=1)([[1, 2]], [0])
        schema = arrow._root(body[8:]).table(2)
        assert "little-endian" in self.reason(with_member(body, schema, 0, like=1))
        x, y = schema.tables(1, 2)
        assert READERS[ARROW](with_member(body, y, 6, like=0), TWO)["y"] == [0]  # member 6, its metadata, is not read
        assert '"y" must be' in self.reason(with_member(body, y, 4, like=0))
        for table in (x, x.tables(5, 1)[0]):
            assert '"x" must be' in self.reason(with_member(body, table, 4, like=0))

    def test_the_numbers_outlive_the_body(self):
        x = np.random.default_rng(2).normal(size=(300, 2)).astype(np.float32)
        read = [READERS[ARROW](Arrow("fixed", "float32", batches=9)(x.tolist(), [0] * 300), TWO) for _ in range(20)]
        junk = [bytes([255]) * 2400 for _ in range(2000)]
        assert all(np.array_equal(each["x"], x) for each in read), len(junk)


def with_member(body: bytes, table: arrow._Table, member: int, *, like: int) -> bytes:
    """The same stream, but a table of its schema has one more member, which is where another one is."""
    length = int.from_bytes(body[4:8], "little")
    members = bytearray(body[8 + table._members :][: table._size].ljust(6 + 2 * member, b"\0"))
    members[4 + 2 * member : 6 + 2 * member] = members[4 + 2 * like : 6 + 2 * like]
    members[:2] = len(members).to_bytes(2, "little")
    metadata = bytearray(body[8 : 8 + length] + members.ljust(24, b"\0"))
    metadata[table._position : table._position + 4] = (table._position - length).to_bytes(4, "little", signed=True)
    return body[:4] + len(metadata).to_bytes(4, "little") + metadata + body[8 + length :]


@pytest.mark.parametrize("records", [1, 3, 400], ids="{} records".format)
@pytest.mark.parametrize("by_name", [False, True], ids=["by number", "by name"])
@pytest.mark.parametrize("module", [columns, rows], ids=["JSON", "NDJSON"])
def test_what_is_usual_is_read_at_once(module, by_name, records):
    """The slow way would read the same, many times as slowly."""
    layout = NAMED if by_name else TWO
    x, y = [[number, 0.5 - number] for number in range(records)], [number % 2 for number in range(records)]
    write = as_json if module is columns else as_rows
    body = (
        write([dict(zip("ab", row, strict=True)) for row in x], ["uv"[label] for label in y])
        if by_name
        else write(x, y)
    )
    for each in (body, body.rstrip()):
        numbers, units = (module._named if by_name else module._usual)(each, layout)
        assert (numbers["x"].tolist(), numbers["y"].tolist(), units) == (x, y, None)


def test_short_lines_are_read_as_long_ones(monkeypatch):
    random = Random(3)
    pieces = ['{"x":[1,2],"y":0}', '{"x":{"a":1,"b":2},"y":1}', '{"y":1,"x":[3,[4]]}', '{"x":[1,2],\n"y":"}\\n{"}']
    pieces += [f"{pieces[0]}\n", "\n", "\n", "\r\n", "}\n{", "{", "}", "[", "x", " "]

    def outcome(body: bytes, layout: RecordLayout, short: int) -> object:
        for module in (rows, columns):
            monkeypatch.setattr(module, "SHORT_BYTES", short)
        try:
            return {name: column.tolist() for name, column in rows.read_rows(body, layout).items()}
        except InvalidRecords as refused:
            return refused.reasons

    taken = 0
    for _ in range(1000):
        body = "".join(random.choice(pieces) for _ in range(random.randrange(6))).encode()
        for layout in (TWO, NAMED):
            short = outcome(body, layout, len(body))
            assert short == outcome(body, layout, -1), body
            taken += isinstance(short, dict)
    assert taken > 50


# As pyarrow writes one column x, fixed_size_list<float>[2], with zstd: a thousand zeros.
COMPRESSED = (
    "c-oCoF%H5o47{|VtxyCRDpU!C7#O<o68^x#z`(}9UsyWw0d}6iGk5?J6AD+?DiJJLvd>QJJ4Xp2gfjq-)`oD%FhIeKW-"
    "M#4Dj2Os9xL8B%gUF`XVG1)cqCWB(~Nl{8YSxtxv+ZGG^vl~p}0G2_mKHa<~v4!lHp1$wb!B2jh(O}wZgT)#~kL=vVG5nzNA<5hl"
    "v_RFIPP-hW~9E<;f2(aQ`A}#vRs|)oas?*75@er>B|p?`-i6(9Iu-"
)

# A schema whose list of numbers says that it is of another kind of type than it is.
DAMAGED = (
    "c-s5_|Ns9F3=9k$3=p6O<g+j^GOz&Ic0jfWkmdnm76t@h0%9GgSQ}7{1dwKAg7B+=d<PI8iYtM59!v~qkO@>DBa}V{wS$ov!oLILGePAtOHy+"
    "|_I&}0fz(%k#aS5GfRF{~DghwL!N3U=6<`p7vU$Kf5DUZysbPS!xPTa>7vfW(k^ez702Q|?l>"
)

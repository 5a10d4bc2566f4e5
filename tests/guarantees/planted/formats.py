"""Bugs in reading records: those are stored that were not sent, or more are read than fit into memory."""

from __future__ import annotations

from tests.guarantees.planted.bug import bug, rewrite

_FORMATS = "tests/streams/test_formats.py"
_NO_BATCHES = "tests/streams/test_no_batches.py"


@bug(f"{_FORMATS}::test_of_many_labels_too_each_is_looked_at[0.5-json]")
def half_labels_of_large_batches() -> None:
    """They are stored rounded down, where small batches are refused."""
    from service.streams.batches import checks

    rewrite(checks._labels, (' if y.dtype.kind in "iu" or (labels == y).all() else None', ""))


@bug(f"{_FORMATS}::test_of_many_labels_too_each_is_looked_at[2-json]")
def one_class_too_many_in_large_batches() -> None:
    """Records are stored whose class the stream does not have."""
    from service.streams.batches import checks

    rewrite(checks._labels, ("y.max() < most:", "y.max() <= most:"))


@bug(f"{_FORMATS}::test_a_number_within_an_array_is_none[x]")
def arrays_that_are_read_as_their_numbers() -> None:
    """A batch is stored that means something else to its sender, or nothing."""
    from service.streams.batches import columns

    rewrite(columns._usual, (' and count(body, "[") == brackets', ""))


@bug(f"{_FORMATS}::test_what_could_be_read_in_two_ways_is_refused[by name]")
def lines_by_name_that_say_a_label_twice() -> None:
    """One of both labels is stored, and which one depends on the parser."""
    from service.streams.batches import rows

    rewrite(rows._named, (" or {len(row) for row in rows} != {len(names)}", ""))


@bug(f"{_NO_BATCHES}::test_a_line_break_is_no_comma[plain-400 records]")
def line_breaks_that_are_taken_for_commas() -> None:
    """A batch is stored that is none: its sender lost a comma, or a whole line."""
    from service.streams.batches import rows

    before, after = 'characters[breaks - 1].tobytes() != b"}"', 'characters[breaks + 1].tobytes() != b"{"'
    rewrite(rows._as_array, (f"{before} * len(breaks)", "False"), (f"{after} * len(breaks)", "False"))


@bug(f"{_NO_BATCHES}::test_a_line_break_is_no_comma[of units-3 records]")
def ids_that_go_on_in_the_next_line() -> None:
    """A record counts for a unit that its sender did not name."""
    from service.streams.batches import rows

    rewrite(rows._ids, ("raise ValueError", "pass"))


@bug(f"{_NO_BATCHES}::test_columns_that_do_not_belong_together_are_refused[rows]")
def rows_that_lend_each_other_numbers() -> None:
    """A record is stored with a number of the next one's."""
    from service.streams.batches import columns

    rewrite(columns._usual, ("set(map(len, rows)) <= {features}", "True"))


@bug(f"{_NO_BATCHES}::test_columns_that_do_not_belong_together_are_refused[labels by name]")
def records_by_name_without_labels() -> None:
    """A batch is stored that no worker can read, and its stream stands still."""
    from service.streams.batches import columns

    rewrite(columns._named, (" if len(lengths) == 1 else None", ""))


@bug(f"{_FORMATS}::TestArrow::test_lists_need_not_begin_at_the_first_number")
def nulls_that_are_looked_for_elsewhere_than_numbers() -> None:
    """A record goes with whatever number lies beneath what is missing."""
    from service.streams.batches import arrow

    rewrite(arrow._whole_rows, ("nulls[inside].reshape(shape)", "nulls[: count * features].reshape(shape)"))


@bug(f"{_FORMATS}::TestArrow::test_lists_elsewhere_than_within_the_numbers_are_refused[ends0]")
def lists_that_are_looked_at_by_their_last_end_alone() -> None:
    """A sender can have the API fail, which logs it each time."""
    from service.streams.batches import arrow

    rewrite(arrow._RecordBatch.next, (" or (ends[1:] < ends[:-1]).any()", ""))


@bug("tests/streams/test_unit_formats.py::test_an_id_of_which_a_part_came_is_refused")
def an_id_that_is_cut_off() -> None:
    """A record counts for another person."""
    from service.streams.batches import arrow

    rewrite(arrow._RecordBatch._next_texts, ("ends[-1] > len(joined) or ", ""))


@bug("tests/api/test_feature_maps.py::test_a_batch_is_limited_by_what_it_becomes")
def predictions_of_as_many_records_as_a_body_holds() -> None:
    """A small request takes gigabytes of memory, once its records are mapped."""
    from service.api.routes import releases

    rewrite(releases.predict_labels, ("if len(x) > layout.most_records:", "if False:"))

"""Data sets that may be uploaded to try things out on, and how the rest is refused."""

import io
import os
import pickle
import tracemalloc
import zipfile

import numpy as np
import pytest

from service.explorer import datasets
from service.explorer.datasets import SAMPLES, UnreadableDataset, read_csv, read_npz, sample, unpacked

SECRET = "4711.0815"


def npz(**arrays):
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    return out.getvalue()


def table(rows=12, header="a,b,label\n", last=lambda row: "yes" if row % 3 else "no"):
    return (header + "".join(f"{row},{row / 2},{last(row)}\n" for row in range(rows))).encode()


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_are_there_and_keep_what_they_are(name):
    data = sample(name)
    again = unpacked(data.packed())
    assert np.array_equal(again.x, data.x)
    assert np.array_equal(again.y, data.y)
    assert again.names == data.names
    assert data.shape["classes"] == len(set(data.y.tolist())) > 1


@pytest.mark.parametrize(
    ("content", "label"),
    [
        (table(), None),
        (table(header=""), None),
        (b"\xef\xbb\xbf" + table(), None),
        (table(header="a,b,c\n"), "c"),
        (table(header=""), "3"),
        (table().replace(b"\n", b"\r\n"), "label"),
    ],
)
def test_a_csv_file_with_and_without_a_header(content, label):
    data = read_csv(content, label)
    assert data.names == ("no", "yes")
    assert data.y.tolist() == [0, 1, 1] * 4
    assert data.x.tolist() == [[row, row / 2] for row in range(12)]


def test_the_column_of_classes_may_be_any():
    swapped = "target,a\n" + "".join(f"{row % 2},{row}\n" for row in range(10))
    assert read_csv(swapped.encode()).y.tolist() == [0, 1] * 5
    assert read_csv(swapped.encode(), "1").y.tolist() == [0, 1] * 5
    for label in ("a", "2"):
        assert read_csv(swapped.encode(), label).names == tuple(sorted(map(str, range(10))))


def test_classes_are_numbered_in_order_whatever_their_numbers_are():
    data = read_npz(npz(X=np.zeros((12, 2)), y=np.array([7, -1, 7] * 4)))
    assert (data.names, data.y.tolist()) == (("-1", "7"), [1, 0, 1] * 4)


@pytest.mark.parametrize(
    ("read", "content", "reason"),
    [
        (read_csv, b"", "it is empty"),
        (read_csv, b"\xff\xfe\x00", "not UTF-8"),
        (read_csv, table() + b"1,2\n", "row 14 has not as many columns"),
        (read_csv, table() + f"1,x{SECRET},no\n".encode(), "row 14, column b is not a number"),
        (read_csv, table() + b"nan,1,no\n", "record 13 has a value that is missing"),
        (read_csv, table() + b"1e39,1,no\n", "record 13 has a value"),
        (read_csv, table().replace(b",", b";"), "separated by commas"),
        (read_csv, table(header="").replace(b",", b"\t"), "separated by commas"),
        (read_csv, table(rows=9), "10 to 200000 records"),
        (read_csv, table(last=lambda _: "same"), "2 to 1000 classes"),
        (lambda content: read_csv(content, SECRET), table(), "no such column as `label` says"),
        (read_npz, table(), "no npz file"),
        (read_npz, npz(x=np.zeros((12, 2))), "an array y"),
        (read_npz, npz(x=np.zeros((12, 2)), y=np.zeros(11)), "one class per record"),
        (read_npz, npz(x=np.zeros((12, 2)), y=np.arange(12) / 2), "classes, whole numbers"),
        (read_npz, npz(x=np.array([[SECRET, "b"]] * 12), y=np.arange(12) % 2), "must be numbers"),
        (read_npz, npz(x=np.zeros((12, 2), dtype=object), y=np.arange(12) % 2), "no npz file"),
        (read_npz, npz(x=np.zeros((12, 4097)), y=np.arange(12) % 2), "1 to 4096 features"),
        (read_npz, npz(x=np.zeros((12, 0)), y=np.arange(12) % 2), "1 to 4096 features"),
    ],
)
def test_what_cannot_be_used_is_refused_with_what_to_do_and_repeats_nothing(read, content, reason):
    with pytest.raises(UnreadableDataset, match=reason) as refused:
        read(content)
    assert SECRET not in str(refused.value)


@pytest.mark.more
def test_an_archive_that_becomes_more_than_memory_should_hold_is_refused():
    with pytest.raises(UnreadableDataset, match="more than"):
        read_npz(npz(x=np.zeros((2**15, 1024, 10), dtype=np.uint8), y=np.arange(12) % 2))


def test_more_numbers_than_memory_should_hold_are_refused(monkeypatch):
    monkeypatch.setattr(datasets, "MAX_NUMBERS", 24)
    assert read_csv(table()).x.size == 24
    monkeypatch.setattr(datasets, "MAX_NUMBERS", 23)
    with pytest.raises(UnreadableDataset, match="may have 23 numbers in all"):
        read_csv(table())


def test_no_room_is_made_for_what_a_head_promises_and_nothing_follows():
    promised, out = io.BytesIO(), io.BytesIO()
    np.lib.format.write_array_header_1_0(promised, {"descr": "<f8", "fortran_order": False, "shape": (10**11, 20)})
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("x.npy", promised.getvalue())
        archive.writestr("y.npy", promised.getvalue())
    with pytest.raises(UnreadableDataset, match="no npz file"):
        read_npz(out.getvalue())


def test_nothing_that_an_archive_holds_is_run(tmp_path):
    class Program:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "made"),)

    content, out = pickle.dumps(Program()), io.BytesIO()
    content += bytes(-len(content) % 8)
    head = {"descr": "|O", "fortran_order": False, "shape": (len(content) // 8,)}
    np.lib.format.write_array_header_1_0(out, head)
    out.write(content)
    array, out = out.getvalue(), io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("x.npy", array)
        archive.writestr("y.npy", array)
    with pytest.raises(UnreadableDataset, match="no npz file"):
        read_npz(out.getvalue())
    assert not (tmp_path / "made").exists()


def test_an_archive_of_something_else_is_no_data_set():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("x.npy", "no array")
        archive.writestr("y.npy", "nor this")
    with pytest.raises(UnreadableDataset):
        read_npz(out.getvalue())


def packed_as(how: int, *, head: bytes = b"\x93NUMPY\x01\x00") -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", how) as archive:
        for name in ("x.npy", "y.npy"):
            archive.writestr(name, head)
    return out.getvalue()


def headed(text: str) -> bytes:
    return packed_as(zipfile.ZIP_STORED, head=b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode())


def encrypted(content: bytes) -> bytes:
    """Return an archive whose heads say that its members need a password."""
    changed = bytearray(content)
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = -1
        while (at := content.find(mark, at + 1)) >= 0:
            changed[at + place] |= 1
    return bytes(changed)


@pytest.mark.parametrize(
    "content",
    [
        encrypted(npz(x=np.zeros((12, 2)), y=np.arange(12) % 2)),
        packed_as(zipfile.ZIP_LZMA).replace(b"\x5d\x00", b"\xff\xff"),
        headed("{'descr': ((("),
        headed("-" * 5000 + "1"),
    ],
    ids=["encrypted", "damaged", "no end", "nested"],
)
def test_whatever_reading_an_archive_raises_it_is_refused(content):
    with pytest.raises(UnreadableDataset, match="no npz file"):
        read_npz(content)


def test_one_long_class_takes_no_room_in_other_rows():
    content = b"1,a\n" * 20_000 + b"1," + b"b" * 5000 + b"\n"
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableDataset, match="more than 1000 characters"):
            read_csv(content)
        assert tracemalloc.get_traced_memory()[1] < 2**26
    finally:
        tracemalloc.stop()

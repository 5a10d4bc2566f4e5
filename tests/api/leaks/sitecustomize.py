"""Python imports this first where PYTHONPATH names its folder: in the API and the worker of test_canary.py.

There they fail in the middle of handling records, with errors whose texts quote them.
"""

import sys

FAILS = 13.0  # in the first coordinate of the first record


def _quoting(function, records):
    """The function, which fails on some records and says on which."""

    def quotes(*args, **options):
        result = function(*args, **options)
        sent = records(args, result)
        if sent is not None and sent.size and sent.flat[0] == FAILS:
            raise RuntimeError(f"can't handle {sent.tolist()}")
        return result

    return quotes


def _wide(x, features):
    """The records, if they have so many numbers each."""
    return x if x is not None and x.shape[1] == features else None


if "up" in sys.orig_argv:  # API and worker are its forks
    from service.api.routes import labels as _labels
    from service.queries import answering as _answering
    from service.streams.layout import RecordLayout
    from service.worker import fits as _fits
    from service.worker import merger as _merger
    from service.worker import sealer as _sealer

    RecordLayout.encode = _quoting(RecordLayout.encode, lambda args, _: _wide(args[1].get("x"), 2))
    _labels.read_records = _quoting(_labels.read_records, lambda _, records: _wide(records.x, 5))
    _answering.read_records = _quoting(_answering.read_records, lambda _, records: records.y)
    _sealer.joined = _merger.joined = _quoting(_merger.joined, lambda _, columns: _wide(columns.get("x"), 3))
    _fits.read_records = _quoting(_fits.read_records, lambda _, records: _wide(records.x, 4))

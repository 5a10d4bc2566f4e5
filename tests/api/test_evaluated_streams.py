"""Whole streams over HTTP: intervals hold a version's accuracy on all records, and the alarm hears labels flip.

`tests/figures/test_histories.py` repeats this without HTTP, as often as statistics need.
"""

import numpy as np
import pytest

from tests import chance
from tests.conftest import Service, ok
from tests.figures.histories import Setting, setting
from tests.figures.test_histories import BLOCK, EVERY, FLIPPED, RECORDS, simulated

pytestmark = pytest.mark.long

TOGETHER = 2000
PRIVACY = {"epsilon": 1, "delta": 1e-6}


def begin(service: Service, of: Setting) -> tuple[str, str, str]:
    """Make a stream, what learns from it, and the evaluation of that, both with the whole budget of their slots."""
    schema = of.schema
    classes = schema.pop("task")["classes"]
    stream = service.stream(**schema, **PRIVACY, classes=classes)
    learns = service.publish(stream, of.learning, **PRIVACY)
    configuration = {
        "name": f"of-{stream}",
        "stream": stream,
        "mechanism": {"kind": "evaluation", "of": [learns], "block": of.block, "bins": False},
        "privacy": PRIVACY,
        "publish_delay": 0,
    }
    return stream, learns, ok(service.client().post("/v1/publications", json=configuration), 201)["name"]


def post(service: Service, stream: str, of: Setting, start: int, stop: int) -> None:
    for first in range(start, stop, TOGETHER):
        some = slice(first, min(stop, first + TOGETHER))
        service.post(stream, of.x[some].tolist(), of.y[some].tolist())


def right(service: Service, name: str, version: int, of: Setting, fit: dict) -> float:
    """Return the accuracy of a version on all records of a range."""
    records = slice(fit["start"], fit["end"])
    release = f"/v1/publications/{name}/predict?version={version}"
    labels = ok(service.client().post(release, json={"x": of.x[records].tolist()}))["labels"]
    return float((np.array(labels) == of.y[records]).mean())


@pytest.mark.parametrize("name", ["weather", "electricity", "digits"])
def test_intervals_hold_the_accuracy_of_the_version_on_all_records_of_the_range(service: Service, name):
    of = setting(name).rearranged(np.random.default_rng(23))
    stream, learns, evaluation = begin(service, of)
    post(service, stream, of, 0, len(of.y))
    length = of.every * of.block
    blocks = service.released(evaluation, time=len(of.y) // length * length)
    counted = [(each["evaluation"][learns], each["fit"]) for each in blocks]
    counted = [(figures, fit) for figures, fit in counted if figures["version"] is not None]
    assert len(counted) >= len(blocks) - of.batch // length - 1
    outside = [
        figures
        for figures, fit in counted
        if not figures["low"] <= right(service, learns, figures["version"], of, fit) <= figures["high"]
    ]
    chance.assert_no_more(len(outside), len(counted), 0.05)


def test_the_alarm_fires_within_two_blocks_after_labels_flip(service: Service):
    """Chance hides the fall from both blocks with a probability below 1e-9."""
    of = simulated(np.random.default_rng(24), flipped=True)
    stream, learns, evaluation = begin(service, of)
    post(service, stream, of, 0, FLIPPED)
    alarms = []
    for start in range(FLIPPED, RECORDS, EVERY * BLOCK):
        post(service, stream, of, start, start + EVERY * BLOCK)
        service.reaches(evaluation, time=start + EVERY * BLOCK)
        alarms.append(ok(service.client().get(f"/v1/publications/{learns}"))["evaluation"]["drift"])
    assert any(alarms)
    ledger = ok(service.client().get(f"/v1/streams/{stream}/ledger"))
    assert ledger["spent"]["epsilon"] == 1.0, "one of the two, never the sum"

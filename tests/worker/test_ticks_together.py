"""Steps of several streams that come to their tick together: each is published, confirmed and timed for itself."""
# ruff: noqa: F811 - a fixture is another file's

from decimal import Decimal

import numpy as np
import pytest

from service import metrics
from service.store import publications, streams
from service.store.publications import NewPublication
from service.worker import ticker
from tests.worker.published import Bench, number
from tests.worker.test_publishing import SCHEMA, bench  # noqa: F401
from tests.worker.test_ticks import come, park_all, with_ticks


def add_stream(bench: Bench) -> int:
    """Another stream, with as many records and a publication that is like the first one."""
    first = bench.now()
    settings = {name: getattr(first, name) for name in ("plan", "kind", "epsilon", "delta", "due", "publish_delay")}
    with bench.database.transaction() as connection:
        other = streams.create(
            connection,
            name="another",
            log="other",
            schema=SCHEMA,
            retention="keep",
            epsilon=Decimal(2),
            delta=Decimal(0),
        )
        new = NewPublication(
            name="together", start=0, configuration=first.configuration, obligations=first.owes, **settings
        )
        publications.create(connection, other.id, new)
    columns = {"x": np.linspace(-1, 1, 10, dtype=np.float32)[:, None], "y": np.arange(10, dtype=np.int32) % 2}
    number(bench.database, bench.files, other.id, columns)
    return other.id


@with_ticks
@pytest.mark.parametrize("most", [16, 1])
def test_each_of_several_streams_is_published_and_confirmed_at_its_tick(bench: Bench, monkeypatch, most):
    """Also where they are more than one transaction takes."""
    monkeypatch.setattr(ticker, "MAX_TOGETHER", most)
    other = add_stream(bench)
    publisher = park_all(bench)
    come(bench)
    publisher._ticker.step()
    with bench.database.transaction() as connection:
        both = streams.of_each(connection, [1, other])
    assert [(each.releases, each.confirmed_releases) for each in both] == [(5, 5), (5, 5)]


def timed() -> list[float]:
    """Return how often a worker has timed a fit of the other publication, and its release."""
    mine = {"publication": "together", "stream": "another"}
    return [
        sum(
            sample.value
            for family in each.collect()
            for sample in family.samples
            if sample.name.endswith("_count") and sample.labels == mine
        )
        for each in (metrics.FIT, metrics.PUBLISH)
    ]


@with_ticks
def test_what_is_published_at_a_tick_is_timed_as_its_publications(bench: Bench):
    add_stream(bench)
    publisher, before = park_all(bench), timed()
    come(bench)
    publisher._ticker.step()
    assert [after - earlier for after, earlier in zip(timed(), before, strict=True)] == [3, 3]

"""A publication of linear queries with records, and a worker's part of its answers."""

from collections.abc import Iterator

import pytest

from service.privacy.noise.sparse_vector import Instance
from service.queries import answering
from service.segments.files import SegmentFiles
from service.settings import Settings
from service.store.database import Database
from tests.conftest import HANG_SECONDS, make_world
from tests.queries.asking import Bench, confirming, make_bench, with_records


@pytest.fixture(scope="module")
def settings(servers, tmp_path_factory) -> Settings:
    return make_world(servers, tmp_path_factory.mktemp("answering")).settings


@pytest.fixture(scope="module")
def database(settings: Settings) -> Iterator[Database]:
    database = Database(settings.database_url, connections=20)
    with confirming(database, SegmentFiles(settings.segment_store)), pytest.MonkeyPatch.context() as patch:
        patch.setattr(answering, "SECONDS_TO_CONFIRM", HANG_SECONDS)  # who confirms may be late on a busy machine
        yield database
    database.close()


@pytest.fixture
def bench(settings: Settings, database: Database) -> Bench:
    return with_records(make_bench(settings, database))


@pytest.fixture
def compared(monkeypatch) -> list[int]:
    """Grow by one entry with every comparison."""
    values: list[int] = []
    true = Instance.is_above

    def is_above(self, value, height, noise):
        values.append(value)
        return true(self, value, height, noise)

    monkeypatch.setattr(Instance, "is_above", is_above)
    return values

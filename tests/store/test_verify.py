"""`ledger verify` finds every tampering and names it."""

import threading
from decimal import Decimal

import pytest
from sqlalchemy import Connection, delete, update

from service.store import tables
from service.store.database import Database
from service.store.verify import verify
from service.worker.main import work
from tests.conftest import ADMIN_KEY, Service, make_world, serving


@pytest.fixture(scope="module")
def published(servers, tmp_path_factory) -> Database:
    """A ledger with a publication of each learner and kind, and some charges; nothing runs on it any more."""
    settings = make_world(servers, tmp_path_factory.mktemp("verify")).settings
    stop = threading.Event()
    worker = threading.Thread(target=work, args=(settings, stop))
    worker.start()
    with serving(settings) as url:
        service = Service(url, ADMIN_KEY, settings)
        stream = service.stream(delta=3e-6)
        window = {"kind": "sliding_window", "block": 2, "blocks": 3}
        names = [service.publish(stream, window, delta=delta) for delta in (0, 1e-6)]
        for learner, delta in (("objective_perturbation", 0), ("objective_perturbation", 1e-6)):
            names.append(service.publish(stream, window, delta=delta, learner={"kind": learner}))
        names.append(service.publish(stream, window, delta=1e-6, learner={"kind": "noisy_gradient_descent"}))
        service.post(stream, [[1, 0]] * 12, [0, 1] * 6)
        for name in names:
            service.released(name, time=12)
        for client in service.clients.values():
            client.close()
    stop.set()
    worker.join()
    database = Database(settings.database_url)
    yield database
    database.close()


class Undo(Exception):
    """Ends a transaction without a trace."""


def findings(database: Database, *tamper) -> list[str]:
    found: list[str] = []

    def look(connection: Connection) -> None:
        for statement in tamper:
            assert connection.execute(statement).rowcount
        found.extend(verify(connection, isolated=not tamper).findings)
        raise Undo

    with pytest.raises(Undo), database.transaction() as connection:
        look(connection)
    return found


def test_an_honest_ledger_has_no_findings(published: Database):
    assert findings(published) == []


CHARGES, RELEASES, SPENT = tables.charges, tables.releases, tables.spent


@pytest.mark.parametrize(
    ("tamper", "finding"),
    [
        (update(CHARGES).where(CHARGES.c.id == 3).values(start=CHARGES.c.start + 1), "charge 3: its hash"),
        (update(CHARGES).where(CHARGES.c.id == 3).values(previous_hash="0" * 64), "charge 3: its previous_hash"),
        (update(SPENT).values(amount=SPENT.c.amount + Decimal("1e-30")), "not what its charges add up to"),
        (delete(SPENT), "not what its charges add up to"),
        (update(CHARGES).where(CHARGES.c.epsilon.isnot(None)).values(epsilon=0.9), "its charges pass its cap"),
        (
            update(CHARGES).where(CHARGES.c.epsilon.isnot(None)).values(epsilon=CHARGES.c.epsilon / 2),
            "its noise costs more than its charge",
        ),
        (delete(RELEASES).where(RELEASES.c.version == 2), "version 2: it was charged, but there is no such release"),
        (update(RELEASES).where(RELEASES.c.version == 1).values(fit_start=1), "its charge is not on the records"),
        (update(tables.streams).values(records=13), "end at record 12, not at 13"),
        (update(tables.streams).values(epsilon=Decimal("1.5")), "more is reserved than the stream's budget"),
        (update(tables.publications).values(version=99), "its newest version is"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_tampering_is_found_and_named(published: Database, tamper, finding):
    assert any(finding in each for each in findings(published, tamper))

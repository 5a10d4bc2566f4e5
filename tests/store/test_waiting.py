"""Nothing in the service waits for ever for anybody: what goes over a network, and how long it is waited for."""

import ast
import re
import time
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import text

from service.api.routes import health
from service.store import streams
from service.store.database import Database, DatabaseUnavailable
from tests.conftest import Service, World, ok, wait_until

ROOT = Path(__file__).parents[2]
CONNECTS = re.compile(  # what makes a connection, or a place for others to connect to
    r"(create_engine|from_url|Redis|_Teller|socket\.socket|(psycopg|Session)\.connect|opener\.open|urlopen)$"
    r"|(create_connection|open_(unix_)?connection|(create|start)_(unix_|http_)?server|bind_socket)$|^(httpx|requests)\.|^Client$"
)


def network_calls() -> set[str]:
    """Every place in the service that uses a network: its file and what it calls."""
    return {
        f"{path.relative_to(ROOT / 'service')}: {called.rpartition(').')[2]}"
        for path in (ROOT / "service").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and CONNECTS.search(called := ast.unparse(node.func))
    }


@pytest.mark.more
def test_every_place_that_uses_a_network_is_listed_with_how_long_it_waits():
    section = (ROOT / "SECURITY.md").read_text().split("\n## Time-outs\n")[1].split("\n## ")[0]
    listed = re.findall(r"^\| `([^`]+)` \| [^|]+ \| [^|]+ \|$", section, flags=re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert set(listed) == network_calls()


def test_a_database_that_does_not_answer_is_given_up_and_then_found_again(world: World):
    database = Database(str(world.settings.database_url), connections=1, seconds=2)
    began = time.monotonic()
    with pytest.raises(DatabaseUnavailable), database.transaction() as connection:
        connection.execute(text("SELECT pg_sleep(200)"))
    assert time.monotonic() - began >= 2
    assert wait_until(lambda: answers(database))
    database.close()


def answers(database: Database) -> bool:
    """Return whether it answers in time, which a busy machine may not do at once."""
    with suppress(DatabaseUnavailable), database.transaction() as connection:
        return connection.execute(text("SELECT 1")).scalar_one() == 1
    return False


def test_a_listener_hears_for_longer_than_an_answer_may_take(world: World):
    database = Database(str(world.settings.database_url))
    with database.listen("anything") as connection:
        connection.seconds = 2  # from here on: to connect may take longer
        assert list(connection.notifies(timeout=2.5)) == []
        assert list(connection.notifies(timeout=0.1)) == []
    database.close()


def test_readiness_says_in_time_which_part_does_not_answer(service: Service, monkeypatch):
    monkeypatch.setattr(health, "SECONDS_TO_TELL", 2)
    monkeypatch.setattr(streams, "ready", lambda connection: connection.execute(text("SELECT pg_sleep(200)")))
    expected = {"status": "not ready", "database": "no answer within 2 s", "log": "ready"}
    wait_until(lambda: ok(service.client().get("/readyz"), 503) == expected)  # on a busy machine the log may be late

"""Checks what `ledger verify` finds where a publication and its stream do not say the same."""
# ruff: noqa: F401, F811 - fixtures are other files'

from dataclasses import replace
from decimal import Decimal
from typing import Any

from sqlalchemy import Connection

from service.ledger.verify import promises
from service.store import streams
from tests.store.test_spending import UNIT, connection, make

BOUND = {name: value for name, value in UNIT.items() if name != "factor"}


def make_stream(connection: Connection) -> streams.Stream:
    budget = {"epsilon": Decimal(2), "delta": Decimal(0)}
    return streams.create(connection, name="s", log="s", schema={}, retention="keep", **budget)


def test_charges_are_counted_for_the_units_of_their_stream(connection: Connection):
    stream = make_stream(connection)
    finding = ["publication p: its charges are not counted for the units of its stream"]
    one, other = make(connection, "p", unit=UNIT), replace(make(connection, "q"), name="p")

    def without_agreement(schema: dict[str, Any]) -> list[bool]:
        of = replace(stream, schema=schema)
        findings = [list(promises.of_units(of, each)) for each in (one, other)]
        assert all(each in ([], finding) for each in findings)
        return [bool(each) for each in findings]

    assert without_agreement({"unit": BOUND}) == [False, True]
    assert without_agreement({}) == [True, False]
    for name in BOUND:
        assert without_agreement({"unit": BOUND | {name: 9}}) == [True, True], name


def test_features_are_of_the_publication_that_settings_name(connection: Connection):
    make_stream(connection)
    source, other, made = (make(connection, name) for name in ("source", "other", "p"))
    settings = made.configuration | {"features": {"from": "source"}}
    finding = ["publication p: its features are not of the publication that its settings name"]
    for configuration, origin, expected in (
        (settings, source.id, []),
        (settings, other.id, finding),
        (settings, None, finding),
        (made.configuration, None, []),
        (made.configuration, source.id, finding),
        (made.configuration, 10**6, finding),  # of another stream
    ):
        publication = replace(made, configuration=configuration, features_from=origin)
        assert list(promises.of_features([source, other, publication], publication)) == expected


def test_a_delay_is_the_one_that_was_asked_for(connection: Connection):
    make_stream(connection)
    made = make(connection, "p")
    silent = {name: value for name, value in made.configuration.items() if name != "publish_delay"}
    without_ticks = replace(made.owes, ticks=False).to_json()
    for change, expected in (({}, 0), ({"configuration": silent}, 1), ({"obligations": without_ticks}, 0)):
        assert promises._delay(replace(made, **change)) == expected
    assert promises._delay(replace(made, configuration=silent, obligations=without_ticks)) == 0

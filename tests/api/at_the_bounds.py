"""Every call at all the bounds of the OpenAPI document and past them: thousands, made up while tests are collected.

Not among the tests that every run collects: `pytest -p schemathesis.pytest.plugin tests/api/at_the_bounds.py` runs
it, in one process.
"""

from hypothesis import Phase, settings

from tests.api.test_openapi import BOUNDED, ask, schema, session, there

__all__ = ["ask", "session", "there"]


@schema().parametrize()  # these share a name: not for --numprocesses
@settings(BOUNDED, phases=[Phase.explicit])
def test_everything_answers_at_its_bounds_and_past_them(case, ask):
    ask(case)

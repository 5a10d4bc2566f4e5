"""Makes a finding of a value that the database holds and nothing can read."""

from collections.abc import Iterator

from sqlalchemy.exc import DataError


def read(where: str, findings: Iterator[str]) -> Iterator[str]:
    """Yield the findings; a value that can't be read or counted, like NaN, is a finding and hides no other."""
    try:
        yield from findings
    except (LookupError, AttributeError, TypeError, ValueError, ArithmeticError, DataError) as problem:
        yield f"{where}: it holds what was never written there ({type(problem).__name__})"

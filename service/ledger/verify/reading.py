"""What the database holds and nothing can read is a finding too."""

from collections.abc import Iterator

from sqlalchemy.exc import DataError


def read(where: str, found: Iterator[str]) -> Iterator[str]:
    """What can't be read or counted, like NaN or a time without end, is a finding too, and hides no other."""
    try:
        yield from found
    except (LookupError, TypeError, ValueError, ArithmeticError, DataError) as problem:
        yield f"{where}: it holds what was never written there ({type(problem).__name__})"

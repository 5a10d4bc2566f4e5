"""Bugs in the Python client, which append records twice."""

from __future__ import annotations

from tests.guarantees.planted.bug import bug, rewrite

_APPEND = "tests/client/test_append.py"


@bug(f"{_APPEND}::test_a_retry_never_doubles[after]")
def a_retry_under_another_key() -> None:
    """A batch that was stored, and whose answer was lost, is stored again."""
    import random

    from perennial import exchange

    exchange._other = lambda headers: {**headers, "Idempotency-Key": str(random.random())}  # type: ignore[attr-defined]
    rewrite(
        exchange.ask,
        (
            "answer = yield request",
            "answer = yield Request(**vars(request) | {'headers': _other(request.headers)})",
        ),
    )


@bug(f"{_APPEND}::TestWithoutAServer::test_what_may_be_stored_is_not_split")
def halves_of_a_batch_that_may_be_stored() -> None:
    """Its answer was lost, and the service takes smaller bodies since: the halves are stored beside the whole."""
    from perennial import operations

    rewrite(operations._post_batch, (" and not doubts", ""))


@bug(f"{_APPEND}::test_with_a_key_a_batch_that_is_too_large_is_refused")
def halves_of_a_batch_that_has_a_name() -> None:
    """The same call another day sends it whole, under a key that only half of it was stored with."""
    from perennial import operations

    rewrite(operations.append, ("may_split=key is None", "may_split=True"))


@bug(f"{_APPEND}::test_only_what_can_be_repeated_is")
def a_stream_that_is_made_again() -> None:
    """Whoever made it is told that its name is taken."""
    from perennial import exchange

    rewrite(exchange._may_repeat, ("return request.repeatable or (", "return True or ("))

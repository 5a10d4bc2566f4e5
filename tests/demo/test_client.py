"""The client waits when it is asked to, and repeats only what may be repeated."""

import asyncio

import httpx
import pytest

from demo.client import Client
from demo.service import DemoError


def ask(answers, method="GET", headers=None, **more):
    """Return what the client makes of these answers, and how many it asked for."""
    left = list(answers)

    def handle(request):
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def run():
        async with Client("http://service", "key", httpx.MockTransport(handle)) as client:
            return await client.request(method, "/thing", headers=headers, **more)

    try:
        return asyncio.run(run()).status_code, len(answers) - len(left)
    except DemoError as error:
        return str(error), len(answers) - len(left)


@pytest.mark.parametrize("status", [429, 503])
def test_busy_is_tried_again_after_the_time_it_asks_for(status):
    assert ask([httpx.Response(status, headers={"Retry-After": "0"}), httpx.Response(200)], "POST") == (200, 2)


def test_an_error_is_told_and_not_repeated():
    error, attempts = ask([httpx.Response(422, text="row 3: x: not a number"), httpx.Response(200)])
    assert "row 3" in error
    assert attempts == 1


def test_a_status_that_is_expected_is_returned():
    assert ask([httpx.Response(304)], also=(304,)) == (304, 1)


def test_a_broken_connection_is_repeated_only_where_that_is_harmless():
    broken = [httpx.ReadError("gone"), httpx.Response(200)]
    assert ask(broken) == (200, 2)
    assert ask(broken, "POST", headers={"Idempotency-Key": "k"}) == (200, 2)
    assert ask(broken, "POST")[1] == 1


def test_its_own_first_attempt_still_running_is_waited_for():
    running = httpx.Response(409, json={"type": "urn:perennial:problem:idempotency-running"})
    assert ask([running, httpx.Response(202)], "POST", headers={"Idempotency-Key": "k"}) == (202, 2)
    other = httpx.Response(409, json={"type": "urn:perennial:problem:name-taken"})
    assert ask([other, httpx.Response(202)], "POST")[1] == 1

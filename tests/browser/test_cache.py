"""A browser's cache, in which releases stay, is no way to another stream's publication of the same name."""

import pytest
from playwright.sync_api import Page

from tests.browser.looking import enter
from tests.conftest import Service, ok, publication

WINDOW = {"kind": "sliding_window", "block": 5, "blocks": 1}


@pytest.mark.more
def test_a_release_is_not_shown_to_the_next_key(service: Service, page: Page):
    """The browser asks with the tag of what it has, also where `Vary` says that it was given to another key."""
    streams, released = [service.stream(), service.stream()], []
    name = service.publish(streams[0], WINDOW)
    body = publication(streams[1], WINDOW) | {"name": name}
    ok(service.client(service.key("admin", streams=[streams[1]])).post("/v1/publications", json=body), 201)
    keys = [service.key("read", streams=[stream]) for stream in streams]
    for stream, key in zip(streams, keys, strict=True):
        service.post(stream, [[1, 2]] * 5, [0, 1, 0, 1, 0])
        latest = f"/v1/publications/{name}/releases/latest"
        released.append(ok(service.client(key).get(latest, headers={"Prefer": "wait=60"})))
    page.goto("/dashboard/sign-in")
    for which in ("latest", "1"):
        for key, release in zip(keys, released, strict=True):
            enter(page.context, key)
            address = f"/v1/publications/{name}/releases/{which}"
            assert page.evaluate(f"fetch('{address}').then((answer) => answer.json())") == release

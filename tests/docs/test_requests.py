"""Fields of requests, their bounds and defaults, and words in databases change knowingly only."""

import json

from tests.docs.requests import WRITTEN, requests


def test_all_that_requests_may_say_is_as_it_is_written_down() -> None:
    lines = [json.loads(line) for line in WRITTEN.read_text().splitlines()]
    assert json.loads(json.dumps(requests())) == {name: text for line in lines for name, text in line.items()}

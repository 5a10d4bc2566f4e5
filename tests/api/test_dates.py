"""The `Date` of an answer is the time at which it begins, also where the request waited (RFC 9110, 6.6.1)."""

import time
from email.utils import parsedate_to_datetime

import httpx
import pytest

from tests.api.test_labels import publish, unlabelled
from tests.conftest import Service, ok

WAIT_SECONDS, SLACK_SECONDS = 5, 2


def date(answer: httpx.Response) -> float:
    """Return the time that an answer tells, in whole seconds."""
    return parsedate_to_datetime(answer.headers["date"]).timestamp()


@pytest.mark.more
@pytest.mark.parametrize(
    ("path", "head"), [("label-requests", "204"), ("releases/latest", "404"), ("releases/latest", "304")]
)
def test_an_answer_to_who_waited_has_the_time_of_the_answer(service: Service, path, head):
    headers = {"Prefer": f"wait={WAIT_SECONDS}"}
    if path == "label-requests":
        name = publish(service, unlabelled(service))
    else:
        stream = service.stream()
        name = service.publish(stream, {"kind": "sliding_window", "block": 1, "blocks": 1})
        if head == "304":
            service.post(stream, [[0.5, 0.5]], [0])
            service.reaches(name, time=1)
            etag = service.client().get(f"/v1/publications/{name}/releases/latest").headers["etag"]
            headers["If-None-Match"] = etag
    before = time.time()
    answer = service.client().get(f"/v1/publications/{name}/{path}", headers=headers)
    after = time.time()
    assert str(answer.status_code) == head
    assert before + WAIT_SECONDS - SLACK_SECONDS < date(answer) <= after


def test_answers_that_are_sent_at_once_have_a_date(service: Service):
    stream = service.stream()
    path = f"/v1/streams/{stream}/records"
    for _ in range(3):
        before = time.time()
        answer = service.client().post(path, json={"x": [[0.5, 0.5]], "y": [0]})
        ok(answer, 202)
        assert before - SLACK_SECONDS - 1 < date(answer) <= time.time()
        assert len(answer.headers.get_list("date")) == 1

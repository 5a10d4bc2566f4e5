"""Exchanges of the client, answered by hand: what is asked for, and what becomes of the answers."""

import json
from dataclasses import replace

import numpy as np
import pytest

import perennial
from perennial import operations
from perennial.exchange import Answer, Pause


def answer(document: object) -> Answer:
    return Answer(status=200, headers={}, body=json.dumps(document).encode())


def result_of(exchange, *documents):
    """Return an exchange's result and its requests as they were sent, each of which gets the next document."""
    request, requests = next(exchange), []
    with pytest.raises(StopIteration) as done:
        for each in documents:
            requests.append(replace(request, query=dict(request.query)))
            request = exchange.send(each if isinstance(each, Answer) else answer(each))
    return done.value.value, requests


def test_charges_of_a_publication_are_its_own():
    rows = [{"id": 3, "publication": "q"}, {"id": 2, "publication": "p"}, {"id": 1, "publication": "q"}]
    charges, requests = result_of(operations.charges_of("p"), {"stream": "s"}, {"items": rows})
    assert [each["id"] for each in charges] == [2]
    assert requests[-1].path == "/v1/streams/s/ledger/charges"


def test_a_list_is_read_to_its_end(monkeypatch):
    """A full page may be the last one, which only the next one tells."""
    monkeypatch.setattr(operations, "ROWS_OF_A_PAGE", 2)
    pages = ([9, 7], [4, 2], [])
    listed, requests = result_of(operations.charges("s"), *({"items": [{"id": each} for each in ids]} for ids in pages))
    assert [each["id"] for each in listed] == [9, 7, 4, 2]
    assert [each.query for each in requests] == [{"limit": 2} | below for below in ({}, {"before": 7}, {"before": 2})]


def test_a_request_that_waits_has_time_for_the_wait_and_the_answer():
    """And it says which version it has, as the service writes that of this format: so that an old one is not sent."""
    request = operations._latest_request("p", 60, 7)
    assert request.headers == {
        "Accept": "application/vnd.safetensors",
        "If-None-Match": '"7.safetensors.1"',
        "Prefer": "wait=60",
    }
    assert request.seconds >= 60 + 30


@pytest.mark.parametrize(
    ("ask", "repeatable"),
    [(operations.create_stream, False), (operations.publish, False), (operations.plan, True)],
)
@pytest.mark.parametrize("status", [502, 503, 504])
def test_nothing_is_made_twice(ask, repeatable, status):
    """An answer of a proxy, or of a service that loses its database, does not say that nothing was made."""
    exchange = ask({"name": "n"})
    request = next(exchange)
    assert (request.method, request.repeatable) == ("POST", repeatable)
    failed = Answer(status=status, headers={}, body=b"")
    if repeatable:
        assert isinstance(exchange.send(failed), Pause)
        assert exchange.send(None) == request
    else:
        with pytest.raises(perennial.PerennialError):
            exchange.send(failed)


def model(version: int, role: str = "model", **more: object) -> Answer:
    described = {"publication": "p", "version": version, "role": role, "model": {"kind": "histogram"} | more}
    weights = perennial.Model(parameters=np.full((1, 2), float(version)), metadata=described).to_safetensors()
    return Answer(status=200, headers={}, body=weights)


def test_followers_get_each_model_after_theirs_once_and_the_newest_last():
    exchange = operations.following("p", 3, operations.LongPoll())
    answers = {"state": "running"}, model(7), model(4), model(5, "base"), model(6)
    models, requests = result_of(exchange, *answers)
    assert [each.version for each in models] == [4, 6, 7]
    assert [each.path.rpartition("/")[2] for each in requests] == ["p", "latest", "4", "5", "6"]
    exchange = operations.following("p", 7, operations.LongPoll())
    next(exchange)
    exchange.send(answer({"state": "running"}))
    assert isinstance(exchange.send(model(7)), Pause), "it has that one"


def test_who_is_far_behind_gets_the_next_models_first(monkeypatch):
    """The newest one would else end the walk, and those between would never come."""
    monkeypatch.setattr(operations, "MODELS_AT_ONCE", 2)
    answers = {"state": "running"}, model(9), model(4), model(5, "base"), model(6)
    models, _ = result_of(operations.following("p", 3, operations.LongPoll()), *answers)
    assert [each.version for each in models] == [4, 6]


def test_a_model_comes_with_the_encoder_that_it_names():
    encoder = {"kind": "dense", "release": 2, "layers": [2], "norm_bound": 1.0}
    whole, requests = result_of(operations.release("p", 5), model(5, kind="linear", encoder=encoder), model(2, "base"))
    assert [each.path.rpartition("/")[2] for each in requests] == ["5", "2"]
    assert (whole.version, whole.parameters.tolist(), whole.encoder.tolist()) == (5, [[5.0, 5.0]], [[2.0, 2.0]])


def test_a_stopped_publication_has_a_last_model():
    """And then none: who follows it is told so, and does not wait for ever."""
    models, _ = result_of(operations.following("p", 3, operations.LongPoll()), {"state": "stopped"}, model(4))
    assert [each.version for each in models] == [4]
    nothing = Answer(status=304, headers={}, body=b"")
    ended, requests = result_of(operations.following("p", 4, operations.LongPoll()), {"state": "stopped"}, nothing)
    assert ended is None
    assert "Prefer" not in requests[-1].headers

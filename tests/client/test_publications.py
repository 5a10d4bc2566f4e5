"""From a stream to a followed publication and its ledger, blocking and with asyncio."""

import asyncio
import inspect
import json
import math
import threading
import time

import httpx
import numpy as np
import pytest

import perennial
from perennial import BudgetExceeded, Halted, InvalidArgument, NotFound, NotYet, Problem, operations
from perennial.exchange import Answer, NoAnswer, Pause
from tests.client.conftest import Faults
from tests.conftest import Service, unique, wait_until

X = np.random.default_rng(0).normal(size=(30, 2))
Y = (X[:, 0] > 0).astype(int)
BATCHES = {"kind": "independent_batches", "batch": 10}


def start(client: perennial.Client) -> tuple[perennial.Stream, perennial.Publication]:
    """A stream of batches of ten, and a publication that releases a model of each."""
    stream = client.create_stream(unique("stream"), features=2, classes=2, epsilon=4, delta=1e-6)
    learner = {"kind": "output_perturbation"}
    name = unique("publication")
    publication = client.publish(name, stream.name, mechanism=BATCHES, learner=learner, epsilon=2, publish_delay=0)
    return stream, publication


def test_from_a_stream_to_its_ledger(client):
    stream, publication = start(client)
    assert stream.name in {row["name"] for row in client.streams()}
    assert publication.name in {row["name"] for row in client.publications()}
    planned = client.plan(stream.name, mechanism=BATCHES, learner={"kind": "output_perturbation"}, epsilon=2)
    assert planned["lifetime"] == publication.info()["plan"]["lifetime"]
    with pytest.raises(NotYet, match="no release yet"):
        publication.latest()

    stream.append(X, label=Y)
    models = []
    for model in publication.follow():
        models.append(model.version)
        if model.version == 3:
            assert publication.stop()["state"] == "stopped"
    assert models == [1, 2, 3]
    assert publication.latest(newer_than=2).version == 3
    assert publication.release(1).time == 10
    assert [row["version"] for row in publication.releases()] == [3, 2, 1]
    with pytest.raises(NotYet, match="newer than version 3 and none will follow: the publication is stopped"):
        publication.latest(newer_than=3, wait=100_000)

    ledger = client.ledger(stream.name)
    assert ledger.budget == {"epsilon": 4.0, "delta": 1e-6}
    assert ledger.spent["epsilon"] == 2.0
    frame = ledger.ranges.to_frame()
    assert (frame["start"].iloc[0], frame["end"].iloc[-1]) == (0, 30)
    assert ledger.publications.to_frame()["spent.epsilon"].tolist() == [2.0]
    assert [row["version"] for row in publication.ledger()] == [3, 2, 1]
    assert stream.charges() == publication.ledger()
    assert [row["end"] for row in stream.ledger(start=5, end=15).ranges] == [15]


def test_with_asyncio(service: Service, client):
    async def session() -> list[int]:
        async with await perennial.connect_async(service.url, service.admin_key) as connected:
            stream = await connected.create_stream(unique("stream"), features=2, classes=2, epsilon=4)
            publication = await connected.publish(
                unique("publication"),
                stream.name,
                mechanism=BATCHES,
                learner={"kind": "output_perturbation"},
                epsilon=1,
                publish_delay=0,
            )
            waiting = asyncio.create_task(publication.latest(wait=200))
            reported: list[int] = []
            assert (await stream.append(X, label=Y, batch=20, progress=reported.append)).records == 30
            assert reported == [20, 10]
            assert (await waiting).publication == publication.name
            versions = [(await publication.release(1)).version]
            async for model in publication.follow(after=1):
                versions.append(model.version)
                if model.version == 3:
                    await publication.stop()
            assert len(await publication.ledger()) == len(await stream.charges()) == 3
            assert (await connected.ledger(stream.name)).spent == (await stream.ledger()).spent
            return versions

    assert asyncio.run(session()) == [1, 2, 3]


@pytest.mark.parametrize(
    ("blocking", "of_asyncio"),
    [
        (perennial.Client, perennial.AsyncClient),
        (perennial.Stream, perennial.AsyncStream),
        (perennial.Publication, perennial.AsyncPublication),
    ],
)
def test_both_clients_have_the_same_calls(blocking, of_asyncio):
    def calls(kind: type) -> dict[str, list[str]]:
        functions = inspect.getmembers(kind, inspect.isfunction)
        return {name: list(inspect.signature(call).parameters) for name, call in functions if name[0] != "_"}

    assert calls(blocking) == calls(of_asyncio)
    assert len(calls(blocking)) > 5


def test_waiting_ends_with_the_next_release(client):
    stream, publication = start(client)
    stream.append(X[:10], label=Y[:10])
    first = publication.latest(wait=200)
    models: list[perennial.Model] = []
    waiting = threading.Thread(target=lambda: models.append(publication.latest(wait=200, newer_than=first)))
    waiting.start()
    stream.append(X[10:20], label=Y[10:20])
    waiting.join(200)
    assert [model.version for model in models] == [2]


def test_followers_survive_lost_connections(faults: tuple[perennial.Client, Faults]):
    """Every third connection breaks: each model still comes once and in order."""
    client, transport = faults
    stream, publication = start(client)

    def breaking(_: httpx.Request) -> None:
        if len(transport.requests) % 3 == 0:
            raise httpx.ReadError("broken by the test")

    for part in range(3):
        rows = slice(10 * part, 10 * part + 10)
        stream.append(X[rows], label=Y[rows])
        publication.latest(wait=200, newer_than=part)
    transport.after = breaking
    versions = []
    for model in publication.follow(after=0):
        versions.append(model.version)
        if model.version == 3:
            break
    assert versions == [1, 2, 3]


@pytest.mark.more
def test_followers_get_many_models_in_order_and_only_models(client, monkeypatch):
    """Two are fetched at once here. Windows are chains of fits, of which only the last is a model."""
    monkeypatch.setattr(operations, "MODELS_AT_ONCE", 2)
    stream = client.create_stream(unique("stream"), features=2, classes=2, epsilon=4)
    mechanism = {"kind": "sliding_window", "block": 3, "blocks": 4}
    publication = client.publish(
        unique("publication"),
        stream.name,
        mechanism=mechanism,
        learner={"kind": "output_perturbation"},
        epsilon=2,
        publish_delay=0,
    )
    stream.append(X, label=Y)
    times = []
    for model in publication.follow(after=0):
        times.append(model.time)
        if model.time == 30:
            publication.stop()
    assert times == [12, 15, 18, 21, 24, 27, 30]
    assert {row["role"] for row in publication.releases()} == {"model", "base"}


@pytest.mark.parametrize("wait", [100, math.inf])
def test_waiting_goes_on_where_a_server_that_stops_answers_at_once(wait):
    """The exchange, answered by hand."""
    described = {"publication": "p", "version": 2, "model": {"kind": "histogram"}}
    model = perennial.Model(parameters=np.zeros((1, 2)), metadata=described)
    exchange = operations.latest("p", wait, 1, operations.LongPoll())
    assert "Prefer" not in next(exchange).headers
    exchange.send(nothing := Answer(status=304, headers={}, body=b""))
    waiting = exchange.send(running := Answer(status=200, headers={}, body=b'{"state":"running"}'))
    assert waiting.headers["Prefer"] == "wait=60"
    assert isinstance(exchange.send(nothing), Pause)
    exchange.send(None)
    assert exchange.send(running) == waiting
    with pytest.raises(StopIteration) as done:
        exchange.send(Answer(status=200, headers={}, body=model.to_safetensors()))
    assert done.value.value.metadata == described


@pytest.mark.parametrize("wait", [0, 100])
@pytest.mark.parametrize(
    ("state", "error", "reason"),
    [
        ("halted", Halted, "p has halted: a cap"),
        ("stopped", NotYet, "newer than version 1 and none will follow: .* stop"),
    ],
)
def test_nobody_waits_for_a_publication_that_has_ended(state, error, reason, wait):
    """The exchange, answered by hand. A release may have come between the first answer and the end."""
    ended = Answer(status=200, headers={}, body=json.dumps({"state": state, "reason": "a cap"}).encode())
    nothing = Answer(status=304, headers={}, body=b"")
    described = {"publication": "p", "version": 2, "model": {"kind": "histogram"}}
    model = perennial.Model(parameters=np.zeros((1, 2)), metadata=described)
    for answer, raised in ((nothing, error), (Answer(status=200, headers={}, body=model.to_safetensors()), None)):
        exchange = operations.latest("p", wait, 1, operations.LongPoll())
        next(exchange)
        exchange.send(nothing)
        assert "Prefer" not in exchange.send(ended).headers
        with pytest.raises(raised or StopIteration, match=reason if raised else None):
            exchange.send(answer)


def test_a_halted_publication_says_why():
    """The exchange, answered by hand."""
    exchange = operations.following("p", 0, operations.LongPoll())
    next(exchange)
    exchange.send(Answer(status=200, headers={}, body=b'{"state":"halted","reason":"a cap"}'))
    with pytest.raises(Halted, match="p has halted: a cap"):
        exchange.send(Answer(status=404, headers={}, body=b""))


def test_followers_go_on_after_a_day_of_sleep(monkeypatch):
    """The service forgets Idempotency-Keys meanwhile, and they have none. The exchange, answered by hand."""
    exchange = operations.following("p", 0, operations.LongPoll())
    next(exchange)
    waiting = exchange.send(Answer(status=200, headers={}, body=b'{"state":"running"}'))
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 25 * 3600)
    assert waiting.headers["Prefer"] == "wait=60"
    assert isinstance(exchange.send(NoAnswer(reason="ReadTimeout", sent=True)), Pause)
    with pytest.raises(StopIteration) as done:
        exchange.send(None)
    assert done.value.value == []


def test_what_is_not_there_is_not_found(client):
    for call in (
        client.stream("never-made").info,
        client.stream("never-made").ledger,
        client.publication("never-made").latest,
        lambda: client.publication("never-made").latest(wait=100),
        lambda: next(client.publication("never-made").follow()),
        lambda: client.stream("../keys").info(),
    ):
        with pytest.raises(NotFound):
            call()


def test_a_budget_that_is_too_small_says_what_is_left(client):
    stream, _ = start(client)
    with pytest.raises(BudgetExceeded, match=r"budget-exceeded, 409") as refused:
        client.publish("too-much", stream.name, mechanism=BATCHES, learner={"kind": "output_perturbation"}, epsilon=3)
    assert refused.value.members["left"]["epsilon"] == 2.0


def test_settings_that_do_not_go_together_are_refused(client):
    for wrong, message in (
        ({"epsilon": 1}, "give classes"),
        ({"epsilon": 1, "classes": 2, "bound": 1.0}, "give classes"),
        ({"classes": 2}, "give epsilon"),
        ({"classes": 2, "epsilon": 1, "budget": {"epsilon": 1}}, "give epsilon"),
    ):
        with pytest.raises(ValueError, match=message):
            client.create_stream("never-made", features=1, **wrong)
    for wrong in (
        {"epsilon": 1, "rho": 0.1},
        {"privacy": {"epsilon": 1}, "rho": 0.1},
        {"privacy": {"epsilon": 1}, "delta": 1e-6},
        {"rho": 0.1, "delta": 1e-6},
    ):
        with pytest.raises(ValueError, match="give epsilon, and delta if it is not 0; or rho"):
            client.plan("never-made", mechanism=BATCHES, **wrong)
    with pytest.raises(Problem, match="mechanism: its") as refused:
        client.plan("never-made", mechanism={"kind": "magic"}, epsilon=1)
    assert refused.value.slug == "invalid-request"


def test_every_wrong_setting_is_an_error_of_this_package_that_says_what_would_do(client):
    fit = {"mechanism": BATCHES, "learner": {"kind": "output_perturbation"}}
    for wrong, message in (
        (fit | {"mechanism": "online_leader"}, "mechanism must be a mapping, such as"),
        (fit | {"learner": "output_perturbation"}, "learner must be a mapping, such as"),
        (fit | {"privacy": 1}, "privacy must be a mapping, such as"),
        (fit | {"epsilon": float("nan")}, "NaN or infinite"),
        (fit, "give epsilon"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            client.plan("never-made", **wrong)
    for wrong, message in (
        ({"epsilon": 1, "task": "classification"}, "task must be a mapping, such as"),
        ({"classes": 2, "budget": 4}, "budget must be a mapping, such as"),
        ({"classes": 2, "epsilon": 1, "norm_bound": float("inf")}, "NaN or infinite"),
        ({"epsilon": 1}, "give classes"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            client.create_stream("never-made", features=1, **wrong)
    with pytest.raises(InvalidArgument, match="needs a key"):
        client.stream("never-made").append([[1.0]], journal="never-made.sqlite")


def test_settings_may_be_those_of_the_services_json(client):
    loss = {"epsilon": 1.0, "delta": 0.0}
    task = {"kind": "classification", "classes": 2}
    stream = client.create_stream(unique("stream"), task=task, features=2, budget=loss)
    publication = client.publish(
        unique("publication"), stream.name, mechanism=BATCHES, learner={"kind": "output_perturbation"}, privacy=loss
    )
    assert (stream.info()["budget"], publication.info()["privacy"]) == (loss, loss)


def test_numbers_may_be_numpys(client):
    whole, floating = np.int64, np.float32
    stream = client.create_stream(
        unique("stream"),
        classes=whole(2),
        columns={"a": np.array([0, 1]), "b": (whole(0), floating(1))},
        epsilon=whole(4),
        norm_bound=floating(3),
    )
    assert stream.info()["columns"][1]["range"] == [0, 1]
    settings = {"mechanism": {"kind": "independent_batches", "batch": whole(10)}, "epsilon": np.float64(2)}
    publication = client.publish(
        unique("publication"), stream.name, learner={"kind": "output_perturbation"}, publish_delay=whole(0), **settings
    )
    appended = stream.append(X[:20], label=Y[:20], batch=whole(10), patience=floating(100), key="numpy")
    assert (appended.records, len(appended.entries)) == (20, 2)
    assert publication.latest(wait=floating(200), newer_than=whole(1)).version == 2
    newest = publication.releases().to_frame()["version"].max()
    with pytest.raises(NotYet, match="newer than version 2"):
        publication.latest(newer_than=newest)
    assert next(publication.follow(after=newest - 1)).version == publication.release(newest).version == 2
    stream.erase(whole(1), whole(3))
    with pytest.raises(TypeError, match="type set can't be sent"):
        client.plan(stream.name, mechanism={"kind": {1}}, epsilon=1)


def test_records_are_erased(client):
    stream, _ = start(client)
    appended = stream.append(X[:5], label=Y[:5])
    wait_until(lambda: stream.numbers(appended))
    stream.erase(1, 3)
    assert stream.info()["erased"]["ranges"] == [{"start": 1, "end": 3}]

"""An attack by time, through two real APIs: which of two categories is the target's record in?

A threshold that has answered yes says of every later query whether it was a yes too, if the process that compares it
then needs a transaction more. So the attacker lets one API close an instance and then asks another one hundreds of
times about the first category, and about the second one: with one threshold, for the price of one yes. See beyond the
answers, as an attacker could with a good clock: how many transactions the API needed; and how long it took.

Each trial has a publication of its own, of EPSILON in all, so that any guess is right with a probability of at most
e^EPSILON/(1 + e^EPSILON), given all that made the attacker guess. `--trials 2000` tries harder.

With the planted bug transactions tell the category in three of four trials, and rightly. 48 right guesses and none
wrong are too many; of 80 trials fewer guesses come in about one run of a thousand.
"""

import math
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from tests import chance
from tests.conftest import ok, unique, wait_until
from tests.faults.processes import Api, end, working

EPSILON = 1
RECORDS, CATEGORIES = 20, 3
ACCURACY = 0.3
HEIGHT = 5 / 6 * ACCURACY * RECORDS
WEIGHT = (HEIGHT + RECORDS / (CATEGORIES + 1) - 0.5) / (RECORDS - 1 - RECORDS / (CATEGORIES + 1))
"""The weight of the category of all other records: with it the target's own category is half a record above the height,
the other one half a record below it.
"""
FIRST, SECOND = {"weights": [1, 0, WEIGHT]}, {"weights": [0, 1, WEIGHT]}
HARD = {"categories": [2]}
ROUNDS, QUERIES = 5, 160  # of each kind, in turn
MARGIN = 22  # transactions: less of a difference may be chance
ATTACKS = 400  # on one stream, whose budget is bounded


@contextmanager
def two_apis(settings, plant: str | None) -> Iterator[list[Api]]:
    """Two APIs, and a worker."""
    with working(settings):
        apis = [Api(settings, plant=plant) for _ in range(2)]
        yield apis
        for api in apis:
            end(api.process)


def make_stream(client: httpx.Client, bit: int) -> str:
    """Make a stream whose target is in that category; return its name."""
    task = {"kind": "categorical", "cardinality": CATEGORIES}
    settings = {"name": unique("s"), "task": task, "budget": {"epsilon": 2 * ATTACKS * EPSILON, "delta": 0}}
    name = ok(client.post("/v1/streams", json=settings), 201)["name"]
    ok(client.post(f"/v1/streams/{name}/records", json={"y": [bit] + [2] * (RECORDS - 1)}), 202)
    return name


def trial(apis: list[Api], clients: list[httpx.Client], stream: str, first: int) -> dict[str, int | None]:
    """Attack one publication; return the category that each way to guess tells, if it tells one.

    first: the API that compares the first query, and so holds the lease.
    """
    name = unique("p")
    mechanism = {"kind": "linear_queries", "first": RECORDS, "hits": 1, "accuracy": ACCURACY}
    configuration = {
        "name": name,
        "stream": stream,
        "start": 0,
        "mechanism": mechanism,
        "privacy": {"epsilon": EPSILON},
    }
    ok(clients[0].post("/v1/publications", json=configuration), 201)

    def ask(api: int, queries: list[dict]) -> list[dict]:
        return ok(clients[api].post(f"/v1/publications/{name}/queries", json=queries))

    wait_until(lambda: ask(first, [{"categories": []}])[0]["time"] == RECORDS)
    ask(1 - first, [{"categories": []}])
    ask(0, [HARD] * 5)
    transactions, seconds, free_answers = [0, 0], [0.0, 0.0], [0, 0]
    for _ in range(ROUNDS):
        for category, query in enumerate((FIRST, SECOND)):
            before, began = apis[1].transactions, time.perf_counter()
            answers = ask(1, [query] * QUERIES)
            seconds[category] += time.perf_counter() - began
            transactions[category] += apis[1].transactions - before
            free_answers[category] += sum(1 - each["measured"] for each in answers)
    ok(clients[0].delete(f"/v1/publications/{name}"))
    ways = {"transactions": (transactions, MARGIN), "clock": (seconds, 0), "answers": (free_answers, 0)}
    return {
        way: None if abs(seen[0] - seen[1]) <= margin else int(seen[1] > seen[0])
        for way, (seen, margin) in ways.items()
    }


@pytest.mark.long  # tests/queries/test_closed_thresholds.py counts what is compared, without chance
@pytest.mark.timeout(3600)
def test_who_asks_on_after_a_yes_learns_no_more_than_is_promised(world, request, seed):
    choose, trials = random.Random(seed), request.config.getoption("--trials")
    guesses: dict[str, list[bool]] = {"transactions": [], "clock": [], "answers": []}
    with two_apis(world.settings, request.config.getoption("--plant")) as apis:
        clients = [api.client() for api in apis]
        for number in range(trials):
            if number % ATTACKS == 0:
                streams = [make_stream(clients[0], bit) for bit in (0, 1)]
            bit = choose.randrange(2)
            for way, guess in trial(apis, clients, streams[bit], choose.randrange(2)).items():
                if guess is not None:
                    guesses[way].append(guess == bit)
        for client in clients:
            client.close()
    allowed = math.exp(EPSILON) / (1 + math.exp(EPSILON))
    right = {way: (sum(each), len(each)) for way, each in guesses.items()}
    request.node.user_properties.append(("faults", f"{trials} attacks, right guesses: {right}"))
    assert len(guesses["clock"]) == trials
    for count, made in right.values():
        chance.assert_no_more(count, made, allowed, false_alarm=chance.FALSE_ALARM / len(right))

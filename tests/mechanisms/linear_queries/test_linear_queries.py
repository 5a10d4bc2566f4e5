"""Linear queries without a service: what is charged, when it stops, how right it is, and what a plan says of it."""

from collections import defaultdict
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from math import ceil, log
from random import Random

import numpy as np
import pytest

from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration, Refused
from service.mechanisms.histogram import MAX_CARDINALITY, Histogram, LinearQuery
from service.mechanisms.interactive import NO_CATEGORY, opened
from service.mechanisms.linear_queries import mechanism as linear_queries
from service.mechanisms.linear_queries.mechanism import LinearQueries
from service.mechanisms.mechanism import StateLost, StatePart
from service.privacy.accounting import events
from service.privacy.accounting.events import MeasuredQuery, OpenedInstance
from service.privacy.currency import Currency, round_up
from service.privacy.noise import numeric_sparse
from service.privacy.noise.sparse_vector import STEPS, Instance
from service.streams.schema import StreamSchema

PURE, ZCDP = {"epsilon": 2}, {"epsilon": 2, "delta": 1e-6}
both = pytest.mark.parametrize("privacy", [PURE, ZCDP], ids=["pure", "zcdp"])


SETTINGS = {"hits": {"hits": 5}, "accuracy": {"accuracy": 0.9}, "both": {"hits": 3, "accuracy": 0.2}}


def queries(privacy, *, cardinality=4, **settings) -> LinearQueries:
    schema = StreamSchema.model_validate({"task": {"kind": "categorical", "cardinality": cardinality}})
    mechanism = {"kind": "linear_queries", "first": 20} | settings
    return build(schema, PublicationConfiguration.model_validate({"mechanism": mechanism, "privacy": privacy}))


@dataclass
class Run:
    """A publication in memory, and what each slot is charged, kept by brute force."""

    mechanism: LinearQueries
    records: list[int] = field(default_factory=list)
    charged: list = field(default_factory=list)
    released: list = field(default_factory=list)
    chain: tuple = ()
    position: int = 0

    def __post_init__(self):
        self.histogram = Histogram.uniform(self.mechanism.cardinality, 0)

    def arrive(self, records):
        """Everything that is due is counted in."""
        self.records += records
        vars(self).pop("counts", None)
        while (due := self.mechanism.next_time(self.position)) <= len(self.records):
            time = self.mechanism.taken_at(due, len(self.records))
            self.take(self.mechanism.step(time, self.chain, len(self.released) + 1, None))
            self.position = time
        self.histogram = self.histogram.grown(self.position) if self.position else self.histogram

    def take(self, step):
        for release in step.releases:
            self.charge(*release.fit, release.charge)
            self.released.append(release)
            event = events.from_json(release.perturbation.to_json())
            assert event.cost(self.mechanism.currency, records=1) <= release.charge
        for charge in step.charges:
            self.charge(charge.start, charge.stop, charge.amount)
        self.chain = step.chain

    def charge(self, start, stop, amount):
        self.charged.append((range(start, stop), Fraction(amount)))

    @property
    def spent(self):
        spent = defaultdict(Fraction)
        for slots, amount in self.charged:
            for slot in slots:
                spent[slot] += amount
        return spent

    @cached_property
    def counts(self):
        return np.bincount(self.records[: self.position], minlength=self.mechanism.cardinality)

    @property
    def worst(self):
        return max(self.spent.values(), default=Fraction(0))

    def ask(self, query):
        """The answer, and whether it was measured because it was hard."""
        return (self.hit(query), True) if self.is_hard(query) else (query.of(self.histogram.shares), False)

    def is_hard(self, query):
        """Whether a comparison says so; after a yes none may follow."""
        now = opened(self.chain)
        if now is None:
            return False
        value = now.instance.value(query.count(self.counts), self.position, query.of(self.histogram.shares))
        return now.instance.is_above(value, self.mechanism.height, now.noise)

    def hit(self, query):
        now = opened(self.chain)
        measurement = self.mechanism.measure(now, query, self.counts, self.histogram)
        step = self.mechanism.close(now, measurement, self.worst, len(self.released) + 1)
        self.take(step)
        self.histogram = Histogram(shares=step.releases[0].parameters[0], time=self.position)
        return measurement.answer


@pytest.mark.parametrize(("measured", "answer"), [(-(10**18), 0.0), (10**18, 1.0)])
def test_an_answer_is_a_share_however_much_noise_is_in_it(monkeypatch, measured, answer):
    run = Run(queries(PURE, hits=2))
    run.arrive([0] * 20)
    monkeypatch.setattr(numeric_sparse, "measured", lambda *_: measured)
    assert run.hit(LinearQuery.holding(np.array([0]))) == answer


@both
def test_an_instance_that_is_closed_by_no_category_costs_what_a_hit_costs_and_moves_nothing(privacy):
    run = Run(queries(privacy, hits=2))
    run.arrive([0] * 20)
    run.hit(LinearQuery.holding(np.array([0])))
    before, first = run.histogram.shares, run.released[0].charge
    run.hit(NO_CATEGORY)
    assert np.allclose(run.histogram.shares, before, rtol=1e-14, atol=0)
    assert run.released[1].charge == first
    assert opened(run.chain) is None, "of a number of hits it is one"


def at_random(cardinality, choose):
    return LinearQuery.weighing(np.array([choose.random() for _ in range(cardinality)]))


@both
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_every_slot_pays_once_for_each_instance_that_was_open(privacy, settings):
    choose = Random(5)
    run = Run(queries(privacy, **settings))
    kind, owed, hits = run.mechanism.currency, defaultdict(Fraction), 0
    run.arrive([choose.randrange(4) for _ in range(25)])
    for _ in range(60):
        now = opened(run.chain)
        if now is None:
            break
        there = set(range(run.position))
        if choose.random() < 0.5:
            run.arrive([choose.randrange(4) for _ in range(choose.randrange(1, 4))])
        else:
            run.hit(at_random(4, choose))
            hits += 1
            for slot in there:
                owed[slot] += Fraction(round_up(OpenedInstance(instance=now.instance).cost(kind, records=1)))
                owed[slot] += Fraction(run.released[-1].charge)
        assert run.worst <= run.mechanism.capacity
    if now := opened(run.chain):
        for slot in range(run.position):
            owed[slot] += Fraction(round_up(OpenedInstance(instance=now.instance).cost(kind, records=1)))
    assert run.spent == owed
    assert hits >= 2


@pytest.mark.more
@both
def test_a_fixed_number_of_hits_is_had_and_not_one_more(privacy):
    for hits in (1, 7, 100):
        run = Run(queries(privacy, hits=hits))
        run.arrive([0] * 20)
        for _ in range(hits):
            assert opened(run.chain) is not None
            run.hit(LinearQuery.holding(np.array([1])))
        assert opened(run.chain) is None
        assert 0.999 < run.worst / run.mechanism.capacity <= 1
        before = run.worst
        run.arrive([0] * 20)
        assert (run.worst, run.position) == (before, 40), "a frozen histogram grows older, and nobody pays"
        answer, measured = run.ask(LinearQuery.holding(np.array([2])))
        assert not measured
        assert answer == run.histogram.shares[2]


@both
def test_an_instance_opens_only_where_all_of_it_can_be_paid(privacy):
    run = Run(queries(privacy, accuracy=0.9))
    run.arrive([0] * 20)
    now, mechanism = opened(run.chain), run.mechanism
    measurement = mechanism.measure(now, NO_CATEGORY, run.counts, run.histogram)
    step = mechanism.close(now, measurement, Fraction(0), 1)
    answer = mechanism._answer_charge(opened(step.chain).instance)
    whole = sum(map(Fraction, (step.releases[0].charge, step.charges[0].amount, answer)))
    for left, opens in ((whole, True), (whole - Fraction(1, 2**200), False)):
        after = mechanism.close(now, measurement, mechanism.capacity - left, 1)
        assert (opened(after.chain) is not None) is opens


def test_what_is_charged_falls_with_the_root_of_the_records_and_a_number_of_hits_keeps_it():
    for settings, ratio in (({"accuracy": 0.5}, 2), ({"hits": 9}, 1)):
        run = Run(queries(PURE, **settings))
        run.arrive([0] * 80)
        first = opened(run.chain).instance
        run.hit(LinearQuery.holding(np.array([0])))
        later = opened(run.chain).instance
        assert (first.opened, later.opened) == (20, 80)
        assert later.scale / first.scale == pytest.approx(ratio)


class Large(Run):
    """A run of so many slots that a ledger kept by brute force would take its time."""

    worst = Fraction(0)

    def charge(self, start, stop, amount):
        pass


@both
def test_with_as_many_records_as_the_plan_asks_for_every_answer_is_within_the_accuracy(privacy):
    count, alpha, cardinality = 300, 0.3, 6
    settings = {"accuracy": alpha, "cardinality": cardinality, "failure_probability": 1e-6}
    first = queries(privacy, **settings).records_needed(count)
    run, choose, hard = Large(queries(privacy, first=first, **settings)), Random(11), 0
    skewed = [0.7, 0.2, 0.05, 0.03, 0.02, 0.0]
    run.arrive(np.random.default_rng(1).choice(cardinality, p=skewed, size=first).tolist())
    counts = run.counts
    for number in range(count):
        one = LinearQuery.holding(np.array([number % cardinality]))
        query = at_random(cardinality, choose) if choose.random() < 0.5 else one
        answer, measured = run.ask(query)
        hard += measured
        assert abs(answer - query.count(counts) / (STEPS * first)) <= alpha
    assert 1 <= hard <= run.mechanism.reckoned_hits


def test_the_bound_on_records_is_that_of_its_derivation():
    alpha, beta, count, cardinality = 0.2, 0.05, 1000, 31
    mechanism = queries({"epsilon": 1}, accuracy=alpha, cardinality=cardinality, failure_probability=beta)
    needed = mechanism.records_needed(count)
    formula = 54 * 3 * (162 / 143) * log(cardinality + 1) * log((3 * count + 1) / beta) / alpha**3
    assert needed == pytest.approx(formula, rel=0.01)  # but for the 1 in 1 + 3·H0
    assert needed < 2916 * log(cardinality + 1) * log(2 * count / beta) / alpha**3 / 12, "paper-audit.md 3.1"


def test_a_step_lowers_the_entropy_to_the_truth_by_what_the_hits_are_reckoned_with():
    choose = np.random.default_rng(2)
    for _ in range(300):
        truth, shown = choose.dirichlet(np.full(7, 0.4)), choose.dirichlet(np.full(7, 2.0))
        query = LinearQuery.weighing(choose.random(6))
        gap = query.of(truth[:6]) - query.of(shown[:6])
        off = choose.uniform(-0.1, 0.1)
        moved = Histogram(shares=shown[:6], time=9).moved(query, gap + off)
        after = np.append(moved.shares, 1 - moved.shares.sum())
        positive = truth > 0
        fell = np.sum(truth[positive] * np.log(after[positive] / shown[positive]))
        assert fell >= 2 * gap**2 - 2 * off**2 - 1e-9


def test_growth_telescopes_and_keeps_a_share_for_empty_slots():
    histogram = Histogram(shares=np.array([0.5, 0.1, 0.0]), time=10)
    slowly = histogram
    for time in range(11, 31):
        slowly = slowly.grown(time)
    assert np.allclose(slowly.shares, histogram.grown(30).shares)
    assert histogram.grown(10**9).shares == pytest.approx(0.25, abs=1e-6)
    assert Histogram.uniform(3, 0).shares.sum() == 0.75


def test_records_are_counted_in_together_and_seldom_once_there_are_many():
    mechanism = queries(PURE, hits=2)
    assert [mechanism.next_time(0), mechanism.taken_at(20, 500), mechanism.next_time(20)] == [20, 20, 21]
    assert [mechanism.taken_at(21, 500), mechanism.next_time(500), mechanism.next_time(10**6)] == [500, 501, 1_000_977]
    steps, time = 0, 20
    while (time := mechanism.next_time(time)) < 10**9:
        steps += 1
    assert steps < 20_000
    assert mechanism.needs(10**6) == 0


@pytest.mark.parametrize("noise", [0, 1, -1, 2**31, -(2**31), 2**61 + 12345, -(2**61) - 54321])
def test_a_threshold_is_kept_to_the_last_step(noise):
    run = Run(queries(PURE, hits=2))
    run.arrive([0] * 20)
    now = opened(run.chain)
    state = linear_queries.Opened(number=3, instance=now.instance, noise=noise, paid=77)
    assert opened([state.part()]) == state


def test_what_is_not_there_is_not_drawn_again():
    for chain in ((), (StatePart(number=1, values=np.zeros(3)),), (StatePart(number=1, values=np.zeros(0)),) * 2):
        with pytest.raises(StateLost):
            opened(chain)
    run = Run(queries(PURE, hits=2))
    with pytest.raises(StateLost):
        run.mechanism.step(30, (), 1, None)


@both
def test_noise_alone_makes_no_query_hard_where_only_a_number_of_hits_was_asked_for(privacy):
    run = Large(queries(privacy, hits=5, first=5000, failure_probability=1e-6))
    run.arrive([0, 1, 2, 3] * 1000 + [0] * 1000)
    run.histogram = Histogram(shares=run.counts / 5000, time=5000)
    assert not any(run.ask(LinearQuery.holding(np.array([number % 4])))[1] for number in range(1000))


def test_a_threshold_is_drawn_once_for_an_instance_and_anew_for_the_next():
    """Two of 20 are the same with probability at most 190/(4·scale), below 1e-6."""
    run = Run(queries(PURE, hits=50))
    run.arrive([0] * 20)
    seen = []
    for _ in range(20):
        noise = opened(run.chain).noise
        run.arrive([1])
        assert opened(run.chain).noise == noise
        seen.append(noise)
        run.hit(LinearQuery.holding(np.array([0])))
    assert len(set(seen)) == 20


@both
def test_a_plan_says_how_many_records_it_takes_and_warns_where_there_are_fewer(privacy):
    mechanism = queries(privacy, accuracy=0.2, first=100)
    plan = mechanism.plan()
    needed = {each["queries"]: each["records"] for each in plan["records_needed"]}
    assert needed == {1000: mechanism.records_needed(1000), 1_000_000: mechanism.records_needed(1_000_000)}
    assert str(needed[1000]) in plan["warning"]
    enough = queries(privacy, accuracy=0.2, first=needed[1000]).plan()
    assert "warning" not in enough
    assert enough["first_instance"]["error_bound"]["easy"] <= 0.2
    charges = plan["first_instance"]["charge"]
    first = Fraction(charges["comparisons"]) + Fraction(charges["answer"])
    share = 1 + (3 if mechanism.currency is Currency.PURE else 2) * plan["hits"]
    assert float(first * Fraction(share) / mechanism.capacity) == pytest.approx(1)
    few = queries(privacy, hits=3, first=10_000)
    assert "warning" not in few.plan()
    assert few.plan()["height"] == pytest.approx(5 / 6 * few.alpha)
    assert few.alpha < 0.2
    assert queries(privacy, hits=3, first=20_000).alpha == pytest.approx(few.alpha / 2)
    assert "warning" in queries(privacy, hits=10**6, first=20).plan()


@pytest.mark.parametrize("privacy", [{"epsilon": 1}, {"epsilon": 1, "delta": 1e-6}])
def test_a_plan_for_some_hits_says_what_all_of_them_cost_together(privacy):
    lifetime = queries(privacy, hits=3, first=10_000).plan()["lifetime"]
    amount = "rho" if "rho" in lifetime else "epsilon"
    assert [part["fits"] for part in lifetime["parts"]] == [3, 3]
    assert sum(part[amount] for part in lifetime["parts"]) == pytest.approx(lifetime[amount])


def test_what_cannot_be_is_refused_with_the_reason():
    def refused(schema, mechanism, **more):
        configuration = {"mechanism": {"kind": "linear_queries", "first": 5} | mechanism, "privacy": PURE} | more
        with pytest.raises(Refused) as problem:
            build(StreamSchema.model_validate(schema), PublicationConfiguration.model_validate(configuration))
        return problem.value.path

    categories = {"task": {"kind": "categorical", "cardinality": 9}}
    labels = {"features": 2, "task": {"kind": "classification", "classes": 2}}
    many = {"task": {"kind": "categorical", "cardinality": MAX_CARDINALITY + 1}}
    assert refused(labels, {"hits": 1}) == "mechanism.kind"
    assert refused(many, {"hits": 1}) == "mechanism.kind"
    assert refused(categories, {"hits": 1}, learner={"kind": "output_perturbation"}) == "learner"
    assert refused(categories, {"hits": 10**9}, privacy={"epsilon": 1e-9}) == "privacy.epsilon"


def test_an_accuracy_or_a_number_of_hits_is_needed_and_a_learner_elsewhere():
    with pytest.raises(ValueError, match="an accuracy or a number of hits"):
        queries(PURE)
    with pytest.raises(ValueError, match="learner\n  Field required"):
        PublicationConfiguration.model_validate({"mechanism": {"kind": "multi_resolution", "base": 3}, "privacy": PURE})


def test_a_budget_that_noise_cannot_follow_any_further_freezes():
    run = Run(queries(PURE, hits=3))
    run.arrive([0] * 20)
    now = opened(run.chain)
    assert run.mechanism._next(now, 20, run.mechanism.capacity) is None
    assert run.mechanism._next(now, 20, run.worst + Fraction(1, 3)) is not None
    assert ceil(run.mechanism.reckoned_hits) > 0


@pytest.mark.parametrize("following", [None, Instance(opened=2, scale=3.0)])
def test_a_hit_says_what_it_measured_and_which_instances_it_closed_and_opened(following):
    hit = MeasuredQuery(currency=Currency.PURE, scale=8.0, closed=Instance(opened=1, scale=8.0), opened=following)
    assert hit.to_json() == {
        "distribution": numeric_sparse.DISTRIBUTIONS[Currency.PURE],
        "scale": 8.0,
        "sensitivity": STEPS,
        "dimension": 1,
        "added_to": "query",
        "instance": {"opened": 1, "scale": 8.0},
        "next": following and {"opened": 2, "scale": 3.0},
    }

"""Every number and formula of docs/privacy.md and of what docs/noise.md says of the cap is what the code does.

Each test computes by other means than the service what the page says, and reads numbers where the page has them. The
cost of several records of one person is in tests/privacy/test_several_records.py.
"""

import math
import re
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from scipy import optimize, stats

from service.mechanisms.admission import admit
from service.mechanisms.configuration import PublicationConfiguration, Refused
from service.privacy.accounting.composition import Component, PrivacyLoss, add_up
from service.privacy.currency import Currency, capacity, zcdp_epsilon, zcdp_rho
from service.privacy.noise.additive import Gaussian, SphericalLaplace, calibrate
from service.privacy.noise.sampler_distance import LARGEST_DELTA, added_delta, largest_epsilon
from service.schedules.continual import Continual
from service.schedules.improving_black_box import ImprovingBlackBox
from service.schedules.independent_batches import IndependentBatches
from service.schedules.multi_resolution import MultiResolution
from service.schedules.scheduled_black_box import ScheduledBlackBox
from service.schedules.sliding_window import SlidingWindow
from service.streams.schema import StreamSchema
from tests import chance
from tests.docs import pages
from tests.mechanisms import cases

STREAM = StreamSchema.model_validate({"features": 3, "task": {"kind": "classification", "classes": 2}})


def stated(sentence, page="privacy.md"):
    """Return the groups of this pattern on the page, whose line breaks count as spaces; fail where it is not."""
    match = re.search(sentence, " ".join(pages.page(page).split()))
    assert match, f"{page} does not say: {sentence}"
    return match.groups()


def hockey_stick(p, q, epsilon):
    """The least δ with P(S) ≤ e^ε·Q(S) + δ for all S."""
    return float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum())


RHOS = [(1e-4, 1e-6), (0.0175, 1e-6), (0.2, 1e-9), (3.0, 1e-5), (40.0, 1e-3)]


@pytest.mark.parametrize(("rho", "delta"), RHOS)
def test_rho_implies_the_epsilon_of_the_formula(rho, delta):

    def at(log_order):
        a = 1.0 + math.exp(log_order)
        return a * rho + (math.log(1 / delta) + (a - 1) * math.log(1 - 1 / a) - math.log(a)) / (a - 1)

    grid = np.linspace(-12, 14, 20_001)
    start = grid[np.argmin([at(each) for each in grid])]
    least = optimize.minimize_scalar(
        at, bounds=(start - 0.01, start + 0.01), method="bounded", options={"xatol": 1e-12}
    )
    assert least.fun * (1 - 1e-9) <= zcdp_epsilon(rho, delta) <= least.fun * (1 + 1e-9)


@pytest.mark.parametrize(("rho", "delta"), RHOS)
def test_a_gaussian_of_that_rho_has_no_more_delta_than_stated(rho, delta):
    """By its exact curve (Balle, Wang 2018): another way to the same claim."""
    epsilon, mu = zcdp_epsilon(rho, delta), math.sqrt(2 * rho)
    exact = stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon + stats.norm.logcdf(-mu / 2 - epsilon / mu))
    assert 0 < exact <= delta


def test_the_cap_is_epsilon_itself_or_the_largest_rho():
    assert capacity(Decimal("0.7"), Decimal(0)) == (Currency.PURE, Fraction(7, 10))
    kind, rho = capacity(Decimal("0.7"), Decimal("1e-6"))
    assert kind is Currency.ZCDP
    assert zcdp_epsilon(float(rho), 1e-6) <= 0.7 < zcdp_epsilon(float(rho) * (1 + 1e-9), 1e-6)
    assert float(rho) == zcdp_rho(0.7, 1e-6)


@pytest.mark.parametrize(
    ("kind", "law", "growth"), [(Currency.PURE, SphericalLaplace, 4), (Currency.ZCDP, Gaussian, 2)]
)
def test_noise_grows_with_the_number_of_weights_or_its_root(kind, law, growth):
    few, many = (calibrate(kind, sensitivity=1.0, charge=0.5, dimension=each) for each in (100, 400))
    assert isinstance(few, law)
    follow = chance.assert_spherical_laplace if kind is Currency.PURE else chance.assert_gaussian
    for each in (few, many):
        follow([each.sample() * each.grid for _ in range(20)], scale=each.scale)
    assert many.expected_norm() / few.expected_norm() == pytest.approx(growth, rel=1e-3)


def test_a_delta_gives_away_so_many_records_on_average():
    exponent, records = stated("with δ = 10⁻(.) would give away 1 record of ([0-9,]+) on average")
    delta = 10.0 ** -int(exponent.translate(str.maketrans("⁶", "6")))
    assert int(records.replace(",", "")) * delta == pytest.approx(1)
    published, neighbour = np.array([delta, 0, 1 - delta]), np.array([0, delta, 1 - delta])
    assert hockey_stick(published, neighbour, 0.0) == pytest.approx(delta)


def component(number, epsilon, delta="0", *, running=True, start=0):
    cap = PrivacyLoss.of(Decimal(epsilon), Decimal(delta))
    kind = Currency.ZCDP if cap.delta else Currency.PURE
    return Component(id=number, currency=kind, cap=cap, start=start, running=running)


def test_publications_add_up_as_sums_of_epsilon_and_of_delta():
    three = [component(1, "0.1"), component(2, "0.2", "1e-6", start=5), component(3, "0.3", "2e-6")]
    (early, late) = add_up(three, [])
    assert early.reserved == PrivacyLoss(epsilon=Fraction(4, 10), delta=Fraction(2, 10**6))
    assert (late.start, late.reserved) == (5, PrivacyLoss(epsilon=Fraction(6, 10), delta=Fraction(3, 10**6)))


def test_two_mechanisms_together_need_all_of_both_sums():
    """Nothing less than (Σε, Σδ) holds in general: it is reached."""
    epsilon, delta = 0.4, 1e-3
    spread = (1 - delta) / (1 + math.exp(epsilon))
    p = np.array([delta, spread * math.exp(epsilon), spread, 0])
    q = p[::-1]
    assert hockey_stick(p, q, epsilon) == pytest.approx(delta)
    both = hockey_stick(np.outer(p, p).ravel(), np.outer(q, q).ravel(), 2 * epsilon)
    assert both <= 2 * delta
    assert both == pytest.approx(2 * delta, rel=1e-3)


def test_stopping_gives_back_what_was_not_charged():
    pure, gaussian = component(1, "0.5", running=False), component(2, "0.5", "1e-6", running=False)
    (before, charged, after) = add_up(
        [pure, gaussian], sorted((r, n, s * Fraction(1, 1000)) for n in (1, 2) for r, s in ((3, 1), (7, -1)))
    )
    assert (before.reserved, after.reserved) == (PrivacyLoss(), PrivacyLoss())
    assert charged.reserved == PrivacyLoss(epsilon=Fraction(1, 1000) + Fraction(1, 2), delta=Fraction(1, 10**6))


def test_batches_that_do_not_overlap_cost_each_record_one_fit():
    schedule, charged = IndependentBatches(batch=10), np.zeros(500, dtype=object)
    for time in range(501):
        for fit in schedule.fits(time):
            charged[fit.start : fit.end] += fit.share
    assert set(charged) == {1}


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_the_group_formula_holds_and_is_reached(count):
    epsilon, delta = 0.7, 1e-4
    bound = delta * sum(math.exp(each * epsilon) for each in range(count))
    first = [0.0]
    while len(first) <= count:
        first.append(delta + math.exp(epsilon) * first[-1])
    chain = [np.array([each, 1 - each]) for each in first]
    for one, other in pairwise(chain):
        assert max(hockey_stick(one, other, epsilon), hockey_stick(other, one, epsilon)) <= delta * (1 + 1e-9)
    assert hockey_stick(chain[-1], chain[0], count * epsilon) == pytest.approx(bound)


def test_the_group_formula_holds_for_laws_of_any_kind():
    random, epsilon, count = np.random.default_rng(1), 0.5, 3
    for _ in range(200):
        chain = [random.dirichlet(np.ones(6))]
        for _ in range(count):
            law = chain[-1] * np.exp(random.uniform(-0.4, 0.4, 6)) + random.uniform(0, 0.01, 6)
            chain.append(law / law.sum())
        pairs = list(pairwise(chain))
        delta = max(max(hockey_stick(a, b, epsilon), hockey_stick(b, a, epsilon)) for a, b in pairs)
        bound = delta * sum(math.exp(each * epsilon) for each in range(count))
        assert hockey_stick(chain[0], chain[-1], count * epsilon) <= bound + 1e-12


@pytest.mark.parametrize("count", [1, 2, 4])
def test_pure_epsilon_is_lost_m_times_and_rho_up_to_m_squared(count):
    """Moving a value m times as far costs m·ε with spherical Laplace noise, and m²·ρ with Gaussian noise."""
    pure, gaussian = SphericalLaplace(scale=2.0, dimension=1), Gaussian(scale=2.0, dimension=1)
    assert pure.charge(float(count)) == pytest.approx(count * pure.charge(1.0))
    assert gaussian.charge(float(count)) == pytest.approx(count**2 * gaussian.charge(1.0))


def test_a_fit_that_reads_k_of_them_costs_k_squared_and_separate_ones_add():
    noise, rho = Gaussian(scale=3.0, dimension=5), Gaussian(scale=3.0, dimension=5).charge(1.0)
    assert noise.charge(3.0) == pytest.approx(9 * rho)
    several = np.array([0.1, 0.4, 0.02])
    assert np.sqrt(several).sum() ** 2 <= 3 * several.sum() <= 9 * several.max()


def test_the_same_event_twice_costs_twice_or_four_times():
    pure, gaussian = stated(r"The same event under two numbers is two records of one person: (\d)ε, and up to (\d)ρ")
    laws = (SphericalLaplace(scale=2.0, dimension=3), int(pure)), (Gaussian(scale=2.0, dimension=3), int(gaussian))
    for law, times in laws:  # both in one batch, whose sum they move twice as far
        assert law.charge(2.0) == pytest.approx(times * law.charge(1.0))


@pytest.mark.parametrize("batches", [5, 50])
def test_an_inserted_record_changes_a_record_of_every_later_fit(batches):
    schedule, records = IndependentBatches(batch=10), list(range(10 * batches + 1))
    shifted, changed = [-1, *records], 0
    for time in range(10 * batches + 1):
        for fit in schedule.fits(time):
            changed += records[fit.start : fit.end] != shifted[fit.start : fit.end]
            assert len({*records[fit.start : fit.end]} ^ {*shifted[fit.start : fit.end]}) == 2  # one out, one in
    assert changed == batches


def test_a_late_release_tells_so_many_bits():
    """A release can be 0 … j ticks late: j + 1 messages, and no law of them tells more than a uniform one."""
    for late in (1, 3, 7):
        uniform = np.full(late + 1, 1 / (late + 1))
        assert stats.entropy(uniform, base=2) == pytest.approx(math.log2(late + 1))
        other = np.random.default_rng(late).dirichlet(np.ones(late + 1))
        assert stats.entropy(other, base=2) <= math.log2(late + 1)


def request(epsilon, delta=0, kind="output_perturbation", mechanism=None):
    mechanism = mechanism or {"kind": "independent_batches", "batch": 10}
    privacy = {"epsilon": epsilon, "delta": delta}
    return PublicationConfiguration.model_validate(
        {"mechanism": mechanism, "learner": {"kind": kind}, "privacy": privacy}
    )


@pytest.mark.parametrize("page", ["privacy.md", "noise.md"])
def test_the_cap_of_pure_epsilon_is_as_stated(page):
    shape = {
        "privacy.md": r"it would pass 2⁻⁶⁰: ε is at most ([\d.]+) for 1 draw, and ([\d.]+) for 65,536 draws",
        "noise.md": r"The bound is ([\d.]+) for d = 1 and ([\d.]+) for d = 2¹⁶",
    }
    one, many = stated(shape[page], page)
    for draws, cap in ((1, one), (2**16, many)):
        assert f"{float(largest_epsilon(draws)):.1f}" == cap
        assert added_delta(Fraction(largest_epsilon(draws)), draws) <= LARGEST_DELTA == Fraction(1, 2**60)


def test_a_plan_states_the_delta_of_the_page_and_a_larger_one_is_refused():
    mechanism, kind = {"kind": "online_leader", "batch": 10}, "noisy_gradient_descent"
    shown = admit(STREAM, request(2, kind=kind, mechanism=mechanism)).plan()["guarantee"]["sampling"]
    assert shown["delta"] == pytest.approx((1 + math.exp(2)) * 2**16 * 2**-100, rel=1e-12)
    assert shown["draws"] == 2**16
    with pytest.raises(Refused):
        admit(STREAM, request(16.7, kind=kind, mechanism=mechanism))


def test_how_many_fits_read_one_record_is_as_the_page_on_noise_says():
    rows = {
        name.replace("`", ""): cells[1]
        for name, cells in pages.rows(pages.page("noise.md"), "## What is only nearly so, and counted").items()
    }
    numbers = {
        name: [int(each) for each in re.findall(r"(?<![\d.`])(?:^|(?<=; ))(\d+)", cell)] for name, cell in rows.items()
    }
    kind = Currency.PURE

    def continual(base, update_every):
        return Continual(currency=kind, base=base, update_every=update_every).most_fits()

    def scheduled(first, growth):
        return ScheduledBlackBox(currency=kind, first=first, growth=Fraction(growth)).most_fits()

    assert numbers == {
        ", ".join(["independent_batches", *cases.of_families("DRAWS"), "lifelong", "active_learning"]): [1],
        "sliding_window": [
            SlidingWindow(currency=kind, block=1, blocks=7).most_fits(),
            SlidingWindow(currency=kind, block=1, blocks=700, warm_up=True).most_fits(),
        ],
        "multi_resolution": [MultiResolution(currency=kind, base=1).most_fits()],
        "continual": [continual(1, 1), continual(1000, 100)],
        "scheduled_black_box": [scheduled(1000, "0.1"), scheduled(1, "0.01")],
        "improving_black_box": [
            ImprovingBlackBox(currency=kind, first=1, every=1, exponent=Decimal("0.25")).most_fits()
        ],
        "online_leader": [1],
    }


def test_how_many_draws_a_step_of_running_sums_has_is_as_the_page_on_noise_says():
    blt, toeplitz, trees = stated(
        r"`blt` ([\d,]+), `toeplitz` as many as it has coefficients \((\d+) with γ = 0.97\), trees one for each level "
        r"\((\d+) at most\)",
        "noise.md",
    )
    for noise, draws in (("blt", blt), ("toeplitz", toeplitz), ("tree", trees)):
        mechanism = {"kind": "online_leader", "batch": 1, "noise": noise}
        assert admit(STREAM, request(1, kind="noisy_gradient_descent", mechanism=mechanism)).draws() == int(
            draws.replace(",", "")
        )

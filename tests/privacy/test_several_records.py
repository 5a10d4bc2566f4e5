"""The cost of several records of one person together, from the code's own factors, beside the pages' numbers.

One record in each of the batches b_1 < … < b_m costs ‖Σ_j c^(b_j)‖²/‖c‖² times one record's ρ, c^(b) being the factor's
column shifted to batch b (docs/privacy.md, "Several records of one person"). Here c^(b) is measured: by how much the
record of batch b moves what the code adds each draw of noise to. The table is of neighbouring batches, in a tree of
those where they cost most.
"""

import re
from functools import cache
from math import isclose

import numpy as np
import pytest

from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration
from service.privacy.currency import Currency
from service.privacy.noise import additive as noise
from service.privacy.noise.additive import Gaussian
from service.privacy.noise.correlated import Blt, Toeplitz, Tree
from service.privacy.noise.running_sums import moved_draws, with_noise
from service.privacy.noise.window_tree import WindowTree
from service.streams.schema import StreamSchema
from tests.docs import pages
from tests.mechanisms import cases

COUNTS = (2, 10, 50)
NOISES = {  # as the table of docs/privacy.md names them
    "independent": Toeplitz(bands=1, decay=1.0),
    "blt, γ = 0.97": Blt.decaying(0.97),
    "blt, γ = 6/7": Blt.decaying(1.0 - 1.0 / 7),
    "toeplitz, γ = 0.97": Toeplitz.for_ever(0.97),
    "window_tree, W = 64": Tree(steps=64),
    "window_tree, W = 64, expiry block": WindowTree(window=64, expiry="block"),
    "window_tree, W = 64, expiry leaf": WindowTree(window=64, expiry="leaf"),
}
DOUBLING = "tree"
SCHEMA = StreamSchema.model_validate({"features": 3, "task": {"kind": "classification", "classes": 2}})


def horizon(factor):
    """After how many steps nothing of the first 64 batches is left to see, in as many digits as are looked at."""
    match factor:
        case WindowTree():
            return 3 * factor.window
        case Toeplitz():
            return 64 + factor.bands
        case _:
            return min(600, factor.steps)


def moved(factor, units):
    """How far so much more in the first batches moves what each draw of noise is added to, in order.

    units: shape (batches, changes), several changes at once, each in a dimension of its own; so is what is returned.
    The neighbour is all zeros, and so is what is released of both: of the neighbour noise is added to zeros.
    """
    batches, changes = units.shape
    mechanism = with_noise(factor, Gaussian(scale=2.0**20, dimension=changes), 2.0)
    centres, memory = [], ()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noise, "add", lambda centre, _law: centres.append(centre) or np.zeros(changes))
        for step in range(horizon(factor)):
            _, memory = mechanism.release(units[step] if step < batches else np.zeros(changes), memory, step)
    return np.abs(centres)


@cache
def columns(factor):
    return moved(factor, np.eye(64 + COUNTS[-1])).T


def column(factor, batch):
    return columns(factor)[batch]


def ratio(factor, count):
    """‖Σ_j c^(b_j)‖²/‖c‖² of so many neighbouring batches, where that is most."""
    last = min(64, horizon(factor) - count) if isinstance(factor, Tree | WindowTree) else 0
    starts = range(last + 1)
    together = (sum(column(factor, start + each) for each in range(count)) for start in starts)
    return max(np.square(each).sum() for each in together) / square(factor)


def square(factor):
    """‖c‖², for which a record is charged."""
    return float(factor.levels) if isinstance(factor, WindowTree) else float(factor.column.square)


def three_digits(value):
    return float(f"{value:.3g}")


def table():
    rows = pages.rows(pages.page("privacy.md"), "## Several records of one person")
    return {name.replace("`", ""): [float(cell.replace(",", "")) for cell in cells[1:]] for name, cells in rows.items()}


@pytest.mark.parametrize("name", NOISES)
def test_the_page_says_what_records_in_neighbouring_batches_cost(name):
    printed = table()[name]
    assert printed == [three_digits(ratio(NOISES[name], count)) for count in COUNTS]
    for count, times in zip(COUNTS, printed, strict=True):
        assert count <= times <= count**2
        assert name == "independent" or times > 1.2 * count, "noise that is carried on costs more than m times"


def test_the_page_has_a_line_for_every_noise():
    assert set(table()) == {*NOISES, DOUBLING}


def test_trees_that_double_come_as_near_to_m_squared_as_one_likes():
    """Each doubling adds a node that holds all m batches to the columns' sum, and one level to ‖c‖²."""
    printed = table()[DOUBLING]
    for count, most in zip(COUNTS, printed, strict=True):
        small, large = (np.square(sum(column(Tree(steps=n), b) for b in range(count))).sum() for n in (128, 256))
        assert large - small == most == count**2
        assert small / Tree(steps=128).levels < most


@pytest.mark.parametrize("name", NOISES)
def test_a_record_moves_what_it_is_charged_for(name):
    factor = NOISES[name]
    most = max(np.square(column(factor, batch)).sum() for batch in range(64))
    assert isclose(most, square(factor), rel_tol=1e-6)
    assert max((column(factor, batch) > 0).sum() for batch in range(64)) <= moved_draws(factor)


@pytest.mark.parametrize("name", NOISES)
def test_shifts_add_and_m_squared_is_always_enough(name):
    factor, batches = NOISES[name], (0, 1, 5, 17, 40)
    together = moved(factor, np.isin(np.arange(64), batches)[:, None].astype(float)).ravel()
    np.testing.assert_allclose(together, sum(column(factor, each) for each in batches), rtol=1e-6, atol=1e-9)
    single = max(column(factor, each).sum() for each in batches)
    assert np.square(together).sum() <= len(batches) ** 2 * square(factor) * (1 + 1e-9)
    assert together.sum() <= len(batches) * single * (1 + 1e-9)  # of pure ε: m times


@pytest.mark.parametrize(
    ("mechanism", "learner", "name"),
    [
        ({"kind": "online_leader", "batch": 8}, "noisy_gradient_descent", "blt, γ = 0.97"),
        (
            {"kind": "online_leader", "batch": 8, "noise": "toeplitz"},
            "noisy_gradient_descent",
            "toeplitz, γ = 0.97",
        ),
        (
            {"kind": "online_leader", "batch": 8, "noise": "window_tree", "window": 64},
            "noisy_gradient_descent",
            "window_tree, W = 64",
        ),
        ({"kind": "lifelong", "task_size": 8}, "output_perturbation", "blt, γ = 0.97"),
        ({"kind": "lifelong", "task_size": 8, "memory": 2}, "output_perturbation", "independent"),
        *cases.of_families("CARRIED_NOISE").values(),
    ],
    ids=lambda each: each["kind"] if isinstance(each, dict) else each,
)
def test_the_table_is_about_what_publications_have(mechanism, learner, name):
    body = {"mechanism": mechanism, "learner": {"kind": learner}, "privacy": {"epsilon": 1, "delta": 1e-6}}
    built = build(SCHEMA, PublicationConfiguration.model_validate(body))
    assert built.learner.perturbation(Currency.ZCDP, 0.01, 8).factor == NOISES[name]


PLACES = ("privacy.md", "paper-audit.md", "mechanisms/lifelong.md")


@pytest.mark.parametrize("page", PLACES)
def test_no_page_says_that_a_person_loses_m_times_as_much_under_carried_noise(page):
    """Wherever a page speaks of a person's records and ρ, it gives what carried noise costs, as it is."""
    passages = re.split(r"\n\s*\n|\n(?= *- )", pages.page(page))
    with_rho = [" ".join(each.split()) for each in passages if "ρ" in each]
    assert any("‖Σ_j c^(b_j)‖²/‖c‖²" in each for each in with_rho)
    for count in COUNTS:
        assert f"{three_digits(ratio(NOISES['blt, γ = 0.97'], count)):g}" in pages.page(page)
    of_persons = [each for each in with_rho if re.search(r"\bperson\b|records|\bm tasks|\bm batches", each)]
    for sentence in (each for passage in of_persons for each in re.split(r"(?<=[.;])\s", passage)):
        if re.search(r"\bmρ|\bm·ρ|\bm times", sentence):
            assert re.search(r"\bindependent|\bpure", sentence, flags=re.IGNORECASE), sentence

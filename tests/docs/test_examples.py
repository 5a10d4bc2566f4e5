"""Examples in docstrings are true."""

import doctest
from importlib import import_module
from pkgutil import iter_modules

import pytest

from service import schedules, streams
from service.privacy import noise
from service.streams import feature_maps

MODULES = [
    f"{package.__name__}.{module.name}"
    for package in (schedules, noise, streams, feature_maps)
    for module in iter_modules(package.__path__)
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_show_what_it_returns(name):
    assert doctest.testmod(import_module(name)).failed == 0


def test_every_schedule_has_an_example():
    """Files of schedules that define one, in whose docstring somebody sees when it fits what."""
    finder = doctest.DocTestFinder()
    with_example = {name for name in MODULES for found in finder.find(import_module(name)) if found.examples}
    assert {
        f"service.schedules.{name}"
        for name in (
            "continual",
            "improving_black_box",
            "independent_batches",
            "multi_resolution",
            "scheduled_black_box",
            "sliding_window",
        )
    } <= with_example

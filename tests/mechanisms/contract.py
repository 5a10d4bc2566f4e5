"""The contract of every mechanism, whatever it learns, to which a family's examples are held."""

import json
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import numpy as np

from service.learning.family import LinearFamily
from service.learning.records import Records
from service.learning.registry import LEARNERS
from service.ledger.verify.samples import expires_as_promised
from service.ledger.verify.sensitivities import is_too_flat, least_sensitivity
from service.mechanisms import building
from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration
from service.mechanisms.evaluation.mechanism import Evaluation
from service.mechanisms.registry import MECHANISMS
from service.mechanisms.released_models import Made, Predictions, Progress
from service.privacy.accounting import events
from service.streams.schema import StreamSchema
from service.streams.slots import ALL_SLOTS

DELTAS = [0, 1e-6]


def linear_learners():
    """Return the settings of every example of a learner of linear models, by name."""
    linear = [family for family in LEARNERS if isinstance(family, LinearFamily)]
    return {name: example for family in linear for name, example in family.examples.items()}


def mechanisms():
    """Return the settings of every example of a mechanism, by name."""
    return {name: example for family in MECHANISMS for name, example in family.examples.items()}


def learners_of(family):
    """Return the settings of every example of a learner of linear models that these mechanisms take."""
    taken = LEARNERS.kinds() if family.takes is None else [each.kind for each in family.takes]
    return [example for example in linear_learners().values() if example["kind"] in taken]


def configured(mechanism, learner, delta):
    return PublicationConfiguration.model_validate(
        {"mechanism": mechanism, "learner": learner, "privacy": {"epsilon": 1, "delta": delta}}
    )


def reader(schema, records=4096, training=ALL_SLOTS):
    """Return what reads records of a stream, made up, and the ranges that were read; of training slots alone."""
    rng = np.random.default_rng(0)
    x, y = (
        rng.normal(size=(records, schema.features or 0)),
        rng.integers(0, getattr(schema.task, "classes", 3), records),
    )
    seen = []

    def read(start, end):
        seen.append((start, end))
        slots = start + np.flatnonzero(training.among(start, end))
        return Records(x=x[slots], y=y[slots], slots=slots)

    return read, seen


class OneModel:
    """Publications that have released one model, which predicts class 0, before their first record."""

    def progress(self, name, first_slot):
        return Progress(releases=(Made(version=1, time=0),), passed=first_slot)

    def predict(self, name, version, x):
        long = np.ones(len(x), dtype=bool)
        return Predictions(labels=np.zeros(len(x)), confidences=np.full(len(x), 0.9), shortened=long)


def built(schema, configuration):
    """Return the mechanism as a worker runs it; an evaluation counts `OneModel`."""
    mechanism = build(StreamSchema.model_validate(schema.model_dump()), configuration)
    return replace(mechanism, models=OneModel()) if isinstance(mechanism, Evaluation) else mechanism


def keeps_its_promise(schema, configuration, releases=3, records=4096):
    """Assert that the publication pays for what it reads and releases, by what it says of its noise; return releases.

    schema: of the stream. It runs until there are so many releases.
    """
    mechanism, stored = built(schema, configuration), (schema.to_store(), configuration.stored())
    json.dumps(mechanism.plan(), allow_nan=False)
    assert mechanism.draws() >= 0
    read, seen = reader(schema, records, mechanism.training)
    spent: Counter[int] = Counter()
    time, chain, released = 0, (), []
    while len(released) < releases and (due := mechanism.next_time(time)) < records:
        needed, first = mechanism.needs(time), len(seen)
        step = mechanism.step(due, chain, len(released) + 1, read)
        assert all(needed <= start < end <= due for start, end in seen[first:])
        chain, time = step.chain, step.reached or due
        assert not step.finishes or mechanism.next_time(time) > records
        assert building.needs(*stored, 0, time) == mechanism.needs(time)
        assert building.declassified(*stored, time) == mechanism.declassified(time)
        for charge in step.charges:
            spent.update(dict.fromkeys(range(charge.start, charge.stop), Fraction(charge.amount)))
        for release in step.releases:
            _is_paid_for(mechanism, release, configuration.stored())
            if not release.at_arrival:
                spent.update(dict.fromkeys(range(*release.fit), Fraction(release.charge)))
        released += step.releases
    assert max(spent.values()) <= mechanism.capacity
    assert len(released) >= releases
    assert all(one.version < other.version for one, other in pairwise(released))
    return mechanism, released


def _is_paid_for(mechanism, release, promised):
    start, end = release.fit
    described = release.perturbation.to_json()
    slots = mechanism.training.count(start, end)
    event = events.from_json(described)
    assert expires_as_promised(event, promised)
    cost = event.cost(mechanism.currency, records=slots)
    assert 0.999 * release.charge < cost == release.perturbation.cost(mechanism.currency, slots)
    assert 0 < cost <= release.charge
    if isinstance(release.perturbation, events.AddedNoise):
        model = release.model or mechanism.model_description()
        assert release.perturbation.sensitivity >= least_sensitivity(release.perturbation, model)
        if isinstance(release.perturbation, events.TiltedObjective):
            assert not is_too_flat(release.perturbation, model)
    assert release.perturbation.dimension(release.parameters.shape) == described["dimension"]
    assert np.isfinite(release.parameters).all()

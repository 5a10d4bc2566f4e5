"""A mechanism and a learner that this file alone knows: they are registered, and everything else follows.

The learner is a classifier of means: it adds up each record times its label's code, divides by the number of slots and
adds noise. One record moves that mean by at most 2·norm_bound/n. The mechanism releases, after every batch, the mean of
its batch's model and of the release before, which is post-processing: a record pays for its batch's model alone.
"""

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pytest
from playwright.sync_api import Page, expect
from pydantic import Field, ValidationError

from service.inputs.fields import Count, Shape
from service.learning.family import LinearFamily
from service.learning.linear import Linear, LinearLearner
from service.learning.optimization.objective import MARGIN
from service.learning.optimization.solvers import SLACK, UNIT
from service.learning.registry import LEARNERS
from service.mechanisms import linear_settings
from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration, Refused
from service.mechanisms.family import MechanismFamily
from service.mechanisms.linear import LinearMechanism
from service.mechanisms.mechanism import Model, Release, Step
from service.mechanisms.registry import MECHANISMS
from service.privacy.accounting.events import NoisyWeights
from service.privacy.currency import Currency
from service.privacy.noise import additive
from service.schedules.independent_batches import IndependentBatches
from service.streams.schema import StreamSchema
from tests import chance
from tests.browser import browsers
from tests.conftest import Service, make_world, ok, publication, running
from tests.docs.pages import ROOT
from tests.guarantees.test_audits import attack
from tests.mechanisms import contract


class ToyMeansLearner(LinearLearner):
    """Means of records times their labels' codes, and noise."""

    kind: Literal["toy_means"]


@dataclass(frozen=True, kw_only=True)
class ToyMeans(Linear):
    """See the module docstring."""

    kind: ClassVar[str] = "toy_means"
    same_everywhere: ClassVar[bool] = True

    def describe(self, origin: Any) -> dict[str, Any]:
        return {"sensitivity": "2·norm_bound/n, and rounding"}

    def perturbation(self, kind: Currency, charge: float, records: int, center: Any = None) -> NoisyWeights:
        error = max(SLACK, 2.0 * UNIT * records * (records + 16.0)) * self.norm_bound
        sensitivity = MARGIN * (2.0 * self.norm_bound + 2.0 * error * records) / records
        noise = additive.calibrate(kind, sensitivity=sensitivity, charge=charge, dimension=self.dimension)
        return NoisyWeights(noise=noise, sensitivity=sensitivity)

    def release(self, records: Any, n: int, center: Any, perturbation: NoisyWeights) -> Any:
        rows, y = self.prepared(records)
        return additive.add(self._codes(y).T @ rows.rows().astype(np.float64) / n, perturbation.noise)

    def _codes(self, y: Any) -> Any:
        """Return a code of length at most 1 for each label, (m, rows)."""
        if not self.classes:
            return np.clip(y / self.loss.bound, -1.0, 1.0)[:, None]
        if self.shape[0] == 1:
            return np.where(y == 1, 1.0, -1.0)[:, None]
        return (y.astype(np.intp)[:, None] == np.arange(self.classes)).astype(np.float64)


TOY_LEARNER = LinearFamily(
    settings=ToyMeansLearner,
    source="nowhere",
    summary="on means",
    examples={"toy_means": {"kind": "toy_means"}},
    build=lambda model, settings, kind: ToyMeans(**vars(model)),
    accuracy_setting="mechanism.every",
)


class ToyEchoMechanism(Shape):
    """A model after every batch, halfway between that of the batch and the release before."""

    kind: Literal["toy_echo"]
    every: Annotated[Count, Field(description="records of a batch")]


@dataclass(frozen=True, kw_only=True, eq=False)
class ToyEcho(LinearMechanism):
    """See the module docstring."""

    def step(self, time, chain, next_version, read):
        (fit,) = self.schedule.fits(time)
        records, charge = fit.end - fit.start, self._charge(fit.share)
        perturbation = self.learner.perturbation(self.currency, charge, records, self.origin)
        fitted = self.learner.release(read(fit.start, fit.end), records, self.origin, perturbation)
        before = [each.parameters for each in chain if isinstance(each, Model)]
        parameters = (fitted + before[0]) / 2 if before else fitted
        release = Release(
            version=next_version,
            role="model",
            time=time,
            window=(0, time),
            fit=(fit.start, fit.end),
            parent=next_version - 1 or None,
            parameters=parameters,
            perturbation=perturbation,
            charge=charge,
        )
        return Step(releases=(release,), chain=(Model(version=next_version, parameters=parameters),))


def toy_echo(settings, context):
    model = linear_settings.linear_model(context, settings.kind)
    family = LEARNERS.of(context.learner)
    return ToyEcho(
        learner=linear_settings.linear_learner(family, context.learner, model, context.currency),
        origin=linear_settings.origin(context.learner, model.shape),
        feature_map=context.stream.mapping(),
        schedule=IndependentBatches(batch=settings.every),
        **context.promise,
    )


TOY_MECHANISM = MechanismFamily(
    settings=ToyEchoMechanism,
    source="nowhere",
    summary="all records so far",
    build=toy_echo,
    examples={"toy_echo": {"kind": "toy_echo", "every": 8}},
    adds_up=lambda _: 2,
)
TWO = {"features": 3, "task": {"kind": "classification", "classes": 2}}
TOYS = {"mechanism": {"kind": "toy_echo", "every": 8}, "learner": {"kind": "toy_means"}}
PRIVACY = {"pure": {"epsilon": 1}, "gaussian": {"epsilon": 1, "delta": 1e-6}}


@pytest.fixture(scope="module", autouse=True)
def toys():
    with MECHANISMS.registered(TOY_MECHANISM), LEARNERS.registered(TOY_LEARNER):
        yield


@pytest.fixture(scope="module")
def service(toys, servers, tmp_path_factory):
    """A service of their own, which is stopped before they are gone."""
    with running(make_world(servers, tmp_path_factory.mktemp("toys")).settings) as service:
        yield service


@pytest.fixture
def reader(service: Service) -> Iterator[Page]:
    with browsers.started() as browser, browsers.reading(browser, service) as page:
        yield page


def verified_by_a_stranger(service):
    """Return what `perennial ledger verify` says in a process that has never heard of toys."""
    places = {"DATABASE_URL": service.settings.database_url, "SEGMENT_STORE": service.settings.segment_store}
    settings = {f"PERENNIAL_{name}": str(value) for name, value in places.items()}
    command = [sys.executable, "-m", "service", "ledger", "verify"]
    done = subprocess.run(command, env=os.environ | settings, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


def test_a_registered_family_is_read_stored_and_explained():
    configuration = PublicationConfiguration.model_validate(TOYS | {"privacy": {"epsilon": 1}})
    assert configuration.mechanism == ToyEchoMechanism(kind="toy_echo", every=8)
    assert configuration.stored()["mechanism"] == TOYS["mechanism"]
    assert PublicationConfiguration.model_validate(configuration.stored()) == configuration
    with pytest.raises(ValidationError, match="toy_echo"):
        PublicationConfiguration.model_validate(TOYS | {"mechanism": {"kind": "toy"}, "privacy": {"epsilon": 1}})


def test_a_kind_is_registered_once():
    with pytest.raises(ValueError, match="kind toy_means"), LEARNERS.registered(TOY_LEARNER):
        pass


@pytest.mark.parametrize("privacy", PRIVACY.values(), ids=PRIVACY)
@pytest.mark.parametrize("task", [{"kind": "classification", "classes": 3}, {"kind": "regression", "bound": 2.0}])
def test_the_toy_mechanism_keeps_its_promise_with_every_learner(task, privacy):
    schema = StreamSchema.model_validate({"features": 3, "task": task})
    for example, learner in product(TOY_MECHANISM.examples.values(), contract.learners_of(TOY_MECHANISM)):
        configuration = {"mechanism": example, "learner": learner, "privacy": privacy}
        why = refusal(schema, configuration)
        assert why == refusal(schema, configuration | {"mechanism": {"kind": "independent_batches", "batch": 8}})
        if why is None:
            contract.keeps_its_promise(schema, PublicationConfiguration.model_validate(configuration))


def refusal(schema, configuration):
    """Return why a publication can't be; None: it can."""
    try:
        build(schema, PublicationConfiguration.model_validate(configuration))
    except Refused as refused:
        return str(refused)
    return None


@pytest.mark.parametrize("privacy", PRIVACY.values(), ids=PRIVACY)
def test_every_mechanism_keeps_its_promise_with_the_toy_learner_or_refuses_it(privacy):
    schema = StreamSchema.model_validate(TWO)
    kinds = set()
    for family, learner in product(MECHANISMS, TOY_LEARNER.examples.values()):
        for example in family.examples.values():
            configuration = {"mechanism": example, "learner": learner, "privacy": privacy}
            if family.takes is None:
                contract.keeps_its_promise(schema, PublicationConfiguration.model_validate(configuration))
                kinds.add(family.kind)
            else:
                with pytest.raises(Refused):
                    build(schema, PublicationConfiguration.model_validate(configuration))
    assert len(kinds) > 5


@pytest.mark.slow
def test_nobody_tells_two_records_apart_by_the_toys_better_than_promised():
    """The attack of tests/guarantees/test_audits.py; half the noise is seen with probability above 0.999."""
    configuration = TOYS | {"mechanism": {"kind": "toy_echo", "every": 2}, "privacy": {"epsilon": 12, "delta": 1e-6}}
    configuration["learner"] = {"kind": "toy_means", "intercept": False}
    schema = StreamSchema.model_validate(TWO | {"features": 2})
    mechanism = build(schema, PublicationConfiguration.model_validate(configuration))
    chance.assert_tells_apart_no_better(*attack(mechanism, 0, 2), 330, mechanism.currency, mechanism.capacity)


@pytest.mark.more
def test_toys_are_planned_published_charged_and_verified(service: Service):
    for privacy in PRIVACY.values():
        toys_are_published(service, privacy.get("delta", 0))
    assert verified_by_a_stranger(service).endswith(" 0 findings\n")


def toys_are_published(service: Service, delta: float) -> None:
    """Plan and publish toys, and see that what they release was charged."""
    stream = service.stream(features=2, epsilon=4, delta=1e-4)
    body = publication(stream, {"kind": "toy_echo", "every": 4}, learner={"kind": "toy_means"}, delta=delta)
    plan = ok(service.client().post("/v1/plan", json=body))
    assert plan["model"]["learner"] == "toy_means"
    assert not any(line["this"] for line in plan["measured"]["lines"])
    assert any("noise" in note for note in plan["notes"])
    name = ok(service.client().post("/v1/publications", json=body), 201)["name"]
    service.post(stream, [[0.6, 0.1]] * 6 + [[-0.6, 0.2]] * 6, [1] * 6 + [0] * 6)
    released = service.released(name, time=12)
    assert [each["fit"]["end"] for each in released] == [4, 8, 12]
    charges = ok(service.client().get(f"/v1/streams/{stream}/ledger/charges"))["items"]
    assert sorted((each["start"], each["end"]) for each in charges) == [(0, 4), (4, 8), (8, 12)]
    for release in released:
        noise, charge = release["noise"], release["charge"]
        ratio = noise["sensitivity"] / noise["scale"]
        owed, paid = (ratio**2 / 2, charge["rho"]) if delta else (ratio, charge["epsilon"])
        assert owed <= paid * (1 + 1e-12)
        assert math.isclose(owed, paid, rel_tol=1e-6)
        assert noise["sensitivity"] >= 2 / 4
    predicted = ok(service.client().post(f"/v1/publications/{name}/predict", json={"x": [[0.6, 0.1]]}))
    assert predicted["labels"][0] in (0, 1)


@pytest.mark.more
def test_toys_are_in_openapi_and_their_mistakes_are_explained(service: Service):
    document = ok(service.client().get("/openapi.json"))
    schemas = document["components"]["schemas"]
    toys = (("mechanism", "toy_echo", "ToyEchoMechanism"), ("learner", "toy_means", "ToyMeansLearner"))
    for (field, kind, shape), request in product(toys, ("PlanRequest", "PublicationRequest", "Line")):
        assert schemas[shape]["properties"]["kind"]["const"] == kind
        assert f"'{kind}': '#/components/schemas/{shape}'" in str(schemas[request]["properties"][field])
    stream = service.stream()
    wrong = publication(stream, {"kind": "toy_echo", "evry": 4}, learner={"kind": "toy_means"})
    answer = service.client().post("/v1/plan", json=wrong)
    assert answer.status_code == 422
    assert "mechanism.evry" in answer.text
    assert "did you mean every?" in answer.text


@pytest.mark.more
def test_toys_are_on_the_dashboard(service: Service, reader: Page):
    stream = service.stream()
    name = service.publish(stream, {"kind": "toy_echo", "every": 2}, learner={"kind": "toy_means"})
    service.post(stream, [[0.1, 0.2]] * 2, [0, 1])
    service.reaches(name, time=2)
    reader.goto(f"{service.url}/dashboard/publications/{name}")
    expect(reader.locator("main")).to_contain_text("toy echo")
    expect(reader.locator("main")).to_contain_text("toy means")
    reader.goto(f"{service.url}/dashboard")
    expect(reader.get_by_role("row", name=name)).to_contain_text("toy echo")

"""The history of a stream in memory: a publication learns and an evaluation counts it, as the service runs them."""

from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

import numpy as np
import pytest

from demo.weather import standardise
from service.explorer.comparison import releases
from service.figures.drift_alarms import BLOCKS, drift_alarms
from service.figures.reported_figures import outline
from service.learning.records import Records
from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration
from service.mechanisms.linear import predict
from service.mechanisms.predicting import predictions
from service.mechanisms.released_models import Made, Progress
from service.streams.feature_maps import FeatureMap
from service.streams.schema import StreamSchema
from tests.figures.worlds import DATA, PRIVACY

NAME = "p"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A data set in order of time, and how a stream of it is learnt and evaluated."""

    x: np.ndarray
    y: np.ndarray
    every: int
    batch: int
    block: int = 100

    @property
    def schema(self):
        classes = int(self.y.max()) + 1
        task = {"kind": "classification", "classes": classes}
        return {"features": self.x.shape[1], "norm_bound": 3.0, "task": task, "evaluation": {"every": self.every}}

    @property
    def learning(self):
        return {"kind": "independent_batches", "batch": self.batch}

    def rearranged(self, rng):
        """Return it with the records of every `every` slots in a random order: so chance says which are evaluated.

        The last slots are left out if they are fewer.
        """
        groups = np.arange(len(self.y) // self.every * self.every).reshape(-1, self.every)
        order = rng.permuted(groups, axis=1).ravel()
        return replace(self, x=self.x[order], y=self.y[order])


@cache
def setting(name):
    """Return one of real data. Columns are scaled by public constants."""
    if name == "weather":
        with files("service.explorer").joinpath("samples/noaa_weather.npz").open("rb") as opened:
            data = np.load(opened)
            return Setting(x=standardise(data["x"]), y=data["y"].astype(np.int64), every=20, batch=2000)
    if name == "electricity":
        path = DATA / "elec2.npz"
        if not path.exists():
            pytest.skip(f"needs {path.name} in PERENNIAL_DATA_DIR")
        with np.load(path) as data:
            x = 4.0 * (data["X"] - np.array([0.5, 0.06, 0.43, 0.0035, 0.42, 0.5]))
            return Setting(x=x.astype(np.float32), y=data["y"].astype(np.int64), every=20, batch=2000)
    from sklearn.datasets import load_digits

    digits = load_digits()
    return Setting(x=(digits.data / 16.0).astype(np.float32), y=digits.target.astype(np.int64), every=2, batch=400)


@dataclass(frozen=True, kw_only=True)
class Learnt:
    """The models that a publication of the stream released, in order."""

    setting: Setting
    description: dict
    released: tuple

    @classmethod
    def of(cls, setting, *, epsilon=1.0, delta=1e-6):
        """Return what a publication releases that reads the training slots."""
        publication = _built(setting, setting.learning, {"epsilon": epsilon, "delta": delta})
        released = tuple(each for each, _ in releases(publication, _reader(setting, training=True), len(setting.y)))
        return cls(setting=setting, description=publication.model_description(), released=released)

    def progress(self, name, first_slot):
        return Progress(
            releases=tuple(Made(version=each.version, time=each.time) for each in self.released), passed=10**9
        )

    def predict(self, name, version, x):
        own = FeatureMap(description=None, input_features=x.shape[1], steps=())
        return predictions(self.description, self._parameters(version), own, x)

    def accuracy(self, version, start, stop):
        """Return the accuracy of a version on all records of a range, of either kind of slot."""
        labels, _ = predict(self.description, self._parameters(version), self.setting.x[start:stop])
        return float((labels == self.setting.y[start:stop]).mean())

    def _parameters(self, version):
        return next(each.parameters for each in self.released if each.version == version)


def evaluated(learnt, privacy, *, bins=False):
    """Return the releases of an evaluation of what was learnt, in order, as they are stored: (fit, block)."""
    epsilon, delta = PRIVACY[privacy]
    setting = learnt.setting
    mechanism = {"kind": "evaluation", "of": [NAME], "block": setting.block, "bins": bins}
    evaluation = replace(_built(setting, mechanism, {"epsilon": epsilon, "delta": delta}), models=learnt)
    time, blocks, read = 0, [], _reader(setting)
    while (time := evaluation.next_time(time)) <= len(setting.y):
        (release,) = evaluation.step(time, (), len(blocks) + 1, read).releases
        blocks.append((release.fit, (release.model, release.perturbation.to_json(), release.parameters)))
    return blocks


def main_figures(block):
    """Return the main figures of a stored release."""
    return outline(*block)[NAME]


def alarms(blocks):
    """Return the alarm `drift` of each block, when it was the newest."""
    return [drift_alarms(blocks[max(0, end - BLOCKS) : end], NAME)["drift"] for end in range(1, len(blocks) + 1)]


def _built(setting, mechanism, privacy):
    learner = None if mechanism["kind"] == "evaluation" else {"kind": "output_perturbation"}
    configuration = {"mechanism": mechanism, "learner": learner, "privacy": privacy}
    return build(StreamSchema.model_validate(setting.schema), PublicationConfiguration.model_validate(configuration))


def _reader(setting, *, training=False):
    def read(start, stop):
        slots = np.arange(start, stop)
        if training:
            slots = slots[slots % setting.every != setting.every - 1]
        return Records(x=setting.x[slots], y=setting.y[slots], slots=slots)

    return read

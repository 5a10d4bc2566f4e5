"""Evaluations in random histories: which versions they count."""

from hypothesis import strategies as st
from hypothesis.stateful import rule

from service.inputs.refused import Refused
from service.mechanisms.evaluation.settings import EvaluationMechanism
from service.publishing import evaluated
from service.store import publications
from service.streams.slots import EvaluationSlots


class Evaluations:
    """A rule and a check of a history of a stream, which may set slots aside."""

    counted_blocks = 0
    counted_models = 0
    """Models that these blocks counted."""

    @rule(
        which=st.lists(st.integers(0, 4), min_size=1, max_size=3, unique=True),
        block=st.integers(1, 3),
        delta=st.sampled_from([0, 1e-6]),
        ticks=st.booleans(),
    )
    def begin_evaluation(self, which, block, delta, ticks):
        """Count publications that run, have ended or have released nothing yet."""
        with self.stage.database.transaction() as connection:
            known = publications.of_stream(connection, self.stream.id)[::-1]
            names = [known[number].name for number in which if number < len(known)]
            if not names:
                return
            mechanism = {"kind": "evaluation", "of": names, "block": block}
            try:
                evaluated.check(connection, self.stream, EvaluationMechanism.model_validate(mechanism))
            except Refused:
                return
        self.admit(mechanism, None, delta, ticks)

    def check_versions(self, released, known):
        """Check that each block counted, of each publication, the newest model that was made below its first slot."""
        identities = {each.name: each.id for each in known}
        slots = self.stream.evaluation_slots or EvaluationSlots(period=1)
        models = [each for each in released if each.role == "model" and each.model["kind"] == "linear"]
        blocks = [each for each in released if each.model["kind"] == "evaluation"]
        self.counted_blocks = len(blocks)
        self.counted_models = sum(version is not None for block in blocks for version in block.model["versions"])
        for block in blocks:
            first = slots.slot(slots.before(block.fit_start))
            for name, version in zip(block.model["of"], block.model["versions"], strict=True):
                of_it = (each for each in models if each.publication_id == identities[name] and each.time <= first)
                newest = max(of_it, key=lambda each: (each.time, each.version), default=None)
                assert version == (newest and newest.version)

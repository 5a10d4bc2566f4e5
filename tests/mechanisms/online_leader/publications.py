"""Publications of online leaders, of small batches, with each kind of noise."""

from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration
from service.streams.schema import StreamSchema
from tests.mechanisms.steps import FEATURES, GAUSSIAN

BATCH = 8
NOISES = {
    "blt": {"noise": "blt", "decay": 0.9},
    "toeplitz": {"noise": "toeplitz", "decay": 0.9},
    "tree": {"noise": "tree"},
    "window_tree": {"noise": "window_tree", "window": 3},
    **{
        expiry: {"noise": "window_tree", "window": 3, "expiry": expiry, "acknowledge_declassification": True}
        for expiry in ("leaf", "block")
    },
}


def publication(noise="blt", privacy=GAUSSIAN, classes=3, learner=None, features=FEATURES, stream=None, **settings):
    labels = {"kind": "classification", "classes": classes}
    return build(
        StreamSchema.model_validate(stream or {"features": features, "task": labels}),
        PublicationConfiguration.model_validate(
            {
                "mechanism": {"kind": "online_leader", "batch": BATCH, **NOISES[noise], **settings},
                "learner": {"kind": "noisy_gradient_descent", "intercept": False, **(learner or {})},
                "privacy": privacy,
            }
        ),
    )

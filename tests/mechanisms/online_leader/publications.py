"""Publications of online leaders, of small batches, with each kind of noise."""

import numpy as np
from scipy import special

from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration
from service.streams.schema import StreamSchema
from tests.mechanisms.steps import FEATURES, GAUSSIAN

BATCH = 8
NOISES = {
    "blt": {"noise": "blt", "decay": 0.9},
    "toeplitz": {"noise": "toeplitz", "decay": 0.9},
    "two steps": {"noise": "blt", "decay": 0.9, "steps": 2},
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


def factor(noise, steps):
    """C of paper-audit.md 8.1, by hand, and its norm over an infinite stream."""
    lags = np.arange(steps)
    if noise == "toeplitz":
        column = np.array([special.binom(2 * l, l) / 4.0**l for l in lags]) * 0.9**lags
        long = np.exp(2 * (special.gammaln(np.arange(44) + 0.5) - special.gammaln(np.arange(44) + 1.0)))
        norm = np.sqrt((long / np.pi * 0.81 ** np.arange(44)).sum())
    else:
        decays = np.array([0.99897285, 0.97855964, 0.74328276]) * 0.9
        scales = np.array([0.04444111, 0.12054534, 0.31138952]) * 0.9
        column = np.array([1.0, *(decays ** (lags[1:, None] - 1.0) @ scales)])
        norm = np.sqrt(1 + np.sum((decays ** np.arange(3000)[:, None] @ scales) ** 2))
    return np.tril(column[np.abs(lags[:, None] - lags)]), norm

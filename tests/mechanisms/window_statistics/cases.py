"""Cases of this mechanism for the tests of all; tests/mechanisms/cases.py collects them."""

KIND = {"kind": "window_statistics"}
SHORT = KIND | {"block": 2, "blocks": 2}
SUMS, OUTPUT = KIND | {"block": 8, "blocks": 2}, {"kind": "output_perturbation"}
PURE, GAUSSIAN = {"epsilon": 1}, {"epsilon": 1.5, "delta": 1e-6}

DRAWS = {"window_statistics": ("output_perturbation", 1)}
HISTORIES = {"window_statistics": (SHORT | {"candidates": [{"blocks": 1}]}, OUTPUT, 1e-6)}
REMEMBERING = {"window_statistics": KIND | {"block": 1, "blocks": 3}}
PUBLISHED = {"window_statistics": KIND | {"block": 2, "blocks": 3}}
HOPELESS = {"window_statistics": (KIND | {"block": 100, "blocks": 7}, {}, {"epsilon": 1e-6})}
CARRIED_NOISE = {"window_statistics": (KIND | {"block": 8, "blocks": 7}, "output_perturbation", "blt, γ = 6/7")}
PUBLICATIONS = {
    "regression": (
        {"features": 3, "task": {"kind": "regression", "bound": 2.0}},
        OUTPUT,
        SUMS,
        GAUSSIAN,
    ),
    "windows, ridge": (
        {"features": 3, "task": {"kind": "classification", "classes": 2}},
        OUTPUT,
        SUMS | {"ridge": 0.5},
        PURE,
    ),
    "windows, candidates": (
        {"features": 3, "task": {"kind": "classification", "classes": 2}},
        OUTPUT,
        SUMS | {"candidates": [{"blocks": 1}, {"ridge": 0.5}]},
        GAUSSIAN,
    ),
}
OF_UNITS = {"window_statistics": KIND | {"block": 8, "blocks": 3}}  # what is shown of people who are in several records
AUDITED = {"window_statistics": SHORT | {"ridge": 1e6}}  # sums, nearly as they are
AUDITS = {("window_statistics", "gaussian"): (4, 500)}
AUDITED_UNITS = {"window_statistics": SHORT | {"blocks": 3, "ridge": 1e6}}

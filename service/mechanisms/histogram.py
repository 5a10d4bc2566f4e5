"""Public histograms over categories.

A histogram holds a share for each of N categories; what is missing from 1 is the share of empty slots (⊥). Whatever is
computed from a released one is post-processing.
"""

from __future__ import annotations

from typing import Any


def described(cardinality: int, **more: Any) -> dict[str, Any]:
    """Return what a release of a histogram says of its model, as JSON."""
    return {"kind": "histogram", "cardinality": cardinality, **more}

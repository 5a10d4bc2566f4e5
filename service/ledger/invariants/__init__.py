"""Invariants: they must always hold. One per file, asked of the whole database at once by the worker, now and then.

Each is cheap beside `perennial ledger verify`, which recomputes what these believe: no file is read, nothing is hashed.
"""

from collections.abc import Callable, Mapping

from sqlalchemy import Connection

from service.ledger.invariants import broken_chain, charged_not_released, over_cap, published_not_charged, record_gap

INVARIANTS: Mapping[str, Callable[[Connection], list[str]]] = {
    "published_not_charged": published_not_charged.violations,
    "charged_not_released": charged_not_released.violations,
    "over_cap": over_cap.violations,
    "broken_chain": broken_chain.violations,
    "record_gap": record_gap.violations,
}
"""By name, as in the metric `perennial_invariant_violations{invariant=…}`; each names what violates it."""

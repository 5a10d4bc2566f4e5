"""Bugs in the verifier: charges at arrival, and batches that are learnt from."""

from __future__ import annotations

from tests.guarantees.planted.bug import bug, rewrite


@bug("tests/worker/test_labelling.py::test_records_that_count_and_never_paid_for_a_coin_are_found")
def the_last_records_that_need_not_have_paid_for_their_coins() -> None:
    """A publication says that it has come further than its records have paid."""
    from service.ledger.verify import arrivals

    rewrite(arrivals.coins, ("if paid != publication.position:", "if False:"))


@bug("tests/worker/test_labelling.py::test_a_batch_that_two_models_learnt_from_is_found")
def a_batch_that_two_models_may_have_learnt_from() -> None:
    """Records that paid for one update are in two."""
    from service.ledger.verify import released

    rewrite(released.chain, ('row["fit_start"] < batched', "False"))

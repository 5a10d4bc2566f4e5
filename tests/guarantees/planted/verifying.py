"""Bugs in what looks whether the record is what was written: `ledger verify`, a worker's audit, the invariants."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tests.guarantees.planted.bug import bug, rewrite, wrap

if TYPE_CHECKING:
    from service.store.segments import Segment

_VERIFY = "tests/store/test_verify.py"
_COLUMN = f"{_VERIFY}::test_no_column_of_the_ledger_can_be_changed_unnoticed"
_SEGMENTS = f"{_VERIFY}::test_every_segment_of_several_is_looked_at"
_WALKS = "tests/worker/test_audit.py::test_a_worker_that_starts_walks_the_whole_ledger_before_it_publishes"
_COMMAND = "tests/test_cli.py::test_verify_fails_where_anything_is_wrong_and_names_it"


def _unlooked(module: str, name: str) -> None:
    """Let one of the looks at a ledger find nothing."""
    wrap(import_module(f"service.ledger.verify.{module}"), name, lambda *_: iter(()))


@bug(f"{_SEGMENTS}[newest]")
def the_newest_segment_is_not_looked_at() -> None:
    """The verifier compares all segments but the last with their files."""
    from service.store import segments

    def before_the_newest(true: Any, connection: Any, stream: int, record: int) -> Segment | None:
        segment: Segment | None = true(connection, stream, record)
        return segment if segment is None or record == 0 or true(connection, stream, segment.stop) else None

    wrap(segments, "first_from", before_the_newest)


@bug(f"{_COMMAND}[a charge]")
def findings_that_are_no_failure() -> None:
    """The command names what is wrong, and whoever asks for its exit status hears that all is well."""
    from service import cli

    rewrite(cli.verify_ledger, ("typer.Exit(1 if findings else 0)", "typer.Exit(0)"))


@bug(f"{_VERIFY}::test_charges_cut_from_the_end_are_missed")
def a_chain_whose_end_nobody_knows() -> None:
    """Charges that were cut from the end are not missed."""
    from service.ledger.verify import charges

    rewrite(charges.chain, ("(number, previous) != (stream.charges, stream.head)", "False"))
    _unlooked("released", "chain")


@bug(f"{_COLUMN}[charges.previous_hash]")
def charges_that_are_not_hashed_again() -> None:
    """Nobody looks at the ledger's own chain."""
    _unlooked("charges", "chain")


@bug(f"{_COLUMN}[releases.number]")
def numbers_of_releases_that_nobody_looks_at() -> None:
    """A release that is missing from a stream's numbers is not missed."""
    from service.ledger.verify import released

    _unlooked("numbering", "releases")
    rewrite(released.chain, ('row["number"] <= of_stream', "False"))


@bug(f"{_COLUMN}[streams.promise]")
def a_streams_promise_that_nobody_looks_at() -> None:
    """The budget of a stream may be another than it was made with."""
    from service.ledger.verify import promises

    rewrite(promises.of_stream, ("streams.promised(stream) != stream.promise", "False"))
    rewrite(promises.of_publication, ("publications.promised(publication) != publication.promise", "False"))


@bug(f"{_COLUMN}[segments.digest]")
def rows_of_segments_that_nobody_looks_at() -> None:
    """A segment's row may name any file."""
    _unlooked("segments", "rows")


@bug(f"{_COLUMN}[streams.segments_sum]")
def segments_of_which_one_may_be_missing() -> None:
    """Each segment is looked at by itself."""
    from service.ledger.verify import segments

    rewrite(segments.rows, ("total % segments.MODULUS != stream.segments_sum", "False"))


@bug(f"{_VERIFY}::test_tampering_is_found_and_named[-more is reserved than the stream's budget]")
def sums_that_nobody_adds_up_again() -> None:
    """The verifier does not compare a stream's summary with its charges."""
    _unlooked("reserved", "within_budget")


@bug("tests/store/test_spending.py::test_verify_finds_draws_that_add_too_much_to_a_budget_in_rho")
def draws_that_nobody_adds_up_again() -> None:
    """The draws of all publications of a stream are believed to fit its budget."""
    _unlooked("reserved", "within_slack")


@bug(f"{_COLUMN}[shown.position]")
def what_is_shown_may_be_anything() -> None:
    """The verifier does not compare the numbers that readers see with the committed ones."""
    _unlooked("numbering", "shown")


@bug(f"{_COLUMN}[publications.seal]")
def a_publication_that_may_be_left_anyhow() -> None:
    """Its clock may be set back."""
    from service.store import publications

    rewrite(publications.is_untampered, ("return publication.seal == state_digest(publication)", "return True"))


@bug(f"{_VERIFY}::test_tampering_is_found_and_named[-what is told of its worst record]")
def charges_that_nobody_adds_up() -> None:
    """The verifier does not compare a publication's spent budget with its charges."""
    _unlooked("charges", "sums")


@bug(f"{_VERIFY}::test_tampering_is_found_and_named[-version 2: it was charged, but there is no such release]")
def charges_without_a_release() -> None:
    """Nobody misses a release that was paid for."""
    _unlooked("charges", "have_releases")


@bug(f"{_VERIFY}::test_tampering_is_found_and_named[-its noise costs more than its charge]")
def noise_that_costs_more_than_was_paid() -> None:
    """A release is not compared with its charge."""
    _unlooked("released", "paid_for")


@bug(f"{_VERIFY}::test_tampering_is_found_and_named[-end at record 8, not at 9]")
def records_without_a_batch() -> None:
    """Numbers may have gaps."""
    _unlooked("numbering", "records")


@bug("tests/queries/test_answering.py::test_whoever_does_not_believe_the_ledger_finds_records_that_did_not_pay")
def records_that_need_not_have_paid_for_an_instance() -> None:
    """Charges at arrival are not compared with what was open."""
    _unlooked("arrivals", "instances")


@bug("tests/worker/test_labelling.py::test_who_did_not_pay_on_arrival_is_found")
def coins_that_nobody_need_have_paid() -> None:
    """Charges at arrival are not compared with what a coin costs."""
    _unlooked("arrivals", "coins")


@bug("tests/worker/test_labelling.py::test_who_did_not_pay_on_arrival_is_found")
def obligations_that_forget_charges_at_arrival() -> None:
    """Readers of a publication's obligations believe that it charges with its releases alone."""
    from service.privacy.accounting import obligations

    rewrite(obligations._charging, ('return AtArrival(events.from_json(content["event"]))', "return WithEachRelease()"))


@bug(f"{_COLUMN}[publications.obligations_digest]")
def obligations_that_may_be_changed() -> None:
    """The verifier does not compare a publication's obligations with its digest."""
    from service.ledger.verify import promises

    rewrite(
        promises.of_publication,
        ("publications.obligations_digest(publication) != publication.obligations_digest", "False"),
    )


@bug("tests/worker/test_erasing.py::test_erased_bytes_that_came_back_are_found")
def erased_bytes_that_nobody_looks_for() -> None:
    """A segment from a backup brings erased records back."""
    from service.ledger.verify import segments

    rewrite(segments._still_there, ("rows[name].any() for name in rows.keys()", "False for _ in rows.keys()"))


@bug(f"{_WALKS}[charge]")
def a_worker_that_believes_the_ledger() -> None:
    """Nothing is walked before a worker publishes."""
    from service.worker.audit import Audit

    rewrite(Audit.look, ("return self._is_walked(stream)", "self._due[log] = 0.0"))


@bug("tests/worker/test_walks.py::test_of_ledgers_that_are_walked_together_the_one_that_was_changed_is_found[a charge]")
def a_walk_of_many_that_believes_each() -> None:
    """Where the ledgers of many streams are walked together, each counts as whole."""
    from service.worker.audit import Audit

    rewrite(Audit._walk_together, ("if finding is None and", "if"))


@bug(f"{_WALKS}[weights]")
def a_walk_that_changes_nothing() -> None:
    """A worker logs what it found, and publishes."""
    from service.worker.audit import Audit

    rewrite(Audit.walk, ("findings[0] if findings else None", "None"))


@bug("tests/worker/test_restored.py::test_it_is_noticed_by_a_worker_that_has_looked_already")
def a_walk_that_does_not_look_at_the_mark() -> None:
    """A backup that verifies is published from."""
    from service.ledger import high_water_mark
    from service.publishing import confirmation

    wrap(high_water_mark, "contradicts", lambda *_: None)
    wrap(high_water_mark, "compare", lambda true, *given: (true(*given)[0], {}))
    wrap(confirmation.high_water_mark, "hold", lambda _true, _connection, known: set(known))


_INVARIANT = "tests/worker/test_audit.py::test_each_invariant_is_seen_to_be_violated"


@bug(f"{_INVARIANT}[-charged_not_released]")
def an_invariant_that_finds_nothing() -> None:
    """Nobody misses a release that was paid for."""
    from service.ledger.invariants import charged_not_released

    rewrite(charged_not_released.violations, ("for row in connection.execute(query)", "for row in ()"))


@bug(f"{_INVARIANT}[-over_cap1]")
def an_invariant_that_does_not_look_at_the_streams_budget() -> None:
    """Publications within their caps may together pass the budget."""
    from service.ledger.invariants import over_cap

    rewrite(
        over_cap.violations,
        ("not reserved.within(known[stream].budget.limit)", "False"),
    )


_NOISE = "tests/store/test_verified_noise.py"


@bug(f"{_NOISE}::test_noise_for_less_than_a_record_moves_is_a_finding[whitening]")
def a_sensitivity_that_is_taken_as_stated() -> None:
    """A release whose noise is for sums that no record moves far costs what it says."""
    from service.ledger.verify import released

    rewrite(released._for_what_it_is_added_to, ('event.sensitivity < least_sensitivity(event, row["model"])', "False"))


@bug(f"{_NOISE}::test_a_curvature_said_to_be_less_is_a_finding[objective, hinge]")
def a_curvature_that_is_taken_as_stated() -> None:
    """A tilted objective that no record bends far costs what its release says."""
    from service.ledger.verify import released

    rewrite(released._of_tilted_objective, ('is_too_flat(event, row["model"])', "False"))


@bug(f"{_NOISE}::test_a_tilted_objective_that_is_not_its_publications_is_a_finding[objective, hinge]")
def a_regularization_that_is_taken_as_stated() -> None:
    """A tilted objective costs less by saying that it was regularized more than its publication says."""
    from service.ledger.verify import released

    rewrite(
        released._of_tilted_objective,
        ("overstates_regularization(event, publication.configuration, records, epsilon)", "False"),
    )


@bug(f"{_NOISE}::test_a_tilted_objective_that_is_not_its_publications_is_a_finding[objective, 2 classes]")
def a_minimiser_that_is_found_as_well_as_stated() -> None:
    """The noise for not finding a minimiser may be for any distance."""
    from service.ledger.verify import released

    rewrite(released._of_tilted_objective, ('overstates_solver_accuracy(event, row["model"], records)', "False"))


@bug(f"{_NOISE}::test_fewer_steps_than_a_publication_takes_are_a_finding")
def steps_that_are_as_many_as_stated() -> None:
    """A release that says it took fewer steps than its publication takes is believed to cost less."""
    from service.ledger.verify import released

    rewrite(released._for_what_it_is_added_to, ("not is_of_its_steps(event, publication.configuration)", "False"))


@bug(f"{_NOISE}::test_noise_that_lets_other_records_expire_than_a_publication_says_is_a_finding[expiry]")
def records_that_expire_as_stated() -> None:
    """A publication that never declassifies may release with noise of which old records get nothing."""
    from service.ledger.verify import released

    rewrite(released._for_what_it_is_added_to, ("not expires_as_promised(event, publication.configuration)", "False"))


_UNITS = "tests/worker/test_units.py"


@bug(f"{_UNITS}::test_slots_that_count_against_the_order_of_their_units_are_found[bench0]")
def slots_that_count_as_segments_say() -> None:
    """Nobody asks whether a slot of a unit ought to count."""
    from service.ledger.verify import unit_counts

    rewrite(unit_counts._recount, ("if wrong is not None:", "if False:"))


@bug(f"{_UNITS}::test_a_unit_that_could_count_more_often_is_found[fewer-bench0]")
def counts_of_units_that_are_believed() -> None:
    """The number of a unit's counting slots is taken from the table by which the next ones are counted."""
    from service.ledger.verify import unit_counts

    rewrite(unit_counts._recount, ("if not tally.agrees(seen, row):", "if False:"))


@bug("tests/worker/test_unit_publications.py::test_a_number_of_units_that_somebody_changed_is_found[leader]")
def numbers_of_units_that_are_believed() -> None:
    """The noise of a release is enough for as many units as the release itself says that it is of."""
    from service.ledger.verify import unit_counts

    rewrite(unit_counts._releases, ("if number != units_there:", "if False:"))


@bug(f"{_NOISE}::test_a_release_of_a_sample_costs_what_the_sample_says")
def a_sample_of_any_size() -> None:
    """A release that says it drew fewer slots than its publication draws is believed to cost less."""
    from service.ledger.verify import released

    rewrite(
        released._for_what_it_is_added_to,
        ("not is_of_its_sample(event, publication.configuration, records)", "False"),
    )


@bug("tests/worker/test_sampled_fits.py::test_a_sample_is_of_training_slots_and_counts_empty_ones")
def a_sample_whose_size_is_not_recorded() -> None:
    """A release of a sample that says it was fitted to all slots."""
    from service.learning.output_perturbation import OutputPerturbation

    rewrite(
        OutputPerturbation.perturbation,
        (
            "NoisySampledFit(noise=noise, sensitivity=sensitivity, sample=drawn,",
            "NoisyFit(noise=noise, sensitivity=sensitivity,",
        ),
    )

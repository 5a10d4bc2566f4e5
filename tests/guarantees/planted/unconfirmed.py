"""Bugs in answers that show what is committed and not confirmed."""

from __future__ import annotations

from sqlalchemy import text

from tests.guarantees.planted.bug import bug, define, rewrite

_UNCONFIRMED = "tests/worker/test_unconfirmed.py::test_no_answer_shows_what_is_not_confirmed[needed]"


@bug(_UNCONFIRMED)
def a_publication_that_tells_its_next_record_early() -> None:
    """A reader sees that a step was committed before its release can be seen."""
    from service.api.routes import publications

    rewrite(publications._info, ("due=publication.visible_due", "due=publication.due"))


@bug(_UNCONFIRMED)
def a_ledger_that_tells_the_worst_record_early() -> None:
    """A reader sees a charge that PostgreSQL may still forget."""
    from service.api.routes import ledger

    rewrite(ledger._share, ("Fraction(publication.visible_worst_amount)", "Fraction(publication.worst_amount)"))


@bug(_UNCONFIRMED)
def needs_that_are_told_early() -> None:
    """A reader sees by what a publication still needs how far it is."""
    from service.api.routes import streams

    rewrite(streams._needed, ("each.visible_position", "each.position"))


@bug(_UNCONFIRMED)
def a_version_that_is_unchanged_before_it_is_there() -> None:
    """A cache is told that a version that does not exist yet is the one it has."""
    from service.api.routes import releases

    rewrite(releases.get_release, ("version > (row.visible_version or 0)", "False"))


@bug(_UNCONFIRMED)
def a_coarse_ledger_that_tells_a_charge_early() -> None:
    """A reader of many ranges sees a charge that PostgreSQL may still forget."""
    from service.api.routes import ledger

    rewrite(ledger._outlined, ("loss.at_most(worst)", "loss"))


@bug(_UNCONFIRMED)
def a_coarse_ledger_that_calls_itself_exact() -> None:
    """An auditor takes the most of many records for what each of them has spent."""
    from service.api.routes import ledger

    rewrite(ledger._pieces, ("return is_exact, [(low, high, loss, None)", "return True, [(low, high, loss, None)"))


@bug("tests/worker/test_labelling.py::test_what_is_not_confirmed_is_asked_of_nobody")
def labels_that_are_counted_before_their_coins_are_confirmed() -> None:
    """A reader sees how many records of a batch were selected by coins that may be tossed again."""
    from service.store import labels

    rewrite(labels.progress, (".where(_visible(of))", ".where(label_requests.c.publication_id.in_(of))"))


@bug("tests/store/test_reading_one.py::test_figures_are_of_no_evaluation_whose_counts_are_not_confirmed")
def figures_of_counts_that_are_not_confirmed() -> None:
    """A publication is judged by an evaluation of which nobody may see anything yet."""
    from service.store import evaluations

    define(evaluations, "_NEWEST_OF", ("        is_visible(),\n", ""))


_NEVER_FALLS = "tests/worker/test_unconfirmed.py::test_what_is_shown_of_a_publication_never_falls"


@bug(_NEVER_FALLS)
def a_clock_that_is_shown_to_go_back() -> None:
    """A late confirmation shows an older position again."""
    _without("position")


@bug(_NEVER_FALLS)
def a_sum_that_is_shown_to_fall() -> None:
    """A late confirmation takes off again what a record was shown to have spent."""
    _without("worst_amount")


def _without(name: str) -> None:
    """Show whatever comes, however this member of a publication's clock is."""
    from service.store import shown

    shown._NEVER_FALL = tuple(each for each in shown._NEVER_FALL if each != name)  # type: ignore[assignment]
    define(shown, "_SHOW")


@bug("tests/store/test_reading_one.py::test_what_was_erased_is_of_the_records_that_a_reader_has_seen")
def records_that_are_erased_before_they_are_there() -> None:
    """A stream is said to have lost more records than it is said to have."""
    from service.store import segments

    segments._ERASED_OF_EACH = text(segments._ERASED_OF_EACH.text.replace("least(stop, numbered)", "stop"))

"""Bugs in answers that show what is committed and not confirmed."""

from __future__ import annotations

from tests.guarantees.planted.bug import bug, rewrite

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

    rewrite(streams._needed, ("publication.visible_position", "publication.position"))


@bug(_UNCONFIRMED)
def a_version_that_is_unchanged_before_it_is_there() -> None:
    """A cache is told that a version that does not exist yet is the one it has."""
    from service.api.routes import releases

    rewrite(releases.get_release, ("version > (row.visible_version or 0)", "False"))


@bug("tests/worker/test_labelling.py::test_what_is_not_confirmed_is_asked_of_nobody")
def labels_that_are_counted_before_their_coins_are_confirmed() -> None:
    """A reader sees how many records of a batch were selected by coins that may be tossed again."""
    from service.store import labels

    rewrite(labels.progress, (".where(_visible(of))", ".where(label_requests.c.publication_id.in_(of))"))

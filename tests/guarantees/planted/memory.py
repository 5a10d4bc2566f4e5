"""Bugs in what an API answers from memory: looks that hold for too long, and requests that only look plain."""

from __future__ import annotations

from tests.guarantees.planted.bug import bug, rewrite

_NEWEST = "tests/api/test_newest_models.py"
_RELEASES, _APPENDS = "tests/api/test_ready_releases.py", "tests/api/test_ready_appends.py"
_POLLS = "tests/api/test_latest_polls.py"


@bug(f"{_NEWEST}::test_its_time_begins_before_the_look")
def a_look_that_holds_from_its_answer_on() -> None:
    """A reader is behind for as long as the database took to answer."""
    from service.api import newest_models

    rewrite(
        newest_models._look,
        ("seen.newest, began, began +", "seen.newest, time.monotonic(), time.monotonic() +"),
    )


@bug(f"{_NEWEST}::test_it_holds_for_a_second_at_most")
def a_look_that_holds_for_a_day() -> None:
    """A database that was put back is not looked at until the next tick of a publication, which may be a day away."""
    from service.api import newest_models

    rewrite(newest_models._look, ("min(seen.seconds, MOST_SECONDS)", "seen.seconds"))


@bug(f"{_NEWEST}::test_without_ticks_nothing_holds")
def a_first_look_that_holds() -> None:
    """Nobody looked whether a newer model may appear meanwhile."""
    from service.api.newest_models import NewestModels

    rewrite(NewestModels.find, ("began, 0.0)", "began, began + 1.0)"))


@bug(f"{_RELEASES}::test_a_version_that_is_not_there_yet_is_never_unchanged")
def a_version_that_is_unchanged_in_memory_before_it_is_there() -> None:
    """A cache keeps for ever that there is nothing new under a number that comes later."""
    from service.api import ready_releases

    rewrite(ready_releases._release, (" or version > (newest.latest or 0)", ""))


@bug(f"{_RELEASES}::test_of_tags_in_several_lines_each_counts")
def the_last_line_of_several() -> None:
    """A model is sent again to a client that has it, since it said so in two lines."""
    from service.api.ready_releases import ReadyReleases

    rewrite(ReadyReleases._find, ('len(headers) < len(scope["headers"]) or ', ""))


@bug(f"{_APPENDS}::test_a_key_in_two_lines_is_read_as_the_application_reads_it")
def a_batch_with_another_name_on_each_way() -> None:
    """A request that is sent again goes another way, has another key there, and is stored twice."""
    from service.api.ready_appends import ReadyAppends

    rewrite(ReadyAppends._find, ("or not in_one_line_each", ""))


@bug(f"{_APPENDS}::test_a_body_that_is_longer_than_a_setting_allows_is_refused")
def a_body_that_is_longer_than_a_setting_allows() -> None:
    """A client whose key and stream are known sends a mebibyte where a body may have a thousand bytes."""
    from service.api import ready_appends

    rewrite(ready_appends._reads_at_once, ("min(INLINE_BYTES, shared.settings.max_body_bytes)", "INLINE_BYTES"))


@bug(f"{_POLLS}::test_of_several_tags_the_newest_version_counts")
def the_oldest_version_of_several_that_a_client_has() -> None:
    """A client that waits gets at once the model that it has."""
    from service.api import long_polls

    rewrite(long_polls.known_version, ("return max(", "return min("))


@bug(f"{_POLLS}::test_nobody_waits_for_more_than_a_minute")
def a_wait_for_as_long_as_somebody_likes() -> None:
    """Proxies close the connection, and a key that waits for days holds a place."""
    from service.api import long_polls

    rewrite(long_polls.wait_seconds, ("min(int(match[1]), MOST_WAIT_SECONDS)", "int(match[1])"))


@bug("tests/log/test_moving.py::test_an_api_that_knew_the_old_place_appends_at_the_new_one")
def a_batch_that_loses_its_name_on_the_way_to_another_primary() -> None:
    """Its repetition is stored once more."""
    from service.api.routes import records

    rewrite(
        records.append,
        (
            "moved.log, moved.place, batch.content, batch.records, idempotency=idempotency",
            "moved.log, moved.place, batch.content, batch.records",
        ),
    )


@bug("tests/api/test_publications.py::test_a_publication_that_goes_on_no_more_is_due_never_and_says_why")
def a_stopped_publication_that_is_due() -> None:
    """A client waits for a release that never comes."""
    from service.api.routes import publications

    rewrite(publications._info, ('publication.visible_due if state == "running" else None', "publication.visible_due"))


@bug("tests/api/test_publications.py::test_a_publication_that_goes_on_no_more_is_due_never_and_says_why")
def a_distrusted_publication_that_is_shown_as_running() -> None:
    """Its ledger does not verify, nothing is released any more, and nobody is told why."""
    from service.api.routes import publications

    rewrite(publications._info, ('state == "running" and publication.distrusted is not None', "False"))


_BOUND = "tests/api/test_rendered.py::test_what_is_kept_goes_on_within_its_bound"


@bug(_BOUND)
def releases_that_make_room_and_are_counted_on() -> None:
    """Once the room is full, each new release ends in an error."""
    from service.api.http.representations import Rendered

    rewrite(
        Rendered.put,
        (
            "self._bytes -= len(self._bodies.pop(next(iter(self._bodies))))",
            "self._bodies.pop(next(iter(self._bodies)))",
        ),
    )


@bug("tests/api/test_rendered.py::test_the_oldest_make_room_for_the_newest")
def a_release_that_is_counted_each_time() -> None:
    """Readers who ask at the same moment fill the room with one release."""
    from service.api.http.representations import Rendered

    rewrite(Rendered.put, ("which in self._bodies or ", ""))


_BECAME = "tests/api/test_flight.py::test_a_packed_body_counts_as_what_it_became_until_it_is_answered"


@bug(f"{_BECAME}[small]")
def a_small_packed_body_that_counts_as_it_came() -> None:
    """A key that waits for answers holds hundreds of times as much as it may."""
    from service.api.http import bodies

    rewrite(bodies._unpack, ("    held.resize(len(unpacked))", "    pass"))


@bug(f"{_BECAME}[large]")
def a_large_packed_body_that_counts_as_it_came() -> None:
    """The same with a body that is unpacked in a thread."""
    from service.api.http import bodies

    rewrite(bodies.read_body, ("    held.resize(len(unpacked))", "    pass"))


@bug("tests/api/test_large_bodies.py::test_the_process_is_given_no_settings_of_the_service")
def a_reader_of_large_bodies_that_knows_the_database() -> None:
    """A body that takes over the process that reads it has the password of the database."""
    from service.api.http.large_bodies import LargeBodies

    rewrite(LargeBodies._start, (' if not name.startswith("PERENNIAL_")', ""))

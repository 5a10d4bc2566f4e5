"""Bugs in the HTTP interface: who may do what, what is refused, and what happens at the same moment."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.guarantees.planted.bug import bug, rewrite, wrap

_ACCESS, _SESSIONS = "tests/api/test_access.py", "tests/api/test_sessions.py"
_REVOKED = "tests/api/test_revoked_while_waiting.py"
_PUBLICATIONS, _NAMES = "tests/api/test_publications.py", "tests/api/test_publication_names.py"
_MESSAGES = "tests/api/test_messages.py"
_LABELS, _RECORDS = "tests/api/test_labels.py", "tests/api/test_records.py"


@bug(f"{_MESSAGES}::test_a_mistake_in_a_publication_is_explained")
def a_refusal_that_repeats_a_name_that_nobody_could_have_meant() -> None:
    """A refusal repeats a name that was sent."""
    from service.inputs import words

    rewrite(words._no_such_field, ('"no such field{_meant', '"no such field {sent}{_meant'))


@bug(f"{_PUBLICATIONS}::test_of_two_at_the_same_moment_the_budget_holds_one")
def a_budget_that_is_checked_without_the_streams_lock() -> None:
    """Two publications at once each find room for one."""
    from service.ledger import entry
    from service.store import locks, streams

    entry.locks = SimpleNamespace(**vars(locks) | {"stream": streams.get})  # type: ignore[assignment]


@bug(f"{_PUBLICATIONS}::test_publications_add_up_against_the_stream_and_the_one_too_many_is_told_the_numbers")
def a_budget_that_nobody_checks() -> None:
    """Publications are accepted whatever is reserved."""
    from service.ledger import admission

    wrap(admission, "check", lambda *_: None)


@bug(f"{_PUBLICATIONS}::test_stopping_gives_back_what_is_unspent")
def a_stop_that_settles_nothing() -> None:
    """Others may spend again what a stopped publication has charged."""
    from service.ledger import ending

    wrap(ending, "settle", lambda *_: None)


@bug(f"{_RECORDS}::test_erased_records_stay_numbered_and_must_exist")
def an_erasure_of_records_that_will_come() -> None:
    """An erasure deletes records that others send later."""
    from service.store import erasing

    rewrite(erasing.erase, ("not start < stop <= records", "not start < stop"))


@bug(f"{_ACCESS}::test_a_key_may_do_what_its_scope_says_and_nothing_else")
def a_scope_that_allows_everything() -> None:
    """Any key may do anything."""
    from service.api.auth import access

    rewrite(access.authorize, ('needed not in key.scopes and "admin" not in key.scopes', "not key.scopes"))


@bug(f"{_ACCESS}::test_for_a_limited_key_other_streams_are_as_if_they_were_not")
def a_limited_key_that_sees_every_stream() -> None:
    """The limit of a key to some streams is stored, and nothing else."""
    from service.api.auth import access

    rewrite(access.visible, ("(key.streams is None or stream in key.streams) and ", ""))


@bug(f"{_ACCESS}::test_for_a_limited_key_other_streams_are_as_if_they_were_not")
def a_limited_key_that_sends_to_every_stream() -> None:
    """A producer of one stream sends records to all, which asks the database for no stream."""
    from service.api.auth import access

    rewrite(access.authorize, (" and not visible(key, stream)", " and not stream"))


@bug(f"{_ACCESS}::test_a_limited_key_sees_only_its_streams")
def a_list_of_every_stream() -> None:
    """A limited key reads the names and sums of others' streams."""
    from service.store import streams

    rewrite(streams.page, ("query = query.where(streams.c.name.in_(only))", "pass"))


@bug(f"{_NAMES}::test_a_name_means_the_oldest_publication_that_the_key_may_see")
def a_publication_of_a_stream_that_a_key_may_not_see() -> None:
    """A limited key reads others' releases by their name."""
    from service.api.auth import access

    rewrite(access.publication_or_404, ("visible=key.streams", "visible=None"))


@bug(f"{_NAMES}::test_readers_at_the_same_moment_each_get_their_own")
def one_answer_for_all_who_ask_by_one_name() -> None:
    """A second reader at the same moment gets another stream's model."""
    from service.api.newest_models import NewestModels

    rewrite(NewestModels.find, ("which = publication, streams", "which = publication, None"))


@bug(f"{_NAMES}::test_a_tag_of_a_release_is_of_one_publication_alone")
def a_tag_that_releases_of_several_publications_have() -> None:
    """A browser's cache shows another stream's release to who signed in next."""
    from service.api.http.representations import Representation

    rewrite(Representation.tag, (".{promise[:TAG_DIGITS]}", ""))


@bug(f"{_ACCESS}::test_a_limited_admin_can_not_make_a_wider_key")
def a_limited_key_that_makes_a_wider_one() -> None:
    """An administrator of one stream becomes one of all."""
    from service.api.routes import keys

    wrap(keys, "_unlimited", lambda *_: None)


@bug(f"{_ACCESS}::test_a_key_that_is_limited_to_streams_gets_no_metrics")
def a_limited_key_that_reads_metrics() -> None:
    """Metrics tell of every stream."""
    from service.api.routes import metrics

    rewrite(metrics.get_metrics, ("key.streams is not None", "False"))


@bug(f"{_ACCESS}::test_the_key_is_looked_at_before_the_body_is_read")
def a_body_that_is_read_before_its_key() -> None:
    """A client without a key learns what is wrong with its request, and makes the service read it."""
    from service.api.auth.scopes import Authorized
    from service.api.http.bodies import ConfigurationRequest

    look = Authorized.__call__

    async def look_later(self: Any, request: Any) -> Any:
        """As the framework alone would: routes are built already when this is planted, so that they stay."""
        return await look(self, request) if isinstance(request, ConfigurationRequest) else None

    Authorized.__call__ = look_later  # type: ignore[method-assign]


@bug(f"{_SESSIONS}::test_a_session_may_look_and_do_nothing_else_whatever_its_key_may")
def a_session_that_may_do_what_its_key_may() -> None:
    """Another site makes an administrator's browser stop publications."""
    from service.api.auth import credentials

    rewrite(credentials.session_key, ('key and replace(key, scopes=frozenset({"read"}))', "key"))
    rewrite(
        credentials.page_session_key,
        ('key and replace(key, scopes=frozenset({"read"}) | (key.scopes & {"label"}))', "key"),
    )


@bug(f"{_SESSIONS}::test_what_is_more_than_looking_needs_a_page_of_ours")
def a_session_that_any_page_may_use() -> None:
    """Another site makes a browser do what is more than looking."""
    from service.api.auth import credentials

    rewrite(credentials.secret_of, ("session and PAGE_HEADER in request.headers", "session"))


@bug(f"{_SESSIONS}::test_a_cookie_that_no_script_reads_and_no_other_site_sends")
def a_cookie_that_scripts_read() -> None:
    """A script in a page takes the session with it."""
    from service.api.routes import sessions

    rewrite(sessions.sign_in, ("httponly=True", "httponly=False"))


@bug("tests/api/test_events.py::test_a_revoked_key_is_told_nothing_more")
def a_revoked_key_that_follows_on() -> None:
    """A client that has begun to listen hears everything for ever."""
    from service.api.routes import events

    rewrite(events._events, (" or shown_key is None or await shared.keys.find(shown_key) is None", ""))


@bug(f"{_REVOKED}::test_no_record_is_leased_to_it")
def a_revoked_key_that_is_given_a_record() -> None:
    """A request that waits outlives its key, and sees a record that came after that."""
    from service.api.routes import labels

    rewrite(labels.next_label_request, ("await shared.keys.check_again(request)", "pass"))


@bug("tests/api/test_linearizable.py::test_no_answer_is_older_than_its_question_and_no_key_outlives_its_time")
def a_revoked_key_that_waits_on() -> None:
    """A long poll that began in time is sent a version that came after its key was revoked."""
    from service.api.routes import releases

    rewrite(releases.get_latest_release, ("await shared.keys.check_again(request)", "pass"))


@bug(f"{_REVOKED}::test_no_key_is_made_by_a_request_that_comes_slowly")
def a_revoked_administrator_who_had_begun_to_speak() -> None:
    """Somebody whose key was revoked makes another, by a request whose body had not come yet."""
    from service.api.auth import access

    rewrite(access.authorize, ("await services_of(request).keys.check_again(request)", "pass"))


@bug(f"{_REVOKED}::test_a_batch_that_comes_slowly_is_not_stored[True]")
def a_revoked_producer_who_had_begun_to_send() -> None:
    """A batch is stored of a key that was revoked before most of it came."""
    from service.api.routes import records

    rewrite(records.post_records, ("await shared.keys.check_again(request)", "pass"))


@bug(f"{_LABELS}::test_how_many_labels_came_is_told_to_who_may_give_some")
def labels_that_everybody_sees_counted() -> None:
    """How many labels came may tell of a record."""
    from service.api.routes import publications

    rewrite(publications._infos, ('not key.scopes.isdisjoint({"label", "admin"})', "True"))


@bug(f"{_LABELS}::test_what_is_empty_when_it_is_read_is_shown_to_nobody_though_it_was_leased")
def an_erased_record_that_is_shown_as_zeros() -> None:
    """A person who labels learns that it was erased at this moment, and labels it."""
    from service.api.routes import labels

    rewrite(
        labels._read,
        (
            "read.x[0].tolist() if read.filled(leased.record, leased.record + 1) else None",
            "[0.0] * read.x.shape[1] if not len(read.x) else read.x[0].tolist()",
        ),
    )


@bug("tests/api/test_audit_log.py::test_every_admin_action_leaves_a_line")
def an_administrator_who_leaves_no_trace() -> None:
    """Nobody can tell later who has erased or stopped what."""
    from service.api.auth import audit_log as audit

    wrap(audit, "log", lambda *_: None)


@bug("tests/api/test_explorer.py::test_a_key_sees_and_uses_its_own_only")
def a_data_set_that_every_key_sees() -> None:
    """A key uses a data set that another key has uploaded."""
    from service.store import explorations

    rewrite(explorations.find_dataset, (", datasets.c.key_id == key", ""))


@bug("tests/api/test_large_bodies.py::test_the_process_is_given_no_settings_of_the_service")
def a_reader_of_large_bodies_that_knows_the_database() -> None:
    """A body that takes over the process that reads it has the password of the database."""
    from service.api.http.large_bodies import LargeBodies

    rewrite(LargeBodies._start, (' if not name.startswith("PERENNIAL_")', ""))

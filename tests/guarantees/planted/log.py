"""Bugs in the log: what is promised, remembered, trimmed and gone on from."""

from __future__ import annotations

from typing import Any

from tests.guarantees.planted.bug import bug, rewrite, wrap

_SEALING = "tests/worker/test_sealing.py"
_DEAD = "tests/worker/test_dead_letters.py"
_ANOTHER = "tests/log/test_appending.py::test_a_log_that_is_not_the_one_that_was_numbered_is_told"
_APPENDING, _IDEMPOTENCY = "tests/log/test_appending.py", "tests/api/test_records.py::TestIdempotency"


def _appending(old: str, new: str) -> None:
    """Change the script that appends."""
    import hashlib

    from service.log import appender

    assert appender._APPEND.count(old) == 1
    appender._APPEND = appender._APPEND.replace(old, new)
    appender._APPEND_SHA = hashlib.sha1(appender._APPEND.encode(), usedforsecurity=False).hexdigest()


@bug(f"{_SEALING}::test_a_flushed_log_halts_the_stream_and_takes_nothing_more")
def a_flushed_log_that_takes_batches() -> None:
    """A log that has lost what was promised promises more."""
    _appending(
        "if found[1] ~= log or found[2] or found[6] or found[7] then return {'lost'} end", "found[4] = found[4] or 0"
    )
    _appending("tonumber(newest) > tonumber(found[5])", "false")
    _appending("found[5] + 1)", "(found[5] or 0) + 1)")
    _appending("tonumber(found[3])", "tonumber(found[3] or 0)")


@bug(f"{_APPENDING}::test_a_halted_log_takes_nothing")
def a_halted_log_that_takes_batches() -> None:
    """The log promises batches that can't be numbered."""
    _appending("if found[1] ~= log or found[2] or", "if found[1] ~= log or")


@bug(f"{_APPENDING}::test_a_log_that_lost_accepted_batches_takes_none_and_says_which")
def numbers_that_are_given_away_again() -> None:
    """A log that lost accepted batches gives their numbers to others, and nobody hears of it."""
    _appending("tonumber(newest) > tonumber(found[5])", "false")


@bug(f"{_IDEMPOTENCY}::test_another_body_is_refused")
def another_body_that_is_called_the_same() -> None:
    """A batch is said to be stored, and is not."""
    _appending("if string.sub(known, 1, #body) ~= body then return {'conflict'} end", "")


@bug(f"{_IDEMPOTENCY}::test_streams_and_api_keys_do_not_share_it")
def one_client_that_takes_the_keys_of_another() -> None:
    """A batch is said to be stored because somebody else used the same Idempotency-Key."""
    from service.log import appender

    wrap(appender, "answer_keys", lambda true, log, _: true(log, "one for all"))


@bug(f"{_APPENDING}::test_a_server_that_syncs_late_is_given_nothing[appendfsync-everysec]")
def batches_that_are_synced_later() -> None:
    """A 202 is answered before the batch is on disk."""
    from service.log import appender

    wrap(appender, "require_durability", lambda *_: None)


@bug(f"{_APPENDING}::test_a_server_that_syncs_late_is_given_nothing[no-appendfsync-on-rewrite-yes]")
def batches_that_are_not_on_disk_while_the_file_is_written_anew() -> None:
    """A power cut after an erasure loses what was accepted meanwhile."""
    from service.log import connection

    rewrite(connection.require_durability, ('settings.get("no-appendfsync-on-rewrite", "no") != "no"', "False"))


@bug(f"{_APPENDING}::test_a_server_that_deletes_keys_when_its_memory_is_full_is_given_nothing[volatile-lru]")
def answers_that_a_full_server_forgets() -> None:
    """A request that is sent again is stored twice."""
    from service.log import connection

    rewrite(connection.require_durability, ('settings.get("maxmemory-policy") != "noeviction"', "False"))


@bug(f"{_APPENDING}::test_a_setting_that_is_changed_is_noticed_again")
def a_server_that_is_asked_once_how_it_syncs() -> None:
    """An operator changes it while it runs."""
    from service.log import appender

    appender.DURABLE_SECONDS = float("inf")


@bug(f"{_SEALING}::test_batches_are_numbered_in_the_logs_order_and_trimmed")
def a_log_that_is_never_trimmed() -> None:
    """Everything that ever came stays in memory, erased records too."""
    from service.log import Reader

    wrap(Reader, "trim", lambda *_: None)


@bug(f"{_APPENDING}::test_what_is_numbered_is_trimmed_and_nothing_else")
def a_log_that_is_trimmed_too_far() -> None:
    """A batch that is not numbered goes with the one before it."""
    from service.log import reader

    def beyond(true: Any, entry: str) -> str:
        return str(true(true(f"{int(entry.split('-', maxsplit=1)[0]) + 60_000}-0")))

    wrap(reader, "following", beyond)


@bug(f"{_ANOTHER}[made anew]")
def another_log_that_is_gone_on_with() -> None:
    """A log that was made anew counts as the one before."""
    from service.log import Reader

    rewrite(Reader.check_each, ("of_log != log.encode()", "False"))


@bug(f"{_ANOTHER}[cut]")
def a_batch_that_was_cut_out() -> None:
    """The next batch is taken for the one that is missing."""
    from service.log import reader

    rewrite(reader._lost, ("not in (None, due)", "in ()"))


@bug(f"{_DEAD}::test_a_damaged_batch_is_set_aside_and_the_next_one_gets_its_numbers")
def a_damaged_batch_that_is_gone() -> None:
    """The reader deletes a batch that it could not number, and keeps no copy of it."""
    from service.log import Reader

    wrap(Reader, "bury", lambda *_: None)


@bug(f"{_APPENDING}::test_a_log_goes_on_with_the_first_batch_that_is_not_numbered")
def a_log_that_goes_on_with_what_has_numbers() -> None:
    """A stream that is resumed numbers its last batches a second time."""
    from service.log import appender

    trim = "redis.call('XTRIM', entries, 'MINID', '=', after)"
    assert appender._RESUME.count(trim) == 1
    appender._RESUME = appender._RESUME.replace(trim, "")


_STATELESS = f"{_APPENDING}::test_a_log_that_lost_its_state_goes_on_behind_what_it_holds"


def _resuming(old: str, new: str) -> None:
    """Change the script that makes a log go on."""
    from service.log import appender

    assert appender._RESUME.count(old) == 1
    appender._RESUME = appender._RESUME.replace(old, new)


@bug(_STATELESS)
def numbers_of_batches_that_come_twice() -> None:
    """A log that lost its state gives new batches the numbers of those that it holds, and its stream halts again."""
    _resuming("last and last[2] or sequence", "sequence")

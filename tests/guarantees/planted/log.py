"""Bugs in the log: what is promised, remembered, trimmed and gone on from."""

from __future__ import annotations

from typing import Any

from tests.guarantees.planted.bug import bug, rewrite, wrap

_SEALING = "tests/worker/test_sealing.py"
_DEAD = "tests/worker/test_dead_letters.py"
_ANOTHER = "tests/log/test_appending.py::test_a_log_that_is_not_the_one_that_was_numbered_is_told"
_READING = "tests/log/test_reading.py"
_PRIMARIES = "tests/log/test_primaries.py"
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
    _appending("if found[1] ~= log or found[2] or found[7] then return {'lost'} end", "found[4] = found[4] or 0")
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


@bug(f"{_APPENDING}::test_so_many_bytes_wait_and_no_more")
def a_backlog_without_a_bound_in_bytes() -> None:
    """Large batches fill the server's memory while no worker runs."""
    _appending(" or (waiting > 0 and waiting + #payload > most_bytes)", "")


@bug("tests/api/test_limits.py::test_a_full_backlog_refuses_and_stores_nothing")
def a_backlog_without_a_bound_in_batches() -> None:
    """Small batches fill the server's memory while no worker runs."""
    _appending("redis.call('XLEN', entries) >= most_batches or ", "")


@bug(f"{_APPENDING}::test_an_answer_is_remembered_for_a_day")
def answers_that_are_remembered_for_ever() -> None:
    """Each request with a key of its own leaves something in the server's memory."""
    _appending("redis.call('PEXPIRE', remembered, day + half_day)", "")


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


@bug(f"{_APPENDING}::test_a_server_that_syncs_late_is_given_nothing[appendonly-no]")
def batches_that_are_never_on_disk() -> None:
    """A log without its file counts as kept."""
    from service.log import connection

    rewrite(
        connection.require_durability,
        ('(settings.get("appendonly"), settings.get("appendfsync")) != ("yes", "always")', "False"),
    )


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


@bug(f"{_ANOTHER}[older]")
def an_older_log_that_is_gone_on_with() -> None:
    """The batches after it get numbers that others have."""
    from service.log import reader

    rewrite(reader._lost, ("newest < position.sequence", "False"))


@bug(f"{_ANOTHER}[made anew]")
def another_log_that_is_gone_on_with() -> None:
    """A log that was made anew counts as the one before."""
    from service.log import Reader

    rewrite(Reader.check_each, ("of_log != log.encode()", "False"))


@bug(f"{_ANOTHER}[emptied]")
def batches_that_were_lost_before_they_were_numbered() -> None:
    """Accepted batches are lost before they have numbers, and the reader goes on."""
    from service.log import reader

    rewrite(reader._lost, ("newest >= due and not after", "False"))


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


@bug(f"{_PRIMARIES}::test_streams_are_on_all_primaries_and_each_batch_is_numbered_once[list]")
def a_sealer_that_takes_streams_of_other_primaries() -> None:
    """A worker looks for a stream's log on another primary, and halts the stream."""
    from sqlalchemy import true

    from service.store import changes
    from service.worker import sealer

    wrap(changes, "_has", lambda *_: true())
    wrap(sealer, "is_on", lambda *_: True)


@bug(f"{_PRIMARIES}::test_primaries_in_another_order_are_refused")
def primaries_whose_order_nobody_holds() -> None:
    """Streams are looked for on another primary than their own after a setting was written anew."""
    from service.log.probe import _probe

    rewrite(_probe, ("int(known) != primary.number", "False"))


@bug(f"{_PRIMARIES}::test_a_reader_sees_what_came_before_it_looked_and_what_comes_later[cluster]")
def batches_that_came_before_the_reader() -> None:
    """Batches on a cluster wait for the next one before they are numbered."""
    from service.log.cluster import ClusterReader

    rewrite(ClusterReader.wait, ("self._changed |= positions.keys() - set(self._watched.values())", "pass"))


@bug(f"{_READING}::test_a_batch_that_comes_between_reading_and_trimming_is_named[cluster]")
def batches_that_came_beside_those_that_were_read() -> None:
    """A batch on a cluster that comes while others are numbered waits for the next one."""
    from service.log.cluster import ClusterReader

    rewrite(ClusterReader.trim, ("changed=bool(left)", "changed=False"))


@bug(f"{_READING}::test_a_server_that_remembers_fewer_logs_than_are_read_hides_nothing[cluster]")
def changes_that_a_server_no_longer_remembers() -> None:
    """Where more logs are read than a server remembers, a batch waits for the next one."""
    from service.log.cluster import ClusterReader

    rewrite(ClusterReader._track, ('"TRACKING", "ON"', '"TRACKING", "ON", "NOLOOP"'))


@bug("tests/log/test_forgotten_moves.py::test_a_stream_with_a_second_open_log_is_not_moved[at a third place]")
def a_stream_with_two_open_logs() -> None:
    """A database that has forgotten a move is shown an old copy of the log."""
    from service.worker import moving

    rewrite(moving._was_switched, ('all(each.state()[0] != "open" for each in others)', "True"))


_INTO = f"{_APPENDING}::test_a_log_moves_to_no_server_that_could_lose_it_and_into_none_that_takes_batches"
_WAITED = f"{_APPENDING}::test_how_long_the_oldest_batch_has_waited_is_told_in_seconds"
_OURS = f"{_APPENDING}::test_an_entry_that_nobody_of_ours_wrote_has_no_number"


@bug(_INTO)
def a_log_that_moves_to_a_server_that_may_lose_it() -> None:
    """Answers of requests and dead letters are gone after the new server's machine lost power."""
    from service.log import MovedLog

    rewrite(MovedLog.prepare, ("require_durability(configuration)", "pass"))


@bug(_INTO)
def answers_that_are_copied_into_a_log_that_takes_batches() -> None:
    """A command that hung puts an old answer in the place of a newer one."""
    from service.log import MovedLog

    rewrite(MovedLog._transact, (" or closed is None", ""))


@bug(_WAITED)
def a_lag_in_the_wrong_unit() -> None:
    """An alarm about batches that wait rings always, or never."""
    from service.log import appender

    rewrite(appender._backlog, ("/ 1e3", "/ 1e6"))


@bug(_WAITED)
def a_backlog_below_nothing() -> None:
    """A stream that was numbered meanwhile says that minus one batch waits."""
    from service.log import appender

    rewrite(appender._backlog, ("max(0, batches)", "batches"))


@bug(f"{_OURS}[fields1-None]")
def an_entry_without_records_that_has_a_number() -> None:
    """Something that a tool wrote into the log halts its stream."""
    from service.log import reader

    rewrite(reader._entry, (' and b"batch" in fields', ""))


@bug(f"{_OURS}[fields2-None]")
def an_entry_with_a_number_that_no_column_holds() -> None:
    """The sealer fails at it again and again, and numbers nothing more."""
    from service.log import reader

    rewrite(reader._entry, (" and len(sequence) < 19", ""))


@bug(f"{_PRIMARIES}::test_primaries_in_another_order_are_refused")
def primaries_whose_new_order_a_second_start_takes() -> None:
    """A start that is refused writes the wrong numbers down, and the next one finds them right."""
    from service.log.probe import _probe

    rewrite(_probe, ("nx=True, ", ""))


@bug(f"{_PRIMARIES}::test_primaries_after_one_that_is_away_are_looked_at")
def primaries_after_one_that_is_away_that_nobody_looks_at() -> None:
    """A service starts while one primary is away, and trusts the others whatever they are."""
    from service.log import probe

    rewrite(
        probe, ("        except RedisError:\n            continue", "        except RedisError:\n            return")
    )


@bug(f"{_PRIMARIES}::test_primaries_are_known_though_nodes_that_were_named_are_away[cluster]")
def nodes_of_a_cluster_that_nobody_remembers() -> None:
    """The log counts as away since the one node that the setting names is."""
    from service.log import ClusterPrimaries

    rewrite(ClusterPrimaries.refresh, ("(*self._nodes, *(urlsplit(each.url) for each in self._every))", "self._nodes"))


@bug("tests/log/test_commands.py::test_an_answer_that_is_due_after_another_is_not_waited_for_for_ever")
def a_clock_that_runs_for_the_first_command_alone() -> None:
    """Requests wait for ever for a server that hangs."""
    from service.log.pipelined import PipelinedConnection

    rewrite(PipelinedConnection._look, ("elif self._due:", "elif False:"))


@bug(f"{_APPENDING}::test_a_log_goes_on_with_the_first_batch_that_is_not_numbered")
def a_log_that_goes_on_with_what_has_numbers() -> None:
    """A stream that is resumed numbers its last batches a second time."""
    from service.log import appender

    trim = "redis.call('XTRIM', entries, 'MINID', '=', after)"
    assert appender._RESUME.count(trim) == 1
    appender._RESUME = appender._RESUME.replace(trim, "")


@bug("tests/log/test_commands.py::test_all_others_on_a_lost_connection_are_told_where_one_waits_no_more")
def a_request_that_was_given_up_and_keeps_others_waiting() -> None:
    """Requests that share a lost connection with one whose client has gone wait for ever."""
    from service.log.pipelined import PipelinedConnection

    rewrite(PipelinedConnection.connection_lost, ("if not due.future.done():", "if True:"))


@bug("tests/log/test_commands.py::test_a_connection_that_is_lost_at_once_keeps_nobody_waiting[_closed_by_the_server]")
def a_connection_that_its_server_had_closed_before() -> None:
    """The API sends a request over a closed connection, and its client waits until the time-out."""
    from service.log.pipelined import PipelinedConnection

    rewrite(PipelinedConnection.__init__, ("library._reader.at_eof() or ", ""))


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


@bug(_STATELESS)
def a_log_that_forgets_how_long_it_is() -> None:
    """Less waits than is there, and the bound in bytes is passed."""
    _resuming("string.format('%.0f', last[4] + #last[6])", "last[4]")


@bug(_STATELESS)
def a_log_that_counts_what_was_trimmed() -> None:
    """A stream is refused as full although hardly anything waits."""
    _resuming("'trimmed', first and first[4] or 0", "'trimmed', 0")

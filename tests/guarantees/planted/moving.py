"""Bugs in the command that moves a stream to another primary."""

from __future__ import annotations

from tests.guarantees.planted.bug import bug, rewrite, wrap
from tests.guarantees.planted.log import _appending

_MOVING, _FORGOTTEN = "tests/log/test_moving.py", "tests/log/test_forgotten_moves.py"
_MEMORY = f"{_MOVING}::test_it_takes_its_memory_along_and_leaves_a_mark"


@bug(f"{_MOVING}::test_it_waits_until_all_is_numbered")
def a_log_that_is_left_before_it_is_numbered() -> None:
    """Accepted batches stay in a log that nobody reads any more."""
    from service.worker.moving import Mover

    rewrite(Mover._drained, ("while not source.is_numbered(position_of(stream)):", "while False:"))


@bug(_MEMORY)
def answers_that_are_not_taken_along() -> None:
    """A request that is repeated after the move is a second batch."""
    from service.log import MovedLog

    wrap(MovedLog, "_remember", lambda *_: None)


@bug(_MEMORY)
def dead_letters_that_are_left_behind() -> None:
    """Dead letters are deleted though nobody dropped them."""
    from service.log import MovedLog

    wrap(MovedLog, "_bury", lambda *_: None)


@bug(_MEMORY)
def answers_after_the_first_ones_that_are_not_taken_along() -> None:
    """A request that is repeated after the move of a busy stream is a second batch."""
    from service.log import MovedLog

    rewrite(MovedLog.copy_from, ("self._remember(source.answers(keys))", "self._remember(source.answers(keys)); break"))


@bug(_MEMORY)
def dead_letters_after_the_first_ones_that_are_left_behind() -> None:
    """A move takes the first dead letters along, and loses the others."""
    from service.log import MovedLog

    rewrite(MovedLog.letters, ('after = f"({some[-1][0].decode()}"', "return"))


@bug(f"{_MOVING}::test_a_letter_that_is_dropped_while_it_is_copied_is_gone")
def dropped_letters_that_come_back() -> None:
    """An operator deletes a letter while it is copied, and it lies on the other primary for ever."""
    from service.worker import moving

    wrap(moving.places, "dropped_letters", lambda *_: [])


@bug(f"{_MOVING}::test_a_closed_log_refuses_until_it_is_opened")
def a_closed_log_that_takes_batches() -> None:
    """An API that knows the old place appends there after the switch."""
    _appending("if found[6] then return {'closed'} end", "")


@bug(f"{_MOVING}::test_who_lost_the_lease_of_a_move_can_not_switch")
def a_switch_without_the_lease_of_the_move() -> None:
    """A command that hung moves the stream back to a log that was left."""
    from service.store import places

    rewrite(places.switch, ("leases.check(connection, lease)\n", "pass\n"))


@bug(f"{_MOVING}::test_a_log_refuses_all_that_an_earlier_move_wants")
def a_log_that_forgets_which_move_was_the_last() -> None:
    """A command that hung closes, empties or opens a log behind the back of a later one."""
    from service.log import move

    for name in ("_CLOSE", "_OPEN", "_PREPARE", "_LEAVE"):
        script = getattr(move, name)
        assert script.count("return 'overtaken'") == 1
        setattr(move, name, script.replace("return 'overtaken'", "local _ = 0"))


@bug(f"{_MOVING}::test_a_command_killed_before_any_of_its_steps_leaves_a_stream_that_works")
def a_log_that_a_killed_command_leaves_closed() -> None:
    """The stream takes nothing until somebody runs the command again."""
    from service.worker import sealer

    wrap(sealer, "reopen", lambda *_: None)


@bug(f"{_MOVING}::test_an_api_that_knew_the_old_place_appends_at_the_new_one")
def an_api_that_remembers_the_old_place_for_ever() -> None:
    """It answers 503 until it is started again."""
    from service.api.services import Services

    wrap(Services, "forget", lambda *_: None)


@bug(
    "tests/log/test_forgotten_moves.py::test_a_log_is_not_opened_again_where_the_database_has_forgotten_that_its_stream_moved"
)
def a_closed_log_that_is_opened_whatever_its_stream_does_elsewhere() -> None:
    """The old log takes batches again, and those that the new one has accepted are never numbered."""
    from service.log import MovedLog

    wrap(MovedLog, "goes_on_after", lambda *_: False)


@bug(f"{_FORGOTTEN}::test_the_new_log_is_closed_until_its_stream_is_there")
def a_log_that_is_open_before_its_stream_is_there() -> None:
    """A command that ends before the switch leaves two logs of one stream that take batches."""
    from service.worker.moving import Mover

    rewrite(
        Mover._move,
        ("                places.switch(", "                target.open_for_appends()\n                places.switch("),
    )


@bug(f"{_FORGOTTEN}::test_no_move_from_before_a_stream_was_resumed_can_switch_it")
def a_move_that_goes_on_after_its_stream_was_resumed() -> None:
    """The stream goes to a log that lacks what its old one has taken since."""
    from service.store import numbering

    rewrite(numbering.resume, ("leases.revoke(connection, leases.move(seen.id))", "pass"))


@bug(f"{_FORGOTTEN}::test_ids_of_the_new_log_follow_those_of_the_old_one")
def ids_that_begin_below_those_of_the_old_log() -> None:
    """Where the clock of the new server is behind, batches come before the position that is read from."""
    from service.log import move

    assert move._PREPARE.count("if entry ~= '0-0' then") == 1
    move._PREPARE = move._PREPARE.replace("if entry ~= '0-0' then", "if false then")


_LEFT = f"{_FORGOTTEN}::test_a_log_that_is_left_is_written_anew_until_nothing_of_it_is_left"


@bug(_LEFT)
def records_that_stay_in_the_file_of_a_log_that_was_left() -> None:
    """Where the server is busy, its file holds records that are erased later."""
    from service.worker.moving import Mover

    rewrite(Mover._leave, ("while not other.forget()", "if not other.forget()"))


@bug(_LEFT)
def a_move_that_fails_since_a_third_primary_is_away() -> None:
    """The stream has moved, and the command says that a server is away: an operator moves it again and again."""
    from service.worker.moving import Mover

    rewrite(Mover._leave, ("except LogUnavailable:", "except ZeroDivisionError:"))


_UNKNOWN = "tests/log/test_appending.py::test_a_log_that_takes_batches_or_is_unknown_stays_as_it_is"
_MARK = "tests/log/test_appending.py::test_of_a_log_that_is_left_nothing_stays_but_its_mark"
_IF_OPEN = "if known[1] == log and not known[3] then return 'open' end\n"


def _script(name: str, old: str) -> None:
    from service.log import move

    script = getattr(move, name)
    assert script.count(old) == 1
    setattr(move, name, script.replace(old, ""))


@bug(_UNKNOWN)
def a_log_that_takes_batches_and_is_made_anew() -> None:
    """A command that knows an old place empties the log where its stream is."""
    _script("_PREPARE", _IF_OPEN)


@bug(_UNKNOWN)
def a_log_that_takes_batches_and_is_left() -> None:
    """Accepted batches are deleted before they have numbers."""
    _script("_LEAVE", _IF_OPEN)


@bug(_UNKNOWN)
def a_log_that_is_lost_and_opened() -> None:
    """A server that was put back empty takes batches of which nobody knows the number."""
    _script("_OPEN", "if known[1] ~= log then return 'lost' end\n")


@bug(_UNKNOWN)
def a_log_that_counts_as_numbered_by_its_last_number() -> None:
    """A batch that came meanwhile is left behind."""
    from service.log import MovedLog

    rewrite(MovedLog.is_numbered, (" and not after", ""))


@bug(_UNKNOWN)
def a_log_that_counts_as_numbered_since_nothing_is_there() -> None:
    """A log that has lost its batches is left as if all of them had numbers."""
    from service.log import MovedLog

    rewrite(MovedLog.is_numbered, ('int(cast("bytes", sequence)) == position.sequence and ', ""))


@bug(_MARK)
def dead_letters_of_a_log_that_was_left() -> None:
    """Records that nobody can name any more stay on a server that their stream has left."""
    from service.log import move

    assert move._LEAVE.count(", KEYS[3])") == 1
    move._LEAVE = move._LEAVE.replace(", KEYS[3])", ")")


@bug(_MARK)
def answers_that_stay_where_a_stream_was() -> None:
    """A stream that comes back answers requests with what was there before it left."""
    from service.log import MovedLog

    rewrite(MovedLog.leave, ("for keys in _some_at_once(self.remembered()):", "for keys in ():"))


@bug(_MARK)
def dead_letters_from_before_a_stream_came_back() -> None:
    """Letters that were dropped elsewhere are beside the log again."""
    from service.log import move

    assert move._PREPARE.count(", entries, dead)") == 1
    move._PREPARE = move._PREPARE.replace(", entries, dead)", ", entries)")


@bug(_MARK)
def answers_that_are_remembered_for_ever_after_a_move() -> None:
    """Each request with a key of its own leaves something in the server's memory."""
    from service.log import MovedLog

    rewrite(MovedLog._remember, ("pipe.pexpire(key, milliseconds)", "pass"))


@bug(_MARK)
def a_later_move_that_writes_into_the_log_of_an_earlier_one() -> None:
    """Answers are copied into a log that the move has not made."""
    from service.log import MovedLog

    rewrite(MovedLog._transact, ("int(move) != self.move", "int(move) > self.move"))


@bug(
    "tests/log/test_appending.py::test_a_log_goes_on_after_one_that_takes_nothing_and_ends_no_later[mine2-others2-False]"
)
def a_log_from_a_backup_that_is_taken_for_the_newer_one() -> None:
    """Accepted batches are numbered again, or never."""
    from service.log import MovedLog

    rewrite(MovedLog.goes_on_after, (" and start <= end", ""))

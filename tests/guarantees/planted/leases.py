"""Bugs in leases: who takes them, how long they are held, and what their next owner knows."""

from __future__ import annotations

from tests.guarantees.planted.bug import bug, define, rewrite

_LEASES = "tests/store/test_leases.py"
_GONE = f"{_LEASES}::test_the_next_owner_knows_since_when_its_predecessor_was_gone"
_ABANDONED = f"{_LEASES}::test_a_lease_that_is_abandoned_tells_its_next_owner_so_whoever_that_is"
_AFTER_A_WHILE = f"{_LEASES}::test_what_nobody_holds_is_taken_after_a_while_where_others_are_to_be_first"
_HOLDS = f"{_LEASES}::test_a_worker_knows_which_leases_it_holds"
_HANDOVER = "tests/worker/test_handover.py"


@bug(f"{_HANDOVER}::test_a_mark_that_can_not_be_read_holds_up_its_own_stream_alone")
def a_lease_that_is_taken_and_given_back_at_once() -> None:
    """A sealer that can't read a mark wakes all sealers, itself too, and does nothing else any more."""
    from service.worker.sealer import Sealer

    rewrite(
        Sealer._read,
        ("self._not_before |= dict.fromkeys(mine.keys() - marked, time.monotonic() + AFTER_AN_ERROR_SECONDS)", "pass"),
    )


@bug(_GONE)
def a_lease_that_was_given_back_and_counts_as_left() -> None:
    """Each publication halts at the second time that its lease goes to another worker."""
    from service.store import leases

    rewrite(leases._taken, ("None if given_back or row", "None if row"))


@bug(_GONE)
def a_lease_of_ones_own_that_counts_as_left_by_another() -> None:
    """A worker that slept past its lease notes that it died."""
    from service.store import leases

    rewrite(leases._taken, ("given_back or row.owner == owner", "given_back"))


@bug(_GONE)
def a_lease_that_counts_as_left_when_it_ran_out() -> None:
    """An owner's death is excused by a database that was away after it."""
    from service.store import leases

    rewrite(leases._taken, ("float(row.over) + seconds", "float(row.over)"))


@bug(_ABANDONED)
def an_abandoned_lease_that_was_left_earlier_than_it_was() -> None:
    """An attempt that is to be noted is excused by a database that was away before it."""
    from service.store import leases

    rewrite(leases.abandon, ("abandoned - seconds", "abandoned"))


@bug(_ABANDONED)
def an_abandoned_lease_that_nobody_knows_of() -> None:
    """A publication whose fits kill their worker is tried again and again."""
    from service.store import leases

    rewrite(leases.abandon, ("owner=_NOBODY", "owner=None"))


@bug(_ABANDONED)
def an_abandoned_lease_that_is_taken_from_its_next_owner() -> None:
    """A thread that hung ends the lease of the worker that took over."""
    from service.store import leases

    rewrite(
        leases.abandon, ("is_held(lease.resource, lease.owner, lease.epoch)", "(leases.c.resource == lease.resource,)")
    )


@bug(_AFTER_A_WHILE)
def leases_that_are_taken_at_once_though_others_are_to_be_first() -> None:
    """A worker with more than its share takes streams before those that have none see them."""
    from service.store import leases

    rewrite(leases.take_several, ("most=most, since=since", "most=most"))


@bug(_HOLDS)
def leases_that_a_worker_takes_at_once_though_others_are_to_be_first() -> None:
    """A worker with more than its share takes streams before those that have none see them."""
    from service.worker.leases import LeaseKeeper

    rewrite(LeaseKeeper.take_several, ("most=most, since=since", "most=most"))


@bug(f"{_LEASES}::test_sealers_hear_of_a_stream_that_is_given_back")
def a_stream_that_is_given_back_silently() -> None:
    """Batches wait for seconds until a sealer looks."""
    from service.store import leases

    rewrite(leases.release_several, ("if any(", "if all("))


@bug(_HOLDS)
def leases_that_are_not_renewed() -> None:
    """A sealer numbers nothing more once its leases have run out."""
    from service.worker.leases import LeaseKeeper

    rewrite(LeaseKeeper.take_several, ("self._held |=", "_ ="))


@bug(_HOLDS)
def an_abandoned_lease_that_counts_as_held() -> None:
    """A worker goes on with what it has given up."""
    from service.worker.leases import LeaseKeeper

    rewrite(LeaseKeeper.abandon, ("self._forget([lease])", "pass"))


@bug(_HOLDS)
def a_lost_lease_that_takes_the_newer_one_along() -> None:
    """A thread that gives up an old lease ends the renewal of the one that its worker has taken since."""
    from service.worker.leases import LeaseKeeper

    rewrite(LeaseKeeper._forget, ("self._held.get(lease.resource) is lease", "lease.resource in self._held"))


_ANYBODYS = f"{_LEASES}::test_a_lease_that_a_worker_needs_no_more_is_anybodys_at_once"


@bug(f"{_ANYBODYS}[for another one]")
def a_lease_that_is_exchanged_and_not_given_back() -> None:
    """Each publication that a thread leaves for another one waits until its lease has run out."""
    from service.worker.leases import LeaseKeeper

    rewrite(LeaseKeeper.take, ("leases.release_several(connection, given)", "pass"))


@bug(f"{_ANYBODYS}[at the end]")
def a_worker_that_ends_with_its_leases() -> None:
    """The next worker waits for them, and notes of each publication that its worker died."""
    from service.worker.leases import LeaseKeeper

    rewrite(LeaseKeeper.stop, ("self.drop(*list(self._held.values()))", "pass"))


@bug(f"{_ANYBODYS}[dropped]")
def a_dropped_lease_that_counts_as_held() -> None:
    """A worker goes on with what it has given back."""
    from service.worker.leases import LeaseKeeper

    rewrite(LeaseKeeper.drop, ("self._forget(given)", "pass"))


_SHARE = f"{_LEASES}::test_who_appears_again_has_lost_the_share_it_had_and_drops_dead_sealers_alone"
_FAILOVER = f"{_LEASES}::test_what_was_given_back_before_a_failover_may_be_held_by_somebody_who_is_lost"
_ANYBODYS = f"{_LEASES}::test_a_stream_that_is_taken_from_its_sealer_is_anybodys_at_once"


@bug(f"{_LEASES}::test_what_was_not_given_back_in_time_was_left")
def a_lease_that_is_given_back_after_it_ran_out() -> None:
    """A step is drawn again, as if nobody had drawn it before."""
    from service.store import leases

    define(leases, "_RELEASE", ("\nAND expires_at > clock_timestamp()", ""))


@bug(_FAILOVER)
def a_lease_whose_newest_owner_a_failover_forgot() -> None:
    """A step is drawn again after a failover, as if nobody had drawn it before."""
    from service.store import leases

    rewrite(leases._taken, (" and not row.elsewhere", ""))


@bug(_FAILOVER)
def a_lease_that_counts_as_lost_for_ever_after_a_failover() -> None:
    """After one failover each lease that is given back counts as left by somebody who died."""
    from service.store import leases

    define(leases, "_RELEASE", (", timeline = {TIMELINE}", ""))


@bug(_SHARE)
def leases_that_go_with_those_of_dead_workers() -> None:
    """A stream that nobody numbered for a while, or a publication, can be taken by nobody any more."""
    from service.store import leases

    rewrite(leases.appear, ("_is_of_sealers(primary), leases", "leases"))


@bug(_SHARE)
def a_share_that_two_processes_of_one_name_hold() -> None:
    """A worker that appears again does not end what its earlier self holds."""
    from service.store import leases

    rewrite(leases.appear, ('set_=held | {"epoch": leases.c.epoch + 1}', "set_=held"))


@bug(f"{_LEASES}::test_sealers_of_each_primary_are_counted_apart")
def sealers_that_are_dead_and_counted() -> None:
    """Workers leave streams to those that are gone."""
    from service.store import leases

    rewrite(leases.sealers, ("_is_of_sealers(primary), not_(is_free(seconds))", "_is_of_sealers(primary)"))


@bug(f"{_LEASES}::test_sealers_of_each_primary_are_counted_apart")
def sealers_of_all_primaries_that_are_counted_for_each() -> None:
    """Each worker takes a part of its share, and the rest waits."""
    from service.store import leases

    rewrite(leases._sealers_of, ('_SEALER if primary == 1 else f"sealer/{primary}:"', "_SEALER"))


@bug(_ANYBODYS)
def a_stream_that_is_taken_from_its_sealer_silently() -> None:
    """A stream that has moved waits for the next look."""
    from service.store import leases

    rewrite(leases.revoke, ("if resource.startswith(_STREAM):", "if False:"))


@bug(_FAILOVER)
def a_lease_that_is_revoked_and_counts_as_left_by_one_who_died() -> None:
    """After a failover a publication whose stream was moved counts an attempt that nobody made."""
    from service.store import leases

    rewrite(leases.revoke, (", timeline=TIMELINE", ""))

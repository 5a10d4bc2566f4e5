"""Bugs in leases: who takes them, how long they are held, and what their next owner knows."""

from __future__ import annotations

from sqlalchemy import text

from tests.guarantees.planted.bug import bug, rewrite

_LEASES = "tests/store/test_leases.py"
_GONE = f"{_LEASES}::test_the_next_owner_knows_since_when_its_predecessor_was_gone"
_ABANDONED = f"{_LEASES}::test_a_lease_that_is_abandoned_tells_its_next_owner_so_whoever_that_is"
_HOLDS = f"{_LEASES}::test_a_worker_knows_which_leases_it_holds"


@bug(_GONE)
def a_lease_that_counts_as_left_when_it_ran_out() -> None:
    """An owner's death is excused by a database that was away after it."""
    from service.store import leases

    rewrite(leases._taken, ("float(row.over) + seconds", "float(row.over)"))


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


@bug(_HOLDS)
def an_abandoned_lease_that_counts_as_held() -> None:
    """A worker goes on with what it has given up."""
    from service.worker.leases import LeaseKeeper

    rewrite(LeaseKeeper.abandon, ("self._forget([lease])", "pass"))


_FAILOVER = f"{_LEASES}::test_what_was_given_back_before_a_failover_may_be_held_by_somebody_who_is_lost"


@bug(f"{_LEASES}::test_what_was_not_given_back_in_time_was_left")
def a_lease_that_is_given_back_after_it_ran_out() -> None:
    """A step is drawn again, as if nobody had drawn it before."""
    from service.store import leases

    leases._RELEASE = text(str(leases._RELEASE).replace("AND expires_at > clock_timestamp()", ""))


@bug(_FAILOVER)
def a_lease_whose_newest_owner_a_failover_forgot() -> None:
    """A step is drawn again after a failover, as if nobody had drawn it before."""
    from service.store import leases

    rewrite(leases._taken, (" and not row.elsewhere", ""))

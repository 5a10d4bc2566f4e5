"""A publisher is woken by what is committed, or by another one that leaves it something."""

import threading

from service.worker import bell
from service.worker.bell import Bell
from tests.conftest import HANG_SECONDS, wait_until


def waiting(ring: Bell, *, first: bool) -> threading.Thread:
    """Return a thread that waits from now on."""
    thread = threading.Thread(target=ring.wait_past, args=[ring.count], kwargs={"first": first}, daemon=True)
    thread.start()
    return thread


def test_a_ring_wakes_the_first_one(monkeypatch):
    monkeypatch.setattr(bell, "LOOK_ANYWAY_SECONDS", HANG_SECONDS)
    ring = Bell(None)
    first, other = (waiting(ring, first=each) for each in (True, False))
    wait_until(lambda: ring._first_waits)
    ring.ring()
    wait_until(lambda: not first.is_alive())
    assert other.is_alive()
    ring.close()
    wait_until(lambda: not other.is_alive())


def test_where_the_first_one_is_at_work_a_ring_wakes_one_other():
    ring = Bell(None)
    others = [waiting(ring, first=False) for _ in range(2)]
    ring.ring()
    wait_until(lambda: sum(each.is_alive() for each in others) == 1)
    ring.close()
    wait_until(lambda: not any(each.is_alive() for each in others))


def test_a_ring_before_the_first_one_waits_is_not_lost(monkeypatch):
    monkeypatch.setattr(bell, "LOOK_ANYWAY_SECONDS", HANG_SECONDS)
    ring = Bell(None)
    heard = ring.count
    ring.ring()
    ring.wait_past(heard, first=True)


def test_what_the_first_one_leaves_wakes_one_other(monkeypatch):
    monkeypatch.setattr(bell, "LOOK_ANYWAY_SECONDS", 0.01)
    ring = Bell(None)
    first, *others = (waiting(ring, first=each) for each in (True, False, False))
    wait_until(lambda: not first.is_alive())
    assert all(each.is_alive() for each in others)
    ring.leave()
    wait_until(lambda: sum(each.is_alive() for each in others) == 1)
    ring.leave()
    wait_until(lambda: not any(each.is_alive() for each in others))

"""Releases that are kept as they are sent: the newest few, in so many bytes, each counted once."""

from service.api.http.representations import Rendered


def test_the_oldest_make_room_for_the_newest():
    cache = Rendered(most_bytes=10)
    names = [("promise", version, "json") for version in range(5)]
    cache.put(names[0], b"0123456789a")
    assert cache.get(names[0]) is None, "it is too large by itself"
    for name in (names[1], names[2], names[1]):
        cache.put(name, b"four")
    assert [cache.get(name) for name in names[1:3]] == [b"four"] * 2
    cache.put(names[3], b"four")
    assert [cache.get(name) for name in names[1:4]] == [None, b"four", b"four"]
    cache.put(names[4], b"0123456789")
    assert [cache.get(name) for name in names[1:]] == [None, None, None, b"0123456789"]


def test_what_is_kept_goes_on_within_its_bound():
    cache = Rendered(most_bytes=10)
    for version in range(100):
        cache.put(("promise", version, "json"), b"four")
        assert cache.get(("promise", version, "json")) == b"four"
    assert sum(map(len, cache._bodies.values())) == 8

"""Releases that are kept as they are sent: the newest few, in so many bytes, each counted once."""

from service.api.http.representations import Rendered


def test_the_oldest_make_room_for_the_newest():
    kept = Rendered(most_bytes=10)
    names = [("promise", version, "json") for version in range(5)]
    kept.put(names[0], b"0123456789a")
    assert kept.get(names[0]) is None, "it is too large by itself"
    for name in (names[1], names[2], names[1]):
        kept.put(name, b"four")
    assert [kept.get(name) for name in names[1:3]] == [b"four"] * 2
    kept.put(names[3], b"four")
    assert [kept.get(name) for name in names[1:4]] == [None, b"four", b"four"]
    kept.put(names[4], b"0123456789")
    assert [kept.get(name) for name in names[1:]] == [None, None, None, b"0123456789"]


def test_what_is_kept_goes_on_within_its_bound():
    kept = Rendered(most_bytes=10)
    for version in range(100):
        kept.put(("promise", version, "json"), b"four")
        assert kept.get(("promise", version, "json")) == b"four"
    assert sum(map(len, kept._bodies.values())) == 8

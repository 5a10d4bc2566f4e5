"""Whose a data folder is, what is cleared in it, and as whom PostgreSQL is served from it."""

import os
import pwd
from pathlib import Path
from types import SimpleNamespace

import pytest

from service.embedded import directory, postgres, servers
from service.embedded.errors import EmbeddedError
from service.embedded.processes import Identity


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with (
        pytest.raises(EmbeddedError, match="hand the folder over"),
        directory.open_data_directory(tmp_path, directory.StopRequest()),
    ):
        pass


def test_a_large_log_is_put_aside_at_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(directory, "LARGEST_KEPT_LOG", 3)
    log, before = tmp_path / "a.log", tmp_path / "a.log.1"
    directory.rotate_log(log)
    log.write_text("old")
    directory.rotate_log(log)
    assert (log.exists(), before.exists()) == (True, False)
    log.write_text("older")
    directory.rotate_log(log)
    assert (log.exists(), before.read_text()) == (False, "older")


def test_sockets_outside_of_the_folder_leave_nothing(tmp_path: Path):
    inside, outside = tmp_path / "data" / "run", tmp_path / "elsewhere"
    for folder in (inside, outside):
        folder.mkdir(parents=True)
        (folder / "socket").touch()
        directory._clear_sockets(tmp_path / "data", folder)
    assert (inside.exists(), outside.exists()) == (True, False)


def test_a_server_that_does_not_answer_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert servers._served_elsewhere(tmp_path) is None
    (tmp_path / "lock").write_text(f"7\n{tmp_path}\n")
    for answers in (True, False):
        monkeypatch.setattr(servers, "answers", lambda _, now=answers: now)
        assert servers._served_elsewhere(tmp_path) == (tmp_path if answers else None)


def test_postgresql_is_served_as_a_user_that_the_machine_knows_and_never_as_root(monkeypatch: pytest.MonkeyPatch):
    root, plain = (SimpleNamespace(pw_uid=uid, pw_gid=uid + 1) for uid in (0, 70))
    known = {70: plain, 0: root}

    def unknown(_: str) -> None:
        raise KeyError

    monkeypatch.setattr(pwd, "getpwnam", unknown)
    monkeypatch.setattr(pwd, "getpwuid", known.__getitem__)
    monkeypatch.setattr(pwd, "getpwall", lambda: [root, plain])
    namespace, user = Identity("namespace", 70, 71), Identity("user", 70, 71)
    for uid, identities in ((70, (Identity(),)), (71, (namespace,)), (0, (namespace, user))):
        monkeypatch.setattr(os, "geteuid", lambda now=uid: now)
        assert postgres.possible_identities() == identities, uid
    monkeypatch.setattr(pwd, "getpwall", lambda: [root])
    with pytest.raises(EmbeddedError, match="no other user"):
        postgres.possible_identities()


def test_all_data_is_handed_over_and_the_top_of_it_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "base").mkdir()
    for file in (tmp_path / "base" / "1", tmp_path / "version"):
        file.touch()
    every, given = {tmp_path, *tmp_path.rglob("*")}, []
    monkeypatch.setattr(os, "chown", lambda path, uid, gid, **_: given.append((Path(path), uid, gid)))
    owner = tmp_path.stat().st_uid
    postgres._hand_over(tmp_path, (owner, 8))
    assert given == [], "it is that user's already"
    postgres._hand_over(tmp_path, (owner + 1, 8))
    assert {path for path, *_ in given} == every
    assert given[-1] == (tmp_path, owner + 1, 8), "a crash on the way leaves it to be done again"

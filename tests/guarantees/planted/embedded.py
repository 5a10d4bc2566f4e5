"""Bugs in `perennial up`: servers that keep nothing, that others reach, or that outlive their owner."""

from __future__ import annotations

from tests.guarantees.planted.bug import bug, rewrite, wrap

_SERVERS = "tests/embedded/test_servers.py"


@bug(f"{_SERVERS}::test_settings_that_keep_data")
def a_log_that_is_synced_each_second() -> None:
    """A machine that loses power loses what was promised within the last second."""
    from service.embedded import valkey

    rewrite(valkey._settings, ('"appendfsync": "always"', '"appendfsync": "everysec"'))


@bug(f"{_SERVERS}::test_settings_that_keep_data")
def a_database_that_is_not_synced() -> None:
    """A machine that loses power forgets releases that somebody has seen."""
    from service.embedded import postgres

    rewrite(postgres._settings, ('"synchronous_commit": "on"', '"synchronous_commit": "off"'))


@bug(f"{_SERVERS}::test_settings_that_keep_data")
def a_log_that_forgets_when_it_is_full() -> None:
    """Where memory is short the oldest batches go."""
    from service.embedded import valkey

    rewrite(valkey._settings, ('"maxmemory-policy": "noeviction"', '"maxmemory-policy": "allkeys-lru"'))


@bug(f"{_SERVERS}::test_settings_that_keep_data")
def a_database_that_others_reach() -> None:
    """The server listens on the network, and trusts whoever comes."""
    from service.embedded import postgres

    rewrite(postgres._settings, ('"listen_addresses": ""', '"listen_addresses": "127.0.0.1"'))


@bug(f"{_SERVERS}::test_settings_that_keep_data")
def a_database_that_other_users_reach() -> None:
    """Each user of the machine can connect, and is trusted."""
    from service.embedded import postgres

    rewrite(postgres._settings, ('"unix_socket_permissions": "0700"', '"unix_socket_permissions": "0777"'))


@bug(f"{_SERVERS}::test_settings_that_keep_data")
def a_service_that_may_do_anything() -> None:
    """A hole in the service is one in the whole server: its role changes what migrations alone may."""
    from service.embedded import postgres

    rewrite(postgres.provision, ('(SERVICE, "login")', '(SERVICE, "login superuser")'))


@bug(f"{_SERVERS}::test_settings_that_keep_data")
def a_list_of_large_requests() -> None:
    """The newest large batches stay in the memory of the log's server, also when their records are erased."""
    from service.embedded import valkey

    rewrite(valkey._settings, ('"commandlog-request-larger-than": "-1"', '"commandlog-request-larger-than": "1000"'))


@bug(f"{_SERVERS}::test_logs_hold_neither_statements_nor_records")
def a_log_of_statements() -> None:
    """Records are in the log of the database."""
    from service.embedded import postgres

    rewrite(
        postgres._settings,
        ('"log_min_error_statement": "panic"', '"log_min_error_statement": "error"'),
        ('"log_error_verbosity": "terse"', '"log_error_verbosity": "default"'),
        ('"log_statement": "none"', '"log_statement": "all"'),
    )


@bug(f"{_SERVERS}::test_a_running_folder_is_refused")
def a_folder_that_two_serve() -> None:
    """A second `perennial up` on the same folder starts servers on the same files."""
    from service.embedded import directory

    directory._locked = lambda _: True


@bug(f"{_SERVERS}::test_only_the_owner_can_enter")
def a_folder_that_others_enter() -> None:
    """Other users of the machine read records."""
    from service.embedded import directory

    rewrite(directory.open_data_directory, ("path.mkdir(mode=0o700,", "path.mkdir(mode=0o755,"))


@bug(f"{_SERVERS}::test_a_folder_of_someone_else_is_not_used_for_sockets")
def a_folder_of_sockets_that_somebody_else_made() -> None:
    """A user who makes the folder in /tmp first reads all that is said to the servers."""
    from service.embedded import directory

    rewrite(
        directory._make_private, ("not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or", "False and")
    )


@bug(f"{_SERVERS}::test_an_initdb_killed_in_the_middle_is_done_again")
def a_database_that_was_half_made() -> None:
    """A start that was killed leaves half a database, which the next one takes for a whole."""
    from service.embedded.postgres import Postgres

    rewrite(
        Postgres._initialise,
        ('half_done = self._directory.file("postgres.new")', "half_done = self._data"),
        ("shutil.rmtree(half_done, ignore_errors=True)", "pass"),
        ("half_done.rename(self._data)", "pass"),
    )


@bug(f"{_SERVERS}::test_servers_are_started_by_the_main_thread_alone")
def a_server_that_ends_with_the_thread_that_started_it() -> None:
    """Linux ends a child when the thread that made it ends."""
    from service.embedded.processes import Child

    rewrite(Child.start, ("threading.current_thread() is not threading.main_thread()", "False"))


@bug("tests/embedded/test_admin_key.py::test_it_is_on_disk_before_it_has_its_name")
def a_key_that_everybody_reads() -> None:
    """Other users of the machine are administrators."""
    from service.embedded import admin_key

    rewrite(admin_key._write_once, ("0o600", "0o644"))


@bug("tests/embedded/test_admin_key.py::test_it_is_on_disk_before_it_has_its_name")
def a_key_that_is_not_synced() -> None:
    """After a power failure the file is empty, and nobody is an administrator."""
    from service.embedded import admin_key

    rewrite(admin_key._write_once, ("        os.fsync(descriptor)\n", ""))


@bug("tests/embedded/test_admin_key.py::test_it_is_on_disk_before_it_has_its_name")
def a_key_whose_name_is_not_synced() -> None:
    """After a power failure there is another key than the one that was read."""
    from service.embedded import admin_key

    wrap(admin_key, "sync_folder", lambda *_: None)


@bug("tests/embedded/test_forks.py::test_two_forks_never_draw_the_same_noise")
def noise_from_a_generator_in_memory() -> None:
    """A fork copies the generator: both parts, and each later start of a part, draw the same noise."""
    from types import SimpleNamespace

    import numpy as np

    from service.privacy.noise import samplers

    samplers.os = SimpleNamespace(urandom=np.random.default_rng().bytes)


@bug(f"{_SERVERS}::test_servers_are_given_neither_secrets_nor_settings_of_others")
def servers_that_are_given_all_of_our_environment() -> None:
    """The administrator's key is in it, and PGDATA, which names another folder."""
    from service.embedded import processes

    rewrite(
        processes.server_environment,
        (
            'for name in ("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "TMPDIR") if name in os.environ',
            "for name in os.environ",
        ),
    )


@bug(f"{_SERVERS}::test_nor_does_what_runs_as_another_user")
def a_database_that_outlives_whoever_started_it() -> None:
    """The signal is asked for before the process becomes another user, which takes it back."""
    import atexit
    import shutil
    from pathlib import Path
    from tempfile import mkdtemp

    from service.embedded import processes

    source = Path(processes.wrapper.__file__).read_text()
    asks, becomes = "        die_with_parent(arguments", '        if arguments.identity == "namespace":\n'
    line = next(line for line in source.splitlines(keepends=True) if line.startswith(asks))
    assert source.count(line) == source.count(becomes) == 1
    atexit.register(shutil.rmtree, folder := mkdtemp())
    changed = Path(folder) / "child.py"
    changed.write_text(source.replace(line, "").replace(becomes, line + becomes))
    processes.wrapper.__file__ = str(changed)


@bug("tests/test_process.py::test_a_process_that_needs_no_server_is_given_no_setting[a comparison]")
def a_comparison_that_is_given_the_keys() -> None:
    """The process that runs on uploaded data knows the servers and the administrator's key."""
    from service.worker import explorer

    rewrite(explorer._process, ('env={"OPENBLAS_NUM_THREADS": "1"}', 'env=dict(sys.modules["os"].environ)'))


_WATCHING, _FOLDERS = "tests/embedded/test_watching.py", "tests/embedded/test_folders.py"
_MINUTE = f"{_WATCHING}::test_deaths_count_that_come_within_a_minute"
_PAUSE = f"{_WATCHING}::test_each_death_within_a_minute_makes_the_pause_longer_up_to_a_bound"
_KNOWN = f"{_FOLDERS}::test_postgresql_is_served_as_a_user_that_the_machine_knows_and_never_as_root"
_HANDED = f"{_FOLDERS}::test_all_data_is_handed_over_and_the_top_of_it_last"


@bug(_MINUTE)
def deaths_that_count_for_ever() -> None:
    """The fifth death within a year ends the service."""
    from service.embedded.supervisor import _Watched

    rewrite(_Watched._died, ("self._deaths[0] < now - DEATHS_WITHIN_SECONDS", "False"))


@bug(_MINUTE)
def a_part_that_dies_and_is_started_for_ever() -> None:
    """A server that can't run is started again and again, and nobody is told."""
    from service.embedded.supervisor import _Watched

    rewrite(_Watched._gives_up, ("len(self._deaths) >= DEATHS_TOO_MANY", "False"))


@bug(_PAUSE)
def a_worker_whose_deaths_end_everything() -> None:
    """Nobody can send records or read models since a fit kills the worker."""
    from service.embedded.supervisor import _Watched

    rewrite(_Watched._gives_up, ("self._needed and ", ""))


@bug(_PAUSE)
def a_pause_without_a_bound() -> None:
    """A worker that died often is started again days later."""
    from service.embedded.supervisor import _Watched

    rewrite(_Watched._died, ("LONGEST_PAUSE_SECONDS)", "1e9)"))


@bug(f"{_WATCHING}::test_a_part_that_can_not_run_as_configured_is_not_started_again")
def a_wrong_setting_that_ends_nothing() -> None:
    """A worker that a setting keeps from running is started again for ever."""
    from service.embedded.supervisor import _Watched

    rewrite(_Watched._gives_up, ("child.poll() == EXIT_CONFIGURATION", "False"))


@bug(f"{_WATCHING}::test_a_part_is_not_started_before_it_can_run")
def a_part_that_is_started_before_it_can_run() -> None:
    """While the database recovers the API dies five times, and everything ends."""
    from service.embedded.supervisor import _Watched

    rewrite(_Watched.look, (" and self._can_run()", ""))


@bug("tests/embedded/test_admin_key.py::test_one_that_is_empty_is_none")
def a_key_that_is_empty() -> None:
    """After a full disk the key of the service is the empty one."""
    from service.embedded import admin_key

    rewrite(admin_key.ensure_admin_key, ("if not key:", "if key is None:"))


@bug(f"{_FOLDERS}::test_a_folder_of_somebody_else_is_refused")
def a_folder_that_two_users_serve() -> None:
    """Root starts the service once, and its owner can't write its files any more."""
    from service.embedded import directory

    rewrite(directory._check_owner, ("owner != os.geteuid()", "owner < 0"))


@bug(f"{_FOLDERS}::test_a_large_log_is_put_aside_at_a_start")
def logs_of_servers_that_only_grow() -> None:
    """After years the log fills the disk."""
    from service.embedded import directory

    rewrite(directory.rotate_log, ("log.stat().st_size > LARGEST_KEPT_LOG", "log.stat().st_size < 0"))


@bug(f"{_FOLDERS}::test_sockets_outside_of_the_folder_leave_nothing")
def sockets_that_stay_in_a_folder_for_temporary_files() -> None:
    """Each folder with a long path leaves one more under /tmp."""
    from service.embedded import directory

    rewrite(directory._clear_sockets, ("left.unlink()", "pass"))


@bug(f"{_FOLDERS}::test_a_server_that_does_not_answer_is_none")
def a_server_of_a_process_that_was_killed() -> None:
    """`ledger verify` on a folder whose service was killed fails, for there is no server at the socket."""
    from service.embedded import servers

    rewrite(servers._served_elsewhere, (" and answers(sockets)", ""))


@bug(_KNOWN)
def a_database_that_is_served_as_nobody_knows_whom() -> None:
    """In a container with a user id of its own PostgreSQL does not start."""
    from service.embedded import postgres

    rewrite(postgres.possible_identities, ("user != 0 and _known(user)", "user != 0"))


@bug(_KNOWN)
def a_database_that_is_served_as_root() -> None:
    """On a machine without `nobody` PostgreSQL does not start as root, and another user would do."""
    from service.embedded import postgres

    rewrite(postgres._nobody, (" if entry.pw_uid != 0", ""))


@bug(_HANDED)
def data_that_is_handed_over_from_the_top() -> None:
    """A crash on the way leaves files that the server can't read, and the next start does not look at them."""
    from service.embedded import postgres

    rewrite(postgres._hand_over, ("topdown=False", "topdown=True"))


@bug(_HANDED)
def data_that_is_handed_over_without_its_files() -> None:
    """The server can enter its folders, and read nothing."""
    from service.embedded import postgres

    rewrite(postgres._hand_over, ("for name in files", "for name in files[:0]"))

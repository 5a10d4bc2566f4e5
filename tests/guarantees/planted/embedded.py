"""Bugs in `perennial up`: servers that keep nothing, that others reach, or that outlive their owner."""

from __future__ import annotations

from tests.guarantees.planted.bug import bug, rewrite

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


@bug("tests/embedded/test_forks.py::test_two_forks_never_draw_the_same_noise")
def noise_from_a_generator_in_memory() -> None:
    """A fork copies the generator: both parts, and each later start of a part, draw the same noise."""
    import numpy as np

    from service.privacy.noise import samplers

    samplers.random_bytes = np.random.default_rng().bytes


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


@bug("tests/test_process.py::test_a_process_that_needs_no_server_is_given_no_setting[a comparison]")
def a_comparison_that_is_given_the_keys() -> None:
    """The process that runs on uploaded data knows the servers and the administrator's key."""
    from service.worker import explorer

    rewrite(explorer._process, ('env={"OPENBLAS_NUM_THREADS": "1"}', 'env=dict(sys.modules["os"].environ)'))


@bug("tests/embedded/test_admin_key.py::test_one_that_is_empty_is_none")
def a_key_that_is_empty() -> None:
    """After a full disk the key of the service is the empty one."""
    from service.embedded import admin_key

    rewrite(admin_key.ensure_admin_key, ("if not key:", "if key is None:"))

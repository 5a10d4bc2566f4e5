"""Bugs in the Python client, which append records twice, or others than were given."""

from __future__ import annotations

from tests.guarantees.planted.bug import bug, rewrite

_APPEND = "tests/client/test_append.py"
_JOURNAL = "tests/client/test_journal.py"
_BRIDGE = "tests/client/test_bridge.py"


@bug(f"{_APPEND}::test_a_retry_never_doubles[after]")
def a_retry_under_another_key() -> None:
    """A batch that was stored, and whose answer was lost, is stored again."""
    import random

    from perennial import exchange

    exchange._other = lambda headers: {**headers, "Idempotency-Key": str(random.random())}  # type: ignore[attr-defined]
    rewrite(
        exchange.ask,
        (
            "answer = yield request",
            "answer = yield Request(**vars(request) | {'headers': _other(request.headers)})",
        ),
    )


@bug(f"{_APPEND}::TestWithoutAServer::test_what_may_be_stored_is_not_split")
def halves_of_a_batch_that_may_be_stored() -> None:
    """Its answer was lost, and the service takes smaller bodies since: the halves are stored beside the whole."""
    from perennial import appending

    rewrite(appending._post_batch, (" and not doubts", ""))


@bug(f"{_APPEND}::test_with_a_key_a_batch_that_is_too_large_is_refused")
def halves_of_a_batch_that_has_a_name() -> None:
    """The same call another day sends it whole, under a key that only half of it was stored with."""
    from perennial import appending

    rewrite(appending.append, ("may_split=key is None", "may_split=True"))


@bug(f"{_APPEND}::test_only_what_can_be_repeated_is")
def a_stream_that_is_made_again() -> None:
    """The client that made it gets the answer that its name is taken."""
    from perennial import exchange

    rewrite(exchange._may_repeat, ("return request.repeatable or (", "return True or ("))


@bug(f"{_JOURNAL}::test_a_batch_without_an_answer_needs_one_from_people_on_the_next_day[after-skip]")
def a_batch_that_is_sent_again_on_the_next_day() -> None:
    """The service stored it, lost the answer, and has forgotten its key."""
    from perennial import journal

    rewrite(journal.Journal.begin, ("if known is not None and self.is_remembered(known):", "if known is not None:"))


@bug(f"{_JOURNAL}::test_of_several_batches_without_an_answer_each_one_that_is_skipped_is_asked_about[after-answers0]")
def a_batch_that_is_skipped_with_the_one_before() -> None:
    """It was announced with that one, and never sent: its records are lost."""
    from perennial import journal

    rewrite(journal.Journal.begin, (" or self._skipped", ""))


@bug(f"{_JOURNAL}::test_a_batch_that_was_never_sent_is_sent_whatever_the_clock_says[skip--2]")
def a_batch_that_is_skipped_and_was_never_sent() -> None:
    """The clock was put back after it was announced: its records are lost."""
    from perennial import journal

    rewrite(journal.Journal.begin, ("known = None", "pass"))


@bug(f"{_JOURNAL}::test_what_is_skipped_is_the_batch_that_was_sent")
def a_batch_that_is_skipped_for_another_one() -> None:
    """The stream has the batch that was sent, and not the records that stand in its place now: these are lost."""
    from perennial import journal

    rewrite(journal.Journal.begin, ("if known is not None and skip:", "if False:"))


@bug(f"{_JOURNAL}::test_a_last_batch_without_an_answer_is_asked_about_where_data_have_grown[after-skip]")
def a_batch_that_has_grown_and_is_taken_for_the_old_one() -> None:
    """Nobody can say any more that the old one is stored: its end came later."""
    from perennial import journal

    rewrite(journal.Journal._as_before, ("known.records < len(batch.block)", "False"))


@bug(f"{_APPEND}::test_a_batch_is_known_again_by_all_that_it_holds")
def a_batch_with_other_labels_that_is_taken_for_the_old_one() -> None:
    """A load with a journal goes on with new labels as if they were stored."""
    from perennial import batches

    rewrite(batches._digest, ("if block.y is not None:", "if False:"))


@bug(f"{_APPEND}::test_a_batch_is_known_again_by_all_that_it_holds")
def a_batch_of_other_units_that_is_taken_for_the_old_one() -> None:
    """A load with a journal goes on with new ids as if they were stored: records count for other persons."""
    from perennial import batches

    rewrite(batches._digest, ("if block.unit is not None:", "if False:"))


_NOTES = f"{_APPEND}::test_a_journal_has_notes_of_each_append_apart_which_are_on_disk_before_it_is_sent"


@bug(_NOTES)
def a_batch_of_another_stream_that_counts_as_accepted() -> None:
    """One file has the notes of both, which are appended under one key: the second stream stays empty."""
    from perennial import journal

    rewrite(journal.opened, ('f"{stream} {key}"', "key"))


@bug(_NOTES)
def batches_that_are_sent_before_their_announcement_is_on_disk() -> None:
    """After a power cut the client does not know that it sent them, and the next day it sends them again."""
    from perennial import journal

    rewrite(journal.Journal.end, ("self._database.execute(_ON_DISK)", "pass"))


@bug(f"{_JOURNAL}::test_the_service_knows_keys_of_each_api_key_apart")
def a_batch_that_is_sent_again_with_another_api_key() -> None:
    """The service remembers keys for each API key, so it does not know this one."""
    from perennial import journal

    rewrite(journal.Journal.is_remembered, ("known.sender == self._sender and ", ""))


@bug(f"{_JOURNAL}::test_a_retry_does_not_wait_until_the_next_day")
def a_retry_after_a_day_of_sleep() -> None:
    """The service has forgotten the key that it had stored the batch under."""
    from perennial import exchange

    rewrite(exchange.ask, ("not is_remembered(since)", "False"))


@bug("tests/client/test_clocks.py::test_a_clock_may_be_an_hour_wrong[False--24.5]")
def a_retry_after_a_clock_was_put_back_by_a_day() -> None:
    """It may be more than a day since the batch was sent: the service has forgotten its key."""
    from perennial import exchange

    rewrite(exchange.is_remembered, ("-CLOCK_ERROR_SECONDS <= ", ""))


@bug("tests/client/test_clocks.py::test_a_batch_that_was_refused_is_sent_on_any_later_day[False-ReadTimeout]")
def a_batch_without_an_answer_that_counts_as_refused() -> None:
    """The service has it, and has forgotten its key on the next day: it is stored twice."""
    from perennial import exchange

    rewrite(exchange.is_refusal, ("not doubts and ", ""))


@bug(f"{_BRIDGE}::test_with_another_api_key_the_service_does_not_know_what_it_has")
def messages_that_are_sent_again_with_another_api_key() -> None:
    """The service has them, under a key of the API key before."""
    from perennial import nats_bridge

    rewrite(nats_bridge.Bridge._finish, ("self._note.sender != self._transport.sender or ", ""))


@bug(f"{_APPEND}::test_bridges_name_their_batches_each_by_its_consumer")
def bridges_whose_batches_have_one_name() -> None:
    """Messages of a second consumer, or of another stream, are taken for those of the first, and are lost."""
    from perennial import nats_bridge

    rewrite(nats_bridge.Bridge._post, ("json.dumps([self._source.place, sequences])", "json.dumps(sequences)"))


@bug(f"{_APPEND}::test_a_bridge_asks_about_messages_of_which_some_are_gone")
def messages_that_are_sent_again_without_those_that_are_gone() -> None:
    """The service has all of them, and does not know the rest by another name."""
    from perennial import nats_bridge

    rewrite(nats_bridge.Bridge._finish, ("len(messages) < len(read)", "False"))


@bug(f"{_APPEND}::test_a_bridge_has_ended_only_once_all_messages_are_acknowledged[0-1]")
def messages_that_a_killed_bridge_held_and_the_next_leaves() -> None:
    """With --once it says that none is left, though the consumer will deliver them again."""
    from perennial import nats_bridge

    rewrite(nats_bridge.Bridge._is_empty, (" and not consumer.num_ack_pending", ""))


@bug(f"{_BRIDGE}::test_messages_of_yesterday_without_an_answer_need_one_from_people[True-skip]")
def a_bridge_that_does_not_read_its_notes() -> None:
    """Messages that were stored and not acknowledged come again, and are sent under another key."""
    from perennial import nats_bridge

    rewrite(nats_bridge.Bridge.batches, ("await self._finish()", "pass"))


_FILLED = "test_an_array_that_is_filled_again_is_sent_as_it_was_each_time[without units-pairs of rows]"


@bug(f"tests/client/test_rows.py::{_FILLED}")
def labels_that_are_filled_again_and_sent() -> None:
    """Records go with the label of the last one."""
    from perennial import data

    rewrite(data._blocks_or_rows, ("copy(y)", "y"))


@bug("tests/client/test_rows.py::test_a_null_in_a_table_is_missing[int64]")
def what_is_null_in_a_table_and_sent() -> None:
    """A record goes with whatever number lies beneath what is missing, mostly 0."""
    from perennial import arrow_tables

    rewrite(arrow_tables._array, ("array.null_count or ", ""))


@bug("tests/api/test_canary.py::test_logs_answers_and_metrics_repeat_nothing")
def errors_of_the_client_that_repeat_an_id() -> None:
    """Somebody reads whose record it was, where the client's errors are logged."""
    from perennial import units

    rewrite(units.ids_of, ("the id in row {row}", "the id {each!r} in row {row}"))


_CLOCKS = "tests/client/test_clocks.py"
_OPERATIONS = "tests/client/test_operations.py"
_HTTP = "tests/client/test_plain_http.py"


@bug(f"{_CLOCKS}::test_a_refusal_says_nothing_of_what_was_sent_before")
def a_refusal_that_forgets_a_batch_of_an_earlier_call() -> None:
    """The service may have it, under a key that it forgets by the next day: it is stored twice."""
    from perennial import appending

    rewrite(appending._post_once, ('[] if journal.is_new(batch) else ["by an earlier call"]', "[]"))


@bug(f"{_CLOCKS}::test_a_batch_of_an_earlier_call_is_repeated_for_a_day_from_then_on")
def a_day_that_begins_anew_with_each_call() -> None:
    """The service has forgotten the key of a batch that is repeated a day after it was first sent."""
    from perennial import appending

    rewrite(appending._post_once, (", since=since)", ")"))


@bug(f"{_JOURNAL}::test_a_load_that_goes_on_at_once_after_days_waits_for_numbers[another API key-0]")
def entries_of_another_api_key_that_nobody_waits_for() -> None:
    """A load that goes on with a new key says that the service has lost what has no numbers yet."""
    from perennial import journal

    rewrite(journal.Journal.has_only_remembered, ("sender == self._sender and ", ""))


@bug(f"{_HTTP}::test_the_certificate_of_a_server_is_checked")
def certificates_that_nobody_checks() -> None:
    """Anybody on the way reads the key and the records."""
    from perennial import transport

    rewrite(transport._settings, ('"verify": parts.scheme == "https"', '"verify": False'))


@bug(f"{_HTTP}::test_what_a_library_may_have_sent_is_known")
def an_answer_that_came_too_late_and_counts_as_never_asked_for() -> None:
    """A publication is made twice, and reserves twice."""
    from perennial import transport

    transport._NOT_SENT = (*transport._NOT_SENT, "ReadTimeout")


@bug(f"{_HTTP}::test_tls_and_proxies_are_left_to_a_library[http://10.0.0.1-http://proxy:1-True]")
def a_proxy_that_is_passed_by() -> None:
    """A machine that reaches others by its proxy alone reaches no service in its own network."""
    from perennial import transport

    rewrite(transport._is_this_machine, (".is_loopback", ".is_private"))


@bug(f"{_HTTP}::test_a_connection_is_used_until_the_server_closes_it")
def a_wait_that_is_given_up_after_the_time_of_connecting() -> None:
    """A reader who waits a minute for a release never sees the answer."""
    from perennial import plain_http

    rewrite(plain_http.PlainConnections._answer, ("connection.sock.settimeout(request.seconds)", "pass"))


@bug(f"{_OPERATIONS}::test_charges_of_a_publication_are_its_own")
def charges_of_all_publications_for_those_of_one() -> None:
    """An auditor adds up what another publication has cost."""
    from perennial import operations

    rewrite(operations.charges_of, (' if row["publication"] == publication', ""))


@bug(f"{_OPERATIONS}::test_a_list_is_read_to_its_end")
def a_list_that_ends_with_its_first_full_page() -> None:
    """The oldest charges are missing."""
    from perennial import operations

    rewrite(operations._pages, ("if len(page) < ROWS_OF_A_PAGE:", "if len(page) <= ROWS_OF_A_PAGE:"))


@bug(f"{_OPERATIONS}::test_nothing_is_made_twice[503-publish-False]")
def a_publication_that_is_asked_for_again() -> None:
    """It was made, and the client says that its name is taken."""
    from perennial import operations

    rewrite(operations.publish, ("settings)", "settings, repeatable=True)"))


@bug(f"{_OPERATIONS}::test_a_request_that_waits_has_time_for_the_wait_and_the_answer")
def a_client_that_waits_for_less_than_it_asks_for() -> None:
    """It breaks off each request for a release just before the answer."""
    from perennial import operations

    rewrite(operations._ask_latest, ("seconds=wait + 30.0", "seconds=30.0"))


@bug("tests/client/test_clocks.py::test_a_batch_that_was_skipped_is_sent_by_no_later_call")
def a_batch_that_was_skipped_and_is_sent_by_a_later_call() -> None:
    """The batch is stored twice, though its sender had said that the service has it."""
    from perennial import appending

    rewrite(appending._post_once, ("(confirmed or not entry)", "confirmed"))


_APART = f"{_APPEND}::test_appends_in_one_journal_are_ended_and_withdrawn_each_by_itself"


@bug(_APART)
def an_entry_that_counts_for_all_appends_of_a_journal() -> None:
    """Records of another stream count as accepted, and are never sent."""
    from perennial import journal

    rewrite(
        journal.Journal.end,
        ("WHERE append = ? AND first = ?", "WHERE first = ?"),
        ("(entry, self._append, batch.first)", "(entry, batch.first)"),
    )


@bug(_APART)
def a_withdrawal_from_all_appends_of_a_journal() -> None:
    """A batch of another stream that may be stored is forgotten, and stored again on the next day."""
    from perennial import journal

    rewrite(
        journal.Journal.withdraw,
        ("WHERE append = ? AND first = ?", "WHERE first = ?"),
        ("[(self._append, each) for", "[(each,) for"),
    )


@bug(_APART)
def a_withdrawal_of_what_was_accepted() -> None:
    """A batch that was accepted is forgotten, and stored again on the next day."""
    from perennial import journal

    rewrite(journal.Journal.withdraw, (" AND entry IS NULL", ""))


@bug(f"{_OPERATIONS}::test_who_is_far_behind_gets_the_next_models_first")
def models_that_a_follower_who_is_far_behind_never_gets() -> None:
    """The newest model comes behind the first few, and those between are taken for read."""
    from perennial import operations

    rewrite(operations._models_between, ("            return models\n", "            break\n"))


@bug(f"{_OPERATIONS}::test_a_model_comes_with_the_encoder_that_it_names")
def a_model_with_the_newest_release_for_its_encoder() -> None:
    """It predicts with the weights of a model in the place of its encoder's."""
    from perennial import operations

    rewrite(operations._with_encoder, ('f"{model.encoder_release}"', '"latest"'))


@bug(f"{_OPERATIONS}::test_a_stopped_publication_has_a_last_model")
def a_last_model_that_nobody_gets() -> None:
    """A follower hears that the publication has ended before it has read its last models."""
    from perennial import operations

    rewrite(operations.following, ("if newest is not None:", "if newest is not None and running:"))


@bug("tests/client/test_append.py::TestWithoutAServer::test_a_pause_in_other_words_than_digits_counts_as_none[a power]")
def a_pause_in_digits_that_are_no_number() -> None:
    """An answer from a proxy ends an append with an error of Python's."""
    from perennial import exchange

    rewrite(exchange._retry_after, ("value.isascii() and ", ""))

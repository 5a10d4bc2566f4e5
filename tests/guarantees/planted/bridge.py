"""Bugs in the bridge from NATS, which loses messages or stores them twice."""

from __future__ import annotations

from tests.guarantees.planted.bug import bug, rewrite

_STEPS = "tests/client/test_bridge_steps.py"


@bug(f"{_STEPS}::test_a_note_names_the_key_that_its_messages_are_sent_with")
def a_note_of_the_api_key_before() -> None:
    """A bridge with that key sends the messages again, which the service knows under the new one."""
    from perennial import nats_bridge

    rewrite(nats_bridge.Bridge._intend, ("sender=self._transport.sender,", ""))


_MAY_BE_STORED = f"{_STEPS}::test_messages_that_may_be_stored_are_neither_halved_nor_given_back"


@bug(_MAY_BE_STORED)
def messages_that_may_be_stored_and_are_given_back() -> None:
    """They come again, and are sent under another key."""
    from perennial import nats_bridge

    rewrite(nats_bridge.Bridge._send, ("if is_refusal(problem, doubts):", "if True:"))


@bug(_MAY_BE_STORED)
def halves_of_messages_that_may_be_stored() -> None:
    """The service has them in one batch, and stores the halves beside it."""
    from perennial import nats_bridge

    rewrite(nats_bridge.Bridge._sent_again, ('["by an earlier bridge"]', "[]"))


@bug(f"{_STEPS}::test_messages_are_not_sent_again_on_the_next_day")
def messages_whose_day_begins_anew() -> None:
    """The service has forgotten the key that it had stored them under."""
    from perennial import nats_bridge

    rewrite(nats_bridge.Bridge._post, ("key, since=since, doubts", "key, doubts"))


@bug(f"{_STEPS}::test_refused_messages_of_two_streams_are_no_copies_of_each_other")
def refused_messages_that_nats_drops() -> None:
    """Those of a second stream are acknowledged, and are nowhere."""
    from perennial import nats_bridge

    rewrite(nats_bridge.Bridge._set_aside, ('f"{self._source.place} {message.sequence}"', 'f"{message.sequence}"'))


@bug(f"{_STEPS}::test_a_consumer_whose_messages_are_on_their_way_feeds_no_other_stream")
def messages_on_their_way_to_a_stream_that_is_gone() -> None:
    """They are sent to another stream, though the first one may have them."""
    from perennial import nats_bridge

    rewrite(nats_bridge.Bridge._feeds_nothing, ("not self._note.messages and ", ""))


_ONCE = f"{_STEPS}::test_messages_are_fetched_once_and_those_beyond_a_batch_are_given_back"


@bug(_ONCE)
def a_message_that_is_fetched_twice() -> None:
    """Both copies are sent in one batch."""
    from perennial import nats_bridge

    rewrite(
        nats_bridge.Bridge._fetched,
        ("message.metadata.sequence.stream: Message(", "message.reply: Message("),
    )


@bug(f"{_STEPS}::test_a_batch_has_so_many_records_and_bytes_at_most[records]")
def a_batch_of_messages_with_any_number_of_records() -> None:
    """The service refuses it, message by message, for as long as the bridge runs."""
    from perennial import nats_bridge

    rewrite(nats_bridge._fitting, (" or records > MOST_RECORDS", ""))


_NOTES_OF = f"{_STEPS}::test_notes_are_kept_as_often_as_messages_and_for_each_stream_apart"


@bug(_NOTES_OF)
def notes_with_one_copy() -> None:
    """A server of NATS is lost, and with it what was on its way, though all messages are there."""
    from perennial import nats_source

    rewrite(nats_source._bucket, ("replicas=source.config.num_replicas or 1", "replicas=1"))


@bug(_NOTES_OF)
def notes_of_a_stream_that_was_deleted() -> None:
    """Messages of the new one have the numbers, and so the keys, of those of the old one: they count as stored."""
    from perennial import nats_source

    rewrite(nats_source.source, ("options.source, str(info.created), options", "options.source, options"))


@bug(f"{_STEPS}::test_a_consumer_that_could_lose_messages_is_refused[consumer2-options2-no limit of deliveries]")
def a_consumer_that_gives_up_on_messages() -> None:
    """A message that was delivered as often as the consumer allows never comes again, and nobody has it."""
    from perennial import nats_source

    rewrite(nats_source._consumer, (" or (has.max_deliver or -1) > 0", ""))

"""The ledger of a stream: what its records have spent, what is reserved on them, and what proves both.

`entry` is the one door: whoever publishes, reserves or ends anything gets there the locks that this needs.
"""

from service.ledger.entry import Entry, StreamLedger, open_entry, open_leased_entry, open_ledger

__all__ = ["Entry", "StreamLedger", "open_entry", "open_leased_entry", "open_ledger"]

"""The ledger of a stream: what its records have spent, what is reserved on them, and what proves both.

Code that charges, reserves or ends anything opens the ledger through `entry`, which takes the locks in their order.
"""

from service.ledger.entry import Entry, StreamLedger, open_entry, open_free_ledgers, open_leased_entry, open_ledger

__all__ = ["Entry", "StreamLedger", "open_entry", "open_free_ledgers", "open_leased_entry", "open_ledger"]

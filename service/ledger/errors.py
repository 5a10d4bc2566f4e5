"""Why nothing is published, or no publication starts."""

from service.privacy.accounting.composition import Range


class LedgerBroken(Exception):
    """The ledger of a stream does not say what was written there. Nothing may be published on it."""


class OverBudget(Exception):
    """A charge would pass the cap of its publication. Nothing may be published."""


class TooManyDraws(Exception):
    """All draws of a stream's publications would add more to δ than the slack of a budget held in ρ."""


class BudgetExceeded(Exception):
    """A record of the stream can't hold what a new publication asks for. The publication does not start.

    `worst`: that record, what it has spent and what is reserved on it.
    """

    def __init__(self, worst: Range) -> None:
        super().__init__(f"record {worst.start} can't hold the cost of this publication")
        self.worst = worst

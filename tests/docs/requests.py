"""All that requests may say, and words that databases hold: fields with their bounds, defaults and examples.

`python -m tests.docs.requests` writes requests.jsonl anew: run it after you changed something knowingly. A new default
changes what older requests and running publications mean. A narrower bound refuses some of them.
"""

import json
from pathlib import Path
from typing import Any

from pydantic.json_schema import models_json_schema

from service.inputs.words import EXAMPLES
from service.mechanisms.configuration import AskedPublication, PublicationConfiguration, StreamBudget
from service.privacy.accounting.budget import Accounting
from service.privacy.accounting.composition import Slots
from service.privacy.currency import Currency
from service.streams.schema import NewStreamSchema, StreamSchema

WRITTEN = Path(__file__).with_name("requests.jsonl")
MODELS = (NewStreamSchema, StreamSchema, StreamBudget, AskedPublication, PublicationConfiguration)
WORDS = (Accounting, Currency, Slots)


def requests() -> dict[str, Any]:
    """Return the JSON schemas of all models of which requests consist, and all words, by name."""
    schemas = models_json_schema([(model, "validation") for model in MODELS])[1]["$defs"]
    words = {kind.__name__: {each.name: each.value for each in kind} for kind in WORDS}
    return dict(sorted((schemas | words | {"examples in errors": EXAMPLES}).items()))


if __name__ == "__main__":
    WRITTEN.write_text("".join(f"{json.dumps({name: text})}\n" for name, text in requests().items()))

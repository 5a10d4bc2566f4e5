"""The refusal of settings that are right one by one but not together."""


class Refused(Exception):
    """Raised for fields that are valid one by one but not together. `path`: the wrong field, as in learner.loss."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path
        self.message = message

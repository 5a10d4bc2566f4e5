"""The refusal of settings that are right one by one but not together."""


class Refused(Exception):
    """A configuration whose fields are fine one by one but not together. `path` names the field, as in learner.loss."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path
        self.message = message

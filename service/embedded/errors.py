class EmbeddedError(RuntimeError):
    """Something the operator has to know or change; the message says what."""

    def __init__(self, message: str, exit_status: int = 1) -> None:
        super().__init__(message)
        self.exit_status = exit_status


class Stopped(Exception):
    """A stop was asked for in the middle of waiting."""

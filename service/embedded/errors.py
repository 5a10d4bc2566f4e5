class EmbeddedError(RuntimeError):
    """Raised for a problem that the operator has to solve; the message says how."""

    def __init__(self, message: str, exit_status: int = 1) -> None:
        super().__init__(message)
        self.exit_status = exit_status


class Stopped(Exception):
    """Raised by waiting functions when a stop is requested."""

"""`perennial`, and `python -m service`: a command of the service, or of the Python client."""

import sys

from service import client_commands


def main() -> None:
    """Run the command that the arguments name."""
    if len(sys.argv) > 1 and sys.argv[1] in client_commands.EXTRAS:
        client_commands.become(sys.argv[1], sys.argv[2:])
    from service.cli import app

    app(prog_name="perennial")


if __name__ == "__main__":
    main()

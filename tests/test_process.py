"""How processes load their modules."""

import subprocess
import sys

PROGRAM = """
import sys
from service.process import loading

with loading():
    import structlog
print("rich" in sys.modules)
import rich
print("rich" in sys.modules)
"""


def test_a_library_that_only_draws_tracebacks_is_not_loaded_with_the_others():
    printed = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["False", "True"]

"""Cases of this mechanism for the tests of all; tests/mechanisms/cases.py collects them."""

TASKS = {"kind": "lifelong", "task_size": 4, "batch": 2, "ridge": 1e6}  # sums, nearly as they are

SUMMED_UNITS = {"lifelong": TASKS, "lifelong, memory": TASKS | {"memory": 4}}

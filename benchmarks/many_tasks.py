"""Time of a task of `lifelong`, what is kept and the most memory, as there are more and more small tasks.

OPENBLAS_NUM_THREADS=1 python -m benchmarks.many_tasks
"""

import statistics
import time
import tracemalloc
from functools import partial
from typing import Any

import numpy as np

from benchmarks.replay import publication
from service.learning.records import Records
from service.mechanisms.mechanism import CarriedState, StatePart

MANY: dict[str, dict[str, Any]] = {
    "joint": {},
    "agem, 10 steps": {"training": "agem", "epochs": 10},
    "agem, 10 steps, memory of 10 tasks": {"training": "agem", "epochs": 10, "memory": 10},
}


def main(tasks: int = 1000, records: int = 100, features: int = 64) -> None:
    """Print the table, in Markdown."""
    random = np.random.default_rng(1)
    wall = random.normal(size=(10, features))
    marks = (10, 100, tasks // 2, tasks)

    def small() -> Records:
        x = random.normal(size=(records, features)).astype(np.float32)
        return Records(x=x / np.linalg.norm(x, axis=1, keepdims=True), y=(x @ wall.T).argmax(axis=1))

    print("| training | after tasks | ms a task, processor | numbers kept | MiB at most |\n|---|---|---|---|---|")
    for name, settings in MANY.items():
        built = publication(
            {"features": features, "task": {"kind": "classification", "classes": 10}},
            {
                "mechanism": {"kind": "lifelong", "task_size": records, **settings},
                "learner": {"kind": "output_perturbation", "intercept": False},
                "privacy": {"epsilon": 1, "delta": 1e-6},
            },
        )
        chain, taken = tuple[CarriedState, ...](), list[float]()
        tracemalloc.start()
        for number in range(1, tasks + 1):
            own = small()
            start = time.process_time()
            chain = built.step(number * records, chain, number, partial(_all_of, own)).chain
            taken.append(time.process_time() - start)
            if number in marks:
                numbers = sum(part.values.size for part in chain if isinstance(part, StatePart))
                _, most = tracemalloc.get_traced_memory()
                tracemalloc.reset_peak()
                took = 1e3 * statistics.median(taken[-10:])
                print(f"| {name} | {number:,} | {took:.1f} | {numbers:,} | {most / 2**20:.1f} |", flush=True)
        tracemalloc.stop()


def _all_of(records: Records, _start: int, _end: int) -> Records:
    return records


if __name__ == "__main__":
    main()

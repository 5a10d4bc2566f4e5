"""Mutation testing of the rooms that touch no database, socket or settings: from privacy to mechanisms.

    python -m tests.mutation                                   a random sample of all mutants
    python -m tests.mutation --seed 7 --sample 1000            a larger one, and the same one again
    python -m tests.mutation service/privacy                   all mutants of a room; so of a file
    python -m tests.mutation service/privacy/currency.py::round_up of a function, or of a class

Each mutant is one small change of the code. Someone has to notice it: a test of these rooms, a test of docs/, or mypy.
A mutant survives if a test is missing, or if it does the same as the code. equivalent.toml names functions and
constants of which no change makes a difference. Fails if more than one of twenty other mutants survives.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from pathlib import Path

from tests.mutation.mutants import Mutant, mutants
from tests.mutation.reach import CACHE, ROOMS, Reach, measure, tests_of
from tests.mutation.trial import ROOT, Outcome, attempt, preload

MOST_SURVIVORS = 0.05
LIST = Path(__file__).with_name("equivalent.toml")
MYPY, EQUIVALENT = "mypy", "equivalent"
# Processor time, against the time that the same tests take without a mutant, and with the watching slower.
SPARE_SECONDS, TIMES_SLOWER = 60, 10


def main() -> None:
    arguments = _arguments()
    os.chdir(ROOT)
    rooms = [path for room in ROOMS for path in sorted((ROOT / "service" / room).rglob("*.py"))]
    everything = [mutant for path in rooms for mutant in mutants(ROOT, str(path.relative_to(ROOT)))]
    if arguments.names:
        everything = [mutant for mutant in everything if any(_is_of(mutant, name) for name in arguments.names)]
    print(" ".join(f"{room}: {count}" for room, count in _by_room(everything).items()), "mutants")
    sample = arguments.sample if arguments.sample or arguments.names else 400
    if sample and sample < len(everything):
        everything = random.Random(arguments.seed).sample(everything, sample)
        print(f"--sample {sample} --seed {arguments.seed}")
    if arguments.list:
        for mutant in everything:
            print(f"{mutant.name}\n{mutant.diff}")
        return
    equivalent = tomllib.loads(LIST.read_text())
    preload()
    began = time.monotonic()
    reached = measure()
    print(f"measured in {time.monotonic() - began:.0f} s which tests run which lines", flush=True)
    unchanged = str(rooms[0].relative_to(ROOT))
    if not _has_right_types(unchanged, (ROOT / unchanged).read_text()):
        raise RuntimeError("mypy refuses the code without any mutant: run make check")
    results: dict[Mutant, str] = {}
    for mutant in everything:
        started = time.monotonic()
        results[mutant] = EQUIVALENT if mutant.place in equivalent.get(mutant.path, ()) else _result(mutant, reached)
        print(f"{results[mutant]:<10} {time.monotonic() - started:4.0f} s {mutant.name}", flush=True)
        if results[mutant] == Outcome.SURVIVED:
            print(mutant.diff, flush=True)
    print(f"took {time.monotonic() - began:.0f} s")
    sys.exit(_too_many(results))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="rooms, files, functions or mutants; all of them unless --sample")
    parser.add_argument("--sample", type=int, help="how many mutants to try, drawn at random (default: 400 of all)")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**32), help="of the draw")
    parser.add_argument("--list", action="store_true", help="print the mutants, try none")
    return parser.parse_args()


def _is_of(mutant: Mutant, name: str) -> bool:
    return mutant.name.startswith(tuple(name.rstrip("/") + end for end in ("/", "::", "."))) or mutant.name == name


def _result(mutant: Mutant, reached: list[Reach]) -> str:
    tests = tests_of(mutant, reached)
    if tests:
        usual = sum(reach.seconds[test] for reach in reached for test in tests.get(reach.file, ()))
        outcome = attempt(mutant.path, mutant.source, tests, SPARE_SECONDS + TIMES_SLOWER * usual)
        if outcome != Outcome.SURVIVED:
            return outcome
    return Outcome.SURVIVED if _has_right_types(mutant.path, mutant.source) else MYPY


def _has_right_types(path: str, source: str) -> bool:
    """Return whether mypy accepts the code with this source of a file."""
    if len(source.encode()) == (ROOT / path).stat().st_size:
        source += "\n"  # by its size mypy sees that it has not looked at it yet
    with tempfile.NamedTemporaryFile("w", suffix=".py") as changed:
        changed.write(source)
        changed.flush()
        shadow = ["--shadow-file", path, changed.name, "--cache-dir", str(CACHE / "mypy")]
        command = [sys.executable, "-m", "mypy", *shadow]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode > 1:
        raise RuntimeError(f"mypy fails: {done.stdout}")
    return done.returncode == 0


def _by_room(chosen) -> Counter[str]:
    return Counter(mutant.path.split("/")[1] for mutant in chosen)


def _too_many(results: dict[Mutant, str]) -> bool:
    """Print what became of the mutants of each room; return whether too many survived."""
    kinds = [*Outcome, MYPY, EQUIVALENT]
    print(f"{'':<12}" + "".join(f"{kind:>12}" for kind in kinds))
    for room in ROOMS:
        counts = Counter(result for mutant, result in results.items() if mutant.path.split("/")[1] == room)
        print(f"{room:<12}" + "".join(f"{counts[kind]:>12}" for kind in kinds))
    counts = Counter(results.values())
    survived, tried = counts[Outcome.SURVIVED], len(results) - counts[EQUIVALENT]
    print(f"{survived} of {tried} survived that are not listed as equivalent: {survived / max(tried, 1):.1%}")
    return survived > MOST_SURVIVORS * tried


if __name__ == "__main__":
    main()

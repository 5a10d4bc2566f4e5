"""How much code one record passes from its POST to the GET of its model.

    python -m benchmarks.journey [--functions FILE]

Real servers, an API and a worker. The second release of `independent_batches` is followed through the API, sealing,
the fit, parking, the tick and the GET: files and named functions of service/ that run in the API and the worker, and
database transactions that they begin. Loops that run anyway (leases, ticks, notifications) are counted where they
run meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import textwrap
import time
from pathlib import Path

from benchmarks.serving import service

RECORDER = """
    import json, os, sys, threading, time
    from pathlib import Path

    FOLDER, SERVICE = Path(os.environ["JOURNEY"]), os.environ["JOURNEY_SERVICE"] + os.sep
    seen, transactions, recording = set(), [], False

    def profile(frame, event, _):
        if recording and event == "call":
            code = frame.f_code
            if code.co_filename.startswith(SERVICE) and not code.co_name.endswith(">"):  # no comprehensions
                seen.add((code.co_filename[len(SERVICE):], code.co_qualname))
            elif code.co_qualname == "RootTransaction.__init__":
                transactions.append(1)

    def watch():
        global recording
        while not (FOLDER / "end").exists():
            recording = (FOLDER / "begin").exists()
            time.sleep(0.005)
        recording = False
        (FOLDER / f"{os.getpid()}.json").write_text(json.dumps([sorted(seen), len(transactions)]))

    threading.Thread(target=watch, daemon=True).start()
    threading.setprofile(profile)
    sys.setprofile(profile)
"""


def journey() -> tuple[set[tuple[str, str]], int]:
    """Return the functions that ran, as (file, qualified name), and the number of transactions."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "sitecustomize.py").write_text(textwrap.dedent(RECORDER))
        os.environ |= {"JOURNEY": name, "JOURNEY_SERVICE": str(Path("service").resolve()), "PYTHONPATH": name}
        with service(worker=True) as running:
            stream = running.stream(2)
            settings = {
                "stream": stream,
                "mechanism": {"kind": "independent_batches", "batch": 1},
                "learner": {"kind": "output_perturbation", "regularization": 0.1},
                "privacy": {"epsilon": 1, "delta": 0},
                "publish_delay": 1,
            }
            publication = running.make("publications", settings)
            for version in (1, 2):
                time.sleep(3)  # until only the idle loops still run
                if version == 2:
                    (folder / "begin").touch()
                    time.sleep(0.1)
                body = {"x": [[0.1, 0.2]], "y": [1]}
                assert running.client.post(f"/v1/streams/{stream}/records", json=body).status_code == 202
                latest = f"/v1/publications/{publication}/releases/latest"
                while running.client.get(latest, headers={"Prefer": "wait=10"}).json().get("version") != version:
                    time.sleep(0.1)
            (folder / "end").touch()
            time.sleep(2)
        functions, transactions = set(), 0
        for path in folder.glob("*.json"):
            seen, began = json.loads(path.read_text())
            functions |= {(file, function) for file, function in seen}
            transactions += began
        return functions, transactions


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description="how much code one record passes")
    parser.add_argument("--functions", type=Path, help="write the functions there, a line each")
    arguments = parser.parse_args()
    functions, transactions = journey()
    if arguments.functions:
        arguments.functions.write_text("".join(f"{file} {function}\n" for file, function in sorted(functions)))
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    print(
        f"{commit.stdout.strip()}: {len({file for file, _ in functions})} files, {len(functions)} functions, "
        f"{transactions} transactions"
    )


if __name__ == "__main__":
    main()

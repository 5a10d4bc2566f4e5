"""How long the certified solver takes, next to scikit-learn's logistic regression on the same records.

    pip install scikit-learn
    PERENNIAL_DATA_DIR=… python -m benchmarks.fit

Both minimise (1/n)·Σ softmax loss + (α/2)·‖w‖² over the first 8,000 digits of MNIST (784 pixels/255, clipped to norm 1,
no intercept). Both get records that are clipped already: `exact` as it does from a segment, single precision and a
factor each, and certifies ‖∇J‖ ≤ τ; scikit-learn (lbfgs, C = 1/(nα)) as rows in double precision, and the loosest
tolerance that brings it to τ, or, where none does, to as small a gradient as any. They take turns; the medians are
compared. One process per number of threads.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

RECORDS = 8_000
REGULARIZATIONS = (1e-1, 1e-2, 1e-3)
REST_SECONDS = 0.1  # seconds before each turn, in which idle threads of the other library stop spinning
TOLERANCES = (1e-7, 1e-8, 3e-9, 1e-9, 3e-10, 1e-10)


def digits() -> tuple[Any, Any]:
    """Return X, float32 (8000, 784) in [0, 1], and y (8000,)."""
    import numpy as np

    path = Path(os.environ.get("PERENNIAL_DATA_DIR", "."), "mnist.npz")
    if not path.is_file():
        sys.exit(f"{path} is not there: benchmarks/README.md says how to make it")
    with np.load(path) as data:
        return (data["X"][:RECORDS] / 255).astype(np.float32), data["y"][:RECORDS].astype(np.int64)


def compare(repeats: int) -> None:
    """Print a row for each α, with the number of threads that this process was started with."""
    import numpy as np

    try:
        from sklearn.linear_model import LogisticRegression
    except ImportError:
        sys.exit("this comparison needs scikit-learn, which the project itself does not: pip install scikit-learn")
    from service.learning.optimization.losses import LOSSES
    from service.learning.optimization.objective import evaluate
    from service.learning.optimization.solvers import accuracy
    from service.learning.output_perturbation import OutputPerturbation
    from service.learning.records import PreparedRows, Records, prepare

    warnings.simplefilter("ignore")  # lbfgs's warning that it can't improve any more
    x, y = digits()
    rows, origin = prepare(x, norm_bound=1.0, intercept=False), np.zeros((10, 784))

    def timed(work: Any) -> tuple[float, Any]:
        time.sleep(REST_SECONDS)
        began = time.perf_counter()
        result = work()
        return time.perf_counter() - began, result

    for alpha in REGULARIZATIONS:
        learner = OutputPerturbation(
            loss=LOSSES["softmax"], regularization=alpha, intercept=False, norm_bound=1.0, features=784, classes=10
        )
        tau = accuracy(
            learner.loss, norm_bound=1.0, regularization=alpha, shape=(10, 784), records=RECORDS, center_norm=0.0
        ).tolerance

        prepared, labels = learner.prepared(Records(x=x, y=y))

        def ours(learner: Any = learner, prepared: Any = prepared, labels: Any = labels) -> Any:
            return learner.solver.solve(learner.setting(origin), prepared, labels, RECORDS, origin)

        def theirs(tolerance: float, alpha: float = alpha) -> Any:
            inverse = 1 / (RECORDS * alpha)
            model = LogisticRegression(C=inverse, fit_intercept=False, tol=tolerance, max_iter=100_000)
            return model.fit(rows, y).coef_

        def gradient(weights: Any, learner: Any = learner, alpha: float = alpha) -> float:
            return float(
                np.linalg.norm(
                    evaluate(learner.loss, PreparedRows.as_they_are(rows), y, RECORDS, alpha, origin, weights)[1]
                )
            )

        reached = {tolerance: gradient(theirs(tolerance)) for tolerance in TOLERANCES}
        tolerance = next((t for t in TOLERANCES if reached[t] <= tau), min(TOLERANCES, key=lambda t: (reached[t], -t)))
        pairs = [(timed(ours), timed(lambda t=tolerance: theirs(t))) for _ in range(repeats)]
        mine, other = (statistics.median(pair[i][0] for pair in pairs) for i in (0, 1))
        print(
            f"| {os.environ['OPENBLAS_NUM_THREADS']} | {alpha:g} | {mine * 1e3:.0f} ms | {other * 1e3:.0f} ms "
            f"| {mine / other:.2f} | {tau:.1e} | {gradient(pairs[0][0][1]):.1e} | {reached[tolerance]:.1e} |",
            flush=True,
        )


def main() -> None:
    """Print the table, in Markdown."""
    parser = argparse.ArgumentParser(description="The certified solver next to scikit-learn's.")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    if os.environ.get("_PERENNIAL_BENCHMARK"):
        compare(options.repeats)
        return
    print("| threads | α | exact | scikit-learn | ratio | τ | its ‖∇J‖ | scikit-learn's |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for threads in options.threads:
        limits = {name: str(threads) for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        command = [sys.executable, "-m", "benchmarks.fit", "--repeats", str(options.repeats)]
        subprocess.run(command, env=os.environ | limits | {"_PERENNIAL_BENCHMARK": "1"}, check=True)


if __name__ == "__main__":
    main()

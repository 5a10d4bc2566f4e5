"""An auditor outside checks noise, charges and schedule of real publications with HTTP alone.

Exact minimisers are recomputed here with SciPy, schedules are simulated here from the paper's pseudo-code; nothing of
the service's own learning or schedules is used.
"""

import hashlib
import math
from fractions import Fraction

import numpy as np
import pytest
import rfc8785
from scipy import optimize, special

from tests import chance
from tests.conftest import Service, ok

REGULARIZATION = 0.5
FOLLOW = {"gaussian": chance.assert_gaussian, "spherical_laplace": chance.assert_spherical_laplace}


def mapped(x: np.ndarray, norm_bound: float, sine: float = math.sqrt(0.5)) -> np.ndarray:
    clipped = x * np.minimum(1, norm_bound / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-300))
    return np.column_stack([clipped * math.sqrt(1 - sine**2), np.full(len(x), norm_bound * sine)])


def minimiser(x: np.ndarray, y: np.ndarray, rows: int, centre: np.ndarray) -> np.ndarray:
    """Return the minimiser of the regularised logistic (one row) or softmax loss, by SciPy."""

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        w = flat.reshape(centre.shape)
        if rows == 1:
            signs = 2.0 * y - 1
            margins = signs * (x @ w[0])
            value, gradient = (
                np.logaddexp(0, -margins).mean(),
                -(x.T @ (signs * special.expit(-margins)))[None] / len(x),
            )
        else:
            scores = x @ w.T
            normaliser = special.logsumexp(scores, axis=1)
            value = (normaliser - scores[np.arange(len(x)), y]).mean()
            gradient = (np.exp(scores - normaliser[:, None]) - np.eye(rows)[y]).T @ x / len(x)
        away = w - centre
        return value + REGULARIZATION / 2 * (away**2).sum(), (gradient + REGULARIZATION * away).ravel()

    options = {"gtol": 1e-9, "ftol": 1e-15, "maxiter": 10_000, "maxfun": 100_000}
    solution = optimize.minimize(objective, centre.ravel(), jac=True, method="L-BFGS-B", options=options)
    return solution.x.reshape(centre.shape)


@pytest.mark.more
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("delta", [0, 1e-6], ids=["pure", "gaussian"])
@pytest.mark.parametrize("classes", [2, 3], ids=["binary", "multiclass"])
def test_released_weights_are_the_exact_minimiser_plus_the_stated_noise(service: Service, delta, classes):
    """Many publications over the same records: fits near the origin, and near a noisy parent.

    Each role has so many numbers that the size of noise a third too small cannot be taken for right.
    """
    needed = 322 if delta else 636
    features, block, blocks = 30, 12, 7  # the more features, the fewer publications
    each = {"base": 3, "model": 5}  # by one publication
    rows = 1 if classes == 2 else classes
    runs = math.ceil(needed / (rows * (features + 1)) / min(each.values()))
    random = np.random.default_rng(classes)
    x = random.normal(size=(blocks * block, features)).astype(np.float32).astype(np.float64)
    y = random.integers(0, classes, size=len(x))
    delta_of_all = 1e-3 if delta else 0
    stream = service.stream(features=features, classes=classes, epsilon=1000, delta=delta_of_all, norm_bound=1.5)
    service.post(stream, x.tolist(), y.tolist())
    mechanism = {"kind": "sliding_window", "block": block, "blocks": 3}
    learner = {"regularization": REGULARIZATION}
    names = [service.publish(stream, mechanism, epsilon=2, delta=delta, learner=learner, start=0) for _ in range(runs)]
    residuals: dict[str, list[np.ndarray]] = {"base": [], "model": []}
    noises: dict[str, dict] = {}
    near_origin: dict[tuple[int, int], np.ndarray] = {}
    lipschitz = 1.5 if classes == 2 else 1.5 * math.sqrt(2)
    for name in names:
        weights: dict[int | None, np.ndarray] = {}
        for release in service.released(name, time=blocks * block):
            values = np.array(release["parameters"]["values"])
            weights[release["version"]] = values
            centre = weights.get(release["parent"], np.zeros_like(values))
            start, end = release["fit"]["start"], release["fit"]["end"]
            n = end - start
            exact = near_origin.get((start, end)) if release["parent"] is None else None  # it is the same in all runs
            if exact is None:
                exact = minimiser(mapped(x[start:end], 1.5), y[start:end], len(values), centre)
            if release["parent"] is None:
                near_origin[start, end] = exact
            residuals[release["role"]].append((values - exact).ravel())
            noise = noises.setdefault(release["role"], release["noise"])
            assert noise == release["noise"]
            assert noise["sensitivity"] == pytest.approx(2 * lipschitz / (REGULARIZATION * n), rel=1e-3)
            assert noise["sensitivity"] >= 2 * lipschitz / (REGULARIZATION * n)
            charge, ratio = release["charge"], noise["sensitivity"] / noise["scale"]
            paid, owed = (charge["rho"], ratio**2 / 2) if delta else (charge["epsilon"], ratio)
            assert owed <= paid * (1 + 1e-12)
            assert owed == pytest.approx(paid)
    for role, noise in noises.items():
        assert noise["dimension"] == residuals[role][0].size
        assert len(residuals[role]) == runs * each[role]
        FOLLOW[noise["distribution"]](residuals[role], scale=noise["scale"])


@pytest.mark.more
@pytest.mark.parametrize("solver", ["exact", "psgd", "gradient_descent"])
def test_a_regression_goes_from_records_to_predictions(service: Service, solver):
    """The sensitivity of every release is the formula's, about the parent as it was released; labels are clipped."""
    random = np.random.default_rng(6)
    x = random.normal(size=(400, 2)) / 2
    y = 3 * x[:, 0] - x[:, 1]
    bound, alpha = 1.5, 0.5
    stream = service.stream(features=2, task={"kind": "regression", "bound": bound}, epsilon=1000, delta=1e-6)
    learner = {"solver": solver, "regularization": alpha}
    mechanism = {"kind": "continual", "base": 100, "update_every": 100}
    name = service.publish(stream, mechanism, epsilon=500, delta=1e-6, learner=learner)
    service.post(stream, x.tolist(), y.tolist())
    released = service.released(name, time=400)
    weights = {release["version"]: np.array(release["parameters"]["values"]) for release in released}
    for release in released:
        assert (release["model"]["loss"], release["model"]["bound"]) == ("squared", bound)
        norm = np.linalg.norm(weights[release["parent"]]) if release["parent"] else 0.0
        lipschitz = (norm + bound) * (1 + 1 / math.sqrt(alpha))
        n = release["fit"]["end"] - release["fit"]["start"]
        slots = -(-n // -(-n // 32)) * -(-n // 32) if solver == "psgd" else n
        assert release["noise"]["sensitivity"] == pytest.approx(2 * lipschitz / (alpha * slots), rel=1e-4)
        assert (release["noise"]["sensitivity"] / release["noise"]["scale"]) ** 2 / 2 <= release["charge"]["rho"] * (
            1 + 1e-12
        )
    answer = ok(service.client().post(f"/v1/publications/{name}/predict", json={"x": [[0.6, -0.6], [-0.1, 0.1]]}))
    rows = mapped(np.array([[0.6, -0.6], [-0.1, 0.1]]), 1.0, 0.3)
    values = rows @ weights[answer["version"]][0]
    assert np.array(answer["scores"])[:, 0] == pytest.approx(values, abs=1e-6)
    assert answer["labels"] == pytest.approx(np.clip(values, -bound, bound), abs=1e-6)


def sliding_window_fits(blocks: int, size: int, slides: int) -> list[tuple[int, int]]:
    """Paper A, Algorithm 5, by the chain rule of Example 1 for any number of blocks: every fit's records, in order."""
    k = int(math.log2(blocks + 1))
    half = 2 ** (k - 1)
    fits: list[tuple[int, int]] = []

    def train(first: int, last: int) -> None:
        fits.append((first * size, (last + 1) * size))

    def reset(s: int) -> None:
        train(s + half - 1, s + blocks - 1)
        for i in reversed(range(k - 1)):
            train(s + 2**i - 1, s + 2 ** (i + 1) - 2)

    s, r = 0, 0
    reset(0)
    for _ in range(slides):
        r += 1
        if r == half:
            s, r = s + half, 0
            reset(s)
            continue
        j = (r & -r).bit_length() - 1
        train(s + blocks + r - 2**j, s + blocks + r - 1)
        for i in reversed(range(j)):
            train(s + r + 2**i - 1, s + r + 2 ** (i + 1) - 2)
    return fits


def continual_fits(base: int, every: int, records: int) -> list[tuple[int, int]]:
    """Paper A, Algorithm 4, corrected reading: every fit's records, in order, walking record by record."""
    fits: list[tuple[int, int]] = []
    since = next_base = base
    for t in range(base, records + 1):
        if t == next_base:
            fits.append((0, t))
            since, next_base = t, 2 * t
        elif (t - since) % every == 0:
            i = (t - since) // every
            fits.append((since, t) if i & (i - 1) == 0 else (t - every, t))
    return fits


def multi_resolution_fits(base: int, records: int) -> list[tuple[int, int]]:
    """Paper A, Algorithm 2: block (k, q) is ((q-1)·2^k·B, q·2^k·B]; those that end together, the largest last."""
    blocks = [
        (q * 2**k * base, 2**k * base)
        for k in range(records.bit_length())
        for q in range(1, records // (2**k * base) + 1)
    ]
    return [(end - length, end) for end, length in sorted(blocks)]


def expected_fits(mechanism: dict, records: int) -> list[tuple[int, int]]:
    match mechanism["kind"]:
        case "continual":
            return continual_fits(mechanism["base"], mechanism["update_every"], records)
        case "multi_resolution":
            return multi_resolution_fits(mechanism["base"], records)
        case "independent_batches":
            batch = mechanism["batch"]
            return [(end - batch, end) for end in range(batch, records + 1, batch)]
        case "scheduled_black_box":
            ends = {math.ceil(mechanism["first"] * (1 + Fraction(str(mechanism["growth"]))) ** i) for i in range(100)}
            return [(0, end) for end in sorted(ends) if end <= records]
        case "improving_black_box":
            return [(0, end) for end in range(mechanism["first"], records + 1, mechanism["every"])]
    size, blocks = mechanism["block"], mechanism["blocks"]
    before = continual_fits(size, size, (blocks - 1) * size) if mechanism.get("warm_up") == "continual" else []
    return before + sliding_window_fits(blocks, size, records // size - blocks)


RECORDS = 60
CONTINUAL, WINDOW = {"kind": "continual", "base": 8}, {"kind": "sliding_window", "block": 2, "blocks": 7}
CASES = [
    CONTINUAL | {"base": 7, "update_every": 3},
    CONTINUAL | {"update_every": 2, "shares": "improving"},
    WINDOW | {"blocks": 10},
    WINDOW | {"shares": "paper", "warm_up": "continual"},
    {"kind": "multi_resolution", "base": 3},
    {"kind": "independent_batches", "batch": 8, "warm_start": True},
    {"kind": "scheduled_black_box", "first": 2, "growth": 0.3},
    {"kind": "improving_black_box", "first": 5, "every": 4},
]
"""Each in one kind of guarantee; in the other one with --long. Shares of all in both are `tests/schedules`' matter."""
MORE_CASES = [CONTINUAL | {"base": base, "update_every": every} for base, every in [(8, 2), (5, 9), (1, 1), (16, 16)]]
MORE_CASES += [WINDOW | {"block": block, "blocks": blocks} for block, blocks in [(2, 7), (3, 1), (2, 2), (1, 13)]]
MORE_CASES += [
    CONTINUAL | {"update_every": 2, "shares": "paper"},
    WINDOW | {"shares": "paper"},
    WINDOW | {"warm_up": "continual"},
    {"kind": "independent_batches", "batch": 8},
]


KINDS = {"pure": 0, "gaussian": 1e-6}


def in_either_kind(mechanism: dict, *, now: set[str]) -> list:
    """Return the case of each kind of guarantee: those not in `now` wait for --long."""
    marks = {kind: () if kind in now else pytest.mark.long for kind in KINDS}
    return [pytest.param(mechanism, KINDS[kind], marks=marks[kind], id=f"{kind}-{mechanism}") for kind in KINDS]


@pytest.mark.more
@pytest.mark.parametrize(
    ("mechanism", "delta"),
    [
        *(case for each in CASES for case in in_either_kind(each, now={"gaussian" if "shares" in each else "pure"})),
        *(case for each in MORE_CASES for case in in_either_kind(each, now=set())),
    ],
)
def test_the_charges_are_the_fits_of_an_outside_simulation_and_no_record_passes_the_budget(
    service: Service, mechanism, delta
):
    stream = service.stream(features=1, epsilon=0.7, delta=delta)
    shift = 4  # a publication counts from its own start
    service.post(stream, [[0.5]] * shift, [0] * shift)
    name = service.publish(stream, mechanism, epsilon=0.7, delta=delta)
    service.post(stream, [[0.5]] * RECORDS, [1] * RECORDS)
    expected = [(start + shift, end + shift) for start, end in expected_fits(mechanism, RECORDS)]
    service.reaches(name, time=max(end for _, end in expected))
    charges = all_charges(service, stream)
    assert [(charge["start"], charge["end"]) for charge in charges] == expected
    assert [charge["version"] for charge in charges] == list(range(1, len(charges) + 1))

    currency = "rho" if delta else "epsilon"
    spent = [
        sum((Fraction(c[currency]) for c in charges if c["start"] <= r < c["end"]), Fraction(0)) for r in range(64)
    ]
    plan = ok(service.client().get(f"/v1/publications/{name}"))["plan"]
    assert max(spent) <= Fraction(plan["guarantee"]["capacity"]) if delta else max(spent) <= Fraction("0.7")
    ledger = ok(service.client().get(f"/v1/streams/{stream}/ledger"))
    assert ledger["spent"]["epsilon"] <= 0.7
    assert (ledger["ranges"][0]["start"], ledger["ranges"][-1]["end"]) == (0, shift + RECORDS)
    for before, after in zip(ledger["ranges"], ledger["ranges"][1:], strict=False):
        assert before["end"] == after["start"]
    for each in ledger["ranges"]:
        for record in range(each["start"], each["end"]):
            if delta:
                assert (each["epsilon"] > 0) == (spent[record] > 0)
                assert each["delta"] == (delta if spent[record] else 0)
            else:
                assert each["epsilon"] == pytest.approx(float(spent[record]), rel=1e-15)


@pytest.mark.more
def test_each_of_paper_a_s_schedules_is_published_as_it_says(service: Service):
    """Windows, parents and charges as a reader of the documentation expects them; the latest is the newest model."""
    stream = service.stream(features=1, epsilon=10)
    batches = {"kind": "independent_batches", "batch": 8}
    mechanisms: dict[str, dict] = {
        "multi": {"kind": "multi_resolution", "base": 8},
        "cold": batches,
        "warm": batches | {"warm_start": True},
        "improving": {"kind": "continual", "base": 8, "update_every": 8, "shares": "improving"},
        "warm up": {"kind": "sliding_window", "block": 8, "blocks": 3, "warm_up": "continual"},
    }
    names = {key: service.publish(stream, mechanism) for key, mechanism in mechanisms.items()}
    service.post(stream, [[0.5]] * 64, [1] * 64)
    released = {key: service.released(name, time=64) for key, name in names.items()}

    def seen(key: str, time: int) -> list[tuple]:
        return [
            (each["role"], each["window"]["start"], each["window"]["end"], each["parent"])
            for each in released[key]
            if each["time"] == time
        ]

    assert seen("multi", 48) == [("model", 40, 48, None), ("model", 32, 48, None)]
    assert [start for _, start, _, _ in seen("multi", 64)] == [56, 48, 32, 0]
    latest = ok(service.client().get(f"/v1/publications/{names['multi']}/releases/latest"))
    assert (latest["version"], latest["window"]) == (len(released["multi"]), {"start": 0, "end": 64})
    assert [each["charge"]["epsilon"] for each in released["multi"] if each["time"] == 64] == [0.5, 0.25, 0.125, 0.0625]

    assert [each["parent"] for each in released["cold"]] == [None] * 8
    assert [each["parent"] for each in released["warm"]] == [None, *range(1, 8)]
    assert {each["charge"]["epsilon"] for each in (*released["cold"], *released["warm"])} == {1}

    charges = [(each["fit"]["start"], each["fit"]["end"], each["charge"]["epsilon"]) for each in released["improving"]]
    bases = [charge for start, _, charge in charges if start == 0]
    ratio = bases[1] / bases[0]
    assert 0.5 < ratio < 1
    assert bases == pytest.approx([(1 - ratio) * ratio**k for k in range(4)])
    for record, whole in [(0, 1), (8, ratio), (16, 1), (32, 1)]:  # from 8 to 16 there are no updates
        spent = sum(charge for start, end, charge in charges if start <= record < end)
        assert spent + ratio**4 == pytest.approx(whole)  # the closed tail of the bases still to come

    assert [seen("warm up", time) for time in (8, 16)] == [[("model", 0, 8, None)], [("model", 0, 16, None)]]
    assert seen("warm up", 24) == [("base", 0, 24, None), ("model", 0, 24, 3)]


def all_charges(service: Service, stream: str) -> list[dict]:
    """Oldest first."""
    return ok(service.client().get(f"/v1/streams/{stream}/ledger/charges?limit=1000"))["items"][::-1]


@pytest.mark.more
def test_the_charges_of_a_stream_are_one_hash_chain(service: Service):
    stream = service.stream(features=1)
    names = [service.publish(stream, {"kind": "sliding_window", "block": 2, "blocks": 3}) for _ in range(2)]
    service.post(stream, [[0.5]] * 20, [1] * 20)
    for name in names:
        service.reaches(name, time=20)
    previous = None
    for number, charge in enumerate(all_charges(service, stream), 1):
        claimed = charge.pop("hash")
        assert charge["id"] == number
        assert charge["previous_hash"] == previous
        assert claimed == hashlib.sha256(rfc8785.dumps(charge)).hexdigest()
        previous = claimed


def test_the_same_records_never_get_the_same_noise_twice(service: Service):
    stream = service.stream(features=1, epsilon=50)
    service.post(stream, [[0.5]] * 5, [1] * 5)
    mechanism = {"kind": "sliding_window", "block": 5, "blocks": 1}
    names = [service.publish(stream, mechanism, start=0) for _ in range(5)]
    values = {str(service.released(name, time=5)[0]["parameters"]["values"]) for name in names}
    assert len(values) == 5


def each_batch_is_charged_once(service: Service, stream: str, name: str, rho: float) -> None:
    """All that a publication charges: five batches of 4, and never more than ε = 1."""
    charges = [charge for charge in all_charges(service, stream) if charge["publication"] == name]
    assert [(charge["start"], charge["end"], charge["rho"]) for charge in charges] == [
        (start, start + 4, rho) for start in range(0, 20, 4)
    ]
    assert ok(service.client().get(f"/v1/streams/{stream}/ledger"))["spent"]["epsilon"] <= 1


def test_tasks_one_after_another_charge_each_record_once_and_each_has_a_model_that_finds_its_records(service: Service):
    """Opposite answers to one question, on either side of the second feature; predictions are recomputed here."""
    stream = service.stream(features=2, epsilon=400, delta=1e-5)
    mechanism = {"kind": "lifelong", "task_size": [400, 200], "heads": "per_task", "memory": 2}
    name = service.publish(stream, mechanism, epsilon=300, delta=1e-6)
    one, other = [[0.6, 0.7], [-0.6, 0.7]], [[0.6, -0.7], [-0.6, -0.7]]
    service.post(stream, [*one * 200, *other * 150], [*[1, 0] * 200, *[0, 1] * 150])
    released = service.released(name, time=600)
    assert [(each["time"], each["window"]["start"], each["fit"]["start"]) for each in released] == [
        (400, 0, 0),
        (600, 0, 400),
    ]
    assert [each["parameters"]["shape"] for each in released] == [[2, 3], [4, 3]]
    noise, rho = released[0]["noise"], released[0]["charge"]["rho"]
    s, f, l, k = (noise["weights"][each] ** 2 for each in ("second", "first", "label", "count"))
    apart = 2 * (s + f + l) + max((f + l) ** 2, (f - l) ** 2 + 8 * s * k) / (2 * s)
    assert (noise["dimension"], noise["factor"]["bands"]) == (3 + 2 + 3, 1)
    assert apart / noise["scale"] ** 2 / 2 == pytest.approx(rho, rel=1e-3)
    assert apart / noise["scale"] ** 2 / 2 <= rho
    charges = [charge for charge in all_charges(service, stream) if charge["publication"] == name]
    assert [(charge["start"], charge["end"], charge["rho"]) for charge in charges] == [(0, 400, rho), (400, 600, rho)]
    points = [*one, *other]
    predicted = ok(service.client().post(f"/v1/publications/{name}/predict", json={"x": points}))
    assert predicted["labels"] == [1, 0, 0, 1]
    weights = np.array(released[-1]["parameters"]["values"])
    scores = np.column_stack((np.multiply(points, math.sqrt(1 - 0.3**2)), np.full(4, 0.3))) @ weights.T
    chosen = scores[np.arange(4), scores[:, 2:].argmax(axis=1)]
    assert [each[1] for each in predicted["scores"]] == pytest.approx(1 / (1 + np.exp(-chosen)), abs=1e-4)


@pytest.mark.more
def test_an_encoder_is_a_release_that_its_records_pay_for_and_later_ones_predict_with(service: Service):
    """Its network is computed here, from both releases."""
    pytest.importorskip("jax", reason="the extra `deep` is not installed")
    stream = service.stream(features=2, epsilon=400, delta=1e-5, norm_bound=0.9)
    encoder = {"kind": "dense", "records": 400, "batch": 20, "layers": [8], "learning_rate": 8.0}
    name = service.publish(stream, {"kind": "lifelong", "task_size": 200, "encoder": encoder}, epsilon=300, delta=1e-6)
    quarters = [[0.6, 0.7], [-0.6, 0.7], [-0.6, -0.7], [0.6, -0.7]]
    service.post(stream, quarters * 150, [1, 0, 1, 0] * 150)
    learnt, model = service.released(name, time=600)
    assert [(each["role"], each["fit"], each["version"]) for each in (learnt, model)] == [
        ("base", {"start": 0, "end": 400}, 1),
        ("model", {"start": 400, "end": 600}, 2),
    ]
    noise, rho = learnt["noise"], learnt["charge"]["rho"]
    assert (noise["added_to"], noise["dimension"]) == ("disjoint_gradient_sums", 2 * 8 + 8 + 8)
    assert (2 * 1.0) ** 2 / (2 * noise["scale"] ** 2) == pytest.approx(rho, rel=1e-3)
    assert (2 * 1.0) ** 2 / (2 * noise["scale"] ** 2) <= rho
    charges = [charge for charge in all_charges(service, stream) if charge["publication"] == name]
    assert [(charge["start"], charge["end"], charge["rho"]) for charge in charges] == [(0, 400, rho), (400, 600, rho)]

    assert model["model"]["encoder"] == {
        "kind": "dense",
        "version": 1,
        "layers": [8],
        "norm_bound": 0.9,
        "release": 1,
    }
    predicted = ok(service.client().post(f"/v1/publications/{name}/predict", json={"x": quarters}))
    (weights,), (values,) = model["parameters"]["values"], learnt["parameters"]["values"]
    x = np.array(quarters)
    x *= 0.3 * math.sqrt(2) / 0.9 * np.minimum(1, 0.9 / np.linalg.norm(x, axis=1, keepdims=True))
    code = np.tanh(x @ np.reshape(values[:16], (2, 8)) + values[16:24])
    features = code / np.linalg.norm(code, axis=1, keepdims=True)
    scores = np.column_stack((features * math.sqrt(1 - 0.3**2), np.full(4, 0.3))) @ weights
    assert [each[1] for each in predicted["scores"]] == pytest.approx(special.expit(scores), abs=1e-4)
    assert predicted["labels"] == [int(each[1] > 0.5) for each in predicted["scores"]]
    refused = service.client().post(f"/v1/publications/{name}/predict?version=1", json={"x": quarters})
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:perennial:problem:no-predictions")


def test_an_online_leader_charges_each_record_once_for_a_model_after_every_batch(service: Service):
    """Its noise is for the whole run: the norm of the factor's column is recomputed here, lag by lag."""
    stream = service.stream(features=2, delta=1e-5)
    mechanism = {"kind": "online_leader", "batch": 4, "clip": 0.25}
    name = service.publish(stream, mechanism, delta=1e-6, learner={"kind": "noisy_gradient_descent"})
    service.post(stream, [[0.6, 0.8], [-1, 0]] * 11, [1, 0] * 11)
    released = service.released(name, time=20)
    assert [(each["time"], each["parent"], each["role"]) for each in released] == [
        (4 * number, number - 1 or None, "model") for number in range(1, 6)
    ]
    assert all(each["window"] == {"start": 0, "end": each["time"]} for each in released)
    noise, rho = released[0]["noise"], released[0]["charge"]["rho"]
    column = np.array(noise["factor"]["decays"]) ** np.arange(20_000)[:, None] @ np.array(noise["factor"]["scales"])
    owed = (1 + np.sum(column**2)) * (noise["sensitivity"] / noise["scale"]) ** 2 / 2
    assert noise["sensitivity"] == pytest.approx(0.5, rel=1e-4)
    assert owed == pytest.approx(rho, rel=1e-6)
    assert noise["sensitivity"] >= 0.5
    each_batch_is_charged_once(service, stream, name, rho)
    predicted = ok(service.client().post(f"/v1/publications/{name}/predict", json={"x": [[0.6, 0.8]]}))
    assert predicted["version"] == 5
    text = service.client().get(f"/v1/publications/{name}").text
    assert "parts" not in ok(service.client().get(f"/v1/publications/{name}"))
    assert "chain" not in text

"""Mistakes that people make in the body of a publication or of a stream.

Each is the change of a valid body, the field that the error names, and words that its reason contains.
"""

from service.inputs.words import EXAMPLES
from service.learning.registry import LEARNERS
from service.mechanisms.registry import MECHANISMS

LEADER = {"kind": "online_leader", "batch": 100}
ACTIVE = {"kind": "active_learning", "batching": "fixed_batch", "size": 9}
SECRET = "zebra-crossing-7319"

OF_PUBLICATIONS = [
    ({"mechanism": "online_leader"}, "mechanism", f"must be an object, such as {MECHANISMS.example}"),
    ({"mechanism": {"batch": 100}}, "mechanism", 'must be an object with a "kind", such as {'),
    ({"mechanism": {"kind": "online_leadr"}}, "mechanism", "(did you mean online_leader?)"),
    ({"mechanism": {"kind": SECRET}}, "mechanism", "its 'kind' must be one of 'multi_resolution', "),
    ({"mechanism": LEADER | {"batch": "100"}}, "mechanism.batch", "must be a whole number, without quotes"),
    ({"mechanism": LEADER | {"batch": 2.5}}, "mechanism.batch", "must be a whole number"),
    ({"mechanism": LEADER | {"batch": 0}}, "mechanism.batch", "must be at least 1"),
    ({"mechanism": LEADER | {"bach": 1}}, "mechanism.bach", "no such field (did you mean batch?)"),
    ({"mechanism": LEADER | {SECRET * 9: 1}}, "mechanism.…", "no such field (the fields here are acknowledge_"),
    ({"mechanism": LEADER | {"online_leader": 1}}, "mechanism.online_leader", "no such field"),
    ({"mechanism": LEADER | {"averaging": "true"}}, "mechanism.averaging", "must be true or false, without quotes"),
    ({"mechanism": LEADER | {"noise": "tre"}}, "mechanism.noise", "(did you mean tree?)"),
    ({"mechanism": {"kind": "online_leader"}}, "mechanism.batch", "must be given"),
    (
        {"mechanism": ACTIVE | {"threshold": {"initial": "1"}}},
        "mechanism.threshold.initial",
        "must be a number, without quotes",
    ),
    (
        {"mechanism": {"kind": "lifelong", "task_size": [10, "20"]}},
        "mechanism.task_size.1",
        "must be a whole number, without quotes",
    ),
    ({"learner": {"kind": "output_perturbation", "los": "softmax"}}, "learner.los", "(did you mean loss?)"),
    ({"learner": None}, "learner", f"must be given, such as {LEARNERS.example}"),
    ({"privacy": {"epsilon": 0}}, "privacy.epsilon", "must be above 0, at least 1e-9 (0.1 to 10 is usual)"),
    ({"privacy": {"epsilon": "1"}}, "privacy.epsilon", "must be a number, without quotes"),
    ({"privacy": {"epsilon": 1, "delta": 1}}, "privacy.delta", "must be below 1 (usual is 1e-6"),
    ({"privacy": {"epsilon": 1, "dleta": 1e-6}}, "privacy.dleta", "no such field (did you mean delta?)"),
    ({"privacy": 1}, "privacy", f"must be an object, such as {EXAMPLES['privacy']}"),
    ({"name": SECRET.upper()}, "name", "must be a name of at most 63 lower-case letters, digits and hyphens"),
    ({"name": 7}, "name", 'must be a text, in quotes, such as "power-usage-2"'),
    ({"publishdelay": 1}, "publishdelay", "no such field (did you mean publish_delay?)"),
]  # fmt: skip

OF_STREAMS = [
    ({"name": "Power usage"}, "name", "such as power-usage-2"),
    ({"features": "8"}, "features", "must be a whole number, without quotes"),
    ({"task": "classification"}, "task", f"must be an object, such as {EXAMPLES['task']}"),
    ({"task": {"kind": "classification"}}, "task.classes", "must be given"),
    ({"task": {"kind": "clasification"}}, "task", "(did you mean classification?)"),
    ({"budget": None}, "budget", f"must be an object, such as {EXAMPLES['budget']}"),
    ({"buget": {"epsilon": 1}}, "buget", "no such field (did you mean budget?)"),
    ({"retention": "keeep"}, "retention", "must be 'keep' or 'needed' (did you mean keep?)"),
    ({"feature_map": {"kind": "hashing", "features": 16}}, "feature_map.tokens", "must be given"),
    ({"feature_map": {"kind": "standardize"}}, "feature_map", 'such as {"kind": "standardize", "mean": [54, 1017]'),
    (
        {"feature_map": {"kind": "compose", "maps": [{"kind": "normalize"}, {"kind": "standardize"}]}},
        "feature_map",
        "standardize without numbers changes nothing",
    ),
    ({"feature_map": {"kind": "compose", "maps": []}}, "feature_map.maps", "must have 1 or more items"),
    ({"feature_map": {"kind": "compose", "maps": {}}}, "feature_map.maps", "must be a list"),
]  # fmt: skip

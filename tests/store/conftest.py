"""A ledger with something in it."""

import threading

from service.settings import Settings
from service.worker.main import work
from tests.conftest import ADMIN_KEY, Service, ok, serving
from tests.mechanisms import cases


def publish_some(settings: Settings, *, records: int = 12, every_learner: bool = True) -> None:
    """A publication of each learner and kind on one stream, and some that have ended; nothing runs on it afterwards."""
    stop = threading.Event()
    worker = threading.Thread(target=work, args=(settings, stop))
    worker.start()
    with serving(settings) as url:
        service = Service(url, ADMIN_KEY, settings)
        stream = service.stream(epsilon=20, delta=2e-5)
        window = {"kind": "sliding_window", "block": 2, "blocks": 3}
        names = [service.publish(stream, window, delta=delta) for delta in (0, 1e-6, 0, 1e-6)]
        if every_learner:
            for learner, delta in (("objective_perturbation", 0), ("objective_perturbation", 1e-6)):
                names.append(service.publish(stream, window, delta=delta, learner={"kind": learner}))
            names.append(service.publish(stream, window, delta=1e-6, learner={"kind": "noisy_gradient_descent"}))
            tasks = {"kind": "lifelong", "task_size": 4, "batch": 2}
            remembering = (*cases.of_families("PUBLISHED").values(), tasks, tasks | {"heads": "per_task", "memory": 1})
            names.extend(service.publish(stream, mechanism, delta=1e-6) for mechanism in remembering)
            online = {"kind": "online_leader", "batch": 2}
            expiring = {"noise": "window_tree", "window": 2, "expiry": "leaf", "acknowledge_declassification": True}
            learner = {"kind": "noisy_gradient_descent"}
            for mechanism in (online, online | expiring):
                name = service.publish(stream, mechanism, delta=1e-6, learner=learner)
                names.append(name)
        service.post(stream, [[1, 0]] * records, [0, 1] * (records // 2))
        for name in names:
            service.reaches(name, time=records)
        for name in (*names[2:4], *names[7:]):
            ok(service.client().delete(f"/v1/publications/{name}"))
        for client in service.clients.values():
            client.close()
    stop.set()
    worker.join()

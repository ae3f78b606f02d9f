"""The constant load of a soak test: procs of every type, and callers that operate, query and read
continuously."""

import collections
import http.client
import itertools
import os
import random
import threading
import time
import urllib.parse
import uuid

GSE = "/api/c/compapi/v2/gse"
START, STOP, QUERY, RESTART, KILL = 0, 1, 2, 7, 9
CALL_FAILED = (OSError, http.client.HTTPException, RuntimeError, ValueError)
HANDLING, ALREADY_RUNNING, NOT_THERE = 115, 828, 829


class Proc:
    """A proc of a real agent. `index` is the slot that its process writes, which identifies the process."""

    def __init__(self, soak, host, name, kind, index, health):
        self.host, self.name, self.kind, self.index = host, name, kind, index
        run = f"{soak.helper} {soak.slots.path} {index}"
        identity = {"proc_name": os.path.basename(soak.helper), "setup_path": soak.procs, "pid_path": "", "user": soak.user}
        policy = {"auto_type": 1, "start_check_secs": 1, "stop_check_secs": 10, "start_interval": 1, "op_timeout": 60}
        if kind == "resident":
            control = {"start_cmd": f"echo {name} begins; exec {run}"}
        elif kind == "daemon":
            pid_file = os.path.join(soak.procs, f"{name}.pid")
            identity["pid_path"] = pid_file
            run = f"{soak.helper} -d {pid_file} {soak.slots.path} {index}"
            control = {"start_cmd": run, "stop_cmd": f"{soak.helper} -k {pid_file}"}
        elif kind == "talker":
            identity["proc_name"] = "sh"
            control = {"start_cmd": f"exec sh -c 'while :; do echo {name} speaks; sleep 1; done'"}
        else:
            identity["proc_name"] = "sh"
            control = {"start_cmd": f"echo {name} runs"}
            policy["auto_type"] = 2 if kind == "once" else 0
            if kind == "periodic":
                policy["cycle_time"] = 15 + index % 30
        if health:
            control["health_cmd"] = f"test -e {soak.slots.path}"
        self.spec = {"identity": identity, "control": control, "alive_monitor_policy": policy}

    def element(self, op_type):
        return {"meta": {"namespace": "soak", "name": self.name}, "op_type": op_type, "hosts": [self.target()], "spec": self.spec}

    def target(self):
        return {"ip": self.host, "bk_cloud_id": 0}

    def named(self):
        """A body of GSE's first generation, which names the proc and its host."""
        return {"meta": {"namespace": "soak", "name": self.name}, "hosts": [{**self.target(), "bk_supplier_id": 0}]}


def make_procs(soak, host, count):
    """Procs of a host: of twenty, two run once, two are periodic, two are daemons, and the rest is resident.
    Every second proc has a health_cmd; the first proc of each host writes a line a second."""
    kinds = ["once", "periodic", "daemon", "resident", "resident", "once", "periodic", "daemon", *["resident"] * 12]
    number = host.rsplit(".", 1)[1]
    for place in range(count):
        kind = "talker" if place == 0 else kinds[place % len(kinds)]
        yield Proc(soak, host, f"{kind}-{number}-{place}", kind, next(soak.indexes), place % 2 == 0)


class Task:
    """A task that was accepted, with the outcomes that its caller saw."""

    def __init__(self, task_id, keys):
        self.id, self.keys, self.codes = task_id, keys, None


class Load:
    """Callers, each with its own procs, so that no two ops concern the same proc at the same time."""

    def __init__(self, soak, rate, callers):
        self.soak = soak
        self.tasks, self.steps, self.faults = [], collections.Counter(), []
        self.forgotten = 0
        self.lock = threading.Lock()
        self.ending = threading.Event()
        self.fresh = itertools.count()
        self.threads = []
        # Sorted by type, so that each caller has some of each.
        by_kind = sorted(soak.all_procs, key=lambda proc: proc.kind)
        for number in range(callers):
            words = (by_kind[number::callers], callers / rate)
            self.threads.append(threading.Thread(target=self.run, args=words, daemon=True))

    def start(self):
        for thread in self.threads:
            thread.start()

    def end(self):
        self.ending.set()
        for thread in self.threads:
            thread.join(self.soak.patience)

    def fault(self, text):
        with self.lock:
            self.faults.append(text)

    def run(self, mine, every):
        steps = [(self.restart, 3), (self.stop_and_start, 2), (self.query, 3), (self.run_once, 2), (self.new_proc, 1),
                 (self.status, 3), (self.events, 2), (self.log, 2), (self.lists, 1), (self.simulated, 1)]
        state = {"after": 0}
        names, weights = zip(*steps)
        time.sleep(random.random() * every)
        while not self.ending.is_set():
            began = time.monotonic()
            step = random.choices(names, weights)[0]
            try:
                step(mine, state)
                with self.lock:
                    self.steps[step.__name__] += 1
            except CALL_FAILED as failure:
                if not self.soak.kills:
                    self.fault(f"{step.__name__}: {failure!r}"[:500])
            except Exception as failure:  # a defect of the soak itself; without its callers it would find nothing
                self.fault(f"{step.__name__}: {failure!r}"[:500])
                raise
            self.ending.wait(max(0.0, began + every - time.monotonic()))

    def operate(self, elements, expected=(0,)):
        """Sends one task, repeatedly with its key until it is accepted, and waits for all of its outcomes."""
        key, body = str(uuid.uuid4()), {"proc_operate_req": elements}
        keys = {f"0:{host['ip']}:{element['meta']['namespace']}:{element['meta']['name']}"
                for element in elements for host in element["hosts"]}
        accepted = self.again(lambda: self.soak.server.api.data("POST", f"{GSE}/operate_proc_multi/", body, key=key))
        task = Task(accepted["task_id"], keys)
        with self.lock:
            self.tasks.append(task)
        while True:
            codes = self.again(lambda: self.codes(task))
            if HANDLING not in codes.values():
                break
            time.sleep(0.2)
        task.codes = codes
        bad = {key: code for key, code in codes.items() if code not in expected}
        if bad and not self.soak.kills:
            self.fault(f"task {task.id}: {bad}"[:500])
        return not bad

    def again(self, call):
        """Repeats a call until it is answered: a call may fail only in a soak with kills."""
        deadline = time.monotonic() + self.soak.patience
        while True:
            try:
                return call()
            except CALL_FAILED:
                if not self.soak.kills or time.monotonic() > deadline:
                    raise
                time.sleep(0.3)

    def codes(self, task):
        data = self.soak.server.api.data("POST", f"{GSE}/get_proc_operate_result_v2/", {"task_id": task.id})
        return {key: outcome["error_code"] for key, outcome in data.items()}

    def some(self, mine, *kinds):
        return random.choice([proc for proc in mine if proc.kind in kinds])

    def restart(self, mine, _):
        self.operate([self.some(mine, "resident", "daemon").element(RESTART)])

    def stop_and_start(self, mine, _):
        proc = self.some(mine, "resident", "daemon", "periodic")
        self.operate([proc.element(random.choice([STOP, KILL]) if proc.kind != "periodic" else STOP)])
        self.operate([proc.element(START)])

    def query(self, mine, _):
        chosen = [proc for proc in mine if proc.kind in ("resident", "daemon")]
        self.operate([proc.element(QUERY) for proc in random.sample(chosen, min(5, len(chosen)))])

    def run_once(self, mine, _):
        self.operate([self.some(mine, "once").element(START)])

    def new_proc(self, _mine, _):
        """A new proc that runs once and is then unregistered. Its memory must be freed."""
        proc = Proc(self.soak, random.choice(self.soak.hosts), f"fresh-{next(self.fresh)}", "once", 0, False)
        if self.operate([proc.element(START)]):
            self.forget(proc)

    def forget(self, proc):
        answer = self.again(lambda: self.soak.server.api.data("POST", f"{GSE}/unregister_proc_info/", proc.named()))
        with self.lock:
            self.forgotten += 1
        bad = [outcome for outcome in answer.values() if outcome["error_code"] not in (0, NOT_THERE)]
        if bad and not self.soak.kills:
            self.fault(f"unregister {proc.name}: {bad}"[:500])

    def status(self, mine, _):
        self.soak.server.api.data("POST", f"{GSE}/get_proc_status/", random.choice(mine).named())

    def events(self, _mine, state):
        page = self.soak.server.api.data("GET", f"/api/v1/events?after={state['after']}&limit=500&wait_ms=200")
        state["after"] = page["last"]

    def log(self, mine, _):
        proc = self.some(self.soak.all_procs, "resident", "talker")
        words = urllib.parse.urlencode({"namespace": "soak", "name": proc.name, "host": f"0:{proc.host}", "lines": 50})
        self.soak.server.api.data("GET", f"/api/v1/logs?{words}")

    def lists(self, _mine, _):
        for path in ("/api/v1/agents", "/api/v1/procs?namespace=soak", "/api/v1/tasks?limit=100", "/metrics"):
            self.soak.server.api.call("GET", path)

    def simulated(self, _mine, _):
        if self.soak.simulated:
            element = {**self.soak.all_procs[0].element(random.choice([START, RESTART, QUERY])), "hosts": self.soak.simulated}
            element["meta"] = {"namespace": "simulated", "name": f"web-{random.randrange(20)}"}
            self.operate([element], expected=(0, ALREADY_RUNNING))

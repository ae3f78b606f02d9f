"""A server with a simulated fleet on the same machine: the cost of an agent, the time of an op on all of them
until every result can be read, how fast tasks are accepted, and a restart. `scripts/bench fleet --help` lists
the options."""

import argparse
import json
import os
import re
import resource
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time

import measure
import report
from callers import Api, Meanwhile, closed_loop

GSE = "/api/c/compapi/v2/gse"
RESTART, START = 7, 0
SETTLE = 3.0


class Server:
    """`procfleet server`, which can be killed and restarted on the same addresses."""

    def __init__(self, bench, flags=(), group=None):
        self.bench, self.flags, self.group = bench, list(flags), group
        self.data = os.path.join(bench.folder, "server")
        self.link = "127.0.0.1:0"
        self.process = None
        self.start()

    def start(self):
        log = open(os.path.join(self.bench.folder, "server.log"), "ab")
        command = [self.bench.procfleet, "server", "--data", self.data, "--listen", "127.0.0.1:0", "--link", self.link,
                   *self.flags]
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
            env={**os.environ, "PROCFLEET_LOG": self.bench.log_level}, group=self.group,
        )
        log.close()
        ready = self.process.stdout.readline().decode()
        found = re.search(r"https?://(\S+) \(agents: https://([^)]+)\)", ready)
        if not found:
            raise RuntimeError(f"procfleet server is not ready: {ready!r}; see {self.bench.folder}/server.log")
        address, self.link = found.groups()
        with open(os.path.join(self.data, "admin.json"), encoding="utf-8") as file:
            admin = json.load(file)
        self.api = Api(address, json.dumps(admin), self.bench.patience)

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def end(self):
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def token(self, uses):
        command = [self.bench.procfleet, "token", "create", "--uses", str(uses), "--data", self.data]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def connected(self):
        text = self.api.call("GET", "/metrics").decode()
        return int(re.search(r"^procfleet_agents_connected (\d+)", text, re.MULTILINE).group(1))

    def memory_kib(self):
        return measure.memory_kib(self.process.pid)

    def memory_used(self):
        now, most = self.memory_kib(), measure.peak_kib(self.process.pid)
        return f"{now['pss_kib'] / 1024:.0f}, {now['private_dirty_kib'] / 1024:.0f} and {most / 1024:.0f}"

    def cpu_ns(self):
        return measure.cpu_ns([self.process.pid])


class Sim:
    """`procfleet-sim`, and its trace of each op."""

    def __init__(self, bench, server, agents):
        self.trace = os.path.join(bench.folder, "trace.csv")
        self.log = open(os.path.join(bench.folder, "sim.log"), "wb")
        command = [
            bench.sim, "--server", f"https://{server.link}", "--agents", str(agents), "--first-ip", "10.0.0.1",
            "--data", os.path.join(bench.folder, "sim"), "--trace", self.trace, "--json", "--every", "0.1",
        ]
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, "PROCFLEET_TOKEN": server.token(agents)},
        )
        self.lines = None

    def last_words(self):
        with open(self.log.name, encoding="utf-8", errors="replace") as log:
            return log.read()[-500:].strip()

    def wait_connected(self, server, agents, patience):
        deadline = time.monotonic() + patience
        while True:
            if self.process.poll() is not None:
                raise RuntimeError(f"procfleet-sim has ended: {self.last_words()}")
            connected = server.connected()
            if connected >= agents:
                return
            if time.monotonic() > deadline:
                raise measure.TookTooLong(f"{connected} of {agents} had connected after {patience} s")
            time.sleep(0.1)

    def confirmed(self, count, patience):
        """The next `count` confirmed ops: (op, received, reported, confirmed), in nanoseconds."""
        if self.lines is None:
            self.lines = open(self.trace, encoding="ascii")
            self.lines.readline()
        found, rest = [], ""
        deadline = time.monotonic() + patience
        while len(found) < count:
            lines = (rest + self.lines.read()).split("\n")
            rest = lines.pop()
            for line in lines:
                op, *times = line.split(",")
                found.append((op, *map(int, times)))
            if time.monotonic() > deadline:
                raise measure.TookTooLong(f"{len(found)} of {count} ops were confirmed after {patience} s")
            time.sleep(0.02)
        if len(found) > count:
            raise RuntimeError(f"{len(found)} ops were confirmed and {count} given out")
        return found

    def end(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()


class Bench:
    def __init__(self, options):
        self.patience, self.keep, self.log_level = options.patience, options.keep, options.log
        self.procfleet, self.sim = os.path.abspath(options.procfleet), os.path.abspath(options.sim)
        # On a real disk, so that durable writes have their real cost.
        self.folder = tempfile.mkdtemp(prefix="pffleet-", dir=options.folder)
        self.rows = []

    def say(self, what, value):
        self.rows.append([what, value])
        print(f"  {what}: {value}", flush=True)

    def close(self):
        if self.keep:
            print(f"kept: {self.folder}")
        else:
            shutil.rmtree(self.folder, ignore_errors=True)


def main():
    options = read_options()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < options.agents + 1_000:
        print(f"error: {options.agents} agents need more open files than the {hard} that are allowed here (ulimit -Hn)",
              file=sys.stderr)
        return 1
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    bench = Bench(options)
    try:
        before = os.getloadavg()
        run(bench, options)
        after = os.getloadavg()
    except KeyboardInterrupt:
        print("\ninterrupted; everything that was started has been ended", file=sys.stderr)
        return 130
    finally:
        bench.close()
    text = "\n".join(describe(bench, options, before, after))
    print("\n" + text)
    if options.record:
        report.record("fleet", text)
    return 0


def run(bench, options):
    parts = {
        "agents": connected, "ops": one_op, "tasks": many_tasks, "accept": accept, "results": results, "restart": come_back,
    }
    server = Server(bench)
    sim = None
    try:
        time.sleep(1)
        empty = server.memory_kib()
        print(f"{options.agents} agents join", flush=True)
        began = time.monotonic()
        sim = Sim(bench, server, options.agents)
        sim.wait_connected(server, options.agents, options.patience)
        took = time.monotonic() - began
        bench.say(f"join and connect {options.agents}: all are there, s", f"{took:.1f}")
        server.empty = empty
        for name, part in parts.items():
            if not options.only or name in options.only:
                if part is come_back:
                    bench.say("server: PSS and private dirty memory after all of this, and peak RSS, MiB", server.memory_used())
                print(name, flush=True)
                part(bench, options, server, sim)
    finally:
        if sim:
            sim.end()
        server.end()


def connected(bench, options, server, sim):
    time.sleep(SETTLE)
    full = server.memory_kib()
    for title, name in (("PSS", "pss_kib"), ("private dirty", "private_dirty_kib")):
        bench.say(f"server: {title} memory without agents, MiB", f"{server.empty[name] / 1024:.1f}")
        bench.say(f"server: {title} memory with {options.agents}, MiB", f"{full[name] / 1024:.1f}")
        bench.say(f"{title} memory per connected agent, KiB", f"{(full[name] - server.empty[name]) / options.agents:.1f}")
    used, began = server.cpu_ns(), time.monotonic()
    time.sleep(options.idle)
    share = (server.cpu_ns() - used) / 1e9 / (time.monotonic() - began)
    bench.say(f"server: CPU in {options.idle:g} s idle, % of a core", f"{share * 100:.2f}")
    bench.say("CPU per connected agent, us a second", f"{share * 1e6 / options.agents:.2f}")


def hosts(first, count):
    return [{"ip": ip(number), "bk_cloud_id": 0} for number in range(first, first + count)]


def ip(number):
    number += (10 << 24) + 1
    return ".".join(str(number >> shift & 255) for shift in (24, 16, 8, 0))


def operation(op_type, targets, name="web"):
    identity = {"proc_name": "httpd", "setup_path": "/srv/web", "pid_path": "/srv/web/httpd.pid", "user": "root"}
    control = {"start_cmd": "./start.sh", "stop_cmd": "./stop.sh", "restart_cmd": "./restart.sh"}
    return {
        "meta": {"namespace": "bench", "name": name}, "op_type": op_type, "hosts": targets,
        "spec": {"identity": identity, "control": control, "alive_monitor_policy": {"auto_type": 1}},
    }


def operate(server, op_type, targets):
    return server.api.data("POST", f"{GSE}/operate_proc_multi/", {"proc_operate_req": [operation(op_type, targets)]})["task_id"]


def one_op(bench, options, server, sim):
    """Times are measured from just before the call."""
    operate(server, START, hosts(0, options.agents))
    sim.confirmed(options.agents, bench.patience)
    for count in options.sizes:
        accepted, sent, durable, cpu = [], [], [], []
        targets = hosts(0, count)
        for _ in range(options.rounds):
            time.sleep(0.5)
            used = server.cpu_ns()
            began = time.monotonic_ns()
            operate(server, RESTART, targets)
            accepted.append((time.monotonic_ns() - began) / 1e6)
            ops = sim.confirmed(count, bench.patience)
            sent.append([(received - began) / 1e6 for _, received, _, _ in ops])
            durable.append([(confirmed - began) / 1e6 for _, _, _, confirmed in ops])
            cpu.append((server.cpu_ns() - used) / 1e3 / count)
        title = f"one op on {count}:"
        bench.say(f"{title} accepted, ms", spread([[value] for value in accepted], max))
        for what, rounds in (("sent", sent), ("durable and acknowledged", durable)):
            for part in (50, 99):
                bench.say(f"{title} {what}, p{part}, ms", spread(rounds, lambda values, part=part: measure.percentile(values, part)))
            bench.say(f"{title} all {what}, ms", spread(rounds, max))
        bench.say(f"{title} server CPU for each host, us", spread([[value] for value in cpu], max))


def spread(rounds, choose):
    """The median of the rounds, and the slowest in parentheses."""
    values = [choose(values) for values in rounds]
    middle = measure.percentile(values, 50)
    return f"{middle:.0f}" if len(values) == 1 else f"{middle:.0f} ({max(values):.0f})"


def many_tasks(bench, options, server, sim):
    size = min(100, options.agents)
    bodies = []
    for number in range(options.tasks):
        first = number * size % (options.agents - size + 1)
        bodies.append({"proc_operate_req": [operation(RESTART, hosts(first, size))]})
    requests = [server.api.request(f"{GSE}/operate_proc_multi/", body) for body in bodies]
    began = time.monotonic_ns()
    accepted, took = closed_loop(server.api, requests, 16)
    ops = sim.confirmed(options.tasks * size, bench.patience)
    total = (max(op[3] for op in ops) - began) / 1e9
    title = f"{options.tasks} tasks of {size} hosts, 16 callers:"
    bench.say(f"{title} all accepted, s", f"{accepted:.2f}")
    bench.say(f"{title} accepted, p50 and p99, ms",
              f"{measure.percentile(took, 50) * 1e3:.1f} and {measure.percentile(took, 99) * 1e3:.1f}")
    bench.say(f"{title} all durable and acknowledged, s", f"{total:.2f}")
    bench.say(f"{title} ops a second", f"{options.tasks * size / total:.0f}")


def accept(bench, options, server, sim):
    """Compared with SQLite alone on the same disk, with one row per caller in each commit."""
    for callers in (1, 16, 64):
        count = options.accepts if callers > 1 else max(options.accepts // 10, 10)
        bodies = [{"proc_operate_req": [operation(RESTART, hosts(number % options.agents, 1))]} for number in range(count)]
        requests = [server.api.request(f"{GSE}/operate_proc_multi/", body) for body in bodies]
        total, took = closed_loop(server.api, requests, callers)
        sim.confirmed(count, bench.patience)
        raw = group_commits(bench, callers, options.raw)
        title = f"single-host tasks, {callers} caller{'s' if callers > 1 else ''}:"
        bench.say(f"{title} accepted a second", f"{count / total:.0f}")
        bench.say(f"{title} accepted, p50 and p99, ms",
                  f"{measure.percentile(took, 50) * 1e3:.2f} and {measure.percentile(took, 99) * 1e3:.2f}")
        bench.say(f"raw SQLite, {callers} row{'s' if callers > 1 else ''} in each durable commit: rows a second", f"{raw:.0f}")


def group_commits(bench, rows, seconds):
    path = os.path.join(bench.folder, "raw.db")
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    database.execute("CREATE TABLE IF NOT EXISTS rows (id INTEGER PRIMARY KEY, text TEXT)")
    text = json.dumps(operation(RESTART, hosts(0, 1)))
    began, done = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        database.execute("BEGIN IMMEDIATE")
        database.executemany("INSERT INTO rows (text) VALUES (?)", [(text,)] * rows)
        database.execute("COMMIT")
        done += rows
    rate = done / (time.monotonic() - began)
    database.close()
    for ending in ("", "-wal", "-shm"):
        if os.path.exists(path + ending):
            os.unlink(path + ending)
    return rate


def results(bench, options, server, sim):
    task = operate(server, RESTART, hosts(0, options.agents))
    sim.confirmed(options.agents, bench.patience)
    ask = lambda: server.api.call("POST", f"{GSE}/get_proc_operate_result_v2/", {"task_id": task})
    took = timed(ask, options.queries, server)
    bench.say(f"result query of {options.agents} keys: p50 and worst, ms", took[0])
    bench.say("other calls meanwhile: p50 and p99, ms", took[1])
    target = {**hosts(0, 1)[0], "bk_supplier_id": 0}
    body = {"meta": {"namespace": "bench", "name": "web"}, "hosts": [target]}
    server.api.data("POST", f"{GSE}/get_proc_status/", body)
    one = server.api.request(f"{GSE}/get_proc_status/", body)
    total, took = closed_loop(server.api, [one] * options.queries * 10, 1)
    bench.say("status query of one host: p50 and p99, ms",
              f"{measure.percentile(took, 50) * 1e3:.2f} and {measure.percentile(took, 99) * 1e3:.2f}")
    # The same while results arrive.
    running = operate(server, RESTART, hosts(0, options.agents))
    ask = lambda: server.api.call("POST", f"{GSE}/get_proc_operate_result_v2/", {"task_id": running})
    took = timed(ask, max(options.queries // 2, 1), server)
    sim.confirmed(options.agents, bench.patience)
    bench.say(f"result query of {options.agents} keys while they come in: p50 and worst, ms", took[0])
    bench.say("other calls while they come in: p50 and p99, ms", took[1])


def timed(ask, times, server):
    took = []
    with Meanwhile(server.api, "/api/v1/tasks?limit=1") as others:
        for _ in range(times):
            began = time.monotonic()
            ask()
            took.append(time.monotonic() - began)
    if others.failures:
        raise RuntimeError(f"a call failed: {others.failures[0][1]}")
    return (f"{measure.percentile(took, 50) * 1e3:.0f} and {max(took) * 1e3:.0f}",
            f"{measure.percentile(others.took, 50) * 1e3:.1f} and {measure.percentile(others.took, 99) * 1e3:.1f}")


def come_back(bench, options, server, sim):
    """Kills the server during an op on all agents, and restarts it at once."""
    agents = options.agents
    task = operate(server, RESTART, hosts(0, agents))
    server.kill()
    killed = time.monotonic()
    server.start()
    bench.say("server killed: API answers again after, s", f"{time.monotonic() - killed:.2f}")
    marks = {part: None for part in (50, 99, 100)}
    with Meanwhile(server.api, "/api/v1/tasks?limit=1", every=0.02) as others:
        while marks[100] is None:
            there = server.connected()
            now = time.monotonic() - killed
            for part in marks:
                if marks[part] is None and there * 100 >= agents * part:
                    marks[part] = now
            if now > bench.patience:
                raise measure.TookTooLong(f"{there} of {agents} were back after {now:.0f} s")
            time.sleep(0.05)
    for part, at in marks.items():
        bench.say(f"server killed: {part} % of {agents} are back after, s", f"{at:.1f}")
    bench.say("calls meanwhile: p50, p99 and failed",
              f"{measure.percentile(others.took, 50) * 1e3:.1f} ms, {measure.percentile(others.took, 99) * 1e3:.1f} ms, "
              f"{len(others.failures)}")
    deadline = time.monotonic() + bench.patience
    while True:
        outcomes = server.api.data("POST", f"{GSE}/get_proc_operate_result_v2/", {"task_id": task})
        codes = [outcome["error_code"] for outcome in outcomes.values()]
        if 115 not in codes:
            break
        if time.monotonic() > deadline:
            raise measure.TookTooLong(f"{codes.count(115)} ops are open {bench.patience} s after all were back")
        time.sleep(0.5)
    bench.say("the op that was under way: hosts with outcome 0", f"{codes.count(0)} of {agents}")


def describe(bench, options, before, after):
    yield f"- command: `scripts/bench fleet {shlex.join(sys.argv[1:])}`"
    yield f"- commit: {report.commit()}"
    yield f"- machine: {report.machine()}; server, simulated agents and callers share it"
    yield f"- load average: {report.loads(before, after)}"
    yield f"- {options.rounds} rounds of one op (median, and the slowest in parentheses)"
    yield ""
    yield from report.table([["", ""], *bench.rows])


def read_options():
    parser = argparse.ArgumentParser(prog="scripts/bench fleet", description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="1,000 agents, and fewer rounds")
    add("--agents", type=int, metavar="N", help="number of agents (10000)")
    add("--rounds", type=int, metavar="N", help="number of ops on all agents (7)")
    add("--tasks", type=int, metavar="N", help="number of tasks with 100 hosts (1000)")
    add("--accepts", type=int, metavar="N", help="number of tasks with one host, at 16 and 64 callers (10000)")
    add("--queries", type=int, metavar="N", help="number of result queries (20)")
    add("--idle", type=float, metavar="SECONDS", help="time over which the CPU use of an idle server is measured (30)")
    add("--raw", type=float, metavar="SECONDS", help="duration of each measurement of SQLite alone (3)")
    add("--only", metavar="PARTS", type=lambda text: text.split(","),
        help="only these parts, separated by commas: agents, ops, tasks, accept, results, restart")
    add("--patience", type=float, default=180, metavar="SECONDS", help="time limit of each part (180)")
    add("--record", action="store_true", help="write the report into docs/bench/fleet.md")
    release = os.path.join(report.ROOT, "target", "release")
    add("--procfleet", default=os.path.join(release, "procfleet"), metavar="FILE", help="the binary")
    add("--sim", default=os.path.join(release, "procfleet-sim"), metavar="FILE", help="the binary of the simulated fleet")
    add("--folder", metavar="FOLDER", help="parent of the temp folder, on the disk to measure (the system's)")
    add("--log", default="info", metavar="FILTER", help="the server's PROCFLEET_LOG (info, its default)")
    add("--keep", action="store_true", help="keep the temp folder with the logs")
    options = parser.parse_args()
    defaults = dict(agents=10_000, rounds=7, tasks=1_000, accepts=10_000, queries=20, idle=30.0, raw=3.0)
    if options.quick:
        defaults = dict(agents=1_000, rounds=3, tasks=100, accepts=1_000, queries=10, idle=5.0, raw=1.0)
    for name, value in defaults.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    options.sizes = sorted({min(size, options.agents) for size in (100, 1_000, 10_000)} | {options.agents})
    return options


if __name__ == "__main__":
    sys.exit(main())

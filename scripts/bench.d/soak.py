"""A server and agents under a constant load: how fast memory, files, threads, cgroups and open ops grow, and
whether all invariants hold at the end. `scripts/soak --help` lists the options."""

import argparse
import ctypes
import itertools
import os
import random
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import growth
import measure
import report
import soak_load
from fleet import Server, Sim, hosts

PR_SET_CHILD_SUBREAPER = 36
GOAL_KIB = 1024
"""Maximum growth per hour of the anonymous memory of the first agent and of the server."""


class Agent:
    """`procfleet agent` with one address, which can be killed and restarted."""

    def __init__(self, soak, ip, token):
        self.soak, self.ip = soak, ip
        self.data = os.path.join(soak.folder, f"agent-{ip}")
        self.process = None
        self.start(token)

    def start(self, token=None):
        environment = {**os.environ, "PROCFLEET_LOG": self.soak.log_level, **({"PROCFLEET_TOKEN": token} if token else {})}
        command = [self.soak.procfleet, "agent", "--server", f"https://{self.soak.server.link}", "--ip", self.ip,
                   "--data", self.data]
        with open(os.path.join(self.soak.folder, f"agent-{self.ip}.log"), "ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
                                            start_new_session=True)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()

    def cgroup_roots(self):
        """The parent folders of the agent's cgroups; empty if the host has no cgroups."""
        try:
            with open(os.path.join(self.data, "output", ".cgroup"), encoding="utf-8") as file:
                return list(filter(None, file.read().split("\n")))
        except OSError:
            return []

    def cgroups(self):
        """The folders of all cgroups of the agent's procs."""
        return [os.path.join(folder, name) for root in self.cgroup_roots() for folder, below, _ in os.walk(root)
                for name in below]

    def remove_cgroups(self):
        """Removes the empty cgroups that the next agent process would find."""
        for group in [*reversed(self.cgroups()), *self.cgroup_roots()]:
            try:
                os.rmdir(group)
            except OSError:
                pass  # still in use, or gone


class Soak:
    def __init__(self, options):
        self.patience, self.log_level, self.kills, self.keep = options.patience, options.log, options.kills, options.keep
        self.folder = tempfile.mkdtemp(prefix="pfsoak-", dir=options.folder)
        os.chmod(self.folder, 0o755)
        self.procs = os.path.join(self.folder, "procs")
        os.mkdir(self.procs)
        # Copies, so that a concurrent build does not replace the measured programs.
        self.procfleet, self.sim = (shutil.copy2(path, self.folder) for path in (options.procfleet, options.sim))
        self.helper = os.path.join(self.folder, "pf-soak-svc")
        source = os.path.join(os.path.dirname(__file__), "helper.c")
        subprocess.run(["cc", "-O2", "-static", "-o", self.helper, source], check=True)
        self.user = "root" if os.geteuid() == 0 else os.environ["USER"]
        self.slots = measure.Slots(os.path.join(self.folder, "slots"), options.procs + 10 * options.agents)
        self.indexes = itertools.count()
        self.server = self.simulation = self.load = None
        self.agents, self.all_procs, self.hosts, self.simulated = [], [], [], []
        self.deaths = 0

    def begin(self, options):
        self.server = Server(self)
        for number in range(1 + options.agents):
            self.hosts.append(f"127.0.0.{number + 1}")
            self.agents.append(Agent(self, self.hosts[-1], self.server.token(1)))
            count = options.procs if number == 0 else 10
            self.all_procs += soak_load.make_procs(self, self.hosts[-1], count)
        if options.sim_agents:
            self.simulation = Sim(self, self.server, options.sim_agents)
            self.simulated = hosts(0, options.sim_agents)
        self.wait("all agents are connected",
                  lambda: self.server.connected() >= len(self.agents) + len(self.simulated))
        self.load = soak_load.Load(self, options.rate, options.callers)
        self.load.operate([proc.element(soak_load.START) for proc in self.all_procs])

    def wait(self, what, is_so):
        deadline = time.monotonic() + self.patience
        while not is_so():
            if time.monotonic() > deadline:
                raise measure.TookTooLong(f"not so after {self.patience:g} s: {what}")
            time.sleep(0.5)

    def sample(self):
        """A sample of all figures. The first agent has most procs, and its growth is judged."""
        figures = {}
        for who, process in self.programs().items():
            figures[f"{who}_pid"] = process.pid
            for name, value in growth.process_figures(process.pid).items():
                figures[f"{who}_{name}"] = value
        figures["cgroups"] = sum(len(agent.cgroups()) for agent in self.agents)
        for who, path in (("server_store", os.path.join(self.server.data, "server.db")),
                          ("agent_journal", os.path.join(self.agents[0].data, "agent.db"))):
            figures[f"{who}_kib"] = growth.file_kib(path)
            figures[f"{who}_wal_kib"] = growth.file_kib(path + "-wal")
        try:
            figures["open_ops"] = self.metric("open_ops")
        except soak_load.CALL_FAILED:
            pass  # killed a moment ago
        figures["ops"] = sum(len(task.keys) for task in self.load.tasks) + self.load.forgotten
        figures["zombies"] = len(self.zombies())
        return figures

    def programs(self):
        named = {"agent": self.agents[0].process, "server": self.server.process}
        named.update({f"agent{number}": agent.process for number, agent in enumerate(self.agents[1:], 2)})
        return named

    def metric(self, name):
        """The sum over all labels."""
        text = self.server.api.call("GET", "/metrics").decode()
        return sum(map(int, re.findall(rf"^procfleet_{name}(?:{{[^}}]*}})? (\d+)", text, re.MULTILINE)))

    def zombies(self):
        """Zombies whose parents are agents or the server."""
        parents = {process.pid for process in self.programs().values()}
        found = []
        for pid in measure.descendants(os.getpid()):
            state, parent = stat_of(pid)
            if state == "Z" and parent in parents:
                found.append(pid)
        return found

    def reap(self):
        """Reaps processes that outlived a killed agent: this process is their subreaper."""
        own = {process.pid for process in self.programs().values()}
        for pid in measure.descendants(os.getpid()):
            if pid not in own and stat_of(pid) == ("Z", os.getpid()):
                try:
                    os.waitpid(pid, os.WNOHANG)
                except ChildProcessError:
                    pass

    def kill_something(self):
        """`kill -9` of a process of a hosted proc, of an agent or of the server, which is restarted at once.
        """
        choice = random.choice(["process", "process", "agent", "agent", "server"])
        if choice == "server":
            self.server.kill()
            self.server.start()
        elif choice == "agent":
            agent = random.choice([self.agents[0], *self.agents])
            agent.kill()
            agent.start()
        else:
            running = list(self.running().values())
            pid = random.choice(running)[0] if running else None
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, TypeError):
                return
        self.deaths += 1

    def running(self):
        """The pids that run for each slot."""
        found = {}
        for pid in measure.descendants(os.getpid()):
            words = measure.argv(pid)
            if words[:1] == [self.helper] and self.slots.path in words and stat_of(pid)[0] != "Z":
                found.setdefault(int(words[-1]), []).append(pid)
        return found

    def end(self):
        """Ends all started processes by pid, and finally all remaining descendants."""
        if self.load:
            self.load.ending.set()
        for agent in self.agents:
            agent.end()
        if self.simulation:
            self.simulation.end()
        if self.server:
            self.server.end()
        left = self.leftovers()
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and self.leftovers():
            for pid in self.leftovers():
                try:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, os.WNOHANG)
                except (ProcessLookupError, ChildProcessError):
                    pass
            time.sleep(0.05)
        for agent in self.agents:
            agent.remove_cgroups()
        self.slots.close()
        if self.keep:
            print(f"kept: {self.folder}")
        else:
            shutil.rmtree(self.folder, ignore_errors=True)
        return left

    def leftovers(self):
        return [pid for pid in measure.descendants(os.getpid()) if stat_of(pid)[0] not in ("Z", None)]


def stat_of(pid):
    """The state and the parent of a process; (None, None) if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            state, parent, *_ = file.read().rsplit(")", 1)[1].split()
    except (OSError, ValueError):
        return None, None
    return state, int(parent)


def run(soak, options):
    """The samples, and the checks at the end: [(what, faults)]."""
    began = time.monotonic()
    soak.begin(options)
    print(f"{len(soak.all_procs)} procs on {len(soak.agents)} agents and {len(soak.simulated)} simulated agents are there "
          f"after {time.monotonic() - began:.0f} s; the load begins", flush=True)
    first = soak.sample()
    folder = os.path.join(options.target, "soak")
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, time.strftime("%Y%m%d-%H%M%S.csv"))
    samples = growth.Samples(path, list(first))
    samples.path = path
    ending = threading.Event()
    killer = threading.Thread(target=kill_again_and_again, args=(soak, options, ending), daemon=True)
    began = time.monotonic()
    soak.load.start()
    if soak.kills:
        killer.start()
    try:
        while (now := time.monotonic() - began) < options.minutes * 60:
            samples.add(now, soak.sample())
            soak.reap()
            if len(samples.rows) % 30 == 1:
                print("  " + progress(samples.rows[-1]), flush=True)
            time.sleep(max(0.0, began + len(samples.rows) * options.every - time.monotonic()))
    finally:
        ending.set()
        if killer.is_alive():
            killer.join(soak.patience)
    soak.load.end()
    checks = []
    try:
        checks.extend(check(soak))
    except (*soak_load.CALL_FAILED, measure.TookTooLong) as failure:
        checks.append(("all checks could be made", [repr(failure)]))
    samples.close()
    return samples, checks


def progress(row):
    shown = [f"{row['seconds'] / 60:.0f} min"]
    for name, title in (("agent_anonymous_kib", "agent"), ("server_anonymous_kib", "server")):
        shown.append(f"{title} {row.get(name, 0) / 1024:.2f} MiB")
    return ", ".join([*shown, f"{row['ops']:.0f} ops, {row.get('open_ops', 0):.0f} open"])


def kill_again_and_again(soak, options, ending):
    while not ending.wait(options.kill_every * random.uniform(0.5, 1.5)):
        try:
            soak.kill_something()
        except Exception as failure:  # a server that does not come back is a finding, and ends the soak
            soak.load.fault(f"kill: {failure!r}")
            ending.set()


def check(soak):
    """The checks after the end of the load, in order."""
    load = soak.load
    yield "calls and outcomes as expected", list(load.faults)
    soak.wait("all agents are connected", lambda: soak.server.connected() >= len(soak.agents) + len(soak.simulated))
    yield "every op has exactly one outcome, the one its caller saw", list(odd_outcomes(soak))
    hosted = [proc for proc in soak.all_procs if proc.kind in ("resident", "daemon")]
    if soak.kills:
        # An interrupted op (805) may have left its proc stopped.
        load.operate([proc.element(soak_load.START) for proc in hosted])
    running = {}

    def once_each():
        running.update({proc.index: [] for proc in hosted})
        running.update(soak.running())
        return all(len(running[proc.index]) == 1 for proc in hosted)

    yield "every hosted proc runs once", waited(soak, once_each, lambda: [
        f"{proc.name}: {len(running[proc.index])} processes" for proc in hosted if len(running[proc.index]) != 1])
    yield "no zombies", waited(soak, lambda: not soak.zombies(), lambda: [f"pid {pid}" for pid in soak.zombies()])
    load.operate([proc.element(soak_load.STOP) for proc in soak.all_procs if proc.kind != "once"], (0, soak_load.NOT_THERE))
    for proc in soak.all_procs:
        load.forget(proc)
    own = {process.pid for process in soak.programs().values()} | ({soak.simulation.process.pid} if soak.simulation else set())
    strangers = lambda: [pid for pid in soak.leftovers() if pid not in own]
    yield "nothing runs after all procs were stopped", waited(
        soak, lambda: not strangers(), lambda: [f"pid {pid}: {shlex.join(measure.argv(pid))}" for pid in strangers()])
    groups = lambda: [folder for agent in soak.agents for folder in agent.cgroups()]
    yield "no cgroups are left", waited(soak, lambda: not groups(), groups)
    yield "no ops are open", waited(soak, lambda: not soak.metric("open_ops"), lambda: [f"{soak.metric('open_ops')} ops"])
    yield "no errors in the logs", list(bad_lines(soak))


def waited(soak, is_so, faults):
    try:
        soak.wait("", is_so)
    except measure.TookTooLong:
        return faults()
    return []


def odd_outcomes(soak):
    """Reads the results of every task once more. Without kills the server's counters, which begin at its
    start, must agree, too."""
    for task in soak.load.tasks:
        codes = soak.load.again(lambda task=task: soak.load.codes(task))
        if soak_load.HANDLING in codes.values():
            soak.wait(f"task {task.id} has ended", lambda task=task: soak_load.HANDLING not in soak.load.codes(task).values())
            codes = soak.load.codes(task)
        if set(codes) != task.keys:
            yield f"task {task.id}: {len(codes)} of {len(task.keys)} keys"
        elif task.codes is not None and codes != task.codes:
            yield f"task {task.id}: the outcome has changed"
    if not soak.kills:
        ops, counted = sum(len(task.keys) for task in soak.load.tasks) + soak.load.forgotten, soak.metric("op_outcomes_total")
        if ops != counted:
            yield f"{counted} outcomes for {ops} ops"


def bad_lines(soak):
    for name in sorted(os.listdir(soak.folder)):
        if name.endswith(".log") and name != "sim.log":
            with open(os.path.join(soak.folder, name), encoding="utf-8", errors="replace") as file:
                for line in file:
                    if " ERROR " in line or "panicked" in line:
                        yield f"{name}: {line.strip()[:300]}"


TITLES = {
    "anonymous_kib": "anonymous memory, KiB", "private_dirty_kib": "private dirty memory, KiB", "pss_kib": "PSS, KiB",
    "files": "open files", "threads": "threads",
}


def shown_figures(samples):
    for who in ("agent", "server"):
        for name, title in TITLES.items():
            yield f"{who}_{name}", f"{who}: {title}"
    for number in itertools.count(2):
        if f"agent{number}_anonymous_kib" not in samples.names:
            break
        yield f"agent{number}_anonymous_kib", f"agent {number}, 10 procs: anonymous memory, KiB"
    for name, title in (("cgroups", "cgroups"), ("open_ops", "open ops"), ("zombies", "zombies"), ("ops", "ops accepted"),
                        ("server_store_kib", "server.db, KiB"), ("server_store_wal_kib", "server.db-wal, KiB"),
                        ("agent_journal_kib", "agent.db, KiB"), ("agent_journal_wal_kib", "agent.db-wal, KiB")):
        yield name, title


def growth_of(samples, name, warm_up):
    """(growth, error) per hour after the warm-up; each restarted process has its own baseline."""
    who, _, figure = name.partition("_")
    series = {}
    for row in samples.rows:
        if name in row and row["seconds"] >= warm_up:
            life = row.get(f"{who}_pid") if figure in TITLES else None
            series.setdefault(life, []).append((row["seconds"] / 3600, row[name]))
    return growth.fit(list(series.values()))


def describe(soak, options, samples, checks, loads):
    warm_up = options.minutes * 60 * options.warm_up / 100
    yield f"- command: `scripts/soak {shlex.join(sys.argv[1:])}`"
    yield f"- commit: {report.commit()}"
    yield f"- machine: {report.machine()}; server, agents and callers share it"
    yield f"- load average: {report.loads(*loads)}"
    yield (f"- {len(soak.all_procs)} procs on {len(soak.agents)} agents ({options.procs} on the first), "
           f"{len(soak.simulated)} simulated agents, {options.callers} callers, {soak.deaths} kills")
    steps = ", ".join(f"{name} {count}" for name, count in sorted(soak.load.steps.items()))
    yield f"- steps of callers: {steps}"
    yield (f"- growth by linear fit over {options.minutes * 60 - warm_up:.0f} s after a warm-up of {warm_up:.0f} s; "
           "± is two standard errors")
    yield f"- samples: {os.path.relpath(samples.path, report.ROOT)}"
    yield ""
    rows = [["", "after warm-up", "at the end", "most", "growth an hour", "±"]]
    for name, title in shown_figures(samples):
        values = [value for _, value in samples.series(name, warm_up)]
        fitted = growth_of(samples, name, warm_up)
        if values:
            shown = [f"{fitted[0]:+.1f}", f"{fitted[1]:.1f}"] if fitted else ["-", "-"]
            rows.append([title, *(f"{value:.0f}" for value in (values[0], values[-1], max(values))), *shown])
    yield from report.table(rows)
    yield ""
    yield from (f"- {verdict}" for verdict, _ in verdicts(samples, options, checks))


def verdicts(samples, options, checks):
    """(sentence, whether it is a failure)."""
    warm_up = options.minutes * 60 * options.warm_up / 100
    for who in ("agent", "server"):
        fitted = growth_of(samples, f"{who}_anonymous_kib", warm_up)
        title = f"{who}: anonymous memory grows less than {GOAL_KIB} KiB an hour"
        if fitted is None or fitted[1] > GOAL_KIB:
            yield f"{title}: undecided, the run was too short", False
        else:
            yield f"{title}: {'yes' if fitted[0] < GOAL_KIB else 'NO'}", fitted[0] - fitted[1] > GOAL_KIB
    for what, faults in checks:
        shown = "; ".join(faults[:5]) + ("; …" if len(faults) > 5 else "")
        yield f"{what}: " + (f"NO, {len(faults)}: {shown}" if faults else "yes"), bool(faults)


def read_options():
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__)
    add = parser.add_argument
    add("minutes", type=float, metavar="MINUTES", help="duration of the load")
    add("--kills", action="store_true", help="kill -9 processes, agents and the server meanwhile")
    add("--kill-every", type=float, default=15, metavar="SECONDS", help="mean time between two kills (15)")
    add("--procs", type=int, default=200, metavar="N", help="procs of the first agent (200)")
    add("--agents", type=int, default=3, metavar="N", help="further agents, with 10 procs each (3)")
    add("--sim-agents", type=int, default=100, metavar="N", help="simulated agents; 0 for none (100)")
    add("--callers", type=int, default=8, metavar="N", help="callers of the API (8)")
    add("--rate", type=float, default=6, metavar="N", help="maximum number of steps per second, of all callers together (6)")
    add("--every", type=float, default=10, metavar="SECONDS", help="interval of samples (10)")
    add("--warm-up", type=float, default=25, metavar="PERCENT", help="first part, which is left out of the fit (25)")
    add("--patience", type=float, default=120, metavar="SECONDS", help="time limit of a start, an op or the shutdown (120)")
    target = os.path.abspath(os.environ.get("CARGO_TARGET_DIR", os.path.join(report.ROOT, "target")))
    add("--target", default=target, metavar="FOLDER", help="folder of the binaries and of the samples (cargo's)")
    add("--folder", metavar="FOLDER", help="parent of the temp folder (the system's)")
    add("--log", default="info", metavar="FILTER", help="PROCFLEET_LOG of server and agents (info)")
    add("--record", action="store_true", help="write the report into docs/bench/soak.md")
    add("--keep", action="store_true", help="keep the temp folder with the logs and databases")
    options = parser.parse_args()
    for name, least in (("minutes", 0.1), ("procs", 40), ("agents", 0), ("sim_agents", 0), ("callers", 1), ("rate", 0.1), ("every", 0.1)):
        if getattr(options, name) < least:
            parser.error(f"{name}: at least {least}")
    if options.procs + 10 * options.agents < 20 * options.callers:
        parser.error("callers: at most one for twenty procs, so that each has procs of every type")
    options.procfleet, options.sim = (os.path.join(options.target, "release", name) for name in ("procfleet", "procfleet-sim"))
    return options


def main():
    options = read_options()
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files[1], files[1]))
    # Ctrl-C, a closed terminal and SIGTERM raise an exception, which cleans up.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before = os.getloadavg()
    soak = Soak(options)
    result = None
    try:
        result = run(soak, options)
    except KeyboardInterrupt:
        print("\ninterrupted; everything that was started is ended", file=sys.stderr)
        return 130
    finally:
        left = soak.end()
    samples, checks = result
    checks.append(("nothing runs after the agents have ended", [f"pid {pid}" for pid in left]))
    text = "\n".join(describe(soak, options, samples, checks, (before, os.getloadavg())))
    print("\n" + text)
    if options.record:
        report.record("soak", text, "scripts/soak")
    return 1 if any(failed for _, failed in verdicts(samples, options, checks)) else 0


if __name__ == "__main__":
    sys.exit(main())

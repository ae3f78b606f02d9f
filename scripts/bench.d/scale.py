"""One server with its embedded store beside one, two and three servers on one PostgreSQL database, with the same
simulated fleet: an op on all agents, acceptance, status queries, memory and CPU of each program, and the death of
a server. `scripts/bench scale --help` lists the options."""

import argparse
import glob
import json
import os
import pwd
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import measure
import report
from callers import closed_loop
from fleet import GSE, RESTART, START, Server, Sim, hosts, ip, operate, operation

GROUP = 61_000
"""The group id of the first server."""

SIM_AGENTS = 12_000
"""More agents than this are divided among several simulators: each has its own limit of open files."""


class Database:
    """A PostgreSQL cluster of its own, run by an unprivileged account."""

    def __init__(self, folder):
        programs = sorted(glob.glob("/usr/lib/postgresql/*/bin"))
        self.programs = programs[-1] if programs else os.path.dirname(shutil.which("initdb"))
        self.folder = os.path.join(folder, "database")
        os.mkdir(self.folder)
        self.account = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        if self.account:
            os.chown(self.folder, self.account.pw_uid, self.account.pw_gid)
            os.chmod(folder, 0o755)
        data = os.path.join(self.folder, "data")
        self.run("initdb", "-D", data, "-U", "procfleet", "--auth=trust", "--no-sync", "-E", "UTF8", "--locale=C")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        settings = {"listen_addresses": "127.0.0.1", "port": self.port, "unix_socket_directories": "", "max_connections": 200,
                    "shared_buffers": "1GB", "max_wal_size": "4GB", "wal_compression": "on", "checkpoint_timeout": "15min",
                    "autovacuum_naptime": "15s"}
        command = [os.path.join(self.programs, "postgres"), "-D", data]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        log = open(os.path.join(self.folder, "log"), "ab")
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                                        preexec_fn=self.become)
        log.close()
        deadline = time.monotonic() + 60
        while self.psql("SELECT 1", check=False).returncode:
            if time.monotonic() > deadline:
                raise RuntimeError("PostgreSQL did not start")
            time.sleep(0.1)

    def become(self):
        if self.account:
            os.setgroups([])
            os.setgid(self.account.pw_gid)
            os.setuid(self.account.pw_uid)

    def run(self, program, *words):
        subprocess.run([os.path.join(self.programs, program), *words], check=True, stdout=subprocess.DEVNULL,
                       preexec_fn=self.become, cwd="/")

    def psql(self, sql, check=True, name="postgres"):
        return subprocess.run(self.client(sql, name), check=check, capture_output=True, text=True, cwd="/")

    def start_psql(self, sql, name):
        return subprocess.Popen(self.client(sql, name), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd="/")

    def client(self, sql, name):
        return [os.path.join(self.programs, "psql"), "-h", "127.0.0.1", "-p", str(self.port), "-U", "procfleet", "-d", name,
                "-Atqc", sql]

    def create(self, name):
        self.psql(f"CREATE DATABASE {name}")
        return f"postgres://procfleet@127.0.0.1:{self.port}/{name}"

    def pids(self):
        return [self.process.pid, *measure.descendants(self.process.pid)]

    def end(self):
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Folder:
    """What a [`Server`] and a [`Sim`] take from a benchmark, for one variant."""

    def __init__(self, bench, name):
        self.procfleet, self.sim, self.patience, self.log_level = bench.procfleet, bench.sim, bench.patience, bench.log_level
        self.folder = os.path.join(bench.folder, name)
        os.makedirs(self.folder, exist_ok=True)


class Servers:
    """Servers of one store."""

    def __init__(self, bench, name, count, url):
        self.all, self.gone = [], set()
        for number in range(count):
            place = Folder(bench, f"{name}-{number}")
            if number > 0:
                # The first one has made the key that opens the CA, and the administrator's app.
                os.mkdir(os.path.join(place.folder, "server"), 0o700)
                for file in ("seal.key", "ca.key.pem", "ca.cert.der", "admin.json"):
                    path = os.path.join(self.all[0].data, file)
                    if os.path.exists(path):
                        shutil.copy(path, os.path.join(place.folder, "server", file))
            flags = ["--store", url, "--name", f"{name}-{number}"] if url else []
            # A group of its own, so that a rule of the packet filter can name its sockets.
            self.all.append(Server(place, flags, group=GROUP + number if os.geteuid() == 0 else None))

    def links(self):
        return ",".join(f"https://{server.link}" for server in self.living())

    def living(self):
        return [server for server in self.all if server.process.poll() is None and server not in self.gone]

    def revive(self):
        for server in self.all:
            if server.process.poll() is not None:
                server.start()

    def connected(self):
        return sum(server.connected() for server in self.living())

    def shares(self):
        """The number of agents of each living server, the smallest first."""
        return " ".join(map(str, sorted(server.connected() for server in self.living())))

    def cpu_ns(self):
        return sum(server.cpu_ns() for server in self.living())

    def end(self):
        for server in self.all:
            server.end()


class Fleet:
    """Simulators for all agents, each of which knows all servers."""

    def __init__(self, bench, name, servers, agents):
        self.sims, first, number = [], 0, 0
        while first < agents:
            count = min(SIM_AGENTS, agents - first)
            place = Folder(bench, f"{name}-sim-{number}")
            self.sims.append((LinkedSim(place, servers, count, first), count))
            first, number = first + count, number + 1

    def confirmed(self, wanted, patience):
        """Confirmed ops of all simulators, as `wanted(simulator's agents)` of each."""
        found = []
        for sim, count in self.sims:
            found += sim.confirmed(wanted(count), patience)
        return found

    def pids(self):
        return [sim.process.pid for sim, _ in self.sims]

    def end(self):
        for sim, _ in self.sims:
            sim.end()


class LinkedSim(Sim):
    def __init__(self, place, servers, agents, first):
        self.trace = os.path.join(place.folder, "trace.csv")
        self.log = open(os.path.join(place.folder, "sim.log"), "wb")
        command = [place.sim, "--server", servers.links(), "--agents", str(agents), "--first-ip", ip(first),
                   "--data", os.path.join(place.folder, "sim"), "--trace", self.trace, "--json", "--every", "1", "--own-addresses"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, "PROCFLEET_TOKEN": servers.all[0].token(agents)},
        )
        self.lines = None


class Bench:
    def __init__(self, options):
        self.procfleet, self.sim = os.path.abspath(options.procfleet), os.path.abspath(options.sim)
        self.patience, self.log_level = options.patience, options.log
        self.folder = tempfile.mkdtemp(prefix="pfscale-", dir=options.folder)
        self.figures = {}

    def say(self, variant, what, value):
        self.figures.setdefault(what, {})[variant] = value
        print(f"  {variant}: {what}: {value}", flush=True)


def main():
    options = read_options()
    prepare()
    bench = Bench(options)
    before = os.getloadavg()
    try:
        variants = run(bench, options)
    except KeyboardInterrupt:
        print("\ninterrupted; everything that was started has been ended", file=sys.stderr)
        return 130
    finally:
        shutil.rmtree(bench.folder, ignore_errors=True)
    rows = [["", *variants], *([what, *(values.get(variant, "") for variant in variants)] for what, values in bench.figures.items())]
    text = "\n".join([f"{report.machine()}; commit {report.commit()}; load {report.loads(before, os.getloadavg())}; "
                      f"{options.agents} simulated agents on the same machine.", "", *report.table(rows)])
    print("\n" + text)
    if options.record:
        report.record("scale", text, f"scripts/bench scale{' --servers' if options.servers else ''}")
    return 0


def run(bench, options):
    counts = [options.servers] if options.servers else [1, 2, 3]
    variants = ([] if options.servers or options.no_sqlite else [("SQLite", 1)])
    variants += [(f"PostgreSQL, {count} server{'s' if count > 1 else ''}", count) for count in counts]
    database = Database(bench.folder)
    try:
        for number, (name, count) in enumerate(variants):
            print(name, flush=True)
            url = database.create(f"fleet{number}") if name != "SQLite" else None
            measure_one(bench, options, name, f"v{number}", count, url, database)
    finally:
        database.end()
    return [name for name, _ in variants]


def measure_one(bench, options, name, short, count, url, database):
    agents = options.agents
    servers, fleet = Servers(bench, short, count, url), None
    try:
        began = time.monotonic()
        fleet = Fleet(bench, short, servers, agents)
        wait(servers, agents, options.patience)
        bench.say(name, "join and connect, s", f"{time.monotonic() - began:.1f}")
        time.sleep(3)
        bench.say(name, "agents of the servers", servers.shares())
        memory = [measure.memory_kib(server.process.pid)["pss_kib"] / 1024 for server in servers.all]
        bench.say(name, "PSS of each server, MiB", " ".join(f"{value:.0f}" for value in memory))
        api = servers.all[-1]
        everybody = hosts(0, agents)
        operate(api, START, everybody)
        fleet.confirmed(lambda count: count, options.patience)
        durable, used = [], {"servers": [], "database": [], "simulators": []}
        for _ in range(options.rounds):
            time.sleep(1)
            before = cpu(servers, database, fleet, url)
            began = time.monotonic_ns()
            operate(api, RESTART, everybody)
            ops = fleet.confirmed(lambda count: count, options.patience)
            durable.append((max(op[3] for op in ops) - began) / 1e9)
            for who, spent in cpu(servers, database, fleet, url).items():
                used[who].append((spent - before[who]) / 1e9)
        bench.say(name, "one op on all, durable and acknowledged, s (slowest)",
                  f"{measure.percentile(durable, 50):.2f} ({max(durable):.2f})")
        for who, seconds in used.items():
            bench.say(name, f"CPU of the {who} for it, s", f"{measure.percentile(seconds, 50):.2f}")
        accept(bench, options, name, api, fleet)
        status(bench, options, name, api)
        if options.kill and count > 1:
            death(bench, options, name, servers, fleet, database, KILLED)
            bench.say(name, f"{KILLED}: agents of the other servers", servers.shares())
        if options.kill and count > 2 and os.geteuid() == 0:
            # All agents come again, so that each server has its share: without them two of four servers would
            # need more files for 48,000 agents than a process may open.
            servers.revive()
            fleet.end()
            fleet = Fleet(bench, short, servers, agents)
            wait(servers, agents, options.patience)
            bench.say(name, "agents of the servers after the killed one is back", servers.shares())
            death(bench, options, name, servers, fleet, database, SILENT)
            bench.say(name, f"{SILENT}: agents of the other servers", servers.shares())
    finally:
        if fleet:
            fleet.end()
        servers.end()


def wait(servers, agents, patience):
    deadline = time.monotonic() + patience
    while (there := servers.connected()) < agents:
        if time.monotonic() > deadline:
            raise measure.TookTooLong(f"{there} of {agents} had connected after {patience} s")
        time.sleep(0.2)


def cpu(servers, database, fleet, url):
    return {"servers": servers.cpu_ns(), "database": measure.cpu_ns(database.pids()) if url else 0,
            "simulators": measure.cpu_ns(fleet.pids())}


def accept(bench, options, name, api, fleet):
    # Only hosts of the first simulator, so that its trace shows when all have ended.
    size = min(fleet.sims[0][1], options.agents)
    bodies = [{"proc_operate_req": [operation(RESTART, hosts(number % size, 1))]} for number in range(options.accepts)]
    total, took = closed_loop(api.api, [api.api.request(f"{GSE}/operate_proc_multi/", body) for body in bodies], 16)
    fleet.sims[0][0].confirmed(options.accepts, options.patience)
    bench.say(name, "single-host tasks accepted a second, 16 callers", f"{options.accepts / total:.0f}")
    bench.say(name, "acceptance, p50 and p99, ms",
              f"{measure.percentile(took, 50) * 1e3:.1f} and {measure.percentile(took, 99) * 1e3:.1f}")


def status(bench, options, name, api):
    target = {**hosts(0, 1)[0], "bk_supplier_id": 0}
    body = {"meta": {"namespace": "bench", "name": "web"}, "hosts": [target]}
    one = api.api.request(f"{GSE}/get_proc_status/", body)
    _, took = closed_loop(api.api, [one] * options.queries, 1)
    bench.say(name, "status of one host, p50 and p99, ms",
              f"{measure.percentile(took, 50) * 1e3:.2f} and {measure.percentile(took, 99) * 1e3:.2f}")


MEANWHILE = 1_000
"""Number of hosts of the op that is accepted while the agents of a gone server are on their way."""

KILLED, SILENT = "kill -9 of a server", "all packets of a server dropped"


class Drop:
    """Drops every packet that a server sends, as a firewall or a machine without power would."""

    TABLE = "procfleet_bench"

    def __init__(self, server):
        rules = (f"add table inet {self.TABLE}\n"
                 f"add chain inet {self.TABLE} output {{ type filter hook output priority 0 ; }}\n"
                 f"add rule inet {self.TABLE} output meta skgid {server.group} drop\n")
        subprocess.run(["nft", "-f", "-"], input=rules, text=True, check=True)

    def end(self):
        subprocess.run(["nft", "delete", "table", "inet", self.TABLE], check=True)


def death(bench, options, name, servers, fleet, database, how):
    """A server goes during an op on all agents; the others take over its agents."""
    agents = options.agents
    time.sleep(options.settle)
    api, victim = servers.all[-1], servers.living()[0]
    lost, others = victim.connected(), servers.connected() - victim.connected()
    task = operate(api, RESTART, hosts(0, agents))
    drop = None
    if how == KILLED:
        victim.kill()
    else:
        drop = Drop(victim)
        servers.gone.add(victim)
    # Accepted while agents are on their way: none of these may end as "not connected".
    meanwhile = operate(api, RESTART, hosts(0, agents)[::max(1, agents // MEANWHILE)])
    try:
        before, began = cpu(servers, database, fleet, None), time.monotonic()
        marks = {99: None, 100: None}
        while marks[100] is None:
            there, now = servers.connected() - others, time.monotonic() - began
            for part in marks:
                if marks[part] is None and (lost - there) * 100 <= lost * (100 - part):
                    marks[part] = now
            if now > options.patience:
                raise measure.TookTooLong(f"{there} of {lost} agents were at other servers {now:.0f} s later ({how})")
            time.sleep(0.25)
        # That of the database is not known: the processes that served the gone server end with it.
        after = cpu(servers, database, fleet, None)
        used = " ".join(f"{(after[who] - before[who]) / 1e9:.1f}" for who in ("servers", "simulators"))
        bench.say(name, f"{how}: CPU of the other servers and of the simulators, s", used)
        for part, at in marks.items():
            bench.say(name, f"{how}: {part} % of its agents are at others after, s", f"{at:.1f}")
        report_task(bench, options, name, f"{how}: the op under way", api, task, began)
        report_task(bench, options, name, f"{how}: an op on {MEANWHILE} that was accepted meanwhile", api, meanwhile, began)
    finally:
        if drop:
            drop.end()


def report_task(bench, options, name, what, api, task, began):
    """Waits until all ops of the task have ended."""
    deadline = time.monotonic() + options.patience
    while (counts := api.api.data("GET", f"/api/v1/tasks/{task}?limit=1")["counts"])["open"] > 0:
        if time.monotonic() > deadline:
            raise measure.TookTooLong(f"{counts['open']} ops are open {options.patience} s later ({what})")
        time.sleep(0.5)
    bench.say(name, f"{what} ended after, s", f"{time.monotonic() - began:.1f}")
    bench.say(name, f"{what} succeeded and failed", f"{counts['succeeded']} and {counts['failed']}")
    if counts["failed"]:
        rows = api.api.data("GET", f"/api/v1/tasks/{task}?limit=1000&state=failed")["ops"]
        for code in sorted({row["error_code"] for row in rows}):
            of_code = [row for row in rows if row["error_code"] == code]
            print(f"    {code}: {len(of_code)}, such as: {of_code[0]['error_msg']}", flush=True)


def add_common_options(parser, name):
    parser.add_argument("--agents", type=int, default=10_000, help="simulated agents (default: %(default)s)")
    parser.add_argument("--patience", type=float, default=300)
    parser.add_argument("--procfleet", default="target/release/procfleet")
    parser.add_argument("--sim", default="target/release/procfleet-sim")
    parser.add_argument("--folder", help="where the files of the benchmark are")
    parser.add_argument("--log", default="warn", help="log level of the servers")
    parser.add_argument("--record", action="store_true", help=f"write the table to docs/bench/{name}.md")


def prepare():
    """Ends by a signal as by an error, so that everything that was started is ended; allows many open files."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def read_options():
    parser = argparse.ArgumentParser(prog="scripts/bench scale", description=__doc__)
    parser.add_argument("--servers", type=int, help="only PostgreSQL with so many servers")
    parser.add_argument("--no-sqlite", action="store_true", help="leave out the embedded store")
    parser.add_argument("--no-kill", dest="kill", action="store_false", help="let all servers live")
    parser.add_argument("--quick", action="store_true", help="1,000 agents and few rounds")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--accepts", type=int, default=5_000)
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--settle", type=float, default=5, help="seconds of rest before a server goes (default: %(default)s)")
    add_common_options(parser, "scale")
    options = parser.parse_args()
    if options.quick:
        options.agents, options.rounds, options.accepts, options.queries = 1_000, 2, 500, 100
    return options


if __name__ == "__main__":
    try:
        sys.exit(main())
    except measure.TookTooLong as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)

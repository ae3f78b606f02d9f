"""The server's memory: the cost of an idle connection at each stage, and of a burst of tasks during and after
it. `scripts/bench memory --help` lists the options."""

import argparse
import json
import os
import re
import resource
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time

import measure
import report
from callers import burst
from fleet import GSE, RESTART, START, Server, Sim, hosts, operation

# Connections come from several addresses, because each address has a limit.
ADDRESSES = 8
SETTLE = 2.5


class Bench:
    def __init__(self, options):
        self.patience, self.keep, self.log_level = options.patience, options.keep, options.log
        self.procfleet, self.sim = os.path.abspath(options.procfleet), os.path.abspath(options.sim)
        self.folder = tempfile.mkdtemp(prefix="pfmemory-", dir=options.folder)
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
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    bench = Bench(options)
    parts = {"connections": connections, "burst": bursts}
    try:
        before = os.getloadavg()
        for name, part in parts.items():
            if not options.only or name in options.only:
                print(name, flush=True)
                part(bench, options)
        after = os.getloadavg()
    except KeyboardInterrupt:
        print("\ninterrupted; everything that was started has been ended", file=sys.stderr)
        return 130
    finally:
        bench.close()
    text = "\n".join(describe(bench, options, before, after))
    print("\n" + text)
    if options.record:
        report.record("memory", text)
    return 0


def connections(bench, options):
    for count in options.connections:
        for title, flags, port, life in (
            ("API, silent", [], "api", silent),
            ("API, half a head", [], "api", half_a_head),
            ("API, after a request", [], "api", after_a_request),
            ("API, after a body of 256 KiB", [], "api", after_a_large_body),
            ("API with TLS, silent", ["--tls"], "api", silent),
            ("API with TLS, after the handshake", ["--tls"], "api", after_a_handshake),
            ("API with TLS, after a request", ["--tls"], "api", after_a_request_by_tls),
            ("link, silent", [], "link", silent),
            ("link, after the handshake", [], "link", after_a_handshake),
        ):
            # The link has this many handshake slots.
            many = min(count, 500) if port == "link" else count
            held, kib = one_life(bench, flags, port, life, many)
            if held:
                bench.say(f"{held} idle connections, {title}: KiB each", f"{kib:.1f}")
            else:
                bench.say(f"{many} idle connections, {title}", "all closed by the server")


def one_life(bench, flags, port, life, count):
    """With a new server, because a used heap has free space."""
    server = Server(bench, flags)
    try:
        address = server.api.address if port == "api" else server.link
        host, number = address.rsplit(":", 1)
        # One-time costs of the first connections are not counted.
        for opened in [open_one(life, host, number, index) for index in range(20)]:
            opened.close()
        time.sleep(SETTLE)
        before, files = measure.anonymous_kib(server.process.pid), open_files(server)
        held = [open_one(life, host, number, index) for index in range(count)]
        deadline = time.monotonic() + 10
        while open_files(server) - files < count and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(SETTLE)
        there = open_files(server) - files
        cost = (measure.anonymous_kib(server.process.pid) - before) / max(there, 1)
        for opened in held:
            opened.close()
        return there, cost
    finally:
        server.end()
        shutil.rmtree(server.data)


def open_files(server):
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def open_one(life, host, port, index):
    stream = socket.create_connection((host, int(port)), 30, (f"127.0.0.{2 + index % ADDRESSES}", 0))
    return life(stream)


def silent(stream):
    return stream


def half_a_head(stream):
    stream.sendall(b"GET /healthz HTT")
    return stream


def after_a_request(stream):
    stream.sendall(b"GET /healthz HTTP/1.1\r\nHost: bench\r\n\r\n")
    received = stream.recv(1 << 12)
    if b" 200 " not in received:
        raise RuntimeError(f"refused: {received!r}")
    return stream


def after_a_large_body(stream):
    size = 256 * 1024
    head = f"POST {GSE}/get_agent_status/ HTTP/1.1\r\nHost: bench\r\nContent-Length: {size}\r\n\r\n"
    stream.sendall(head.encode() + b" " * size)
    received = stream.recv(1 << 12)
    if b" 200 " not in received:
        raise RuntimeError(f"refused: {received!r}")
    return stream


def after_a_handshake(stream):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(stream)


def after_a_request_by_tls(stream):
    return after_a_request(after_a_handshake(stream))


def bursts(bench, options):
    """Rounds of concurrent callers, each with a task for many hosts."""
    server = Server(bench, options.flags)
    sim = None
    try:
        sim = Sim(bench, server, options.agents)
        sim.wait_connected(server, options.agents, options.patience)
        time.sleep(SETTLE)
        targets = hosts(0, options.hosts)
        requests = [
            server.api.request(f"{GSE}/operate_proc_multi/", {"proc_operate_req": [operation(RESTART, targets, f"web{number}")]})
            for number in range(20)
        ]
        base = measure.anonymous_kib(server.process.pid)
        bench.say(f"burst: memory with {options.agents} agents, before, MiB", f"{base / 1024:.0f}")
        began = time.monotonic()
        accepted, refused, peak = 0, 0, base
        for number in range(options.rounds):
            one = requests[number % len(requests)]
            answers = burst(server.api, one, options.callers)
            accepted += sum(1 for answer in answers if answer["code"] == 0)
            refused += sum(1 for answer in answers if answer["code"] != 0)
            peak = max(peak, measure.anonymous_kib(server.process.pid))
        took = time.monotonic() - began
        bench.say(f"burst: {options.rounds} rounds of {options.callers} callers with {options.hosts} hosts each, s", f"{took:.0f}")
        bench.say("burst: tasks accepted and refused", f"{accepted} and {refused}")
        bench.say("burst: memory at its end, MiB", f"{measure.anonymous_kib(server.process.pid) / 1024:.0f}")
        peak = max(peak, measure.peak_kib(server.process.pid))
        deadline = time.monotonic() + options.patience
        while open_ops(server) > 0:
            if time.monotonic() > deadline:
                raise measure.TookTooLong(f"{open_ops(server)} ops are open after {options.patience} s")
            time.sleep(0.5)
        bench.say("burst: all ops have ended, s", f"{time.monotonic() - began:.0f}")
        peak = max(peak, measure.peak_kib(server.process.pid))
        bench.say("burst: memory at most (with files), MiB", f"{peak / 1024:.0f}")
        for seconds in (0, 5, 10, 30, 60):
            while time.monotonic() < deadline and seconds and time.monotonic() - ended < seconds:
                time.sleep(0.1)
            if not seconds:
                ended = time.monotonic()
            bench.say(f"burst: memory {seconds} s after the last op, MiB",
                      f"{measure.anonymous_kib(server.process.pid) / 1024:.0f}")
    finally:
        if sim:
            sim.end()
        server.end()


def open_ops(server):
    text = server.api.call("GET", "/metrics").decode()
    return int(re.search(r"^procfleet_open_ops (\d+)", text, re.MULTILINE).group(1))


def describe(bench, options, before, after):
    yield f"- command: `scripts/bench memory {shlex.join(sys.argv[1:])}`"
    yield f"- commit: {report.commit()}"
    yield f"- machine: {report.machine()}; server, simulated agents and callers share it"
    yield f"- load average: {report.loads(before, after)}"
    yield ""
    yield from report.table([["", ""], *bench.rows])


def read_options():
    parser = argparse.ArgumentParser(prog="scripts/bench memory", description=__doc__)
    add = parser.add_argument
    numbers = lambda text: [int(number) for number in text.split(",")]
    add("--quick", action="store_true", help="fewer connections, and a smaller burst")
    add("--connections", type=numbers, metavar="N,N", help="numbers of idle connections (1000,4000)")
    add("--agents", type=int, metavar="N", help="number of simulated agents (500)")
    add("--rounds", type=int, metavar="N", help="number of rounds in a burst (34)")
    add("--callers", type=int, metavar="N", help="number of callers in a round (200)")
    add("--hosts", type=int, metavar="N", help="number of hosts of a task (1000)")
    add("--flags", type=shlex.split, default=[], metavar="FLAGS", help="further flags of the server of the burst")
    add("--only", metavar="PARTS", type=lambda text: text.split(","), help="connections or burst")
    add("--patience", type=float, default=600, metavar="SECONDS", help="time limit of each part (600)")
    add("--record", action="store_true", help="write the report into docs/bench/memory.md")
    release = os.path.join(report.ROOT, "target", "release")
    add("--procfleet", default=os.path.join(release, "procfleet"), metavar="FILE", help="the binary")
    add("--sim", default=os.path.join(release, "procfleet-sim"), metavar="FILE", help="the binary of the simulated fleet")
    add("--folder", metavar="FOLDER", help="parent of the temp folder (the system's)")
    add("--log", default="info", metavar="FILTER", help="the server's PROCFLEET_LOG (info, its default)")
    add("--keep", action="store_true", help="keep the temp folder with the logs")
    options = parser.parse_args()
    defaults = dict(connections=[1_000, 4_000], agents=500, rounds=34, callers=200, hosts=1_000)
    if options.quick:
        defaults = dict(connections=[200], agents=100, rounds=5, callers=50, hosts=200)
    for name, value in defaults.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


if __name__ == "__main__":
    sys.exit(main())

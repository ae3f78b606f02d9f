"""procfleet's agent beside other supervisors, in one run: how soon a killed process is restarted, what the
supervisor itself uses, and how long one call takes to start and stop all. `scripts/bench supervise --help`
lists the options."""

import argparse
import os
import random
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import measure
import peers
import report

ROOT = report.ROOT

SETTLE = 3.0


class Bench:
    """State that all measurements share."""

    def __init__(self, options):
        self.patience = options.patience
        self.keep = options.keep
        self.log_level = options.log
        self.procfleet, self.agent = os.path.abspath(options.procfleet), os.path.abspath(options.agent)
        self.npm = os.path.join(ROOT, "target", "bench-npm")
        # Short, because paths of Unix sockets are limited; on a real disk, so that durable writes have their
        # real cost.
        self.folder = tempfile.mkdtemp(prefix="pfbench-", dir=options.folder)
        os.chmod(self.folder, 0o755)
        self.shared = tempfile.mkdtemp(prefix="pfbench-", dir="/dev/shm" if os.path.isdir("/dev/shm") else self.folder)
        self.helper = os.path.join(self.folder, "pf-bench-svc")
        source = os.path.join(os.path.dirname(__file__), "helper.c")
        subprocess.run(["cc", "-O2", "-static", "-o", self.helper, source], check=True)
        # Under another name, so that no supervisor takes it for one of its processes.
        self.reaper = shutil.copy(self.helper, os.path.join(self.folder, "pf-bench-init"))
        self.slots = None

    def close(self):
        shutil.rmtree(self.shared, ignore_errors=True)
        if not self.keep:
            shutil.rmtree(self.folder, ignore_errors=True)


class Column:
    """One supervisor's figures."""

    def __init__(self, peer, version):
        self.peer, self.version = peer, version
        self.cells = {}
        self.notes = []


def main():
    options = read_options()
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files[1], files[1]))
    # Ctrl-C, a closed terminal and SIGTERM raise an exception, which cleans up.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    bench = Bench(options)
    try:
        columns = run(bench, options)
    except KeyboardInterrupt:
        print("\ninterrupted; everything that was started has been ended", file=sys.stderr)
        return 130
    finally:
        bench.close()
    return 0 if columns else 1


def run(bench, options):
    chosen = [peer for peer in peers.ALL if not options.only or peer.name in options.only]
    columns = []
    for peer in chosen:
        reason = peer.find(bench)
        if reason:
            print(f"{peer.name}: skipped, for {reason}", flush=True)
        else:
            columns.append(Column(peer, peer.version(bench)))
    before = os.getloadavg()
    print("load average before: " + " ".join(f"{load:.2f}" for load in before), flush=True)
    for column in columns:
        measure_one(bench, options, column)
    after = os.getloadavg()
    print("load average after: " + " ".join(f"{load:.2f}" for load in after), flush=True)
    text = "\n".join(describe(bench, options, columns, before, after))
    print("\n" + text)
    if options.record:
        report.record("supervise", text)
    return columns


def measure_one(bench, options, column):
    """All figures of one supervisor; each number of processes has a new supervisor."""
    for count in sorted({0, options.small, options.middle, options.large}):
        began = time.monotonic()
        bench.slots = measure.Slots(os.path.join(bench.shared, "slots"), max(count, 1))
        peer = column.peer(bench, count)
        try:
            peer.begin()
            measure_count(bench, options, column, peer)
        except (measure.TookTooLong, RuntimeError, OSError, subprocess.SubprocessError) as failure:
            column.notes.append(f"{column.peer.name} with {count}: {failure}")
            print(f"  {column.notes[-1]}", flush=True)
        finally:
            peer.end()
            bench.slots.close()
        print(f"{column.peer.name}: {count} processes done in {time.monotonic() - began:.0f} s", flush=True)


def measure_count(bench, options, column, peer):
    count = peer.count
    if count == 0:
        time.sleep(SETTLE)
        remember_memory(column, peer)
        return
    start(bench, column, peer)
    time.sleep(SETTLE)
    remember_memory(column, peer)
    if count == options.large:
        remember_idle_cpu(column, peer, options.idle)
    if count in (options.small, options.large):
        column.cells[f"restart {count}"] = kill_and_wait(bench, peer, options.kills)
    stop(bench, column, peer)
    if count == options.large:
        for _ in range(options.rounds - 1):
            # A measurement that takes minutes is not repeated.
            if max(column.cells["start"] + column.cells["stop"]) > 30:
                break
            start(bench, column, peer)
            time.sleep(SETTLE)
            stop(bench, column, peer)


def start(bench, column, peer):
    bench.slots.clear()
    began = time.monotonic_ns()
    last = while_calling(peer.start_all, lambda: bench.slots.wait_all(bench.patience))
    remember_call(column, peer, "start", began, last)


def stop(bench, column, peer):
    exits = measure.Exits([pid for _, pid in bench.slots.all()])
    try:
        began = time.monotonic_ns()
        last = while_calling(peer.stop_all, lambda: exits.wait_all(bench.patience))
    finally:
        exits.close()
    remember_call(column, peer, "stop", began, last)


def while_calling(call, wait):
    """Waits for the effect of the call, and then for the end of the call."""
    failures = []

    def guarded():
        try:
            call()
        except Exception as failure:  # told to whoever waits
            failures.append(failure)

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    try:
        return wait()
    except measure.TookTooLong:
        if failures:
            raise failures[0] from None
        raise
    finally:
        thread.join(5)
        if failures and not sys.exc_info()[0]:
            raise failures[0]


def remember_call(column, peer, verb, began, last):
    confirmed = peer.confirmed()
    if "large" not in column.cells or peer.count >= column.cells["large"]:
        if peer.count != column.cells.get("large"):
            for name in ("start", "stop", "start confirmed", "stop confirmed"):
                column.cells[name] = []
            column.cells["large"] = peer.count
        column.cells[verb].append((last - began) / 1e9)
        if confirmed:
            column.cells[f"{verb} confirmed"].append((confirmed - began) / 1e9)
    print(f"  {peer.name} {peer.count}: {verb} {(last - began) / 1e9:.3f} s", flush=True)


def remember_memory(column, peer):
    for who, pids in peer.processes().items():
        for name, kib in measure.memory_of_all_kib(pids).items():
            column.cells[f"{name} {who} {peer.count}"] = kib
        column.cells[f"processes {who} {peer.count}"] = len(pids)


def remember_idle_cpu(column, peer, seconds):
    before = {who: (pids, measure.cpu_ns(pids)) for who, pids in peer.processes().items()}
    began = time.monotonic()
    time.sleep(seconds)
    for who, (pids, used) in before.items():
        share = (measure.cpu_ns(pids) - used) / 1e9 / (time.monotonic() - began)
        column.cells[f"idle {who}"] = share * 100


def kill_and_wait(bench, peer, kills):
    """Kills one process at a time, each time another. Returns the milliseconds until its successor ran."""
    took = []
    order = random.sample(range(peer.count), peer.count)
    for turn in range(kills):
        index = order[turn % peer.count]
        began, pid = bench.slots.read(index)
        # A random pause, so that kills are spread over the cycle of a polling supervisor.
        time.sleep(random.random() * (peer.cycle or 0.05))
        time.sleep(max(0, began + int(peer.life * 1e9) - time.monotonic_ns()) / 1e9)
        killed = measure.kill(pid)
        took.append((bench.slots.wait_next(index, pid, 60) - killed) / 1e6)
    print(
        f"  {peer.name} {peer.count}: restart {measure.percentile(took, 50):.2f} ms, p99 {measure.percentile(took, 99):.2f} ms",
        flush=True,
    )
    return took


def describe(bench, options, columns, before, after):
    """The report as Markdown."""
    yield f"- command: `scripts/bench supervise {shlex.join(sys.argv[1:])}`".replace(" `", " `", 1)
    yield f"- commit: {report.commit()}"
    yield f"- machine: {report.machine()}"
    yield "- versions: " + ", ".join(f"{column.peer.name} {column.version}" for column in columns)
    yield f"- load average: {report.loads(before, after)}"
    yield f"- {options.kills} kills each; {options.rounds} rounds of start and stop (median, and the slowest in parentheses)"
    yield ""
    rows = [["", *(column.peer.name for column in columns)]]
    for title, cell in lines(options):
        cells = [cell(column.cells) for column in columns]
        if any(cells):
            rows.append([title, *(text or "-" for text in cells)])
    yield from report.table(rows)
    notes = [note for column in columns for note in column.notes]
    if notes:
        yield ""
        yield from (f"- {note}" for note in notes)


def lines(options):
    """The rows of the table: a title, and the text for one column's figures."""
    for count in (options.small, options.large):
        for part, name in ((50, "median"), (99, "p99")):
            yield (f"restart after kill -9, of {count}: {name}, ms",
                   lambda cells, count=count, part=part: percentile_text(cells.get(f"restart {count}"), part))
    for who, title in (("", "supervisor"), ("server", "server")):
        for kind, name in (("PSS", "pss_kib"), ("private dirty", "private_dirty_kib")):
            for count in (0, options.middle, options.large):
                yield (f"{title}: {kind} memory at {count}, MiB",
                       lambda cells, who=who, name=name, count=count: mebibytes_text(cells.get(f"{name} {who} {count}")))
        yield (f"{title}: anonymous memory for each process beyond {options.middle}, KiB",
               lambda cells, who=who: growth_text(cells, f"anonymous_kib {who}", options.middle, options.large))
        yield (f"{title}: processes at {options.large}",
               lambda cells, who=who: number_text(cells.get(f"processes {who} {options.large}"), 0))
        yield (f"{title}: CPU in {options.idle:g} s idle at {options.large}, % of a core",
               lambda cells, who=who: number_text(cells.get(f"idle {who}"), 2))
    for verb, done in (("start", "all run"), ("stop", "all are gone")):
        at_size = lambda cells, name: cells.get(name) if cells.get("large") == options.large else None
        yield (f"{verb} {options.large} by one call: {done}, s",
               lambda cells, verb=verb: seconds_text(at_size(cells, verb)))
        yield (f"{verb} {options.large} by one call: all results are 0, s",
               lambda cells, verb=verb: seconds_text(at_size(cells, f"{verb} confirmed")))


def percentile_text(values, part):
    return f"{measure.percentile(values, part):.2f}" if values else ""


def number_text(value, digits):
    return "" if value is None else f"{value:.{digits}f}"


def mebibytes_text(kib):
    return number_text(None if kib is None else kib / 1024, 1)


def growth_text(cells, name, fewer, more):
    before, after = cells.get(f"{name} {fewer}"), cells.get(f"{name} {more}")
    if before is None or after is None or fewer == more:
        return ""
    return f"{(after - before) / (more - fewer):.1f}"


def seconds_text(values):
    if not values:
        return ""
    middle = measure.percentile(values, 50)
    return f"{middle:.2f}" if len(values) == 1 else f"{middle:.2f} ({max(values):.2f})"


def read_options():
    parser = argparse.ArgumentParser(prog="scripts/bench supervise", description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="10 and 100 processes, 20 kills, 5 s idle, one round")
    add("--only", metavar="NAMES", type=lambda text: text.split(","), help="only these supervisors, separated by commas: "
        + ", ".join(peer.name for peer in peers.ALL))
    add("--small", type=int, metavar="N", help="the small number of processes (10)")
    add("--middle", type=int, metavar="N", help="the middle number, for memory (100)")
    add("--large", type=int, metavar="N", help="the large number (1000)")
    add("--kills", type=int, metavar="N", help="number of kills at each number of processes (100)")
    add("--rounds", type=int, metavar="N", help="number of rounds of starting and stopping the large number (3)")
    add("--idle", type=float, metavar="SECONDS", help="time over which the CPU use of an idle supervisor is measured (30)")
    add("--patience", type=float, default=300, metavar="SECONDS", help="time limit of one start or stop of all (300)")
    add("--record", action="store_true", help="write the report into docs/bench/supervise.md")
    add("--procfleet", default=os.path.join(ROOT, "target", "release", "procfleet"), metavar="FILE", help="the server")
    add("--agent", default=os.path.join(ROOT, "target", "dist", "procfleet-agent"), metavar="FILE",
        help="the measured agent, as it is released (target/dist/procfleet-agent)")
    add("--folder", metavar="FOLDER", help="parent of the temp folder, on the disk to measure (the system's)")
    add("--log", default="info", metavar="FILTER", help="procfleet's PROCFLEET_LOG (info, its default)")
    add("--keep", action="store_true", help="keep the temp folder with all configurations and logs")
    options = parser.parse_args()
    defaults = dict(small=10, middle=100, large=1000, kills=100, rounds=3, idle=30.0)
    if options.quick:
        defaults = dict(small=10, middle=10, large=100, kills=20, rounds=1, idle=5.0)
    for name, value in defaults.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


if __name__ == "__main__":
    sys.exit(main())

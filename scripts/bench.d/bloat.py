"""Millions of ops through PostgreSQL, beside a transaction that somebody has left open: as long as it is open,
PostgreSQL removes no row version that was replaced after its start. Prints the throughput before, during and after
it, and the dead rows of each table. `scripts/bench bloat --help` lists the options."""

import argparse
import os
import shutil
import sys
import time

import measure
import report
from fleet import RESTART, START, hosts, operate
from scale import Bench, Database, Fleet, Servers, add_common_options, prepare, wait


class Store:
    """The database of the fleet, as an administrator sees it."""

    NAME = "fleet"

    def __init__(self, database):
        self.database = database
        self.url = database.create(self.NAME)

    def rows(self, sql):
        return [line.split("|") for line in self.database.psql(sql, name=self.NAME).stdout.splitlines()]

    def dead(self):
        """Dead rows and kilobytes of each table; those of partitions count for their table."""
        found = self.rows(
            "SELECT coalesce(parent.relname, own.relname), sum(n_dead_tup), sum(pg_total_relation_size(own.relid)) / 1024"
            " FROM pg_stat_user_tables own LEFT JOIN pg_inherits ON inhrelid = own.relid"
            " LEFT JOIN pg_class parent ON parent.oid = inhparent GROUP BY 1")
        return {name: (int(dead), int(float(size))) for name, dead, size in found}

    def leave_open(self, seconds):
        """A transaction with a snapshot, as of a report that somebody has forgotten."""
        sql = f"BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM agents; SELECT pg_sleep({seconds}); COMMIT"
        return self.database.start_psql(sql, self.NAME)


def main():
    options = read_options()
    prepare()
    bench, before = Bench(options), os.getloadavg()
    try:
        text = run(bench, options)
    finally:
        shutil.rmtree(bench.folder, ignore_errors=True)
    text = "\n".join([f"{report.machine()}; commit {report.commit()}; load {report.loads(before, os.getloadavg())}; "
                      f"{options.agents} simulated agents and {options.servers} servers on the same machine.", "", text])
    print("\n" + text)
    if options.record:
        report.record("bloat", text)
    return 0


def run(bench, options):
    database, servers, fleet = Database(bench.folder), None, None
    try:
        store = Store(database)
        servers = Servers(bench, "bloat", options.servers, store.url)
        fleet = Fleet(bench, "bloat", servers, options.agents)
        wait(servers, options.agents, options.patience)
        load = Load(options, servers, fleet)
        load.round(START)
        phases = [load.phase("before it", store, lambda ops, _: ops >= options.ops / 2)]
        forgotten = store.leave_open(options.open)
        phases.append(load.phase("while it is open", store, lambda *_: forgotten.poll() is not None))
        if forgotten.returncode:
            raise RuntimeError(f"the transaction ended with {forgotten.returncode}")
        phases.append(load.phase("after it", store, lambda _, seconds: seconds >= options.after))
        return summary(phases)
    finally:
        if fleet:
            fleet.end()
        if servers:
            servers.end()
        database.end()


class Load:
    def __init__(self, options, servers, fleet):
        self.options, self.api, self.fleet = options, servers.all[-1], fleet

    def round(self, kind):
        operate(self.api, kind, hosts(0, self.options.agents))
        self.fleet.confirmed(lambda count: count, self.options.patience)

    def phase(self, name, store, ends):
        """Ops on all agents, one after the other, until `ends(ops, seconds)`."""
        began, ops, shown = time.monotonic(), 0, 0
        while not ends(ops, seconds := time.monotonic() - began):
            if seconds - shown >= 60:
                shown = seconds
                dead = sum(dead for dead, _ in store.dead().values())
                print(f"  {name}: {seconds:.0f} s, {ops} ops, {ops / seconds:.0f} a second, {dead} dead rows", flush=True)
            self.round(RESTART)
            ops += self.options.agents
        seconds = time.monotonic() - began
        print(f"  {name}: {ops} ops in {seconds:.0f} s", flush=True)
        return name, ops, seconds, store.dead()


def summary(phases):
    first = phases[0][1] / phases[0][2]
    rows = [["the transaction", *(name for name, *_ in phases)],
            ["ops", *(str(ops) for _, ops, _, _ in phases)],
            ["seconds", *(f"{seconds:.0f}" for _, _, seconds, _ in phases)],
            ["ops a second", *(f"{ops / seconds:.0f}" for _, ops, seconds, _ in phases)],
            ["compared with before", *(f"{ops / seconds / first:.0%}" for _, ops, seconds, _ in phases)]]
    tables = sorted({name for *_, dead in phases for name, (count, _) in dead.items() if count >= 1_000})
    for table in tables:
        cells = [dead.get(table, (0, 0)) for *_, dead in phases]
        rows.append([f"dead rows and MiB of {table} at the end", *(f"{count} and {size / 1024:.0f}" for count, size in cells)])
    return "\n".join(report.table(rows))


def read_options():
    parser = argparse.ArgumentParser(prog="scripts/bench bloat", description=__doc__)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--ops", type=int, default=2_000_000, help="ops, half of them before the transaction (default: %(default)s)")
    parser.add_argument("--open", type=int, default=600, help="seconds for which the transaction is open (default: %(default)s)")
    parser.add_argument("--after", type=int, default=120, help="seconds of load after it (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="1,000 agents and half a minute")
    add_common_options(parser, "bloat")
    options = parser.parse_args()
    if options.quick:
        options.agents, options.ops, options.open, options.after = 1_000, 20_000, 20, 5
    return options


if __name__ == "__main__":
    try:
        sys.exit(main())
    except measure.TookTooLong as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)

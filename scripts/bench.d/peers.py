"""The supervisors, one class each: how it is configured, and what "start all" and "stop all" are for it.

Every one looks after the same program (helper.c), started in the foreground where the supervisor can do that.
Each runs from a folder of the bench's own, under a `helper -r` that is init to it, and talks through unix
sockets or pipes in that folder."""

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import xmlrpc.client

import measure
from measure import TookTooLong

READY = 120  # seconds that a supervisor may take until it knows its processes


class Peer:
    """A supervisor with `count` configured processes, none of which runs yet."""

    name = ""
    needs = ""  # the command without which it is skipped
    # The length of its polling cycle, if it has one: kills are spread over the whole cycle.
    cycle = 0.0
    # Minimum age of a process before it is killed, in seconds: an earlier exit counts as a failed start.
    life = 2.5

    def __init__(self, bench, count):
        self.bench, self.count = bench, count
        self.folder = os.path.join(bench.folder, f"{self.name}-{count}")
        os.mkdir(self.folder)
        self.log = open(os.path.join(self.folder, "bench.log"), "wb")
        self.reaper = None

    @classmethod
    def find(cls, bench):
        """None, or why the supervisor is not available."""
        return None if shutil.which(cls.needs) else f"{cls.needs} is not installed"

    def launch(self, command, **options):
        self.reaper = subprocess.Popen(
            [self.bench.reaper, "-r", *command],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, cwd=self.folder, start_new_session=True, **options,
        )

    def call(self, command, **options):
        """A client of the supervisor."""
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, check=False,
            timeout=self.bench.patience, **options,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{command[:3]} ended with {done.returncode}: {self.last_words()}")

    def all_words(self):
        with open(self.log.name, encoding="utf-8", errors="replace") as log:
            return log.read()

    def last_words(self):
        return self.all_words()[-500:].strip()

    def wait_until(self, what, ready):
        deadline = time.monotonic() + READY
        while not ready():
            if self.reaper.poll() is not None:
                raise RuntimeError(f"{self.name} has ended: {self.last_words()}")
            if time.monotonic() > deadline:
                raise TookTooLong(f"{what} took longer than {READY} s")
            time.sleep(0.05)

    def service(self, index):
        return [self.bench.helper, self.bench.slots.path, str(index)]

    def processes(self):
        """The supervisor's own processes: {role: pids}."""
        below = measure.descendants(self.reaper.pid)
        return {"": [pid for pid in below if measure.program(pid) not in (None, self.bench.helper, self.bench.reaper)]}

    def end(self):
        """Ends the supervisor and all processes that it has started."""
        if self.reaper:
            self.reaper.terminate()
            self.reaper.wait()
        self.log.close()
        if not self.bench.keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    def begin(self):
        raise NotImplementedError

    def start_all(self):
        raise NotImplementedError

    def stop_all(self):
        raise NotImplementedError

    def confirmed(self):
        """When the supervisor itself reports that all is done; None if the call reported it."""
        return None


class Procfleet(Peer):
    """`procfleet-agent`, built with the `dist` profile, is the supervisor; `procfleet server` has its own
    rows.

    One call is one operate_proc_multi with an element for each process: foreground start_cmd, no pid file, no
    stop_cmd (so SIGTERM), start_check_secs 1, start_interval 1."""

    name = "procfleet"
    server = None
    # Only after a run of more than 10 s (stable) is a process restarted at once.
    life = 10.5

    @classmethod
    def find(cls, bench):
        missing = [file for file in (bench.procfleet, bench.agent) if not os.access(file, os.X_OK)]
        return f"{missing[0]} is not built" if missing else None

    @staticmethod
    def version(bench):
        text = subprocess.run([bench.procfleet, "--version"], capture_output=True, text=True, check=False).stdout
        return text.split()[-1] if text else "?"

    def begin(self):
        data = os.path.join(self.folder, "data")
        env = {**os.environ, "PROCFLEET_LOG": self.bench.log_level}
        self.launch([self.bench.procfleet, "server", "--data", data, "--listen", "127.0.0.1:0", "--link", "127.0.0.1:0"],
                    env=env)
        self.server = self.reaper
        ready = re.compile(r"procfleet server is ready: \S+ \(agents: (\S+)\)")
        self.wait_until("procfleet server", lambda: ready.search(self.all_words()))
        with open(os.path.join(data, "admin.json"), encoding="utf-8") as file:
            self.admin = file.read()
        self.address = json.loads(self.admin)["url"].removeprefix("http://")
        self.task = None
        token = subprocess.run([self.bench.procfleet, "token", "create", "--data", data], check=True, capture_output=True,
                               text=True).stdout.strip()
        link = ready.search(self.all_words()).group(1)
        self.launch([self.bench.agent, "--server", link, "--data", os.path.join(self.folder, "agent")],
                    env={**env, "PROCFLEET_TOKEN": token})
        self.wait_until("the agent", self.is_connected)

    def is_connected(self):
        connection = http.client.HTTPConnection(self.address, timeout=self.bench.patience)
        connection.request("GET", "/metrics", headers={"X-Bkapi-Authorization": self.admin})
        text = connection.getresponse().read().decode()
        connection.close()
        return "\nprocfleet_agents_connected 1\n" in text

    def end(self):
        agent, self.reaper = self.reaper, self.server
        if agent and agent is not self.server:
            agent.terminate()
            agent.wait()
        super().end()

    def processes(self):
        def running(reaper, file):
            return [pid for pid in measure.descendants(reaper.pid) if measure.program(pid) == os.path.realpath(file)]

        return {"": running(self.reaper, self.bench.agent), "server": running(self.server, self.bench.procfleet)}

    def post(self, api, body):
        connection = http.client.HTTPConnection(self.address, timeout=self.bench.patience)
        headers = {"X-Bkapi-Authorization": self.admin, "Content-Type": "application/json"}
        connection.request("POST", f"/api/c/compapi/v2/gse/{api}/", json.dumps(body), headers)
        answer = json.load(connection.getresponse())
        connection.close()
        if answer["code"] != 0:
            raise RuntimeError(f"{api}: {answer['message']}"[:500])
        return answer["data"]

    def operate(self, op_type):
        elements = [self.element(op_type, index) for index in range(self.count)]
        self.task = self.post("operate_proc_multi", {"proc_operate_req": elements})["task_id"]

    def element(self, op_type, index):
        identity = {
            "proc_name": os.path.basename(self.bench.helper), "setup_path": self.folder, "pid_path": "", "user": "root",
        }
        if os.geteuid() != 0:
            identity["user"] = os.environ["USER"]
        policy = {
            "auto_type": 1, "start_check_secs": 1, "stop_check_secs": 10, "start_retries": 4, "start_interval": 1,
            "op_timeout": 60,
        }
        return {
            "meta": {"namespace": "bench", "name": f"svc-{index}"},
            "op_type": op_type,
            "hosts": [{"ip": "127.0.0.1", "bk_cloud_id": 0}],
            "spec": {
                "identity": identity,
                "control": {"start_cmd": "exec " + " ".join(self.service(index))},
                "alive_monitor_policy": policy,
            },
        }

    def start_all(self):
        self.operate(0)

    def stop_all(self):
        self.operate(1)

    def confirmed(self):
        deadline = time.monotonic() + self.bench.patience
        while True:
            results = self.post("get_proc_operate_result_v2", {"task_id": self.task})
            at = time.monotonic_ns()
            codes = [result["error_code"] for result in results.values()]
            if 115 not in codes:
                bad = [result for result in results.values() if result["error_code"] != 0]
                if bad or len(codes) != self.count:
                    raise RuntimeError(f"{len(codes)} results, {len(bad)} of them not 0, such as {bad[:1]}")
                return at
            if time.monotonic() > deadline:
                raise TookTooLong(f"{codes.count(115)} of {self.count} had no result after {self.bench.patience} s")
            time.sleep(0.05)


class Runit(Peer):
    """runsvdir with one runsv per process; run scripts that exec; `sv up` and `sv down` with all of them."""

    name = "runit"
    needs = "runsvdir"

    @staticmethod
    def version(_):
        return package_version("runit")

    def begin(self):
        self.scan = os.path.join(self.folder, "service")
        os.mkdir(self.scan)
        self.services = write_service_folders(self, self.scan)
        self.launch(["runsvdir", "-P", self.scan])
        self.wait_until("runsv for all", lambda: all(os.path.exists(s + "/supervise/ok") for s in self.services))

    def start_all(self):
        self.call(["sv", "up", *self.services])

    def stop_all(self):
        self.call(["sv", "down", *self.services])


class S6(Peer):
    """s6-svscan with one s6-supervise per process; run scripts that exec; a shell calls s6-svc for each
    process."""

    name = "s6"
    needs = "s6-svscan"

    @staticmethod
    def version(_):
        return package_version("s6")

    def begin(self):
        self.scan = os.path.join(self.folder, "service")
        os.mkdir(self.scan)
        self.services = write_service_folders(self, self.scan)
        # Its own limit is 500 services.
        self.launch(["s6-svscan", "-c", str(self.count + 100), self.scan])
        ready = lambda: all(os.path.exists(s + "/supervise/status") for s in self.services)
        self.wait_until("s6-supervise for all", ready)

    def each(self, flag):
        self.call(["sh", "-c", f'for s in "$1"/*; do s6-svc {flag} "$s"; done', "sh", self.scan])

    def start_all(self):
        self.each("-u")

    def stop_all(self):
        self.each("-d")


class Supervisor(Peer):
    """supervisord with autorestart=true, startsecs=1 (its default) and no log files; XML-RPC
    startAllProcesses and stopAllProcesses, as `supervisorctl start all` calls them, without the start-up time
    of supervisorctl."""

    name = "supervisor"
    needs = "supervisord"
    cycle = 1.0

    @staticmethod
    def version(_):
        return package_version("supervisor")

    def begin(self):
        self.socket = os.path.join(self.folder, "s.sock")
        config = os.path.join(self.folder, "supervisord.conf")
        command = " ".join([self.bench.helper, self.bench.slots.path, "%(process_num)d"])
        program = "" if self.count == 0 else f"""
[program:svc]
command={command}
process_name=svc-%(process_num)d
numprocs={self.count}
autostart=false
autorestart=true
startsecs=1
stdout_logfile=NONE
stderr_logfile=NONE
"""
        with open(config, "w", encoding="utf-8") as file:
            # Two pipes for each process are more than its own limit of 1,024 files.
            file.write(f"""[supervisord]
nodaemon=true
logfile={self.folder}/supervisord.log
pidfile={self.folder}/supervisord.pid
childlogdir={self.folder}
minfds={max(1024, 4 * self.count)}
[unix_http_server]
file={self.socket}
[rpcinterface:supervisor]
supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface
{program}""")
        # As root it logs a warning that it does not drop privileges.
        self.launch(["supervisord", "-n", "-c", config])
        self.wait_until("supervisord", self.answers)

    def answers(self):
        try:
            return self.proxy().supervisor.getState()["statecode"] == 1
        except OSError:
            return False

    def proxy(self):
        return xmlrpc.client.ServerProxy("http://local/RPC2", transport=UnixTransport(self.socket, self.bench.patience))

    def start_all(self):
        self.proxy().supervisor.startAllProcesses(False)

    def stop_all(self):
        self.proxy().supervisor.stopAllProcesses(False)


class UnixTransport(xmlrpc.client.Transport):
    def __init__(self, path, patience):
        super().__init__()
        self.path, self.patience = path, patience

    def make_connection(self, host):
        path, patience = self.path, self.patience

        class Connection(http.client.HTTPConnection):
            def connect(self):
                self.sock = socket.socket(socket.AF_UNIX)
                self.sock.settimeout(patience)
                self.sock.connect(path)

        return Connection("local")


class Monit(Peer):
    """monit with a cycle of 1 s, its shortest; processes are daemons with pid files, which it requires;
    `monit start all` and `monit stop all`."""

    name = "monit"
    needs = "monit"
    cycle = 1.0

    @staticmethod
    def version(_):
        return package_version("monit")

    def begin(self):
        self.config = os.path.join(self.folder, "monitrc")
        path = lambda name: os.path.join(self.folder, name)
        with open(self.config, "w", encoding="utf-8") as file:
            file.write("set daemon 1\n")
            file.write(f"set pidfile {path('monit.pid')}\nset idfile {path('id')}\nset statefile {path('state')}\n")
            file.write(f"set httpd unixsocket {path('m.sock')} allow bench:bench\n")
            helper, slots = self.bench.helper, self.bench.slots.path
            for index in range(self.count):
                pid_file = path(f"{index}.pid")
                file.write(
                    f"check process svc-{index} with pidfile {pid_file}\n"
                    f'  start program = "{helper} -d {pid_file} {slots} {index}"\n'
                    f'  stop program = "{helper} -k {pid_file}"\n'
                    "  onreboot nostart\n"
                )
        os.chmod(self.config, 0o600)
        self.launch(["monit", "-I", "-c", self.config])
        self.wait_until("monit", lambda: os.path.exists(path("m.sock")))

    def start_all(self):
        self.call(["monit", "-c", self.config, "start", "all"])

    def stop_all(self):
        self.call(["monit", "-c", self.config, "stop", "all"])


class Pm2(Peer):
    """pm2's daemon with an ecosystem file of all processes (interpreter none, autorestart); `pm2 start` and
    `pm2 stop all`."""

    name = "pm2"

    @classmethod
    def find(cls, bench):
        if not shutil.which("npm") or not shutil.which("node"):
            return "npm is not installed"
        if not os.path.exists(cls.program(bench)):
            install = ["npm", "install", "--prefix", bench.npm, "--no-audit", "--no-fund", "--no-save", "pm2@6"]
            os.makedirs(bench.npm, exist_ok=True)
            done = subprocess.run(install, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
            if done.returncode != 0:
                return "npm could not install it: " + done.stderr.strip().splitlines()[-1]
        return None

    @staticmethod
    def program(bench):
        return os.path.join(bench.npm, "node_modules", ".bin", "pm2")

    @staticmethod
    def version(bench):
        with open(os.path.join(bench.npm, "node_modules", "pm2", "package.json"), encoding="utf-8") as file:
            return json.load(file)["version"]

    def begin(self):
        # HOME too: otherwise pm2 writes to the user's home.
        self.environment = {
            **os.environ, "PM2_HOME": os.path.join(self.folder, "h"), "HOME": self.folder, "PM2_DISCRETE_MODE": "true",
        }
        apps = [
            {
                "name": f"svc-{index}", "script": self.bench.helper, "args": self.service(index)[1:], "interpreter": "none",
                "exec_mode": "fork", "autorestart": True, "out_file": "/dev/null", "error_file": "/dev/null",
            }
            for index in range(self.count)
        ]
        self.ecosystem = os.path.join(self.folder, "ecosystem.config.json")
        with open(self.ecosystem, "w", encoding="utf-8") as file:
            json.dump({"apps": apps}, file)
        pid_file = os.path.join(self.folder, "h", "pm2.pid")
        # The client that starts the daemon exits, and the daemon is adopted by the subreaper.
        self.launch([self.program(self.bench), "ping"], env=self.environment)
        self.wait_until("pm2's daemon", lambda: os.path.exists(pid_file) and len(self.processes()[""]) == 1)

    def start_all(self):
        self.call([self.program(self.bench), "start", self.ecosystem], env=self.environment)

    def stop_all(self):
        self.call([self.program(self.bench), "stop", "all"], env=self.environment)


ALL = [Procfleet, Supervisor, Runit, S6, Monit, Pm2]


def write_service_folders(peer, scan):
    """Common to runit and s6: a folder with a run script for each service, and a `down` file, so that it
    waits."""
    services = []
    for index in range(peer.count):
        folder = os.path.join(scan, f"svc-{index}")
        os.mkdir(folder)
        run = os.path.join(folder, "run")
        with open(run, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\nexec " + " ".join(peer.service(index)) + "\n")
        os.chmod(run, 0o755)
        with open(os.path.join(folder, "down"), "w", encoding="utf-8"):
            pass
        services.append(folder)
    return services


def package_version(package):
    asked = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", package], capture_output=True, text=True, check=False)
    return asked.stdout or "?"

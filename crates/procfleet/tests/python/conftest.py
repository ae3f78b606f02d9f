"""What a platform knows: where its gateway is and who it is (from its environment), and the processes it looks after."""

import json
import os
import time

import pytest

HANDLING = 115
PATIENCE = 60
SUCCESS = {"error_code": 0, "error_msg": "success"}


class Host:
    """The one host, as its callers name it."""

    def __init__(self):
        self.ip = os.environ["TEST_IP"]
        self.cloud = int(os.environ["TEST_CLOUD"])
        self.agent = os.environ["TEST_AGENT"]
        self.plain = {"ip": self.ip, "bk_cloud_id": self.cloud}
        self.with_supplier = dict(self.plain, bk_supplier_id=0)


class Proc:
    """A process with a folder of its own, and what is sent about it."""

    def __init__(self, name):
        self.name = name
        self.namespace = "python"
        self.folder = os.path.join(os.environ["TEST_FOLDER"], name)
        os.makedirs(self.folder)
        # A link, for a file that was just written may not be run while somebody has it open.
        os.symlink("/bin/sleep", os.path.join(self.folder, name))
        self.meta = {"namespace": self.namespace, "name": name, "labels": {"bk_process_id": 7}}
        self.identity = {
            "index_key": "",
            "proc_name": name,
            "setup_path": self.folder,
            "pid_path": os.path.join(self.folder, name + ".pid"),
            "user": os.environ["TEST_USER"],
        }
        self.start_cmd = (
            "rm -f {0}.pid; (setsid sh -c 'echo $$ > new; mv new {0}.pid; exec ./{0} 1000' </dev/null >/dev/null 2>&1 &); "
            "until test -s {0}.pid; do sleep 0.01; done"
        ).format(name)
        self.control = {
            "start_cmd": self.start_cmd,
            "stop_cmd": "kill $(cat {}.pid)".format(name),
            "restart_cmd": "",
            "reload_cmd": "true",
            "kill_cmd": "",
        }
        self.policy = {"auto_type": 1, "start_check_secs": 1, "op_timeout": 30}

    @property
    def spec(self):
        return {"identity": self.identity, "control": self.control, "alive_monitor_policy": self.policy}

    def key(self, target):
        return "{}:{}:{}".format(target, self.namespace, self.name)


def wait_for(ask, patience=PATIENCE):
    """Asks until there is an answer, as platforms do, only more often."""
    deadline = time.monotonic() + patience
    while True:
        answer = ask()
        if answer is not None:
            return answer
        assert time.monotonic() < deadline, "no answer in time"
        time.sleep(0.05)


def outcomes(get_result, task, keys):
    """The results of a task when all of its operations have ended, read as the strictest callers do."""

    def ask():
        answer = get_result({"task_id": task})
        # bscp gives up at any other code, gsekit at a key that it did not ask for, nodeman at one that is
        # missing.
        assert (answer["result"], answer["code"]) == (True, 0), answer
        assert sorted(answer["data"]) == sorted(keys), answer
        waiting = [one for one in answer["data"].values() if one["error_code"] == HANDLING]
        for one in waiting:
            assert one == {"error_code": HANDLING, "error_msg": "handling", "content": ""}
        return None if waiting else answer["data"]

    return {key: dict(one, content=json.loads(one["content"])) for key, one in wait_for(ask).items()}


def instance(outcome):
    (process,) = outcome["content"]["process"]
    (seen,) = process["instance"]
    return seen


@pytest.fixture
def host():
    return Host()


@pytest.fixture
def proc(request):
    return Proc(request.node.name.replace("_", "-")[:60])

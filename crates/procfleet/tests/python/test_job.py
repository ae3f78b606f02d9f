"""A platform that runs processes through JOB on the old gateway: bkapi-component-open's own classes, with JOB's process APIs.

The package has jobv3 without them; job it does not have at all.
"""

import os

import pytest
from bkapi_client_core.esb import Operation, OperationGroup, bind_property, generic_type_partial
from bkapi_client_core.esb.django_helper import get_client_by_username as _get_client_by_username
from bkapi_component.open.client import Client, Jobv3Group
from conftest import HANDLING, wait_for


def component(system, name, method="POST"):
    path = "/api/c/compapi{bk_api_ver}/" + system + "/" + name + "/"
    return bind_property(Operation, name=name, method=method, path=path)


class JobGroup(OperationGroup):
    operate_proc = component("job", "operate_proc")
    operate_process = component("job", "operate_process")
    manage_proc = component("job", "manage_proc")
    # The document suggests GET: the package then puts the fields into the query.
    get_proc_result = component("job", "get_proc_result", "GET")
    get_agent_status = component("job", "get_agent_status")


class ProcessGroup(Jobv3Group):
    operate_process = component("jobv3", "operate_process")
    manage_proc = component("jobv3", "manage_proc")
    get_proc_result = component("jobv3", "get_proc_result")


class PlatformClient(Client):
    job = bind_property(JobGroup, name="job")
    jobv3 = bind_property(ProcessGroup, name="jobv3")


get_client = generic_type_partial(PlatformClient, _get_client_by_username)
BUSINESS = {"bk_biz_id": 1}
SCOPE = {"bk_scope_type": "biz", "bk_scope_id": "1"}


@pytest.fixture
def client():
    return get_client("admin")


def info(proc, host, **more):
    return dict(
        setup_path=proc.folder,
        proc_name=proc.name,
        pid_path=proc.identity["pid_path"],
        account=proc.identity["user"],
        ip_list=[host.plain],
        **more
    )


def commands(proc, host, **more):
    control = {name: command for name, command in proc.control.items() if command}
    return info(proc, host, contact="admin", type=1, start_check_begin_time=1, op_timeout=30, **dict(control, **more))


def ended(get_result, scope, answer):
    """The results of a task as bk-base reads them: status until it is not 115, and keys that are split from the right."""
    assert answer["result"] is True, answer
    asked = dict(scope, bk_gse_taskid=answer["data"]["bk_gse_taskid"])

    def ask():
        polled = get_result(asked)
        assert (polled["result"], polled["code"]) == (True, 0), polled
        return None if polled["data"]["status"] == HANDLING else polled["data"]["result"]

    return {tuple(key.rsplit(":", 2)): one for key, one in wait_for(ask).items()}


def operate(client, proc, host, op_type):
    body = dict(BUSINESS, op_type=op_type, process_infos=[commands(proc, host)])
    results = ended(client.job.get_proc_result, BUSINESS, client.job.operate_process(body))
    key = (proc.folder + "/" + proc.name, str(host.cloud), host.ip)
    assert list(results) == [key]
    return results[key]


def pid(outcome):
    return outcome["content"]["process"][0]["instance"][0]["pid"]


def test_agents(client, host):
    answer = client.job.get_agent_status(dict(BUSINESS, ip_list=[host.plain, {"ip": "1.0.0.1", "bk_cloud_id": 0}]))
    alive = {(one["bk_cloud_id"], one["ip"]): one["bk_agent_alive"] for one in answer["data"]}
    assert alive == {(host.cloud, host.ip): 1, (0, "1.0.0.1"): 0}


def test_life_of_a_process(client, proc, host):
    assert pid(operate(client, proc, host, 2)) == -1
    started = operate(client, proc, host, 0)
    assert (started["error_code"], started["error_msg"]) == (0, "success")
    assert started["content"]["value"][0]["procName"] == proc.name
    first = pid(operate(client, proc, host, 2))
    assert first > 1
    assert operate(client, proc, host, 0)["error_code"] == 828
    assert operate(client, proc, host, 7)["error_code"] == 0
    assert pid(operate(client, proc, host, 2)) not in (-1, first)
    assert operate(client, proc, host, 1)["error_code"] == 0
    assert operate(client, proc, host, 1)["error_code"] == 829
    assert pid(operate(client, proc, host, 2)) == -1


def test_scripts(client, proc, host):
    """operate_proc runs the scripts that lie beside the program."""
    for verb in ("start", "stop"):
        with open("{}/{}.sh".format(proc.folder, verb), "w") as script:
            script.write("#!/bin/sh\n{}\n".format(proc.control[verb + "_cmd"]))
        os.chmod(script.name, 0o755)
    for op_type, code in ((0, 0), (0, 828), (1, 0), (1, 829)):
        body = dict(BUSINESS, op_type=op_type, process_infos=[info(proc, host)])
        (outcome,) = ended(client.job.get_proc_result, BUSINESS, client.job.operate_proc(body)).values()
        assert outcome["error_code"] == code, outcome


def test_hosting(client, proc, host):
    """jobv3's manage_proc by a scope: 1 hosts, 2 leaves it alone."""
    managed = dict(commands(proc, host), proc_owner="admin", value_key=proc.name)
    for op_type, hosted in ((1, True), (2, False)):
        answer = client.jobv3.manage_proc(dict(SCOPE, op_type=op_type, process_infos=[managed]))
        results = ended(client.jobv3.get_proc_result, SCOPE, answer)
        outcome = results[(proc.name, str(host.cloud), host.ip)]
        assert outcome["error_code"] == 0, outcome
        assert outcome["content"]["value"][0]["isAuto"] is hosted


def test_a_refusal_is_an_answer(client, proc, host):
    answer = client.job.operate_process(dict(BUSINESS, op_type=5, process_infos=[info(proc, host)]))
    assert (answer["result"], answer["code"], answer["data"]) == (False, 1241002, None)
    assert "op_type" in answer["message"]
    answer = get_client("admin", bk_app_secret="wrong").job.get_agent_status(dict(BUSINESS, ip_list=[host.plain]))
    assert (answer["result"], answer["code"]) == (False, 1306403)

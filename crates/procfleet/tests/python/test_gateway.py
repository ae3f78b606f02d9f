"""A platform on BlueKing's new gateway: bkapi-client-core's APIGatewayClient, unmodified, with the resources of bk-gse."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from bkapi_client_core.apigateway import (
    APIGatewayClient,
    Operation,
    OperationGroup,
    bind_property,
    generic_type_partial,
)
from bkapi_client_core.apigateway.django_helper import get_client_by_username as _get_client_by_username
from conftest import Proc, instance, outcomes, wait_for


def resource(path):
    name = path.strip("/").rsplit("/", 1)[-1]
    return bind_property(Operation, name=name, method="POST", path=path)


class Group(OperationGroup):
    # gsekit and nodeman end their paths with a slash, bscp and nodemgr do not.
    operate_proc_v2 = resource("/api/v2/proc/operate_proc_v2")
    operate_proc_multi = resource("/api/v2/proc/operate_proc_multi/")
    get_proc_operate_result_v2 = resource("/api/v2/proc/get_proc_operate_result_v2")
    get_proc_status_v2 = resource("/api/v2/proc/get_proc_status_v2/")
    sync_proc_status = resource("/api/v2/proc/sync_proc_status/")
    update_proc_info = resource("/api/v2/proc/update_proc_info")
    list_agent_state = resource("/api/v2/cluster/list_agent_state")
    list_agent_info = resource("/api/v2/cluster/list_agent_info/")


class GseClient(APIGatewayClient):
    _api_name = "bk-gse"
    api = bind_property(Group, name="api")


get_client = generic_type_partial(GseClient, _get_client_by_username)


@pytest.fixture
def client():
    return get_client("admin")


def element(proc, host, op_type):
    """One request by agent id, with the policy under the gateway's name."""
    spec = {
        "identity": proc.identity,
        "control": proc.control,
        "resource": {"cpu": 90, "mem": 90},
        "monitor_policy": proc.policy,
    }
    return {"meta": proc.meta, "agent_id_list": [host.agent], "op_type": op_type, "spec": spec}


def operate(client, proc, host, op_type):
    answer = client.api.operate_proc_v2(element(proc, host, op_type))
    assert answer["code"] == 0, answer
    key = proc.key(host.agent)
    return outcomes(client.api.get_proc_operate_result_v2, answer["data"]["task_id"], [key])[key]


def test_agents(client, host):
    asked = {"agent_id_list": [host.agent, "0200000007525400f355781710390005465c"]}
    (state,) = client.api.list_agent_state(asked)["data"]
    assert (state["bk_agent_id"], state["status_code"], state["run_mode"]) == (host.agent, 2, 1)
    (info,) = client.api.list_agent_info(asked)["data"]
    assert info["bk_host_ip"] == host.ip
    unknown = client.api.list_agent_state({"agent_id_list": ["0200000007525400f355781710390005465c"]})
    assert unknown["code"] == 1011003


def test_life_of_a_process(client, proc, host):
    """As bscp does it: a query before, the operation, a query after."""
    assert instance(operate(client, proc, host, 2))["pid"] == -1
    assert operate(client, proc, host, 0)["error_code"] == 0
    seen = operate(client, proc, host, 2)
    assert seen["content"]["ip"] == host.ip and seen["content"]["bk_agent_id"] == host.agent
    assert instance(seen)["pid"] > 1 and instance(seen)["isAuto"] is True
    assert operate(client, proc, host, 4)["content"]["value"][0]["isAuto"] is False
    assert operate(client, proc, host, 3)["content"]["value"][0]["isAuto"] is True
    assert operate(client, proc, host, 9)["error_code"] == 0
    assert instance(operate(client, proc, host, 2))["pid"] == -1


def test_many_in_one_task(client, proc, host):
    """As gsekit does it: one call for a set of processes, over one connection, and a check of all of them."""
    procs = [proc] + [Proc("{}-{}".format(proc.name, number)) for number in range(3)]
    keys = [one.key(host.agent) for one in procs]
    with client:
        for op_type in (0, 2, 1):
            body = {"proc_operate_req": [element(one, host, op_type) for one in procs], "no_request": True}
            task = client.api.operate_proc_multi(body)["data"]["task_id"]
            results = outcomes(client.api.get_proc_operate_result_v2, task, keys)
            assert {key: one["error_code"] for key, one in results.items()} == dict.fromkeys(keys, 0)
            if op_type == 2:
                assert all(instance(one)["pid"] > 1 for one in results.values())
                assert len({instance(one)["pid"] for one in results.values()}) == len(procs)


def test_many_threads_ask(proc, host):
    """As nodeman does it: 20 threads, each with a client and a task of its own."""
    operate(get_client("admin"), proc, host, 0)
    with ThreadPoolExecutor(20) as threads:
        asked = [threads.submit(operate, get_client("admin"), proc, host, 2) for _ in range(40)]
        pids = {instance(one.result())["pid"] for one in asked}
    assert len(pids) == 1 and pids.pop() > 1


def test_status(client, proc, host):
    operate(client, proc, host, 0)
    asked = {"meta": {"namespace": proc.namespace, "name": proc.name}, "agent_id_list": [host.agent]}

    def running():
        infos = client.api.get_proc_status_v2(asked)["data"]["proc_infos"]
        return infos[0] if infos and infos[0]["status"] == 1 else None

    info = wait_for(running)
    assert (info["bk_agent_id"], info["host"]["ip"], info["isauto"]) == (host.agent, host.ip, True)
    page = {"meta": {"namespace": proc.namespace}, "page": {"start": 0, "limit": 1000}}
    assert client.api.sync_proc_status(page)["data"]["count"] >= 1


def test_a_stored_spec(client, proc, host):
    body = element(proc, host, 0)
    spec = body.pop("spec")
    del body["op_type"]
    stored = client.api.update_proc_info(dict(body, spec=spec))
    assert stored["data"][proc.key(host.agent)]["error_code"] == 0
    task = client.api.operate_proc_v2(dict(body, op_type=0))["data"]["task_id"]
    key = proc.key(host.agent)
    assert outcomes(client.api.get_proc_operate_result_v2, task, [key])[key]["error_code"] == 0


def test_responses_are_no_errors_of_the_gateway(client, host):
    """The package takes X-Bkapi-Error-Code for a failure of the gateway itself, and raises."""
    response = client.api.list_agent_state.request({"agent_id_list": [host.agent]})
    client.check_response_apigateway_error(response)
    response.raise_for_status()
    assert response.headers["Content-Type"].startswith("application/json")
    refused = get_client("admin", bk_app_secret="wrong").api.list_agent_state({"agent_id_list": [host.agent]})
    assert (refused["result"], refused["code"]) == (False, 1306403)

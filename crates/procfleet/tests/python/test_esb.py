"""A platform on BlueKing's old gateway: bkapi-component-open, unmodified.

The package has GSE's agent queries; the process APIs are hidden in the gateway, so platforms add them to the package's own
classes, as is done here.
"""

import pytest
from bkapi_client_core.esb import Operation, OperationGroup, bind_property, generic_type_partial
from bkapi_client_core.esb.django_helper import get_client_by_username as _get_client_by_username
from bkapi_client_core.exceptions import HTTPResponseError
from bkapi_component.open.client import Client, GseGroup
from bkapi_component.open.shortcuts import get_client_by_username as get_plain_client
from conftest import SUCCESS, instance, outcomes, wait_for


def component(system, name, method="POST"):
    path = "/api/c/compapi{bk_api_ver}/" + system + "/" + name + "/"
    return bind_property(Operation, name=name, method=method, path=path)


class ProcessGroup(GseGroup):
    operate_proc_v2 = component("gse", "operate_proc_v2")
    operate_proc_multi = component("gse", "operate_proc_multi")
    get_proc_operate_result_v2 = component("gse", "get_proc_operate_result_v2")
    get_proc_status_v2 = component("gse", "get_proc_status_v2")
    sync_proc_status = component("gse", "sync_proc_status")
    register_proc_info = component("gse", "register_proc_info")
    update_proc_info = component("gse", "update_proc_info")
    unregister_proc_info = component("gse", "unregister_proc_info")
    operate_proc = component("gse", "operate_proc")
    get_proc_operate_result = component("gse", "get_proc_operate_result")
    get_proc_status = component("gse", "get_proc_status")
    no_such_component = component("gse", "no_such_component")


class ByGetGroup(OperationGroup):
    """The same by GET: the package then puts the fields into the query."""

    get_proc_operate_result_v2 = component("gse", "get_proc_operate_result_v2", "GET")


class PlatformClient(Client):
    gse = bind_property(ProcessGroup, name="gse")
    by_get = bind_property(ByGetGroup, name="by_get")


get_client = generic_type_partial(PlatformClient, _get_client_by_username)


@pytest.fixture
def client():
    return get_client("admin")


def operate(client, proc, host, op_type):
    body = {"meta": proc.meta, "hosts": [host.plain], "op_type": op_type, "spec": proc.spec}
    answer = client.gse.operate_proc_v2(body)
    assert answer["result"] is True, answer
    assert answer["message"] == "success" and answer["request_id"]
    key = proc.key("{}:{}".format(host.cloud, host.ip))
    return outcomes(client.gse.get_proc_operate_result_v2, answer["data"]["task_id"], [key])[key]


def test_agents_by_the_packages_own_operations(host):
    client = get_plain_client("admin")
    asked = {"hosts": [host.plain, {"ip": "1.0.0.1", "bk_cloud_id": 0}]}
    status = client.gse.get_agent_status(asked)["data"]
    key = "{}:{}".format(host.cloud, host.ip)
    assert status[key] == dict(host.plain, bk_agent_alive=1)
    assert status["0:1.0.0.1"]["bk_agent_alive"] == 0
    info = client.gse.get_agent_info(asked)["data"]
    assert set(info) == set(status)
    assert info[key]["version"]


def test_life_of_a_process(client, proc, host):
    assert instance(operate(client, proc, host, 2))["pid"] == -1
    started = operate(client, proc, host, 0)
    assert {name: started[name] for name in SUCCESS} == SUCCESS
    (value,) = started["content"]["value"]
    assert (value["procName"], value["setupPath"], value["isAuto"]) == (proc.name, proc.folder, True)
    seen = instance(operate(client, proc, host, 2))
    assert seen["pid"] > 1 and seen["isAuto"] is True
    assert operate(client, proc, host, 0)["error_code"] == 828
    assert operate(client, proc, host, 8)["error_code"] == 0
    assert operate(client, proc, host, 7)["error_code"] == 0
    again = instance(operate(client, proc, host, 2))
    assert again["pid"] > 1 and again["pid"] != seen["pid"]
    stopped = operate(client, proc, host, 1)
    assert stopped["error_code"] == 0 and stopped["content"]["value"][0]["isAuto"] is False
    assert operate(client, proc, host, 1)["error_code"] == 829
    assert instance(operate(client, proc, host, 2))["pid"] == -1


def test_status(client, proc, host):
    operate(client, proc, host, 0)
    asked = {"meta": {"namespace": proc.namespace, "name": proc.name}, "hosts": [host.plain]}

    def running():
        infos = client.gse.get_proc_status_v2(asked)["data"]["proc_infos"]
        return infos[0] if infos and infos[0]["status"] == 1 else None

    info = wait_for(running)
    # nodeman writes into host, so it must be there.
    info["host"]["bk_agent_id"] = info["bk_agent_id"]
    assert (info["host"]["ip"], info["isauto"], info["meta"]["name"]) == (host.ip, True, proc.name)
    page = {"meta": {"namespace": proc.namespace}, "page": {"start": 0, "limit": 1000}}
    listed = client.gse.sync_proc_status(page)["data"]
    assert listed["count"] >= 1 and proc.name in [one["meta"]["name"] for one in listed["proc_infos"]]


def test_results_by_get(client, proc, host):
    body = {"meta": proc.meta, "hosts": [host.plain], "op_type": 2, "spec": proc.spec}
    task = client.gse.operate_proc_v2(body)["data"]["task_id"]
    key = proc.key("{}:{}".format(host.cloud, host.ip))
    assert outcomes(client.by_get.get_proc_operate_result_v2, task, [key])[key]["error_code"] == 0


def test_first_generation(client, proc, host):
    spec = {
        "identity": proc.identity,
        "control": proc.control,
        "resource": {"cpu": 90.0, "mem": 90.0},
        "monitor_policy": proc.policy,
    }
    named = {"meta": proc.meta, "hosts": [host.with_supplier]}
    key = proc.key("{}:0:{}".format(host.cloud, host.ip))
    registered = client.gse.register_proc_info(dict(named, spec=spec))
    assert registered["data"] == {key: dict(SUCCESS, content="")}
    assert client.gse.register_proc_info(dict(named, spec=spec))["data"][key]["error_code"] == 850
    assert client.gse.update_proc_info(dict(named, spec=spec))["data"][key]["error_code"] == 0
    for op_type, code in [(0, 0), (0, 828), (1, 0), (1, 829)]:
        task = client.gse.operate_proc(dict(named, op_type=op_type))["data"]["task_id"]
        assert outcomes(client.gse.get_proc_operate_result, task, [key])[key]["error_code"] == code
    assert client.gse.get_proc_status(named)["result"] is True
    assert client.gse.unregister_proc_info(named)["data"][key]["error_code"] == 0
    assert client.gse.unregister_proc_info(named)["data"][key]["error_code"] == 829


def test_headers_of_the_old_gateway(client, host):
    client.set_language("zh-hans")
    client.set_use_test_env(True)
    client.update_headers({"X-Bk-Tenant-Id": "default"})
    assert client.gse.get_agent_status({"hosts": [host.plain]})["result"] is True


def test_a_refusal_is_an_answer(host):
    """With HTTP 200 the package raises nothing, and its callers read the code and the message."""
    stranger = get_client("admin", bk_app_secret="wrong")
    answer = stranger.gse.get_agent_status({"hosts": [host.plain]})
    assert (answer["result"], answer["code"], answer["data"]) == (False, 1306403, None)
    answer = get_client("admin").gse.operate_proc_v2({"op_type": 5})
    assert (answer["result"], answer["code"]) == (False, 1000811)
    assert "meta" in answer["message"] and "hosts" in answer["message"]
    answer = get_client("admin").gse.get_proc_operate_result_v2({"task_id": "GSETASK:20190813145456:8"})
    assert answer["code"] == 1000806 and "GSETASK:20190813145456:8" in answer["message"]


def test_a_component_that_does_not_exist(client):
    with pytest.raises(HTTPResponseError) as raised:
        client.gse.no_such_component({})
    assert raised.value.response.status_code == 404
    assert raised.value.response.json()["code"] == 1306404

#!/bin/sh
# Prints the body of operate_proc_v2 for the hello service: request.sh OP_TYPE
here=$(cd "$(dirname "$0")" && pwd)
cat <<BODY
{
  "meta": {"namespace": "demo", "name": "hello"},
  "op_type": ${1:-0},
  "hosts": [{"ip": "127.0.0.1", "bk_cloud_id": 0}],
  "spec": {
    "identity": {
      "proc_name": "hello.sh",
      "setup_path": "$here",
      "pid_path": "$here/hello.pid",
      "user": "$(id -un)"
    },
    "control": {
      "start_cmd": "./hello.sh start",
      "stop_cmd": "./hello.sh stop",
      "reload_cmd": "./hello.sh reload"
    },
    "alive_monitor_policy": {"auto_type": 1, "start_check_secs": 2, "start_interval": 3}
  }
}
BODY

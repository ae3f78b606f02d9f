//! What the fields of requests mean.

use super::Text;

pub(super) const TEXTS: &[Text] = &[
    // The login.
    (
        "bk_app_code",
        "The calling app. Here, or in the X-Bkapi-Authorization header, which wins.",
        "应用 ID。放在此处，或放在 X-Bkapi-Authorization 头中（头优先）。",
    ),
    ("bk_app_secret", "The app's secret.", "应用的安全密钥（TOKEN）。"),
    (
        "bk_token",
        "The current user's login: a token of a user that was made here, or one that the configured login service knows. It says who the call is made for.",
        "当前用户登录态：在此创建的用户的令牌，或所配置的登录服务认可的令牌，用以确定调用所代表的用户。",
    ),
    (
        "bk_username",
        "The user in whose name the app acts. Only an app that is trusted may name one; without it the app acts as itself.",
        "当前用户名。仅受信任的应用可以指定；不填则以应用自身身份执行。",
    ),
    // A process on hosts.
    (
        "proc_operate_req",
        "The requests: each has the fields of operate_proc_v2, and all become one task. An element with a fault is refused for itself. The same request twice is one; another request for the same process on the same host is refused.",
        "请求数组：每个元素的字段同 operate_proc_v2，合并为一个任务。有错误的元素只拒绝该元素本身。相同的请求重复出现时只执行一次；对同一主机上同一进程的另一不同请求会被拒绝。",
    ),
    ("meta", "Which process: its name, and labels.", "进程管理元数据。"),
    (
        "meta.namespace",
        "The namespace that the process belongs to. Grants are given by namespace.",
        "命名空间，用于进程分组管理，也是授权的单位。",
    ),
    (
        "meta.name",
        "The process's name, chosen by the caller. With the namespace it identifies the process on a host.",
        "进程名，用户自定义，与 namespace 共同标识主机上的一个进程。",
    ),
    (
        "meta.labels",
        "Labels of the caller's choice. Values are texts; numbers and booleans are taken as their text. Status queries show them.",
        "进程标签，key 与 value 由用户自定义。value 为字符串，数字与布尔值按其文本保存。状态查询会返回标签。",
    ),
    (
        "get_proc_status/meta.labels",
        "Accepted and not used: the process is found by its namespace and name, whatever its labels.",
        "可以传入，但不参与筛选：进程由 namespace 与 name 确定，与标签无关。",
    ),
    (
        "get_proc_status_v2/meta.labels",
        "Accepted and not used: the process is found by its namespace and name, whatever its labels.",
        "可以传入，但不参与筛选：进程由 namespace 与 name 确定，与标签无关。",
    ),
    (
        "unregister_proc_info/meta.labels",
        "Not needed here: the process is forgotten whatever its labels.",
        "此处不需要：注销与标签无关。",
    ),
    (
        "hosts",
        "The hosts. Required unless agent_id_list is given, which wins. A host that is named twice is meant once. One that cannot be read is refused for itself, beside others that can.",
        "主机对象数组。未提供 agent_id_list 时必填，两者都有时以 agent_id_list 为准。重复的主机只算一次。无法识别的主机只拒绝其本身，不影响其他主机。",
    ),
    ("get_agent_status/hosts", "The hosts that are asked about.", "要查询的主机对象数组。"),
    ("get_agent_info/hosts", "The hosts that are asked about.", "要查询的主机对象数组。"),
    ("hosts[].ip", "The host's IP address, v4 or v6.", "主机 IP 地址（IPv4 或 IPv6）。"),
    (
        "hosts[].bk_cloud_id",
        "The cloud area that the address belongs to; 0 is the direct one.",
        "云区域 ID，0 为直连区域。",
    ),
    (
        "hosts[].bk_supplier_id",
        "The supplier. It stands in the keys of the answer and has no other meaning here.",
        "开发商 ID。出现在返回结果的 key 中，在此没有其他含义。",
    ),
    (
        "agent_id_list",
        "Agents by id, 64 characters at most each, instead of hosts. The answer's keys then begin with the agent id.",
        "以 agent ID（每个最长 64 字符）代替 hosts 指定目标。返回结果的 key 以 agent ID 开头。",
    ),
    (
        "list_agent_state/agent_id_list",
        "The agents that are asked about. Ids that are unknown are left out of the answer; if all are, the code is 1011003.",
        "要查询的 agent ID。未知的 ID 不在返回结果中；全部未知时返回码为 1011003。",
    ),
    (
        "list_agent_info/agent_id_list",
        "The agents that are asked about. Ids that are unknown are left out of the answer; if all are, the code is 1011003.",
        "要查询的 agent ID。未知的 ID 不在返回结果中；全部未知时返回码为 1011003。",
    ),
    (
        "op_type",
        "What to do: 0 start (and host), 1 stop (and unhost), 2 query, 3 host, 4 unhost, 7 restart, 8 reload, 9 kill (and unhost). Absent is 0; null is a fault. 5 and 6 have no meaning and are refused with 1000832.",
        "操作类型：0 启动（成功后托管）；1 停止（成功后取消托管）；2 状态查询；3 注册托管；4 取消托管；7 重启；8 重新加载；9 强杀（成功后取消托管）。不填为 0，null 为错误。5、6 无定义，返回 1000832。",
    ),
    (
        "spec",
        "What the process is and how it is run. Without it the agent uses the spec that it has stored for this process.",
        "进程详细信息。不填时 agent 使用为该进程保存的 spec。",
    ),
    (
        "register_proc_info/spec",
        "What the process is and how it is run. The host's agent keeps it for later operations without one.",
        "进程详细信息。由主机 agent 保存，供之后不带 spec 的操作使用。",
    ),
    (
        "update_proc_info/spec",
        "What the process is and how it is run. It replaces the stored one, or becomes it.",
        "进程详细信息。替换已保存的内容；尚未注册时等同注册。",
    ),
    ("spec.identity", "What the process is known by.", "进程身份信息。"),
    (
        "spec.identity.proc_name",
        "The binary's name, by which a process is recognised as this one.",
        "进程二进制文件名，用于识别进程。",
    ),
    (
        "spec.identity.setup_path",
        "The absolute path in which commands are run.",
        "工作路径（绝对路径），命令在此执行。",
    ),
    (
        "spec.identity.pid_path",
        "The absolute path of the pid file. Empty: the process is found without one. A relative one is not used, and the message warns of it.",
        "pid 文件路径（绝对路径）。可为空字符串，此时不依赖 pid 文件查找进程。相对路径不起作用，并在 message 中给出警告。",
    ),
    (
        "spec.identity.config_path",
        "The absolute path of the configuration. Commands find it in PROCFLEET_CONFIG_PATH. The message warns of a relative one.",
        "配置文件路径（绝对路径）。命令可从环境变量 PROCFLEET_CONFIG_PATH 取得。相对路径会在 message 中给出警告。",
    ),
    (
        "spec.identity.log_path",
        "The absolute path of the log. Where it is a folder, what start_cmd and restart_cmd print goes to NAME.log in it; commands find it in PROCFLEET_LOG_PATH. Where it is no folder, the output goes to the agent's folder, and the result's error_msg and the status warn of it.",
        "日志路径（绝对路径）。若为目录，start_cmd 与 restart_cmd 的输出写入其中的 名称.log；命令可从环境变量 PROCFLEET_LOG_PATH 取得。若不是目录，输出写入 agent 的目录，并在结果的 error_msg 与状态中给出警告。",
    ),
    (
        "spec.identity.user",
        "The OS account that commands run as, such as root. The app must have been granted it.",
        "进程所属系统账户，如 root。应用需获得该账户的授权。",
    ),
    (
        "spec.identity.index_key",
        "Reserved: the process is known by its namespace and name. One that is not empty is answered with a warning.",
        "预留字段：进程以 namespace 与 name 标识。非空时返回信息中带有警告。",
    ),
    (
        "spec.control",
        "The commands. Each runs through a shell, as the user, in setup_path, for op_timeout at most; its output is in the outcome.",
        "进程控制命令。每条命令以 user 身份在 setup_path 中经 shell 执行，最长 op_timeout；输出写入结果。",
    ),
    (
        "spec.control.start_cmd",
        "Starts the process; it may stay in the foreground or become a daemon. Run by start, by a restart without restart_cmd, and when a hosted process has ended.",
        "启动命令，可前台运行或转为守护进程。用于启动、无 restart_cmd 时的重启，以及托管进程退出后的拉起。",
    ),
    ("spec.control.stop_cmd", "Stops the process. Without it: SIGTERM.", "停止命令。未提供时发送 SIGTERM。"),
    (
        "spec.control.restart_cmd",
        "Restarts the process. Without it: stop, then start.",
        "重启命令。未提供时先停止再启动。",
    ),
    (
        "spec.control.reload_cmd",
        "Lets the process read its configuration anew. Without it a reload is refused with 827.",
        "reload 命令。未提供时 reload 返回 827。",
    ),
    (
        "spec.control.stop_signal",
        "The signal that ends the process where there is no stop_cmd: a name such as TERM or SIGQUIT, or a number from 1 to 31. \
         Absent: TERM. (procfleet's own)",
        "没有 stop_cmd 时用于停止进程的信号：名称（如 TERM、SIGQUIT）或 1 至 31 的编号。不填为 TERM。（procfleet 扩展）",
    ),
    (
        "spec.control.reload_signal",
        "The signal that makes the process read its configuration again where there is no reload_cmd. Only the process itself gets it, \
         and must be alive a second later. Absent: none, and a reload without reload_cmd is 827. (procfleet's own)",
        "没有 reload_cmd 时用于重新加载配置的信号，仅发送给进程本身，一秒后进程必须存活。不填则没有 reload_cmd 时返回 827。（procfleet 扩展）",
    ),
    (
        "spec.control.kill_cmd",
        "Kills the process. Without it: SIGKILL to all that it started.",
        "kill 命令。未提供时向整个进程树发送 SIGKILL。",
    ),
    (
        "spec.control.version_cmd",
        "Prints the process's version, which status answers show.",
        "进程版本查询命令，其输出显示在状态结果中。",
    ),
    (
        "spec.control.health_cmd",
        "Tells by its exit status and output whether the process is well; status answers show it.",
        "进程健康检查命令，以退出码与输出表示健康状况，显示在状态结果中。",
    ),
    ("spec.resource", "What the process may use at most.", "进程资源上限。"),
    (
        "spec.resource.cpu",
        "Per cent of the whole host's CPU, not of one core: 30.0 is 30%. 0 or absent: no limit.",
        "CPU 使用率上限百分比（整机占比，非单核占比），例如 30.0 表示 30%。0 或不填为不限制。",
    ),
    (
        "spec.resource.mem",
        "Per cent of the host's memory: 10.0 is 10%. 0 or absent: no limit.",
        "内存使用率上限百分比，例如 10.0 表示 10%。0 或不填为不限制。",
    ),
    ("spec.resource.fd", "The most open files. 0 or absent: no limit.", "打开句柄数上限。0 或不填为不限制。"),
    (
        "spec.resource.disk",
        "Reserved: no limit is enforced. A value above 0 is answered with a warning in the message.",
        "预留字段，不做限制。大于 0 时返回信息中带有警告。",
    ),
    (
        "spec.resource.net",
        "Reserved: no limit is enforced. A value above 0 is answered with a warning in the message.",
        "预留字段，不做限制。大于 0 时返回信息中带有警告。",
    ),
    (
        "spec.alive_monitor_policy",
        "How the process is kept alive. This name or monitor_policy.",
        "进程存活监控策略。此名称或 monitor_policy 均可。",
    ),
    (
        "spec.monitor_policy",
        "The gateway's name for alive_monitor_policy, with the same fields. If both are sent, alive_monitor_policy counts.",
        "网关对 alive_monitor_policy 的称呼，字段相同。两者都有时以 alive_monitor_policy 为准。",
    ),
    (
        "spec.alive_monitor_policy.auto_type",
        "0 periodic, 1 resident, 2 run once.",
        "托管类型：0 周期执行，1 常驻，2 单次执行。",
    ),
    (
        "spec.alive_monitor_policy.start_check_secs",
        "When a start is judged, in seconds, counted from when a process was first seen or from the end of the start command, \
         whichever is later: a process must be there then, and must have been for a second. 0 or absent: 5.",
        "启动后检查进程存活的时间，单位秒，从首次发现进程或启动命令结束时（取较晚者）算起；届时进程须存活至少一秒。0 或不填为 5。",
    ),
    (
        "spec.alive_monitor_policy.stop_check_secs",
        "How long the process may take to end after the stop command, in seconds. 0 or absent: 5.",
        "停止命令执行后等待进程退出的时间，单位秒。0 或不填为 5。",
    ),
    (
        "spec.alive_monitor_policy.kill_after",
        "How many seconds after it was told to end a process that is still running is killed by a stop or restart, with all that it \
         started. The outcome is 0 then, and its message says so. stop_check_secs does not count then. 0 or absent: never, and the \
         answer is 836. (procfleet's own)",
        "停止或重启时，进程在收到停止要求多少秒后仍未退出则强制结束（连同其启动的所有进程），结果为 0，并在信息中说明；此时 stop_check_secs 不起作用。0 或不填为不强制结束，返回 836。（procfleet 扩展）",
    ),
    (
        "spec.alive_monitor_policy.start_retries",
        "After so many restarts in a row without a stable life the agent gives up. A life is stable when it outlasts the longest of \
         start_interval, start_check_secs and 10 seconds. 0 or absent: 4.",
        "连续重新拉起的次数上限，期间没有一次稳定运行则放弃。运行时间超过 start_interval、start_check_secs 与 10 秒中最长者视为稳定。0 或不填为 4。",
    ),
    (
        "spec.alive_monitor_policy.start_interval",
        "The interval between restarts in a row, in seconds, from one start to the next. After a stable life (see start_retries) the \
         process is started again at once. 0 or absent: 10.",
        "连续重新拉起进程的时间间隔（从上次启动到下次启动），单位秒。稳定运行（见 start_retries）之后退出的进程立即重新拉起。0 或不填为 10。",
    ),
    (
        "spec.alive_monitor_policy.restart_pause",
        "\"constant\": every pause is start_interval. \"growing\": each pause in a row is twice as long as the one before and up to a \
         fifth longer, up to 16 times start_interval or 5 minutes. Absent: constant. (procfleet's own)",
        "constant：每次间隔均为 start_interval；growing：连续失败时间隔逐次加倍（并随机延长至多五分之一），最多为 16 倍或 5 分钟。不填为 constant。（procfleet 扩展）",
    ),
    (
        "spec.alive_monitor_policy.limit_samples",
        "So many samples in a row, 5 seconds apart, must be over a limit of spec.resource: 1 to 1000. 0 or absent: 3. (procfleet's own)",
        "连续多少次采样（每 5 秒一次）超出 spec.resource 的限制才处理，1 至 1000。0 或不填为 3。（procfleet 扩展）",
    ),
    (
        "spec.alive_monitor_policy.on_unhealthy",
        "What happens when health_cmd has failed three times in a row: \"tell\" makes an event, \"restart\" also ends the process \
         and, if it is hosted, starts it again. Absent: tell. (procfleet's own)",
        "health_cmd 连续失败三次后的处理：tell 仅产生事件；restart 还会结束进程，若已托管则重新拉起。不填为 tell。（procfleet 扩展）",
    ),
    (
        "spec.alive_monitor_policy.detached",
        "What happens to what the process started and left behind, in sessions of its own or as orphans: \"end\" ends it with the \
         process, \"keep\" leaves it alone. Absent: end. (procfleet's own)",
        "进程遗留的子进程（自建会话或孤儿进程）如何处理：end 随进程一起结束；keep 保留。不填为 end。（procfleet 扩展）",
    ),
    (
        "spec.alive_monitor_policy.crontab_rule",
        "When a periodic process runs, as a crontab has it. Without meaning for other types.",
        "auto_type 为 0 时的定时执行规则（crontab 格式）；其他类型无效。",
    ),
    (
        "spec.alive_monitor_policy.crotab_rule",
        "crontab_rule as the documents' examples misspell it; it counts as well.",
        "crontab_rule 在文档示例中的误拼，同样有效。",
    ),
    (
        "spec.alive_monitor_policy.op_timeout",
        "How long a command may run, in seconds. 0 or absent: 60.",
        "命令执行超时时间，单位秒。0 或不填为 60。",
    ),
    ("spec.warn_report_policy", "How what happens to the process is reported.", "进程告警策略。"),
    (
        "spec.warn_report_policy.report_id",
        "The data id under which events of this process are sent to webhooks. 0 or absent: GSE's own, 1100008.",
        "告警 ID：该进程的事件以此 data id 推送。0 或不填为 GSE 的 1100008。",
    ),
    (
        "spec.configmap",
        "Configuration files, each with the MD5 that it should have, if one is known. The process is run all the same; a file that is not as expected is named in its status.",
        "配置文件及其应有的 md5。不影响进程运行；与预期不符的文件会在状态中指出。",
    ),
    (
        "spec.instance_num",
        "How many instances run at once. 0 or absent: 1.",
        "同时运行的进程实例数。0 或不填为 1。",
    ),
    (
        "spec.configmap[].path",
        "The file's absolute path. An entry without one is left out.",
        "配置文件路径（绝对路径）。为空的条目被忽略。",
    ),
    (
        "spec.configmap[].md5",
        "The MD5 that the file's content should have: 32 hexadecimal digits. Empty or absent: the file is watched, and one that is missing or has changed since the process was started is named in the status.",
        "文件内容应有的 md5：32 位十六进制。为空或不填时仅监视该文件：文件缺失或在进程启动后有变化时在状态中指出。",
    ),
    // Results and status.
    ("task_id", "The task id that the call was answered with.", "提交操作时返回的任务 ID。"),
    ("page", "Which part of the list.", "分页信息。"),
    ("page.start", "How many processes to leave out first.", "起始位置，从 0 开始。"),
    ("page.limit", "How many processes at most.", "每页数量，最大 1000。"),
    ("get_task_state/task_id", "The task id that the call was answered with.", "提交操作时返回的任务 ID。"),
    (
        "get_task_state/agent_id_list",
        "Only these agents of the task. Absent or empty: all.",
        "只看任务中的这些 agent。不填或为空则为全部。",
    ),
    (
        "upgrade_to_agent_id/hosts",
        "The hosts, each with the id that it is to be addressed by.",
        "主机及其 agent ID。",
    ),
    ("hosts[].bk_agent_id", "The agent's id, as the caller knows it.", "调用方所知的 agent ID。"),
    (
        "spec.process_group",
        "The groups of the namespace. An empty list takes back what was set.",
        "命名空间的进程组。空数组为取消已有设置。",
    ),
    (
        "set_process_group_info/spec",
        "What the processes of the namespace may use together.",
        "命名空间内的进程合计可用的资源。",
    ),
    ("spec.process_group[].id", "The group's id.", "进程组 ID。"),
    ("spec.process_group[].resource", "Its limits.", "资源上限。"),
    (
        "spec.process_group[].resource.cpu_pool_limit",
        "Per cent of the whole host's CPU for all of them together. 0: no limit.",
        "合计 CPU 使用率上限（整机百分比）。0 为不限制。",
    ),
    (
        "spec.process_group[].resource.mem_pool_limit",
        "Per cent of the host's memory for all of them together. 0: no limit.",
        "合计内存使用率上限（百分比）。0 为不限制。",
    ),
    (
        "spec.process_group[].resource.cpu_pool_weight",
        "Which one ends first beyond the limit: 0 the one that uses the most, 1 the one that uses the most of its own limit.",
        "超限时先结束哪个：0 使用率最高的，1 按各进程自身上限加权。",
    ),
    (
        "spec.process_group[].resource.mem_pool_weight",
        "As cpu_pool_weight, for memory.",
        "同 cpu_pool_weight，用于内存。",
    ),
    (
        "spec.alive_monitor_policy.cycle_time",
        "A periodic process runs each time that so many seconds have passed; this, or crontab_rule. Without meaning for other types.",
        "周期执行的间隔，单位秒；与 crontab_rule 二选一。其他类型无效。",
    ),
    // JOB.
    (
        "job/bk_biz_id",
        "The business that the hosts belong to. This, or bk_scope_type and bk_scope_id. A number, or its text.",
        "业务 ID。与 bk_scope_type、bk_scope_id 二选一。数字或其文本。",
    ),
    (
        "job/bk_scope_type",
        "What bk_scope_id names: biz, a business, or biz_set, a set of them.",
        "资源范围类型：biz 业务，biz_set 业务集。",
    ),
    (
        "job/bk_scope_id",
        "The id of the business or of the set. A text, or a number.",
        "资源范围 ID，与 bk_scope_type 对应，为业务 ID 或业务集 ID。文本或数字。",
    ),
    (
        "job/op_type",
        "What to do: 0 start (and host), 1 stop (and unhost), 2 query, 3 host, 4 unhost, 7 restart, 8 reload, 9 kill (and unhost).",
        "操作类型：0 启动；1 停止；2 状态查询；3 注册托管；4 取消托管；7 重启；8 重新加载；9 强杀。",
    ),
    (
        "job.manage_proc/op_type",
        "1: keep the process in its wanted state from now on; 2: leave it alone from now on.",
        "操作类型：1 注册托管进程；2 取消托管进程。",
    ),
    (
        "job/process_infos",
        "The processes, each with its hosts. All become one task.",
        "进程操作参数数组，合并为一个任务。",
    ),
    (
        "job/process_infos[].proc_name",
        "The process's name, such as bk_gse_unifyTlogc.",
        "进程名称，例如 bk_gse_unifyTlogc。",
    ),
    (
        "job.operate_proc/process_infos[].proc_name",
        "The process's name. The scripts are called with it: ./start.sh NAME.",
        "进程名称，作为参数传给脚本：./start.sh 名称。",
    ),
    (
        "job/process_infos[].setup_path",
        "The folder of the program, in which commands are run.",
        "进程路径，命令在此执行。",
    ),
    (
        "job.manage_proc/process_infos[].setup_path",
        "The folder of the program, in which commands are run. Absent: /.",
        "进程路径，命令在此执行。不填为 /。",
    ),
    (
        "job/process_infos[].pid_path",
        "The pid file. Where it names a folder, NAME.pid in it is meant.",
        "pid 文件路径。若为目录，则取其中的 进程名.pid。",
    ),
    (
        "job/process_infos[].account",
        "The OS account that commands run as. Absent: root. The app must have been granted it.",
        "系统账户，不填为 root。应用需获得该账户的授权。",
    ),
    (
        "job/process_infos[].cmd_shell_ext",
        "What the scripts are written for: sh, bat or ps1. Absent: sh. start, stop, restart and reload are the scripts of those names in setup_path.",
        "控制脚本的扩展名：sh（默认）、bat 或 ps1。启动、停止、重启、重载分别执行 setup_path 下的同名脚本。",
    ),
    (
        "job/process_infos[].cpu_lmt",
        "Per cent of the whole host's CPU; beyond it the process is stopped with stop_cmd. 0 or absent: no limit.",
        "CPU 使用限制（整机百分比），超过则以 stop_cmd 停止进程。0 或不填为不限制。",
    ),
    (
        "job.operate_proc/process_infos[].cpu_lmt",
        "Per cent of the whole host's CPU; beyond it the process is stopped by its script. 0 or absent: no limit; what is no percentage counts as 50.",
        "CPU 使用限制（整机百分比），超过则调用停止脚本。0 或不填为不限制，超出 0–100 时按 50 处理。",
    ),
    (
        "job/process_infos[].mem_lmt",
        "Per cent of the host's memory; beyond it the process is stopped with stop_cmd. 0 or absent: no limit.",
        "内存使用限制（百分比），超过则以 stop_cmd 停止进程。0 或不填为不限制。",
    ),
    (
        "job.operate_proc/process_infos[].mem_lmt",
        "Per cent of the host's memory; beyond it the process is stopped by its script. 0 or absent: no limit; what is no percentage counts as 30.",
        "内存使用限制（百分比），超过则调用停止脚本。0 或不填为不限制，超出 0–100 时按 30 处理。",
    ),
    (
        "job/process_infos[].cfg_path",
        "The configuration's path. Commands find it in PROCFLEET_CONFIG_PATH.",
        "配置文件路径。命令可从环境变量 PROCFLEET_CONFIG_PATH 取得。",
    ),
    (
        "job/process_infos[].log_path",
        "The absolute path of the log. Where it is a folder, what start_cmd and restart_cmd print goes to NAME.log in it; commands find it in PROCFLEET_LOG_PATH.",
        "日志路径（绝对路径）。若为目录，start_cmd 与 restart_cmd 的输出写入其中的 名称.log；命令可从环境变量 PROCFLEET_LOG_PATH 取得。",
    ),
    (
        "job/process_infos[].contact",
        "Whom the process belongs to. Commands find it in PROCFLEET_CONTACT; the hosting file lists it.",
        "进程属主（联系人）。命令可从环境变量 PROCFLEET_CONTACT 取得，并写入托管文件。",
    ),
    (
        "job/process_infos[].proc_owner",
        "Whom the process belongs to. Commands find it in PROCFLEET_CONTACT; the hosting file lists it.",
        "进程属主（联系人）。命令可从环境变量 PROCFLEET_CONTACT 取得，并写入托管文件。",
    ),
    ("job/process_infos[].start_cmd", "Starts the process.", "进程启动命令。"),
    (
        "job/process_infos[].stop_cmd",
        "Stops the process. Without it: SIGTERM.",
        "进程停止命令。未提供时发送 SIGTERM。",
    ),
    (
        "job/process_infos[].restart_cmd",
        "Restarts the process. Without it: stop, then start.",
        "进程重启命令。未提供时先停止再启动。",
    ),
    (
        "job/process_infos[].reload_cmd",
        "Lets the process read its configuration anew. Without it a reload is refused with 827.",
        "进程重新加载命令。未提供时返回 827。",
    ),
    (
        "job/process_infos[].kill_cmd",
        "Kills the process. Without it: SIGKILL to all that it started.",
        "进程强杀命令。未提供时向整个进程树发送 SIGKILL。",
    ),
    (
        "job/process_infos[].version_cmd",
        "Prints the process's version. JOB's document does not name it; it works as in GSE's spec.",
        "进程版本查询命令。JOB 文档未列出，含义与 GSE spec 相同。",
    ),
    (
        "job/process_infos[].health_cmd",
        "Tells whether the process is well. JOB's document does not name it; it works as in GSE's spec.",
        "进程健康检查命令。JOB 文档未列出，含义与 GSE spec 相同。",
    ),
    (
        "job/process_infos[].func_id",
        "The function's id in CMDB; results give it back as funcID.",
        "CC 定义的进程功能 ID，在结果中以 funcID 返回。",
    ),
    (
        "job/process_infos[].instance_id",
        "The instance's id in CMDB; results give it back as instanceID.",
        "CC 定义的进程实例 ID，在结果中以 instanceID 返回。",
    ),
    (
        "job/process_infos[].value_key",
        "What the process is known by. Empty: setup_path/proc_name. Two processes with the same path and name need one each.",
        "进程索引 key。为空时采用 setup_path/proc_name；路径与名称都相同的两个进程需分别指定。",
    ),
    (
        "job/process_infos[].type",
        "0 periodic, 1 resident, 2 run once. Absent: periodic if cycle_time is given, else resident.",
        "托管类型：0 周期执行，1 常驻，2 单次执行。不填时有 cycle_time 为 0，否则为 1。",
    ),
    (
        "job.manage_proc/process_infos[].type",
        "0 periodic, 1 resident, 2 run once. Absent: 0.",
        "托管类型：0 周期执行，1 常驻，2 单次执行。默认 0。",
    ),
    (
        "job/process_infos[].cycle_time",
        "A periodic process runs each time that so many seconds have passed. Required where type is 0 and the process is started or hosted.",
        "周期执行的间隔，单位秒。type 为 0 且启动或托管时必填。",
    ),
    (
        "job/process_infos[].instance_num",
        "How many instances run at once. 0 or absent: 1.",
        "进程实例数。0 或不填为 1。",
    ),
    (
        "job/process_infos[].start_check_begin_time",
        "From when on after its start the process must be alive, in seconds.",
        "启动后开始检查的时间，单位秒。",
    ),
    (
        "job/process_infos[].start_check_end_time",
        "Until when after its start it must be alive, in seconds. Not after the beginning: it must hold until the beginning.",
        "启动后结束检查的时间，单位秒。不大于开始时间时，以开始时间为准。",
    ),
    (
        "job/process_infos[].op_timeout",
        "How long a command may run, in seconds. 0 or absent: 60.",
        "命令执行超时时间，单位秒。0 或不填为 60。",
    ),
    ("job/process_infos[].ip_list", "The hosts of this process.", "该进程所在的主机。"),
    (
        "job/process_infos[].ip_list[].ip",
        "The host's IP address, v4 or v6.",
        "主机 IP 地址（IPv4 或 IPv6）。",
    ),
    (
        "job/process_infos[].ip_list[].bk_cloud_id",
        "The cloud area that the address belongs to; 0 is the direct one.",
        "云区域 ID，0 为直连区域。",
    ),
    ("job/bk_gse_taskid", "The task id that the call was answered with.", "提交操作时返回的任务 ID。"),
    ("job/ip_list", "The hosts that are asked about.", "要查询的主机。"),
    ("job/ip_list[].ip", "The host's IP address, v4 or v6.", "主机 IP 地址（IPv4 或 IPv6）。"),
    (
        "job/ip_list[].bk_cloud_id",
        "The cloud area that the address belongs to; 0 is the direct one.",
        "云区域 ID，0 为直连区域。",
    ),
    // procfleet's own.
    (
        "user_create/name",
        "The user's name: letters, digits and -_.@ are allowed.",
        "用户名：可用字母、数字和 -_.@。",
    ),
    ("user_token/ttl_secs", "How long the token can be used, in seconds.", "令牌有效时间，单位秒。"),
    ("procs/namespace", "Only processes of this namespace.", "只列出该命名空间的进程。"),
    ("procs/name", "Only processes of this name.", "只列出该名称的进程。"),
    ("procs/host", "Only processes on this host, as CLOUD:IP.", "只列出该主机（CLOUD:IP）上的进程。"),
    ("tasks/limit", "How many, the newest first. Absent: 20.", "返回数量，最新的在前。不填为 20。"),
    (
        "task/wait_ms",
        "Answer as soon as something has changed, or after so many milliseconds, 30,000 at most.",
        "任务有变化时立即返回，或最多等待这么多毫秒（上限 30000）。",
    ),
    ("events/namespace", "Only events of this namespace.", "只列出该命名空间的事件。"),
    ("events/name", "Only events of processes of this name.", "只列出该名称进程的事件。"),
    ("events/kind", "Only events of this kind.", "只列出该类型的事件。"),
    ("events/host", "Only events of this host, as CLOUD:IP.", "只列出该主机（CLOUD:IP）的事件。"),
    (
        "events/after",
        "Only events after this number, the oldest first. Absent: the newest.",
        "只列出该编号之后的事件，最早的在前。不填为最新的事件。",
    ),
    ("events/limit", "How many at most. Absent: 100.", "返回数量上限。不填为 100。"),
    (
        "events/wait_ms",
        "With after: wait so many milliseconds for an event, 30,000 at most.",
        "与 after 同用：最多等待这么多毫秒（上限 30000）直到有事件。",
    ),
    ("logs/namespace", "The process's namespace.", "进程的命名空间。"),
    ("logs/name", "The process's name.", "进程名。"),
    ("logs/instance", "Which instance of it. Absent: the first.", "第几个实例。不填为第一个。"),
    (
        "logs/host",
        "Its host, as CLOUD:IP. May be absent if only one host has the process.",
        "所在主机（CLOUD:IP）。只有一台主机有该进程时可不填。",
    ),
    ("logs/agent", "Its host, by the agent's id.", "所在主机的 agent ID。"),
    ("spec/namespace", "The process's namespace.", "进程的命名空间。"),
    ("spec/name", "The process's name.", "进程名。"),
    ("spec/instance", "Which instance of it. Absent: the first.", "第几个实例。不填为第一个。"),
    (
        "spec/host",
        "Its host, as CLOUD:IP. May be absent if only one host has the process.",
        "所在主机（CLOUD:IP）。只有一台主机有该进程时可不填。",
    ),
    ("spec/agent", "Its host, by the agent's id.", "所在主机的 agent ID。"),
    ("logs/lines", "How many lines at most. Absent: 100.", "返回行数上限。不填为 100。"),
    (
        "logs/since",
        "The cursor of an earlier answer: only lines behind it, the oldest first. Absent: the newest lines.",
        "之前返回的游标：只返回其后的行，从旧到新。不填为最新的行。",
    ),
    (
        "logs/wait_ms",
        "With since: wait so many milliseconds for a line, 30,000 at most.",
        "与 since 同用：最多等待新行的毫秒数，上限 30000。",
    ),
    ("webhook_create/url", "Where events are sent to, http or https.", "事件推送地址（http 或 https）。"),
    (
        "app_create/code",
        "The new app's code: letters, digits and -_. are allowed; procfleet- at the beginning is kept.",
        "新应用的 ID：可用字母、数字和 -_.；不能以 procfleet- 开头。",
    ),
    (
        "app_create/trusted",
        "Whether it may name the user that it acts for.",
        "是否允许该应用指定用户（bk_username）。",
    ),
    (
        "app_grant/all",
        "Everything: businesses, namespaces, operations and accounts.",
        "全部授权：业务、命名空间、操作与账户。",
    ),
    ("app_grant/businesses", "Businesses by id, as texts; * is all.", "业务 ID（字符串）；* 为全部。"),
    ("app_grant/namespaces", "Namespaces, exact or with a * at the end.", "命名空间，精确匹配或以 * 结尾。"),
    (
        "app_grant/ops",
        "Operations by name: start, stop, query, host, unhost, restart, reload, kill, register, update, unregister; * is all.",
        "操作名：start、stop、query、host、unhost、restart、reload、kill、register、update、unregister；* 为全部。",
    ),
    ("app_grant/accounts", "OS accounts on the hosts; * is all.", "主机系统账户；* 为全部。"),
    ("app_revoke/all", "Everything is taken away.", "收回全部授权。"),
    (
        "app_revoke/businesses",
        "Businesses that are taken away, as they were granted.",
        "要收回的业务，与授权时写法相同。",
    ),
    (
        "app_revoke/namespaces",
        "Namespaces that are taken away, as they were granted.",
        "要收回的命名空间，与授权时写法相同。",
    ),
    (
        "app_revoke/ops",
        "Operations that are taken away, as they were granted.",
        "要收回的操作，与授权时写法相同。",
    ),
    (
        "app_revoke/accounts",
        "Accounts that are taken away, as they were granted.",
        "要收回的账户，与授权时写法相同。",
    ),
    (
        "token_create/bk_cloud_id",
        "The cloud area of the agents that join. Absent: 0.",
        "加入的 agent 所属云区域。不填为 0。",
    ),
    (
        "token_create/bk_biz_id",
        "The business that they will belong to. Absent: 1.",
        "加入的 agent 所属业务。不填为 1。",
    ),
    ("token_create/ttl_secs", "How long the token can be used, in seconds.", "令牌有效时间，单位秒。"),
    (
        "token_create/replace",
        "Whether its agents may take the place of one that is connected, or was within the last day.",
        "是否可替换已连接或一天内连接过的 agent。",
    ),
    ("token_create/uses", "How many agents may join with it.", "可用该令牌加入的 agent 数量。"),
    (
        "agents_assign/agents",
        "Agent ids, or hosts as CLOUD:IP. All of them or none.",
        "agent ID，或 CLOUD:IP 形式的主机。全部成功或全部不变。",
    ),
    (
        "agents_forget/agents",
        "Agent ids, or hosts as CLOUD:IP. All of them or none; none of them may be connected.",
        "agent ID，或 CLOUD:IP 形式的主机。全部成功或全部不变，且均不得在线。",
    ),
    (
        "agents_revoke/agents",
        "Agent ids, or hosts as CLOUD:IP. All of them or none.",
        "agent ID，或 CLOUD:IP 形式的主机。全部成功或全部不变。",
    ),
    (
        "agents_revoke/reason",
        "Why. It stands in the agent's log, in the outcomes of its operations, and in the audit trail.",
        "原因，会出现在 agent 日志、操作结果与审计记录中。",
    ),
    (
        "ca_retire/force",
        "Also if agents or join tokens still need the old CA: those agents must join again, and those tokens be made anew.",
        "即使仍有 agent 或令牌依赖旧 CA 也退役：这些 agent 需重新加入，令牌需重新创建。",
    ),
    (
        "agents_label/agents",
        "Agent ids, or hosts as CLOUD:IP. All of them or none.",
        "agent ID，或 CLOUD:IP 形式的主机。全部成功或全部不变。",
    ),
    ("agents_label/set", "Labels that they bear from now on.", "要设置的标签。"),
    ("agents_label/remove", "Keys of labels that they bear no more.", "要移除的标签键。"),
    ("agents/bk_cloud_id", "Only those of this cloud area.", "只列出该云区域的 agent。"),
    ("agents/bk_biz_id", "Only those of this business.", "只列出该业务的 agent。"),
    (
        "agents/version",
        "Only those of this version; * and ? are allowed.",
        "只列出该版本的 agent，可用 * 与 ?。",
    ),
    ("agents/state", "connected, away or revoked.", "状态：connected、away 或 revoked。"),
    (
        "agents/offline_secs",
        "Only those that have been away for at least so many seconds.",
        "只列出离线至少这么多秒的 agent。",
    ),
    (
        "agents/select",
        "A selection, its terms separated by commas: addresses, ranges (10.0.0.1-10.0.0.50), blocks (10.0.0.0/24), globs (10.0.*), agent ids, labels (KEY=VALUE).",
        "选择条件，以逗号分隔：地址、范围（10.0.0.1-10.0.0.50）、网段（10.0.0.0/24）、通配（10.0.*）、agent ID、标签（KEY=VALUE）。",
    ),
    ("agents/after", "Only those whose ids come after this one.", "只列出 ID 在此之后的 agent。"),
    ("agents/limit", "How many at most. Absent: all.", "返回数量上限。不填为全部。"),
    (
        "operate/select",
        "The terms of the selection: addresses, ranges (10.0.0.1-10.0.0.50), blocks (10.0.0.0/24), globs (10.0.*), each with CLOUD: before it or not, agent ids, and labels (KEY=VALUE, the value may be a glob). A host must match one of the places, if there are any, and all labels. A term that means no agent is refused.",
        "选择条件：地址、范围（10.0.0.1-10.0.0.50）、网段（10.0.0.0/24）、通配（10.0.*），可带 CLOUD: 前缀；agent ID；标签（KEY=VALUE，值可用通配）。主机须符合任一位置条件（如有）及全部标签。没有对应 agent 的条件会被拒绝。",
    ),
    (
        "operate/names",
        "More names of processes in the namespace, or globs with * and ?. A glob means the processes that are known.",
        "命名空间中的更多进程名，或含 * 与 ? 的通配。通配只对应已知的进程。",
    ),
    (
        "operate/change",
        "Names of fields of spec, such as start_retries. On hosts that have a spec of the process stored only these fields change, and the rest of the stored spec stays. Absent: spec replaces the stored one.",
        "spec 中字段的名称，如 start_retries。主机已保存该进程的定义时只修改这些字段，其余保持不变。不填则整体替换。",
    ),
    (
        "operate/dry_run",
        "Only show which hosts are meant: nothing is stored, nothing is sent.",
        "仅显示选中的主机，不保存也不下发。",
    ),
    ("agents_assign/bk_biz_id", "The business that they go to.", "目标业务 ID。"),
    ("business_create/bk_biz_id", "The business's id.", "业务 ID。"),
    ("business_create/bk_biz_name", "The business's name.", "业务名称。"),
    ("business_set_create/bk_biz_set_id", "The set's id.", "业务集 ID。"),
    ("business_set_create/bk_biz_set_name", "The set's name.", "业务集名称。"),
    ("business_set_create/bk_biz_ids", "The businesses in it.", "所含业务的 ID。"),
    ("audit/limit", "How many, the newest first. Absent: 50.", "返回数量，最新的在前。不填为 50。"),
    ("audit/app", "Only what this app did.", "只列出该应用的记录。"),
    ("audit/action", "Only this action.", "只列出该动作的记录。"),
];

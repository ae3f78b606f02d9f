//! What the APIs are for, and what is said of all of them.

use super::{Text, Titled};

pub(super) const TEXTS: &[Text] = &[
    (
        "info",
        "procfleet runs processes on a fleet of hosts and keeps them alive. It speaks the process APIs of BlueKing GSE and JOB.\n\nEvery answer is JSON in the same frame: result, code, message, data, request_id. What the API refuses is answered with HTTP 200, result false and a code; 404 is an unknown path, 503 a server that is ending. Unknown fields are ignored by the GSE and JOB APIs and refused by procfleet's own; null is the same as absent. The Content-Type of a request does not matter.\n\nThe caller logs in with the X-Bkapi-Authorization header or with the same fields beside the request's own.",
        "procfleet 在大量主机上运行进程并保持其存活，兼容蓝鲸 GSE 与 JOB 的进程接口。\n\n所有返回均为同一结构的 JSON：result、code、message、data、request_id。被拒绝的请求以 HTTP 200、result false 与错误码返回；404 为未知路径，503 为服务正在退出。GSE 与 JOB 接口忽略未知字段，procfleet 自有接口拒绝未知字段；null 等同于不填。请求的 Content-Type 不影响解析。\n\n登录信息放在 X-Bkapi-Authorization 头中，或与请求字段并列。",
    ),
    (
        "header/X-Bkapi-Authorization",
        "A JSON text: {\"bk_app_code\": \"…\", \"bk_app_secret\": \"…\", \"bk_username\": \"…\"}. Where it is sent, the login in the body does not count.",
        "JSON 文本：{\"bk_app_code\": \"…\", \"bk_app_secret\": \"…\", \"bk_username\": \"…\"}。提供该头时，请求体中的登录字段不起作用。",
    ),
    (
        "header/Idempotency-Key",
        "A key of the caller's. The same app that sends the same request under the same key gets the same task; another request under it is refused.",
        "调用方自定的幂等键。同一应用以同一键发送同一请求，得到同一任务；键相同而请求不同则被拒绝。",
    ),
    (
        "header/X-Bkapi-Request-Id",
        "The call's id; the answer repeats it. Where a call makes a task and has no Idempotency-Key, the same request under the same id within 60 s is one task.",
        "请求 ID，原样返回。提交任务且未提供 Idempotency-Key 时，60 秒内相同 ID 的相同请求只产生一个任务。",
    ),
    ("path/task_id", "The task's id.", "任务 ID。"),
    ("path/id", "The webhook's number.", "推送编号。"),
    ("path/name", "The user's name.", "用户名。"),
    ("path/code", "The app's code.", "应用 ID。"),
    ("response/Answer", "Accepted or refused: the code says which.", "接受或拒绝，以 code 区分。"),
    ("response/Page", "The page.", "页面内容。"),
    (
        "response/Ending",
        "The server is ending, or has accepted as much as it can hold (code 1000121): try again, after the seconds of Retry-After.",
        "服务正在退出，或已接受的任务达到上限（code 1000121）：请在 Retry-After 给出的秒数之后重试。",
    ),
    ("response/NoSuchApi", "Nothing is served under this path.", "没有这个路径。"),
];

pub(super) const TITLES: &[Titled] = &[
    (
        "gse-v2",
        ["GSE, second generation", "GSE 第二代接口"],
        [
            "One process, or many, on any number of hosts: the whole spec comes with the call, and hosts or agent ids name the targets.",
            "在任意数量的主机上操作一个或多个进程：spec 随请求发送，以主机或 agent ID 指定目标。",
        ],
    ),
    (
        "gse-v1",
        ["GSE, first generation", "GSE 第一代接口"],
        [
            "A process is registered first and operated by its name afterwards; hosts are named with their supplier.",
            "先注册进程信息，再按名称操作；主机需带开发商 ID。",
        ],
    ),
    (
        "job",
        ["JOB", "JOB 接口"],
        [
            "JOB's words for the same operations: each process comes with its hosts, and the hosts belong to a business or a set of businesses.",
            "JOB 对相同操作的接口：每个进程携带其主机，主机属于某个业务或业务集。",
        ],
    ),
    (
        "job.operate_proc",
        ["Operate processes by their scripts", "操作进程（脚本）"],
        [
            "start, stop, restart and reload run the scripts of those names in setup_path, with the process's name. Ask job.get_proc_result how it went.",
            "启动、停止、重启、重载执行 setup_path 下的同名脚本，并以进程名为参数。结果用 job.get_proc_result 查询。",
        ],
    ),
    (
        "job.operate_process",
        ["Operate processes by commands", "操作进程（命令）"],
        [
            "As job.operate_proc; the commands are the caller's own.",
            "同 job.operate_proc；命令由调用方提供。",
        ],
    ),
    (
        "job.manage_proc",
        ["Host or unhost processes", "注册或取消托管进程"],
        [
            "From now on the agent keeps the processes in their wanted state, or leaves them alone. One that is hosted and not running is started.",
            "令 agent 托管进程或不再托管。注册托管时未运行的进程会被启动。",
        ],
    ),
    (
        "job.get_proc_result",
        ["How a task went", "查询进程操作结果"],
        [
            "status is 115 until all operations have ended; content is an object here.",
            "全部结束前 status 为 115；此处 content 为对象。",
        ],
    ),
    (
        "job.get_agent_status",
        ["Whether agents are connected", "查询 agent 在线状态"],
        [
            "In the order of the hosts; a host without an agent is 0.",
            "按主机顺序返回；没有 agent 的主机为 0。",
        ],
    ),
    (
        "get_task_state",
        ["The state of a task", "查询任务状态"],
        [
            "One look at a task as a whole: each agent stands in the list of its gravest operation.",
            "任务整体状态：每个 agent 列在其最严重的操作所对应的列表中。",
        ],
    ),
    (
        "upgrade_to_agent_id",
        ["Address hosts by agent id", "主机切换为 agent ID"],
        [
            "Tells for each host whether its agent has the given id. Nothing has to be changed for it: processes are kept under the agent's id from the beginning.",
            "返回各主机的 agent ID 是否一致。无需变更任何数据：进程信息自始即按 agent ID 保存。",
        ],
    ),
    (
        "set_process_group_info",
        ["Set process groups", "设置进程组"],
        [
            "Says what the processes of a namespace may use together on a host. Answered like register_proc_info; the keys are bk_cloud_id:bk_supplier_id:ip:namespace.",
            "设置命名空间内的进程在主机上合计可用的资源。返回方式同 register_proc_info；key 为 bk_cloud_id:bk_supplier_id:ip:namespace。",
        ],
    ),
    (
        "get_process_group_info",
        ["Show process groups", "查询进程组"],
        ["The groups that the agents have noted.", "agent 已记录的进程组。"],
    ),
    ("user_list", ["List users", "用户列表"], ["Every user that was made here.", "在此创建的全部用户。"]),
    ("user_create", ["Make a user", "创建用户"], ["Answered with it.", "返回所创建的用户。"]),
    ("user_token", ["Give a user a token", "创建用户令牌"], ["For bk_token.", "用作 bk_token。"]),
    (
        "user_disable",
        ["Disable a user", "停用用户"],
        ["Its tokens open nothing any more.", "停用后其令牌无效。"],
    ),
    (
        "user_enable",
        ["Enable a user", "启用用户"],
        ["Its tokens that have not expired open again.", "未过期的令牌恢复有效。"],
    ),
    ("user_revoke", ["Revoke a user's tokens", "吊销用户令牌"], ["All that it has.", "吊销其全部令牌。"]),
    (
        "native",
        ["procfleet's own: questions", "procfleet 自有接口：查询"],
        [
            "What the command line and the console ask. Every app may ask, and sees what it was granted.",
            "命令行与控制台使用的查询接口。各应用均可使用，只能看到授权范围内的内容。",
        ],
    ),
    (
        "admin",
        ["procfleet's own: administration", "procfleet 自有接口：管理"],
        [
            "Apps and their grants, join tokens, businesses, the audit trail. For administrators only.",
            "应用与授权、加入令牌、业务、审计记录。仅限管理员。",
        ],
    ),
    (
        "operations",
        ["Operations", "运维"],
        ["For those who look after the server. No login is needed.", "供运维人员使用，无需登录。"],
    ),
    (
        "operate_proc_v2",
        ["Operate a process", "进程操作"],
        [
            "Starts, stops, restarts, reloads, kills, queries, hosts or unhosts one process on many hosts. The answer is a task id, at once; ask get_proc_operate_result_v2 how it went. The task is durable before the answer is sent, and each command is started at most once on its host.",
            "在多台主机上启动、停止、重启、重载、强杀、查询、托管或取消托管一个进程。立即返回任务 ID，结果用 get_proc_operate_result_v2 查询。返回前任务已落盘；每条命令在其主机上最多启动一次。",
        ],
    ),
    (
        "operate_proc_multi",
        ["Operate many processes", "批量进程操作"],
        [
            "Many requests like those of operate_proc_v2 in one task; 100,000 operations at most.",
            "将多个 operate_proc_v2 请求合并为一个任务，最多 100000 个操作。",
        ],
    ),
    (
        "get_proc_operate_result_v2",
        ["How a task went", "查询进程操作结果"],
        [
            "Exactly the requested keys, from the first moment on: bk_cloud_id:ip:namespace:name, or agent_id:namespace:name where the request named agents. error_code 115 means: ask again.",
            "自提交起即返回全部请求的 key：bk_cloud_id:ip:namespace:name；请求以 agent 指定时为 agent_id:namespace:name。error_code 为 115 时请稍后再查。",
        ],
    ),
    (
        "get_proc_status_v2",
        ["The state of a process", "查询进程状态"],
        [
            "What the agents last said of one process; they push every change. A process that is not registered is not in the list.",
            "agent 最近上报的进程状态（变化时即时上报）。未注册的进程不在列表中。",
        ],
    ),
    (
        "sync_proc_status",
        ["The state of a namespace's processes", "分页查询命名空间内的进程状态"],
        [
            "All processes of a namespace on all hosts that the app may see, page by page.",
            "按页返回命名空间内、应用可见主机上的全部进程。",
        ],
    ),
    (
        "update_proc_info",
        ["Register or replace a process", "更新进程信息"],
        [
            "As register_proc_info, and replaces what is registered. The supplier may be left out.",
            "同 register_proc_info；已注册时替换。开发商 ID 可不填。",
        ],
    ),
    (
        "list_agent_state",
        ["The state of agents", "查询 agent 状态"],
        [
            "The agents by their ids: version, and whether they are connected.",
            "按 agent ID 查询版本与连接状态。",
        ],
    ),
    (
        "list_agent_info",
        ["Agents in detail", "查询 agent 详细信息"],
        ["As list_agent_state, with what is known of the host.", "同 list_agent_state，并包含主机信息。"],
    ),
    (
        "register_proc_info",
        ["Register a process", "注册进程信息"],
        [
            "Makes a spec known to the hosts' agents, which keep it for later operations. The answer comes when all have answered, or after 10 s with error_code 115 for the rest: the same call again then tells how it went. Keys: bk_cloud_id:bk_supplier_id:ip:namespace:name. A process that is registered already is 850.",
            "将 spec 注册到各主机 agent，供后续操作使用。全部完成后返回；超过 10 秒未完成的为 error_code 115，以相同请求重试即可得到结果。key 为 bk_cloud_id:bk_supplier_id:ip:namespace:name。已注册的进程返回 850。",
        ],
    ),
    (
        "unregister_proc_info",
        ["Forget a process", "注销进程信息"],
        [
            "The agents forget the process. The process itself goes on running.",
            "agent 删除该进程的信息，进程本身继续运行。",
        ],
    ),
    (
        "operate_proc",
        ["Operate a registered process", "进程操作（第一代）"],
        [
            "As operate_proc_v2, with suppliers, and usually without a spec: that of register_proc_info is used.",
            "同 operate_proc_v2，主机需带开发商 ID，通常不带 spec，使用已注册的信息。",
        ],
    ),
    (
        "get_proc_operate_result",
        ["How a task went", "查询进程操作结果（第一代）"],
        [
            "As get_proc_operate_result_v2; the keys are bk_cloud_id:bk_supplier_id:ip:namespace:name.",
            "同 get_proc_operate_result_v2；key 为 bk_cloud_id:bk_supplier_id:ip:namespace:name。",
        ],
    ),
    (
        "get_proc_status",
        ["The state of a process", "查询进程状态（第一代）"],
        ["As get_proc_status_v2, with suppliers.", "同 get_proc_status_v2，主机需带开发商 ID。"],
    ),
    (
        "get_agent_status",
        ["Whether agents are connected", "查询 agent 在线状态"],
        [
            "By host; the answer's keys are bk_cloud_id:ip. A host without an agent is 0.",
            "按主机查询；返回的 key 为 bk_cloud_id:ip。没有 agent 的主机为 0。",
        ],
    ),
    (
        "get_agent_info",
        ["The agents' versions", "查询 agent 版本"],
        ["By host; the answer's keys are bk_cloud_id:ip.", "按主机查询；返回的 key 为 bk_cloud_id:ip。"],
    ),
    (
        "operate",
        ["Operate on processes by names, globs and selections", "按名称、通配与选择条件操作进程"],
        [
            "As operate_proc_v2, for processes by names and globs, on the hosts that are named, that a selection means, or that are known to have the process. What is meant at this moment is written into the task. With dry_run it is only shown.",
            "同 operate_proc_v2，进程可用名称或通配指定，目标为指定的主机、选择条件对应的主机，或已知有该进程的主机。此刻的目标写入任务。dry_run 时仅显示目标。",
        ],
    ),
    (
        "task_cancel",
        ["Cancel a task", "取消任务"],
        [
            "What has not begun does not begin; what is under way on a host goes on there, and nobody waits for it. Each open operation soon ends with code 826 and says how far it had come. A task that has ended, or was cancelled before, stays as it is. Answered with the task as it is then.",
            "未开始的操作不再开始；主机上正在执行的继续执行，但不再等待其结果。未结束的操作很快以 826 结束并说明进展。已结束或已取消的任务不变。返回当时的任务。",
        ],
    ),
    (
        "task_retry",
        ["Try a task again where it failed", "重试任务中失败的主机"],
        [
            "A new task with the same requests, for the hosts whose operations failed. It is refused while operations are open, and when none has failed. The same call under the same Idempotency-Key is one task.",
            "以相同请求、仅针对失败的主机创建新任务。仍有未结束的操作，或没有失败的操作时拒绝。相同 Idempotency-Key 的相同请求只产生一个任务。",
        ],
    ),
    (
        "agents",
        ["List agents", "agent 列表"],
        [
            "The agents of the caller's businesses that pass all filters, by id. For the next page, give the last id as after.",
            "调用方业务范围内符合全部条件的 agent，按 ID 排序。翻页时将最后一个 ID 作为 after。",
        ],
    ),
    (
        "procs",
        ["List processes", "进程列表"],
        [
            "The processes that the caller may see, as their agents last described them.",
            "调用方可见的进程，为 agent 最近上报的状态。",
        ],
    ),
    (
        "tasks",
        ["List tasks", "任务列表"],
        ["The caller's own tasks; an administrator sees all.", "调用方自己的任务；管理员可见全部。"],
    ),
    ("task", ["Show a task", "任务详情"], ["A task with all its operations.", "任务及其全部操作。"]),
    (
        "events",
        ["List events", "事件列表"],
        [
            "What happened to processes without an operation: exits, restarts, giving up, limits.",
            "非操作引起的进程事件：退出、拉起、放弃、超限等。",
        ],
    ),
    (
        "spec",
        ["Show the stored spec of a process", "查看进程已保存的定义"],
        [
            "What the agent has stored, in the form in which requests have it. An app that is limited to accounts sees only specs of these accounts. Nothing is run on the host.",
            "agent 已保存的定义，格式与请求相同。限定了账号的应用只能看到这些账号的定义。不会在主机上执行任何命令。",
        ],
    ),
    (
        "logs",
        ["Read a process's output", "读取进程输出"],
        [
            "What a process wrote to its standard output and error, read from its host: the newest lines, or those since a cursor. \
             Nothing is run on the host.",
            "从主机读取进程写到标准输出和标准错误的内容：最新的若干行，或某游标之后的行。不会在主机上执行任何命令。",
        ],
    ),
    (
        "webhook_list",
        ["List webhooks", "推送列表"],
        ["Who is told of events, and what waits for them.", "事件推送的接收方及其待接收数量。"],
    ),
    (
        "webhook_create",
        ["Add a webhook", "添加推送"],
        [
            "Events are sent there from now on, in GSE's shape, until they are taken.",
            "此后以 GSE 的格式推送事件，直至被接收。",
        ],
    ),
    (
        "webhook_remove",
        ["Remove a webhook", "删除推送"],
        ["Answered with those that are left.", "返回剩余的推送。"],
    ),
    ("app_list", ["List apps", "应用列表"], ["Every app that may log in.", "全部应用。"]),
    (
        "app_create",
        ["Make an app", "创建应用"],
        [
            "A new caller of the API. It can log in and nothing else until it is granted something.",
            "新的调用方。授权前只能登录。",
        ],
    ),
    ("app_show", ["Show an app", "应用详情"], ["The app and its grants.", "应用及其授权。"]),
    (
        "app_rotate",
        ["Give an app a new secret", "更换应用密钥"],
        ["The old secret opens nothing from then on.", "旧密钥立即失效。"],
    ),
    ("app_disable", ["Disable an app", "停用应用"], ["It cannot log in any more.", "停用后无法登录。"]),
    (
        "app_enable",
        ["Enable an app", "启用应用"],
        ["It can log in again, with the grants that it had.", "恢复登录，授权不变。"],
    ),
    ("app_grant", ["Grant", "授权"], ["Adds to what the app may use.", "增加应用的授权。"]),
    ("app_revoke", ["Revoke", "收回授权"], ["Takes away from what the app may use.", "收回应用的部分授权。"]),
    (
        "token_list",
        ["List join tokens", "加入令牌列表"],
        [
            "Those that can be used, and those that could until lately. Secrets are not kept.",
            "可用及近期的加入令牌，不含密钥。",
        ],
    ),
    (
        "token_revoke",
        ["Revoke a join token", "吊销加入令牌"],
        [
            "Nobody can join with it any more. Agents that have joined stay.",
            "吊销后不能再用于加入；已加入的 agent 不受影响。",
        ],
    ),
    (
        "token_create",
        ["Make a join token", "创建加入令牌"],
        ["New agents join with it.", "供新 agent 加入时使用。"],
    ),
    (
        "agents_assign",
        ["Assign agents to a business", "将 agent 划入业务"],
        ["Answered with the agents as they are then.", "返回变更后的 agent。"],
    ),
    (
        "agents_forget",
        ["Forget agents", "删除 agent"],
        [
            "For agents that are away and will not come back. They and their processes are listed no more, and what comes back with one of their certificates is refused until it joins with a new token. Answered with the agents as they were.",
            "用于不再恢复的离线 agent。删除后不再列出其与其进程；持原证书者须用新令牌重新加入。返回删除前的 agent。",
        ],
    ),
    (
        "agents_revoke",
        ["Revoke agents", "吊销 agent"],
        [
            "Their sessions are cut at once and they are let in no more; only a new join with a token undoes it. What they were carrying out ends with code 805, what was not sent yet with 117. Answered with the agents as they are then.",
            "立即切断其会话，且不再允许接入；只有用令牌重新加入才能恢复。正在执行的操作以 805 结束，尚未下发的以 117 结束。返回变更后的 agent。",
        ],
    ),
    (
        "agents_label",
        ["Label agents", "设置 agent 标签"],
        [
            "What operators say of a host, to select it by. An agent that joins for a host takes over its labels. Answered with the agents as they are then.",
            "运维人员对主机的标注，可用于选择目标。重新加入的主机沿用原有标签。返回变更后的 agent。",
        ],
    ),
    (
        "ca_show",
        ["The CA", "CA 信息"],
        [
            "The authority that agents and server know each other by, its successor while there is one, and who still needs the old one.",
            "agent 与服务端互认所用的 CA；轮换期间还有继任 CA，以及仍依赖旧 CA 的 agent 与令牌数量。",
        ],
    ),
    (
        "ca_rotate",
        ["Give the CA a successor", "轮换 CA"],
        [
            "Both are trusted from then on. Connected agents renew their certificates onto the successor within minutes; others do when they come back. The old CA is retired when no agent and no usable join token needs it. While there is a successor, this changes nothing.",
            "此后两个 CA 同时受信任。在线 agent 在数分钟内换用继任 CA 签发的证书，离线的在重新连接后更换。没有 agent 与可用令牌依赖旧 CA 时自动退役。已有继任 CA 时不产生变化。",
        ],
    ),
    (
        "ca_retire",
        ["Retire the old CA", "退役旧 CA"],
        [
            "The successor takes its place now. It is refused while somebody needs the old one, unless it is forced.",
            "立即由继任 CA 取代。仍有 agent 或令牌依赖旧 CA 时拒绝，除非强制。",
        ],
    ),
    ("business_list", ["List businesses", "业务列表"], ["Every business.", "全部业务。"]),
    ("business_create", ["Make a business", "创建业务"], ["Answered with it.", "返回所创建的业务。"]),
    ("business_set_list", ["List sets of businesses", "业务集列表"], ["Every set.", "全部业务集。"]),
    (
        "business_set_create",
        ["Make a set of businesses", "创建业务集"],
        ["Answered with it.", "返回所创建的业务集。"],
    ),
    (
        "audit",
        ["The audit trail", "审计记录"],
        [
            "Who did what, from where and with which code; also what was refused.",
            "何人、从何处、做了什么、返回码为何；被拒绝的请求也有记录。",
        ],
    ),
    ("openapi", ["This document", "本文档"], ["OpenAPI 3.1.", "OpenAPI 3.1 格式。"]),
    (
        "docs",
        ["This document, to read", "文档页面"],
        ["One page without scripts, in English and Chinese.", "不含脚本的单页文档，中英双语。"],
    ),
    ("healthz", ["The process is there", "存活检查"], ["Always ok.", "始终为 ok。"]),
    (
        "readyz",
        ["It can do its work", "就绪检查"],
        [
            "200 when the store takes changes, else 503 with the reason.",
            "存储可写时为 200，否则为 503 并说明原因。",
        ],
    ),
    (
        "metrics",
        ["Metrics", "监控指标"],
        ["For Prometheus, in OpenMetrics text.", "Prometheus 指标，OpenMetrics 文本格式。"],
    ),
];

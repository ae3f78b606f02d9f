//! What the error codes mean.

use procfleet_core::code::Code;

pub(super) const TEXTS: &[(Code, &str, &str)] = &[
    (Code::Success, "It is as it was asked to be.", "成功。"),
    (
        Code::SystemError,
        "Something inside procfleet failed; its log says what.",
        "procfleet 内部错误，详见其日志。",
    ),
    (
        Code::FileInvalid,
        "A file or folder that the spec names does not exist or cannot be used.",
        "spec 中的文件或目录不存在或不可用。",
    ),
    (
        Code::ArgsInvalid,
        "A value in the spec cannot be used on this host.",
        "spec 中的某个值在该主机上不可用。",
    ),
    (Code::JsonInvalid, "The body is not usable JSON.", "请求体不是可用的 JSON。"),
    (Code::Handling, "Accepted and not finished: ask again.", "处理中，请稍后再查。"),
    (Code::NoAgent, "There is no connected agent for this host.", "该主机没有已连接的 agent。"),
    (Code::Timeout, "No outcome by the operation's deadline.", "操作在期限内没有结果。"),
    (Code::BeyondLimit, "More than is allowed: a body, a queue.", "超出上限：请求体或队列过大。"),
    (
        Code::InvalidUser,
        "The OS account does not exist on the host or may not be used.",
        "系统账户在主机上不存在或不可使用。",
    ),
    (
        Code::NoSpec,
        "The agent knows no spec for this process, and none was sent.",
        "agent 没有该进程的 spec，请求也未携带。",
    ),
    (Code::Busy, "Too many operations wait for this process.", "该进程等待中的操作过多。"),
    (
        Code::Interrupted,
        "The agent or its host went down in the middle of the operation; the message says how the process was found.",
        "操作过程中 agent 或主机中断；信息中说明之后看到的进程状态。",
    ),
    (
        Code::NoTask,
        "Nobody issued this task id, it was deleted since, or it is another app's.",
        "任务 ID 不存在、已删除，或属于其他应用。",
    ),
    (
        Code::BadRequest,
        "Fields are missing or wrong; the message names each with its place.",
        "字段缺失或错误；信息中逐一指出位置与原因。",
    ),
    (
        Code::CommandTimeout,
        "A command ran longer than op_timeout; all that it had started was ended.",
        "命令执行超过 op_timeout，其启动的全部进程已被结束。",
    ),
    (
        Code::Cancelled,
        "A later order overtook this operation, or its task was cancelled.",
        "操作被后来的指令取代，或任务已被取消。",
    ),
    (Code::NoCommand, "The spec has no command for this operation.", "spec 中没有该操作所需的命令。"),
    (Code::AlreadyRunning, "Nothing to start: it is running.", "进程已在运行，无需启动。"),
    (Code::NotRunning, "Nothing to stop: it is not running.", "进程未在运行，无需停止。"),
    (Code::UnknownOp, "No such operation.", "未知的操作类型。"),
    (
        Code::PostCheck,
        "After the command the process is not as it should be; the message says why.",
        "命令执行后进程状态不符合预期；信息中说明原因。",
    ),
    (
        Code::NotAllowed,
        "The host is outside the businesses that the app may use.",
        "主机不在该应用可用的业务范围内。",
    ),
    (Code::AlreadyRegistered, "The process is registered already.", "进程信息已注册。"),
    (
        Code::CommandFailed,
        "A command ended with a status other than 0; its output is in the message.",
        "命令退出码非 0；信息中包含其输出。",
    ),
    (Code::NoSuchAgents, "None of the agents that were asked for is known.", "所查询的 agent 均不存在。"),
    (
        Code::GatewaySystem,
        "Something inside procfleet failed before the request was understood.",
        "请求尚未解析时 procfleet 内部出错。",
    ),
    (
        Code::UserDenied,
        "The user cannot be verified, or the app may not name one.",
        "用户无法验证，或应用无权指定用户。",
    ),
    (
        Code::AppDenied,
        "The app is unknown, disabled, its secret is wrong, or it may not do what it asks for.",
        "应用不存在、已停用、密钥错误，或无权执行所请求的操作。",
    ),
    (Code::NoSuchApi, "No such API.", "没有这个 API。"),
    (Code::BadParameter, "The request cannot be read.", "请求无法读取。"),
    (
        Code::JobIllegalParam,
        "(JOB) Fields are missing or wrong; the message names each with its place.",
        "（JOB）字段缺失或错误；信息中逐一指出位置与原因。",
    ),
    (
        Code::JobFailure,
        "(JOB) Something inside procfleet failed; its log says what.",
        "（JOB）procfleet 内部错误，详见其日志。",
    ),
];

//! A running process, as the kernel describes it.

use crate::exec::context::ExecContext;
use crate::exec::procfs::{self, Id, Stat};
use procfleet_core::op::Instance;

/// Maximum number of characters of a displayed command line.
const COMMAND_LINE_LIMIT: usize = 1024;
/// Minimum interval for a CPU figure; within less the last figure is kept.
const SHORTEST_SPAN_MILLIS: u64 = 200;

/// The CPU time of one process at one time, for the next inspection.
#[derive(Clone, Copy, Debug)]
pub(in crate::exec) struct CpuSample {
    id: Id,
    at_millis: u64,
    ticks: u64,
    cpu_now: f64,
}

/// `None` when the process is gone. Replaces `last` by the new sample.
pub(in crate::exec) fn inspect(
    context: &ExecContext,
    id: Id,
    last: &mut Option<Box<CpuSample>>,
) -> Option<Instance> {
    let stat = Stat::read(id.pid).filter(|stat| stat.id == id && stat.is_running())?;
    let argv = procfs::argv(id.pid);
    let now = context.now().0;
    let began = id.start_ticks.saturating_mul(1000) / context.ticks_per_second;
    let elapsed = now.saturating_sub(began);
    let ticks = stat.user_ticks.saturating_add(stat.system_ticks);
    let cpu_average = per_cent_of_host(context, ticks, elapsed);

    let sample = match last.as_deref().copied().filter(|last| last.id == id) {
        Some(last) if now.saturating_sub(last.at_millis) < SHORTEST_SPAN_MILLIS => last,
        Some(last) => {
            let span = now - last.at_millis;
            let cpu_now = per_cent_of_host(context, ticks.saturating_sub(last.ticks), span);
            CpuSample { id, at_millis: now, ticks, cpu_now }
        }
        None => CpuSample { id, at_millis: now, ticks, cpu_now: cpu_average },
    };
    *last = Some(Box::new(sample));

    let memory_bytes = stat.rss_pages.saturating_mul(context.page_bytes);
    let began_wall = context.wall_millis().saturating_sub(elapsed) / 1000;
    Some(Instance {
        pid: id.pid,
        command_line: command_line(&stat, &argv),
        state: stat.state.to_string(),
        began_at: i64::try_from(began_wall).unwrap_or(0),
        elapsed_secs: elapsed / 1000,
        threads: stat.threads,
        cpu_now: sample.cpu_now,
        cpu_average,
        memory_percent: memory_bytes as f64 * 100.0 / context.memory_bytes.max(1) as f64,
        memory_kib: memory_bytes / 1024,
        user_ticks: stat.user_ticks,
        system_ticks: stat.system_ticks,
    })
}

pub(in crate::exec) fn per_cent_of_host(context: &ExecContext, ticks: u64, span_millis: u64) -> f64 {
    if span_millis == 0 {
        return 0.0;
    }
    let seconds_of_cpu = ticks as f64 / context.ticks_per_second as f64;
    let seconds_there_were = span_millis as f64 / 1000.0 * context.cpus as f64;
    (seconds_of_cpu * 100.0 / seconds_there_were).min(100.0)
}

/// As `ps` shows it: a process without arguments by its name in brackets.
fn command_line(stat: &Stat, argv: &[String]) -> String {
    if argv.is_empty() {
        return format!("[{}]", stat.comm);
    }
    argv.join(" ").chars().take(COMMAND_LINE_LIMIT).collect()
}

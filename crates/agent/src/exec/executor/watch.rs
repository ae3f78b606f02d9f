//! Watching processes, and reporting their ends to the actor.

use super::{ProcExecutor, id_of};
use crate::exec::context::ExecContext;
use crate::exec::procfs::Id;
use crate::exec::spawn::run::RunShell;
use crate::exec::watch::exits::{ExitSubscription, OwnedTask};
use crate::exec::watch::{children, oom, pidfd};
use crate::inbox::Inputs;
use procfleet_core::process::{Exit, Process};
use procfleet_core::supervise::{Input, ProcNotice, RunId};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How the exit of a process is detected.
#[derive(Debug)]
pub(super) enum ExitWatch {
    /// The process is a run's shell; the code that reaps the shell reports the exit.
    Shell(RunShell),
    Pidfd(ExitSubscription),
    /// No pidfd or epoll slot was available, so the process is polled.
    Polled(OwnedTask),
}

impl ExitWatch {
    /// Whether the exit has been reported.
    pub(super) fn is_over(&self) -> bool {
        match self {
            ExitWatch::Shell(shell) => shell.watched().is_none(),
            ExitWatch::Pidfd(waiting) => waiting.is_over(),
            ExitWatch::Polled(task) => task.is_finished(),
        }
    }
}

impl ProcExecutor {
    /// Reports the end of this process as [`ProcNotice::Exited`]; at once if it is gone already. Idempotent:
    /// watching the same process again has no effect.
    pub fn watch(&mut self, process: Process) {
        self.tidy();
        let id = id_of(&process);
        self.retired.retain(|retired| *retired != id);
        if self.watches.iter().any(|(watched, _)| *watched == id) {
            return;
        }
        oom::watch(id);
        let sender = self.input_sender();
        let shell = self.runs().find(|run| run.leader == id).map(|run| run.shell.clone());
        let watch = match shell {
            Some(shell) => match shell.watch_as(process) {
                None => ExitWatch::Shell(shell),
                Some(exit) => {
                    self.mark_changed();
                    return self.send_input(Input::Notice(ProcNotice::Exited { process, exit }));
                }
            },
            None => {
                let kept = children::keep(id.pid);
                let sessions = self.led_sessions().filter(|_| kept);
                let ended = async move |exit| {
                    if kept {
                        children::let_go(id.pid);
                    }
                    sender.exited(process, exit).await;
                };
                match pidfd::open_confirmed(&process) {
                    Ok(pidfd) => ExitWatch::Pidfd(self.context.exits.when_gone(pidfd, async move |pidfd| {
                        sessions.iter().for_each(|sessions| sessions.note_unreaped(id));
                        ended(pidfd::exit(&pidfd, id).await).await;
                    })),
                    Err(error) => ExitWatch::Polled(OwnedTask::spawn(async move {
                        ended(pidfd::polled(process, error).await).await;
                    })),
                }
            }
        };
        // Most procs have one watch.
        self.watches.reserve_exact(1);
        self.watches.push((id, watch));
    }

    /// The shell of a command stands for the process until the process is found. If the shell were watched
    /// any longer, it would count as running beside its process, and outlive a stop.
    pub(super) fn stop_watching_shell(&mut self, run: RunId, process: Id) {
        let Some((_, run)) = self.runs.iter().find(|(id, _)| *id == run) else { return };
        let leader = run.leader;
        if leader != process {
            run.shell.end_watch();
            self.watches.retain(|(id, _)| *id != leader);
        }
    }

    /// Sends an input from a task: the caller is the actor that reads the inbox, and must not wait for space
    /// in it.
    pub(super) fn send_input(&mut self, input: Input) {
        let sender = self.input_sender();
        self.sending.retain(|task| !task.is_finished());
        self.sending.push(OwnedTask::spawn(async move { sender.send(input).await }));
    }

    pub(super) fn input_sender(&self) -> InputSender {
        InputSender {
            inputs: self.inputs.clone(),
            context: self.context.clone(),
            changed_at: self.changed_at.clone(),
        }
    }
}

/// Sends inputs to the actor of the proc.
pub(super) struct InputSender {
    inputs: Inputs,
    context: Arc<ExecContext>,
    changed_at: Arc<AtomicU64>,
}

impl InputSender {
    pub(super) async fn exited(&self, process: Process, exit: Exit) {
        self.changed_at.store(self.context.now().0, Ordering::Relaxed);
        self.send(Input::Notice(ProcNotice::Exited { process, exit })).await;
    }

    pub(super) async fn send(&self, input: Input) {
        // The inbox is closed only when the actor is gone.
        let _ = self.inputs.send(Box::new(input)).await;
    }
}

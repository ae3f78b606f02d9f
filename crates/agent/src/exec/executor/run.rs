//! Starting a command for the proc, and where it writes to.

use super::ProcExecutor;
use crate::exec::error::NotStarted;
use crate::exec::output::CommandOutput;
use crate::exec::output::proc_log::OpenedLog;
use crate::exec::spawn::command::PreparedCommand;
use crate::exec::spawn::run::Run;
use procfleet_core::Spec;
use procfleet_core::process::Exit;
use procfleet_core::spec::Control;
use procfleet_core::supervise::{CommandEnd, EffectAnswer, Input, RunId};
use procfleet_failpoint::{Point, hit};
use rustix::fd::AsFd;
use std::path::Path;

impl ProcExecutor {
    /// Starts a command. Its end comes as [`EffectAnswer::CommandEnded`], also when it could not even begin.
    pub fn run(&mut self, run: RunId, command: &str, spec: &Spec) {
        self.tidy();
        self.mark_changed();
        self.mark.set_account(&spec.identity.user);
        let launch = self.context.prepare(&self.key, &self.mark, command, spec);
        let started = launch.and_then(|launch| {
            let output = self.output(run, &launch, spec);
            let began = self.context.now();
            let group = self.groups.make(began, run.0);
            let started = Run::start(launch, began, output, group.as_ref().map(|(_, open)| open.as_fd()));
            let group = group.map(|(group, _)| group);
            if let (Err(_), Some(group)) = (&started, &group) {
                self.groups.forget_if_empty(group);
            }
            started.map(|(run, pidfd, ending)| (run.in_group(group), pidfd, ending))
        });
        match started {
            Ok((mut started, pidfd, ending)) => {
                hit(Point::AgentProcessSpawned);
                tracing::info!(proc = %self.key, run = run.0, pid = started.leader.pid, "command started");
                let (group, shell, sender) =
                    (started.group.clone(), started.shell.clone(), self.input_sender());
                let (context, leader) = (self.context.clone(), started.leader);
                let sessions = self.led_sessions();
                started.waiting = Some(self.context.exits.when_gone(pidfd, async move |pidfd| {
                    sessions.iter().for_each(|sessions| sessions.note_unreaped(leader));
                    let end = ending.reap(pidfd).await;
                    let exit = shell.exit().unwrap_or(Exit::Unknown);
                    sender.send(Input::Answer(EffectAnswer::CommandEnded { run, end })).await;
                    if let Some(process) = shell.watched() {
                        sender.exited(process, exit).await;
                        shell.set_reported();
                    }
                    group.iter().for_each(|group| context.groups.command_ended(group));
                }));
                self.note_strays_of(&started);
                // Most procs have one run.
                self.runs.reserve_exact(1);
                self.runs.push((run, Box::new(started)));
            }
            Err(NotStarted { code, reason }) => {
                tracing::info!(proc = %self.key, run = run.0, %reason, "command could not be started");
                self.send_input(Input::Answer(EffectAnswer::CommandEnded {
                    run,
                    end: CommandEnd::NotStarted { code, reason },
                }));
            }
        }
    }

    /// The proc's log for a start command, else a file of the run. A failure never prevents the start.
    fn output(&mut self, run: RunId, launch: &PreparedCommand, spec: &Spec) -> CommandOutput {
        let Control { start_cmd, restart_cmd, .. } = &spec.control;
        if [start_cmd, restart_cmd].iter().any(|command| *command == launch.command()) {
            self.note.clear();
            let (opened, wrong) =
                self.proc_log.open(&self.context.proc_logs, spec, &self.key, launch.account());
            if let Some(reason) = wrong {
                tracing::warn!(proc = %self.key, run = run.0, %reason, "cannot open the log of log_path; output goes to the agent's data folder");
                self.note = format!("{reason}; its output is in the agent's folder");
            }
            match opened {
                Ok(OpenedLog { live, file, from }) => return CommandOutput::Log { live, file, from },
                Err(error) => {
                    tracing::warn!(proc = %self.key, run = run.0, %error, "cannot open the proc's log; output goes to a file of this run");
                }
            }
        }
        let in_use = |path: &Path| self.runs.iter().any(|(_, run)| run.writes_to(path));
        match self.outputs.create(&self.proc_log.folder(), run, self.context.wall_millis(), in_use) {
            Ok((path, file)) => {
                self.proc_log.also_keeps(path.clone());
                CommandOutput::Own { path, file }
            }
            Err(error) => {
                tracing::warn!(proc = %self.key, run = run.0, %error, "cannot create an output file; the command's output is lost");
                CommandOutput::Nowhere
            }
        }
    }

    /// Why the output does not go to the configured log; else empty.
    pub fn note(&self) -> &str {
        &self.note
    }

    /// The proc was unregistered.
    pub fn forget_output(&self) {
        self.proc_log.forget();
    }
}

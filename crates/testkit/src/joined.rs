//! An agent that runs apart from `up`, as on another host.

use crate::process::kill;
use crate::program::{Finished, Program, sessions};
use crate::up::Up;
use crate::wait::{PATIENCE, wait_until};
use rustix::process::Signal;
use std::path::Path;
use std::time::Duration;

/// Dropping it ends the agent with SIGTERM, then with SIGKILL.
#[derive(Debug)]
pub struct Joined {
    program: Program,
}

impl Joined {
    /// Starts `procfleet agent`; its token is given as an environment variable, as a unit file would.
    pub fn start(binary: &Path, server: &str, data: &Path, ip: &str, token: Option<&str>) -> Joined {
        Joined::start_with(binary, server, data, ip, token, &[])
    }

    /// As [`Joined::start`], with more in its environment.
    pub fn start_with(
        binary: &Path,
        server: &str,
        data: &Path,
        ip: &str,
        token: Option<&str>,
        environment: &[(&str, &Path)],
    ) -> Joined {
        let mut program =
            Program::new(binary).args(["agent", "--server", server, "--ip", ip, "--data"]).args([data]);
        if let Some(token) = token {
            program = program.env("PROCFLEET_TOKEN", token);
        }
        for (name, value) in environment {
            program = program.env(name, value);
        }
        program.start();
        Joined { program }
    }

    /// Waits until the server of `up` shows the host as connected and this very agent has logged it, too: for
    /// a while the server still has the session of an agent that was killed.
    #[track_caller]
    pub fn wait_until_connected(&mut self, up: &Up, ip: &str) {
        wait_until(PATIENCE, "the second agent is connected", || {
            assert!(self.program.is_running(), "the agent has ended: {}", self.program.stderr());
            if sessions(&self.program.stderr()) == 0 {
                return false;
            }
            let agents = up.client.data("/api/v1/agents");
            let mut agents = agents.as_array().expect("agents are a list").iter();
            agents.any(|agent| agent["ip"] == ip && agent["connected"] == true)
        });
    }

    #[track_caller]
    pub fn wait_until_log_says(&self, words: &str) {
        wait_until(PATIENCE, &format!("the agent's log says {words:?}"), || self.stderr().contains(words));
    }

    /// Waits until it has ended by itself.
    #[track_caller]
    pub fn finish(&mut self) -> Finished {
        self.program.finish(PATIENCE)
    }

    #[track_caller]
    pub fn end(&mut self, signal: Signal) -> Duration {
        self.program.end(signal, PATIENCE).1
    }

    pub fn is_running(&mut self) -> bool {
        self.program.is_running()
    }

    pub fn pid(&self) -> u32 {
        self.program.pid()
    }

    pub fn stderr(&self) -> String {
        self.program.stderr()
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("---- a joined agent's log ----\n{}", self.stderr());
        }
        if self.program.is_running() {
            kill(self.pid(), Signal::TERM);
        }
    }
}

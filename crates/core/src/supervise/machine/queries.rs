//! Queries: they look, answer, and run nothing.

use super::{Machine, State};
use crate::boot_time::BootTime;
use crate::code::Code;
use crate::id::OpId;
use crate::op::{OpKind, Order, ProcStatus};
use crate::process::Sighting;
use crate::supervise::record::Rest;
use crate::supervise::{Effect, LookScope, Step, View, messages};
use std::sync::Arc;

impl Machine {
    pub(super) fn inspect(&mut self, state: &State, order: &Order, out: &mut Step) {
        let Some(spec) = self.spec.clone().or_else(|| order.spec.clone().map(Arc::new)) else {
            return self.answer_query(
                order.op,
                Code::NoSpec,
                messages::no_spec(OpKind::Query),
                ProcStatus::default(),
                out,
            );
        };
        let identity = &spec.identity;
        let periodic = self.timetable().is_some();
        if !periodic
            && identity.pid_path.is_empty()
            && (identity.proc_name.is_empty() || identity.setup_path.is_empty())
        {
            return self.answer_query(
                order.op,
                Code::NoSpec,
                messages::no_identity(),
                ProcStatus::default(),
                out,
            );
        }
        let process = match state {
            State::Up(process) => Some(*process),
            State::Busy(job) => job.stage.process(),
            State::Down(_) => None,
        };
        // For a periodic proc only the current run counts, which is known.
        let scope =
            if periodic { LookScope::ScheduledRun { last: None, since: None } } else { self.settled() };
        out.effects.push(Effect::Inspect { op: order.op, process, scope, spec });
    }

    pub(super) fn inspected(
        &mut self,
        now: BootTime,
        state: State,
        op: OpId,
        view: View,
        out: &mut Step,
    ) -> State {
        if matches!(state, State::Down(_)) {
            self.remember_odd_absence(&view.sighting);
        }
        let note = match (self.note_in(now, &state).as_ref(), &state, &view.sighting) {
            ("", State::Down(Rest::Due { .. }), _) => messages::WAITING.to_owned(),
            ("", _, Sighting::Absent(absence)) => absence.cause.to_string(),
            ("", _, Sighting::Running(_)) => String::new(),
            (note, _, _) => note.to_owned(),
        };
        let status = ProcStatus {
            hosted: self.is_hosted_in(&state),
            note,
            instance: view.instance,
            // The machine knows one instance; the caller merges several.
            more: Vec::new(),
            version: view.version,
            health: view.health,
            registered_at: view.registered_at,
            started_at: view.started_at,
            reported_at: view.reported_at,
            utc_offset_secs: view.utc_offset_secs,
        };
        self.answer_query(op, Code::Success, messages::SUCCESS.to_owned(), status, out);
        match (state, view.sighting) {
            (State::Down(rest), Sighting::Running(process)) => self.appeared(now, rest, process, out),
            (state, _) => state,
        }
    }
}

//! The metrics of `/metrics`, in Prometheus' text format.

use procfleet_core::code::Code;
use procfleet_core::process::Exit;
use procfleet_program::panics;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::sync::atomic::Ordering;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct CodeLabel {
    code: u32,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct CallLabels {
    api: &'static str,
    code: u32,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct EventLabel {
    kind: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ExitLabel {
    how: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PortLabels {
    port: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct WhatLabel {
    what: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ContainmentLabel {
    containment: &'static str,
}

/// Counts a session until it is dropped.
#[derive(Debug)]
pub struct CountedSession(Gauge);

impl Drop for CountedSession {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Kinds of items that agents send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    Events,
    States,
    Groups,
    Outcomes,
    /// Messages of any kind, where the kinds are not distinguished.
    Messages,
}

impl Sent {
    fn label(self) -> WhatLabel {
        let what = match self {
            Sent::Events => "events",
            Sent::States => "states",
            Sent::Groups => "groups",
            Sent::Outcomes => "outcomes",
            Sent::Messages => "messages",
        };
        WhatLabel { what }
    }
}

/// The two ports of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerPort {
    Api,
    Link,
}

impl ServerPort {
    pub fn name(self) -> &'static str {
        match self {
            ServerPort::Api => "api",
            ServerPort::Link => "link",
        }
    }
}

#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    pub open_ops: Gauge,
    pub agents: Gauge,
    pub sent: Counter,
    pub refused_sessions: Counter,
    pub tasks_deleted: Counter,
    pub late_reports: Counter,
    pub agent_log_lines_dropped: Counter,
    pub webhook_events_skipped: Counter,
    store_clock_jumps: Counter,
    outcomes: Family<CodeLabel, Counter>,
    calls: Family<CallLabels, Counter>,
    events: Family<EventLabel, Counter>,
    exits: Family<ExitLabel, Counter>,
    cuts: Family<ReasonLabel, Counter>,
    sessions: Family<ContainmentLabel, Gauge>,
    dropped: Family<WhatLabel, Counter>,
    delayed: Family<WhatLabel, Counter>,
    shortened: Family<WhatLabel, Counter>,
    proxy_headers: Family<PortLabels, Counter>,
}

impl Metrics {
    pub fn new() -> Metrics {
        let mut registry = Registry::with_prefix("procfleet");
        let (open_ops, agents, sent, refused_sessions) =
            (Gauge::default(), Gauge::default(), Counter::default(), Counter::default());
        let (tasks_deleted, late_reports) = (Counter::default(), Counter::default());
        let (outcomes, calls, events) = (Family::default(), Family::default(), Family::default());
        let cuts = Family::default();
        registry.register("open_ops", "Ops without an outcome", open_ops.clone());
        registry.register("agents_connected", "Agents with a session on this server", agents.clone());
        registry.register("ops_sent", "Ops given to agents, repeats included", sent.clone());
        registry.register(
            "sessions_refused",
            "Agent connections that were refused",
            refused_sessions.clone(),
        );
        registry.register("tasks_deleted", "Tasks deleted because of their age", tasks_deleted.clone());
        registry.register(
            "late_reports",
            "Reports of ops that the server had ended before the report arrived",
            late_reports.clone(),
        );
        registry.register("op_outcomes", "Ops that ended, by error code", outcomes.clone());
        registry.register("api_calls", "API calls answered, by API and code", calls.clone());
        registry.register("events", "Events of procs that no op caused, by kind", events.clone());
        registry.register("sessions_cut", "Agents' sessions that the server ended, by reason", cuts.clone());
        let (dropped, delayed, shortened) = (Family::default(), Family::default(), Family::default());
        let help = "Items that agents sent beyond their limits and that were not stored";
        registry.register("agent_dropped", help, dropped.clone());
        let help = "Messages of agents that were delayed: the agent was above its budget, or the disk of the server is full";
        registry.register("agent_delayed", help, delayed.clone());
        let help = "Items that agents sent with texts that were too long and that were stored shortened";
        registry.register("agent_shortened", help, shortened.clone());
        let sessions = Family::default();
        let help = "Sessions of agents, by how the agent keeps the processes of a proc together";
        registry.register("agent_sessions", help, sessions.clone());
        let agent_log_lines_dropped = Counter::default();
        let help = "Lines of agents' own logs that were lost because they could not be written";
        registry.register("agent_log_lines_dropped", help, agent_log_lines_dropped.clone());
        let webhook_events_skipped = Counter::default();
        let help = "Events that were not delivered to a webhook, because it refused each of them for an hour";
        registry.register("webhook_events_skipped", help, webhook_events_skipped.clone());
        let store_clock_jumps = Counter::default();
        let help = "Jumps of the clock of a shared database, which the store's time does not follow";
        registry.register("store_clock_jumps", help, store_clock_jumps.clone());
        let proxy_headers = Family::default();
        let help = "Connections of trusted proxies that were closed because of their PROXY header, by reason";
        registry.register("proxy_headers_refused", help, proxy_headers.clone());
        registry.register_collector(Box::new(ProcessCollector));
        let exits = Family::default();
        registry.register("exits", "Processes that ended without an op, by how they ended", exits.clone());
        Metrics {
            exits,
            registry,
            open_ops,
            agents,
            sent,
            refused_sessions,
            tasks_deleted,
            late_reports,
            agent_log_lines_dropped,
            webhook_events_skipped,
            store_clock_jumps,
            outcomes,
            calls,
            events,
            cuts,
            sessions,
            dropped,
            delayed,
            shortened,
            proxy_headers,
        }
    }

    pub fn outcome(&self, code: Code) {
        self.outcomes.get_or_create(&CodeLabel { code: code.number() }).inc();
    }

    pub fn call(&self, api: &'static str, code: u32) {
        self.calls.get_or_create(&CallLabels { api, code }).inc();
    }

    /// A session was ended because of an action or omission of its agent.
    pub fn cut(&self, reason: &'static str) {
        self.cuts.get_or_create(&ReasonLabel { reason }).inc();
    }

    /// A connection of a trusted proxy without a valid PROXY header.
    pub fn refused_proxy_header(&self, port: ServerPort, reason: &'static str) {
        self.proxy_headers.get_or_create(&PortLabels { port: port.name(), reason }).inc();
    }

    /// A session of an agent with this containment, as its facts report it.
    pub fn session(&self, containment: &str) -> CountedSession {
        let containment = match containment {
            "cgroup" => "cgroup",
            "tree" => "tree",
            _ => "unknown",
        };
        let gauge = self.sessions.get_or_create(&ContainmentLabel { containment }).clone();
        gauge.inc();
        CountedSession(gauge)
    }

    /// Items of an agent that were not stored.
    pub fn dropped(&self, what: Sent, count: usize) {
        if count > 0 {
            self.dropped.get_or_create(&what.label()).inc_by(u64::try_from(count).unwrap_or(u64::MAX));
        }
    }

    /// A message of an agent that is delayed.
    pub fn delayed(&self, what: Sent) {
        self.delayed.get_or_create(&what.label()).inc();
    }

    /// Items of an agent that were stored with shortened texts.
    pub fn shortened(&self, what: Sent, count: usize) {
        if count > 0 {
            self.shortened.get_or_create(&what.label()).inc_by(u64::try_from(count).unwrap_or(u64::MAX));
        }
    }

    /// The kind is one that the server knows, or `unknown`, so the number of labels is bounded.
    pub fn event(&self, kind: &str) {
        self.events.get_or_create(&EventLabel { kind: kind.to_owned() }).inc();
    }

    pub fn exit(&self, exit: Exit) {
        let how = match exit {
            Exit::Code(_) => "code",
            Exit::Signal(_) => "signal",
            Exit::Dumped(_) => "core_dumped",
            Exit::OutOfMemory => "out_of_memory",
            Exit::Unknown => "unknown",
        };
        self.exits.get_or_create(&ExitLabel { how }).inc();
    }

    /// The store's own count, which only grows.
    pub fn set_store_clock_jumps(&self, jumps: u64) {
        self.store_clock_jumps.inner().store(jumps, Ordering::Relaxed);
    }

    pub fn text(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("writing to a String does not fail");
        text
    }
}

/// Metrics of the whole program, not of one server.
#[derive(Debug)]
struct ProcessCollector;

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let figures = [
            ("panics", "Panics, each of which is in the log", panics::total()),
            (
                "log_lines_dropped",
                "Lines of the server's log that were lost because standard error could not be written",
                procfleet_program::log_lines_dropped(),
            ),
        ];
        for (name, help, count) in figures {
            let counter = ConstCounter::new(count);
            counter.encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)?;
        }
        Ok(())
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics::new()
    }
}

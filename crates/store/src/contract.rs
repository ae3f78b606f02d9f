//! The contract that every engine of the store keeps. Each method is one transaction.
//!
//! - A method that changes something returns after its change is durable.
//! - A read sees one snapshot, which includes every change that was answered before the read began.
//! - Dropping a future does not cancel its change.
//! - The store decides nothing about ops and reads no clock: wall times come from the caller, in milliseconds
//!   since 1970, UTC.

use crate::clock::{BootNumber, ClockReading, WallMs};
use crate::types::*;
use crate::{DrainOutcome, Engine, ServerIntro, ServerRecord, Store, StoreError};
use procfleet_core::grants::{GrantScope, Grants, StillGranted};
use procfleet_core::request::Target;
use procfleet_core::select::Term;
use procfleet_core::spec::ProcessGroup;
use procfleet_core::{AgentId, BusinessId, Epoch, Host, ProcKey, TaskId};
use procfleet_proto::http::cursor::{AgentCursor, AgentOrder, ProcCursor, ProcOrder};
use procfleet_proto::http::query::OpFilter;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;

/// Makes a method of [`Store`] from each signature, which calls the method of that name of the engine.
macro_rules! contract {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $answer:ty;)*) => {
        impl Store {
            $(
                $(#[$doc])*
                pub async fn $name(&self, $($argument: $type),*) -> Result<$answer, StoreError> {
                    match &self.engine {
                        Engine::Sqlite(store) => store.$name($($argument),*).await,
                        Engine::Postgres(store) => store.$name($($argument),*).await,
                    }
                }
            )*
        }
    };
}

contract! {
    // Tasks

    /// Gives the task its number. It is durable when this returns.
    fn create_task(task: NewTask) -> TaskId;

    fn task(id: TaskId) -> Option<TaskRecord>;

    /// Cancels the task. False: it had ended or was cancelled before.
    fn cancel_task(id: TaskId, at: i64, audit: NewAudit) -> bool;

    /// A task with all of its ops in order, seen at one moment.
    fn task_results(id: TaskId) -> Option<(TaskRecord, Vec<OpRecord>)>;

    /// A task with some of its ops after the one with this index, in order, seen at one moment. `select`
    /// means hosts; without a term it means all, and ops without an agent.
    fn task_page(
        id: TaskId,
        filter: OpFilter,
        select: Vec<Term>,
        after: Option<u32>,
        limit: u32,
    ) -> Option<TaskPage>;

    /// Newest first, and without their requests; and how many there are on all pages.
    fn list_tasks(filter: TaskFilter, after: Option<TaskId>, limit: u32) -> TaskListPage;

    // Ops

    /// The tasks that have ops without an outcome, oldest first.
    fn open_tasks() -> Vec<OpenTask>;

    /// Ops without an outcome that this server decides about, in the order of their tasks.
    fn open_ops(scope: OpScope) -> Vec<OpenOpRow>;

    /// Ends ops; the answers are in the order of `finished`. An op that has an outcome keeps it, so the same
    /// report may come any number of times.
    fn finish_ops(finished: Vec<Finished>) -> Vec<Applied>;

    // Submissions under a key

    /// The task that this submission has created before. `None`: it is new.
    fn submitted_before(app: String, submission: Submission) -> Option<Submitted>;

    /// As [`Store::create_task`], unless the app has submitted an equal request under this key.
    fn submit_task(task: NewTask, submission: Submission) -> Submitted;

    // Agents and their sessions

    /// Spends one use of the token and enrolls the agent, or does neither; the audit says which.
    fn join(token: TokenUse, joining: JoiningAgent, now: i64) -> Result<JoinedAgent, JoinTokenRefusal>;

    /// The agent with this id, even if it is retired.
    fn agent(wanted: &AgentId) -> Option<AgentRecord>;

    fn agent_at(host: Host) -> Option<AgentRecord>;

    /// The agents with these ids that are not retired.
    fn agents_with(wanted: Vec<AgentId>) -> HashMap<AgentId, AgentRecord>;

    /// All agents that are not retired, by id. For the start of the server only: no request may cost as much
    /// as the fleet is large.
    fn all_agents() -> Vec<AgentRecord>;

    /// Changes the labels of agents, all of them or none.
    fn label_agents(
        agents: Vec<AgentId>,
        set: BTreeMap<String, String>,
        remove: Vec<String>,
        audit: NewAudit,
    ) -> ();

    /// Begins the agent's next session, at this server. The epoch it returns is durable: no other session
    /// ever gets it. It is higher than `highest`, the highest one that the agent knows: a database that lost
    /// its last changes in a failover would otherwise give it out again.
    fn agent_connected(agent: &AgentId, version: &str, facts: &str, at: i64, highest: Epoch) -> Epoch;

    /// Which of these agents do not come back, and why.
    fn dismissals(agents: Vec<AgentId>) -> HashMap<AgentId, Dismissal>;

    /// Which of these agents have begun a session after this one of theirs.
    fn later_sessions(sessions: Vec<(AgentId, Epoch)>) -> Vec<AgentId>;

    /// The last sessions of these agents: for those that are connected to other servers, too.
    fn sessions_of(agents: Vec<AgentId>) -> HashMap<AgentId, SessionRecord>;

    /// When each of these agents was last heard, as far as its sessions have ended.
    fn last_heard(agents: Vec<AgentId>) -> HashMap<AgentId, i64>;

    /// `heard`: when it was last heard, which is before `at` if it fell silent. Does nothing when a later
    /// session has begun.
    fn agent_disconnected(agent: &AgentId, epoch: Epoch, at: ClockReading, heard: WallMs) -> ();

    /// The agent of each target, in the order of the targets. An agent id that nobody has, but which reads as
    /// `cloud:ip`, means that host.
    fn resolve(targets: &[Target]) -> Vec<Option<AgentId>>;

    /// As [`Store::resolve`], for a caller with grants for some businesses only. Targets and their businesses
    /// are read in one transaction.
    fn resolve_within(targets: &[Target], businesses: &GrantScope<BusinessId>) -> Vec<FoundTarget>;

    // Lists of agents

    /// At most `limit` agents after the cursor. It reads few more rows, unless the filter leaves most out.
    fn list_agents(
        filter: AgentFilter,
        order: AgentOrder,
        after: Option<AgentCursor>,
        limit: u32,
    ) -> AgentPage;

    fn count_agents(filter: AgentFilter) -> u64;

    /// The hosts of the agents that pass the filter, in their order, at most `limit`.
    fn hosts_of_agents(filter: AgentFilter, limit: usize) -> Vec<Host>;

    /// Which of the terms mean no agent that passes the filter.
    fn terms_without_agents(filter: AgentFilter, terms: Vec<Term>) -> Vec<usize>;

    // Certificates and revoked agents

    /// The agent, and this certificate if it belongs to the agent. Also finds retired and revoked agents.
    fn agent_with_certificate(
        agent: &AgentId,
        sha256: [u8; 32],
    ) -> Option<(AgentRecord, Option<CertificateRecord>)>;

    /// Adds a certificate. The existing ones stay valid.
    fn give_certificate(agent: &AgentId, certificate: CertificateRecord) -> ();

    /// Records that the agent has saved this certificate and will use it. Ignores a certificate of another
    /// agent.
    fn use_certificate(agent: &AgentId, sha256: [u8; 32]) -> ();

    /// Assigns certificates without a CA, from before CAs could be rotated, to this one.
    fn backfill_certificate_ca(ca: [u8; 32]) -> ();

    /// Number of agents that may connect.
    fn count_connectable_agents() -> u64;

    /// Number of agents that may connect and use a certificate of this CA.
    fn agents_of_ca(ca: [u8; 32]) -> u64;

    /// Number of usable join tokens.
    fn usable_tokens(now: i64) -> u64;

    /// Revokes agents for good. An agent that is revoked already keeps its time and reason.
    fn revoke_agents(agents: Vec<AgentId>, why: String, at: i64, audit: NewAudit) -> ();

    /// Removes agents and their procs from the lists. Also revokes them: a host that connects with one of
    /// their certificates needs a new token.
    fn forget_agents(agents: Vec<AgentId>, at: i64, audit: NewAudit) -> ();

    // Join tokens

    fn create_token(token: NewToken) -> ();

    /// Why an agent at this address cannot join with this token now. `None`: it can.
    fn join_refusal(token: TokenUse, ip: IpAddr, now: i64) -> Option<JoinTokenRefusal>;

    /// Newest first. Tokens that expired long ago are deleted.
    fn tokens() -> Vec<TokenRecord>;

    /// Revokes a token. Idempotent. `None`: there is no such token.
    fn revoke_token(id: String, at: i64, audit: NewAudit) -> Option<TokenRecord>;

    // Agents that a restored store does not know

    /// Readmits an agent that showed a certificate of this server's CA. Its cloud area and business are lost,
    /// so it gets the default ones.
    fn readmit(back: JoiningAgent, now: i64) -> Result<Host, ReadmitRefusal>;

    /// Whether a backup was ever restored to this store.
    fn was_restored() -> bool;

    // The CA

    /// `None`: the store is from before it kept this, or new.
    fn ca() -> Option<CaPins>;

    /// The CAs with their sealed keys. `None`: this engine keeps no keys, they are files of the server.
    fn stored_cas() -> Option<StoredCas>;

    /// Changes the pins of the CA and its successor (compare-and-swap), with the sealed keys and the audit
    /// record, if the pins are those that the caller saw. From then on [`Store::join`] and
    /// [`Store::give_certificate`] return [`StoreError::CaChanged`] for a certificate that another CA than
    /// the new signing one has signed.
    fn change_ca(change: CaChange) -> Result<(), CaRefusal>;

    /// Records which seal keys a server can open, by their ids. A server does this before it reads the CAs: a
    /// change of the CA is then either seen by the server, or sealed under a key that it has.
    fn enter_seal_keys(server: &str, keys: Vec<String>) -> ();

    /// The servers and the ids of the seal keys that each can open, ordered by server. Empty where the keys
    /// are files: there are no other servers.
    fn seal_keys_of_servers() -> Vec<(String, Vec<String>)>;

    // Procs

    /// Takes over what is newer than the stored status, and forgets what is gone. The agent must be enrolled,
    /// and this session must be its last. Returns how many procs were left out because the agent has too
    /// many.
    fn put_procs(agent: &AgentId, epoch: Epoch, procs: Vec<ProcRecord>, gone: Vec<ProcKey>) -> usize;

    /// Takes over an agent's full list: what is not in it is forgotten, and its revisions hold even where
    /// they are lower, because an agent that lost its journal counts from the beginning. Returns how many
    /// were left out, as `put_procs`.
    fn replace_procs(agent: &AgentId, epoch: Epoch, procs: Vec<ProcRecord>) -> usize;

    /// One proc on each of these agents, with the host that it is on, as far as there is one. It reads no
    /// more than these, however many agents there are.
    fn proc_on(agents: Vec<AgentId>, proc: &ProcKey) -> Vec<(AgentId, Host, ProcRecord)>;

    /// A page of a namespace's procs in these businesses, after the first `start`, ordered by agent and name.
    fn proc_page(namespace: &str, within: &GrantScope<BusinessId>, start: u64, limit: u32) -> ProcPage;

    // Lists of procs

    /// At most `limit` procs after the cursor, and the number of procs on all pages.
    fn list_procs(
        filter: ProcFilter,
        order: ProcOrder,
        after: Option<ProcCursor>,
        limit: u32,
    ) -> ProcListPage;

    /// The procs of a namespace with this name, or with a name that the glob matches: the agent, the host and
    /// the name of each, at most `limit`.
    fn find_procs(filter: ProcFilter, limit: usize) -> Vec<(AgentId, Host, String)>;

    /// Which of these procs are known on these agents.
    fn known_procs(asked: Vec<(AgentId, ProcKey)>) -> HashSet<(AgentId, ProcKey)>;

    // Process groups

    /// Stores groups that are newer than the stored ones. The agent must be enrolled, and this session must
    /// be its last. Returns how many namespaces were dropped because the agent has too many.
    fn put_process_groups(agent: &AgentId, epoch: Epoch, groups: Vec<GroupsRecord>) -> usize;

    /// Replaces all groups of an agent. Returns how many namespaces were dropped, as `put_process_groups`.
    fn replace_process_groups(agent: &AgentId, epoch: Epoch, groups: Vec<GroupsRecord>) -> usize;

    /// The groups of these agents in a namespace. An agent without groups is left out.
    fn process_groups(namespace: &str, agents: Vec<AgentId>) -> HashMap<AgentId, Vec<ProcessGroup>>;

    // Events and webhooks

    /// Stores events, each once. Returns those that were not stored before. [`StoreError::NoSpace`]: the
    /// embedded store keeps the rest of its disk for essential changes.
    fn add_events(from: &AgentId, events: Vec<NewEvent>, received_at: i64) -> Vec<NewEvent>;

    /// Ordered by number. Includes events of retired agents, with their last host.
    fn events(filter: EventFilter, within: &GrantScope<BusinessId>, page: EventPage) -> Vec<EventRecord>;

    /// How many events there are, on all pages.
    fn count_events(filter: EventFilter, within: &GrantScope<BusinessId>) -> u64;

    /// The number of the newest event, 0 without any.
    fn last_event() -> u64;

    /// Adds a receiver of all events from now on. `None`: a webhook with this URL exists.
    fn add_webhook(url: String, created_at: i64, audit: NewAudit) -> Option<Webhook>;

    /// False: there is no such webhook.
    fn remove_webhook(id: u64, audit: NewAudit) -> bool;

    fn webhooks() -> Vec<Webhook>;

    /// Advances the cursor of a webhook to this event.
    fn webhook_delivered(id: u64, up_to: u64) -> ();

    // Servers

    /// Makes the name, the address and the version of this server known.
    fn introduce(intro: ServerIntro) -> ();

    /// The living servers, and those that have ended not long ago; the oldest first. Empty: the store has one
    /// server only.
    fn servers() -> Vec<ServerRecord>;

    /// Starts or ends the drain of all living servers of this name. Audited only if it is done.
    fn drain_server(name: &str, drains: bool, audit: NewAudit) -> DrainOutcome;

    // Restored backups

    /// Whether a backup was restored that the server has not processed yet.
    fn is_newly_restored() -> bool;

    /// Records that the server has processed the restored backup.
    fn generation_began(at: i64, audit: NewAudit) -> ();

    /// The time of the restore that lost this event. `None`: the number is not that of a lost event.
    fn event_lost_at(number: u64) -> Option<i64>;

    /// The highest event number ever assigned.
    fn newest_event_number() -> u64;

    // Boots

    /// The number of the boot with this kernel id: that of the last start if the id is the same, else a new
    /// one. `None`: the id is unknown, and the boot counts as a new one.
    fn enter_boot(id: Option<String>) -> BootNumber;

    // Apps

    /// Creates the app with its audit record. `None`: no request asked for it.
    fn create_app(app: NewApp, audit: Option<NewAudit>) -> ();

    fn app(code: &str) -> Option<AppRow>;

    /// Ordered by code.
    fn apps() -> Vec<AppRow>;

    fn change_app(code: &str, change: AppChange, audit: NewAudit) -> ();

    /// Returns the grants of the app from now on. Or, with nothing changed, the grants that would still cover
    /// the revoked ones.
    fn change_grants(code: &str, change: GrantChange, audit: NewAudit) -> Result<Grants, Vec<StillGranted>>;

    // Users

    fn create_user(name: &str, at: i64, audit: NewAudit) -> ();

    fn user(name: &str, now: i64) -> Option<UserRow>;

    /// Ordered by name.
    fn users(now: i64) -> Vec<UserRow>;

    fn change_user(name: &str, change: UserChange, audit: NewAudit) -> ();

    /// The user must exist. Also deletes tokens that expired long ago.
    fn create_user_token(token: NewUserToken, audit: NewAudit) -> ();

    fn token_holder(token_hash: [u8; 32], now: i64) -> TokenHolder;

    // Businesses

    /// Id and name must be unused.
    fn create_business(business: Business, audit: NewAudit) -> ();

    /// Ordered by id.
    fn businesses() -> Vec<Business>;

    /// The businesses of the set must exist.
    fn create_business_set(set: BusinessSet, audit: NewAudit) -> ();

    /// Ordered by id, each with its businesses.
    fn business_sets() -> Vec<BusinessSet>;

    /// Atomic: all of the agents, or none.
    fn assign(agents: Vec<AgentId>, to: BusinessId, audit: NewAudit) -> ();

    // The audit trail

    fn audit(entry: NewAudit) -> ();

    /// Inserts or updates counters. Returns their rows in the same order.
    fn count_audit(rows: Vec<(NewAudit, AuditCount)>) -> Vec<i64>;

    /// Newest first, and how many there are in all.
    fn list_audit(limit: u32, filter: AuditFilter) -> AuditPage;

    // Retention

    /// Deletes tasks that were created before this time, oldest first. A task with open ops is kept.
    fn delete_tasks(before: i64, slice: Slice) -> Deleted;

    /// Deletes the oldest events. Returns how many.
    fn delete_events(before: i64, most: u32) -> u64;

    /// Deletes the oldest records of the audit trail. Returns how many.
    fn delete_audit(before: i64, most: u32) -> u64;

    /// Deletes join tokens that expired before this time. Returns how many.
    fn delete_tokens(before: i64, most: u32) -> u64;
}

//! The types that go into the store and come out of its queries.

mod agent_list;
mod agents;
mod apps;
mod audit;
mod businesses;
mod ca;
mod certificates;
mod copy;
mod events;
mod ops;
mod proc_list;
mod process_groups;
mod procs;
mod readmit;
mod retention;
mod submissions;
mod tasks;
mod tokens;
mod users;

pub use agent_list::{AgentFilter, AgentPage, ConnectedAgents, RevokedAgents};
pub use agents::{
    AGENT_REPLACED, AgentRecord, FoundTarget, JoinedAgent, JoiningAgent, LINK, Revoked, SessionRecord,
};
pub use apps::{AppChange, AppRow, AppTrust, GrantChange, NewApp};
pub use audit::{AuditCount, AuditFilter, AuditPage, AuditRecord, NewAudit};
pub use businesses::{Business, BusinessSet};
pub use ca::{CaChange, CaPins, CaRefusal, OldCa, SealedCa, Sealing, StoreId, StoredCas};
pub use certificates::{CertificateRecord, FORGOTTEN};
pub use copy::{CopyOrigin, CopyRefusal, CopyReport, CopySource, TableComparison};
pub use events::{EventFilter, EventPage, EventRecord, NewEvent, Webhook};
pub use ops::{Applied, Dismissal, EndedBy, Finished, OpScope, OpenOpRow, OpenTask, SentBefore};
pub use proc_list::{FailedProcs, ProcFilter, ProcListPage};
pub use process_groups::GroupsRecord;
pub use procs::{ProcListing, ProcPage, ProcRecord};
pub use readmit::ReadmitRefusal;
pub use retention::{Deleted, Slice};
pub(crate) use submissions::StoredTarget;
pub use submissions::{KeyKind, Submission, SubmissionKey, Submitted};
pub use tasks::{
    LateReport, NewOp, NewTask, OpRecord, RequestHead, TaskCounts, TaskFilter, TaskListPage, TaskPage,
    TaskRecord,
};
pub(crate) use tokens::Belonging;
pub use tokens::{JoinTokenRefusal, NewToken, Replaces, TokenRecord, TokenUse};
pub use users::{NewUserToken, TokenHolder, UserChange, UserRow};

//! Server and agent.

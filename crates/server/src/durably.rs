//! A commit and the wake-up that follows it, as one step.

use tokio::task::JoinError;

/// Runs `act` in a separate task: a caller that hangs up between the commit and the wake-up must not leave a
/// change that no worker knows of.
pub(crate) async fn durably<T, E>(act: impl Future<Output = Result<T, E>> + Send + 'static) -> Result<T, E>
where
    T: Send + 'static,
    E: From<JoinError> + Send + 'static,
{
    tokio::spawn(act).await?
}

//! The administrator's app and the file with its secret, which the first start creates.

use crate::pki::{PkiError, write_private};
use crate::secret;
use procfleet_proto::link::token::hex;
use procfleet_store::{AppRow, AppTrust, NewApp, Store, StoreError};
use serde::{Deserialize, Serialize};
use std::path::Path;
use subtle::ConstantTimeEq;

/// The app that `admin.json` names.
pub const ADMIN: &str = "procfleet-admin";

#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    File(#[from] PkiError),
    #[error(
        "the secret in {0} is not that of app {admin} in this store. Restore the admin.json of this store, or move the \
         file away: the server starts without it",
        admin = ADMIN
    )]
    Mismatch(String),
}

/// One line of JSON that can be sent as the `X-Bkapi-Authorization` header.
#[derive(PartialEq, Eq, Serialize, Deserialize)]
struct AdminFile {
    url: String,
    bk_app_code: String,
    bk_app_secret: String,
    /// The SHA-256 of the API's certificate or its CA, in hexadecimal digits; the client trusts no other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tls_sha256: Option<String>,
}

/// The URL and the pin of the API.
#[derive(Clone, Debug)]
pub struct Reached {
    pub url: String,
    /// `None`: without TLS.
    pub pin: Option<[u8; 32]>,
}

/// Whether the secret in `admin.json`, if there is one, opens this store. For a start that changes nothing if
/// the data folder belongs to another store.
pub async fn check(store: &Store, file: &Path) -> Result<(), SetupError> {
    let (Some(found), Some(known)) = (read(file), store.app(ADMIN).await?) else { return Ok(()) };
    match is_secret_of(&known, &secret::hash(found.bk_app_secret.as_bytes())) {
        true => Ok(()),
        false => Err(SetupError::Mismatch(file.display().to_string())),
    }
}

/// Creates the administrator's app on the first start, and updates the address in `admin.json` on every
/// start.
///
/// The file is written before the app: after a crash in between, the next start finds a secret without an app
/// and creates the app with it. Of servers that start at once on an empty store, the app of one is created,
/// and the others remove their files: their secrets open nothing.
pub async fn administrator(store: &Store, file: &Path, at: Reached, now: i64) -> Result<(), SetupError> {
    let old = read(file);
    let known = store.app(ADMIN).await?;
    let secret = match (&old, &known) {
        (Some(old), _) => old.bk_app_secret.clone(),
        (None, None) => secret::random_text(),
        // An operator who keeps the secret elsewhere has removed the file on purpose.
        (None, Some(_)) => {
            tracing::warn!(
                path = %file.display(),
                "admin.json is missing or cannot be read, and is not made again, because the store has only the hash of its \
                 secret; copy the file from a backup or from another server of this store"
            );
            return Ok(());
        }
    };
    let hash = secret::hash(secret.as_bytes());
    if known.as_ref().is_some_and(|app| !is_secret_of(app, &hash)) {
        return Err(SetupError::Mismatch(file.display().to_string()));
    }
    let Reached { url, pin } = at;
    let tls_sha256 = pin.map(|pin| hex(&pin));
    let new = AdminFile { url, bk_app_code: ADMIN.to_owned(), bk_app_secret: secret, tls_sha256 };
    if old.as_ref() != Some(&new) {
        match write(file, &new) {
            Err(error) if old.is_some() && store.is_disk_full() => tracing::warn!(
                error = &error as &dyn std::error::Error,
                url = new.url,
                "admin.json cannot be updated on the full disk: it names an earlier address or certificate; free some \
                 space and restart the server"
            ),
            written => written?,
        }
    }
    if known.is_some() {
        return Ok(());
    }
    let app = NewApp { code: ADMIN.to_owned(), secret_hash: hash, trust: AppTrust::Users, created_at: now };
    match store.create_app(app, None).await {
        Err(StoreError::Exists { .. }) if has_secret(store, hash).await? => Ok(()),
        Err(StoreError::Exists { .. }) if old.is_some() => {
            Err(SetupError::Mismatch(file.display().to_string()))
        }
        Err(StoreError::Exists { .. }) => {
            let removed = std::fs::remove_file(file);
            let error = removed.err().map(tracing::field::display);
            tracing::info!(
                path = %file.display(), error,
                "removing this server's admin.json: another server created the administrator first, and only that server's \
                 admin.json has the valid secret"
            );
            Ok(())
        }
        created => Ok(created?),
    }
}

/// Whether the administrator's app has this secret. Servers may share one file.
async fn has_secret(store: &Store, hash: [u8; 32]) -> Result<bool, StoreError> {
    Ok(store.app(ADMIN).await?.is_some_and(|app| is_secret_of(&app, &hash)))
}

fn is_secret_of(app: &AppRow, hash: &[u8; 32]) -> bool {
    app.secret_hash.ct_eq(hash).into()
}

/// `None`: there is no such file, or it is not one of a server.
fn read(file: &Path) -> Option<AdminFile> {
    serde_json::from_slice(&std::fs::read(file).ok()?).ok()
}

/// Writes the pin of the API's new certificate into `admin.json`, if the file exists.
pub fn pin(file: &Path, pin: [u8; 32]) -> Result<(), PkiError> {
    read(file).map_or(Ok(()), |old| write(file, &AdminFile { tls_sha256: Some(hex(&pin)), ..old }))
}

fn write(file: &Path, admin: &AdminFile) -> Result<(), PkiError> {
    write_private(file, &serde_json::to_vec(admin).expect("texts are JSON"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use procfleet_testkit::Cluster;
    use tempfile::TempDir;

    /// A server with its data folder.
    struct Starting {
        store: Store,
        folder: TempDir,
    }

    impl Starting {
        async fn on(url: &str) -> Starting {
            let store = Store::connect(&url.parse().expect("a url")).await.expect("a store");
            Starting { store, folder: tempfile::tempdir().expect("a temp folder") }
        }

        async fn start(&self) {
            let at = Reached { url: "http://127.0.0.1:1".to_owned(), pin: None };
            let started = administrator(&self.store, &self.folder.path().join("admin.json"), at, 1).await;
            started.expect("it starts");
        }

        fn secret(&self) -> Option<String> {
            let text = std::fs::read(self.folder.path().join("admin.json")).ok()?;
            Some(serde_json::from_slice::<AdminFile>(&text).expect("JSON").bk_app_secret)
        }
    }

    /// Both servers have the seal key beforehand, so the CA keeps none of them from starting.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn of_servers_that_start_at_once_one_creates_the_administrator() {
        for _ in 0..5 {
            let url = tokio::task::spawn_blocking(|| Cluster::shared().database()).await.expect("a database");
            let (one, two) = (Starting::on(&url).await, Starting::on(&url).await);
            tokio::join!(one.start(), two.start());
            let secrets: Vec<String> = [&one, &two].into_iter().filter_map(Starting::secret).collect();
            let [secret] = &secrets[..] else { panic!("{} files", secrets.len()) };
            let hash = secret::hash(secret.as_bytes());
            assert!(has_secret(&one.store, hash).await.expect("no error"), "its secret opens the store");
            one.start().await;
            two.start().await;
            assert_eq!([&one, &two].into_iter().filter_map(Starting::secret).collect::<Vec<_>>(), secrets);
        }
    }

    #[tokio::test]
    async fn an_admin_json_of_another_store_is_refused_and_a_server_without_one_starts() {
        let folder = tempfile::tempdir().expect("a temp folder");
        let store = Store::open(&folder.path().join("server.db")).await.expect("a new store");
        let file = folder.path().join("admin.json");
        let start = || {
            let at = Reached { url: "http://127.0.0.1:1".to_owned(), pin: None };
            administrator(&store, &file, at, 1)
        };
        start().await.expect("it starts");
        let text = std::fs::read_to_string(&file).expect("it is written");
        let secret = serde_json::from_str::<AdminFile>(&text).expect("JSON").bk_app_secret;
        std::fs::write(&file, text.replace(&secret, "of another store")).expect("our own folder");
        let refused = start().await.expect_err("a wrong secret").to_string();
        assert!(refused.contains("not that of app procfleet-admin"), "{refused}");
        std::fs::remove_file(&file).expect("our own folder");
        start().await.expect("it starts without the file");
    }
}

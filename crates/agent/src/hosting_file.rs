//! The hosting file: the hosted procs in the format of GSE's agent (`etc/.proc`), which platforms read.
//!
//! The agent reads it only for the last operation and its time, which are stored nowhere else. Actors report
//! changes; the file follows within a second, atomically.

use crate::path_walk::{self, PathTrust};
use procfleet_core::id::ProcKey;
use procfleet_core::op::OpKind;
use procfleet_core::spec::{Kind, Schedule, Spec};
use procfleet_core::supervise::Hosting;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::fs::{self, DirBuilder, File};
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tracing::warn;

/// Minimum interval between writes.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub(crate) struct HostingFile {
    path: PathBuf,
    inner: Arc<Mutex<Inner>>,
    /// Held while the file is written.
    writing: Arc<Mutex<()>>,
    changed: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Inner {
    hosted: BTreeMap<Arc<ProcKey>, Hosted>,
    /// The last operation of procs that are not hosted, or not yet.
    operated: HashMap<Arc<ProcKey>, LastOperation>,
    /// Entries that an earlier agent process wrote, by `valuekey`.
    earlier: HashMap<String, LastOperation>,
    /// A hash of the file's content; `None` if there is no file.
    written: Option<u64>,
    /// Why the last write failed; `None` if it did not.
    fault: Option<String>,
}

#[derive(Clone, Debug)]
struct Hosted {
    spec: Arc<Spec>,
    operated: LastOperation,
}

/// The last operation, and when something about the proc last changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LastOperation {
    number: u32,
    /// Seconds since 1970.
    at: i64,
}

impl HostingFile {
    /// `data` is the agent's folder. An unreadable file is replaced.
    pub(crate) fn open(data: &Path) -> HostingFile {
        let path = data.join("etc/.proc");
        let written = fs::read_to_string(&path).unwrap_or_default();
        let in_short = (!written.is_empty()).then(|| {
            let mut digest = Digest::default();
            digest.0.write(written.as_bytes());
            digest.0.finish()
        });
        let inner = Inner { earlier: earlier(&written), written: in_short, ..Inner::default() };
        HostingFile {
            path,
            inner: Arc::new(Mutex::new(inner)),
            writing: Arc::default(),
            changed: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An order for this proc has arrived.
    pub(crate) fn ordered(&self, key: &Arc<ProcKey>, kind: OpKind) {
        // A query changes nothing, and ops that GSE does not know have no number there.
        let Some(kind) = OpKind::from_op_type(u64::from(kind.number())).filter(|kind| *kind != OpKind::Query)
        else {
            return;
        };
        let operated = LastOperation { number: kind.number(), at: now() };
        let mut inner = self.lock();
        match inner.hosted.get_mut(key) {
            Some(hosted) => {
                hosted.operated = operated;
                self.changed.notify_one();
            }
            None => {
                inner.operated.insert(key.clone(), operated);
            }
        }
    }

    /// Updates the proc's entry.
    pub(crate) fn keep(&self, key: &Arc<ProcKey>, spec: &Arc<Spec>, hosting: Hosting) {
        let mut inner = self.lock();
        match (hosting, inner.hosted.get_mut(key)) {
            (Hosting::Unhosted, None) => {}
            (Hosting::Unhosted, Some(_)) => {
                if let Some(before) = inner.hosted.remove(key) {
                    inner.operated.insert(key.clone(), before.operated);
                }
                self.changed.notify_one();
            }
            (Hosting::Hosted, Some(hosted)) => {
                if !Arc::ptr_eq(&hosted.spec, spec) && hosted.spec != *spec {
                    hosted.spec = spec.clone();
                    hosted.operated.at = now();
                    self.changed.notify_one();
                }
            }
            (Hosting::Hosted, None) => {
                let known = inner.operated.remove(key);
                let known = known.or_else(|| inner.earlier.remove(&value_key(key)));
                let operated =
                    known.unwrap_or_else(|| LastOperation { number: OpKind::Host.number(), at: now() });
                inner.hosted.insert(key.clone(), Hosted { spec: spec.clone(), operated });
                self.changed.notify_one();
            }
        }
    }

    /// The proc was unregistered.
    pub(crate) fn forget(&self, key: &ProcKey) {
        let mut inner = self.lock();
        inner.operated.remove(key);
        if inner.hosted.remove(key).is_some() {
            self.changed.notify_one();
        }
    }

    /// Writes the file after each change.
    pub(crate) async fn keep_written(&self) -> Infallible {
        loop {
            self.changed.notified().await;
            let file = self.clone();
            // A disk may be slow.
            if tokio::task::spawn_blocking(move || file.write()).await.is_ok_and(|written| !written) {
                self.changed.notify_one();
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Writes the file if its content has changed. False: it could not be written.
    pub(crate) fn write(&self) -> bool {
        // When the agent ends, the write of `keep_written` may still be under way.
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        // Slow work is done without the lock, which actors wait for.
        let (hosted, written) = {
            let inner = self.lock();
            let copy = |(key, hosted): (&Arc<ProcKey>, &Hosted)| (key.clone(), hosted.clone());
            (inner.hosted.iter().map(copy).collect::<Vec<_>>(), inner.written)
        };
        let mut digest = Digest::default();
        let rendered = render(&hosted, &mut digest);
        let in_short = digest.0.finish();
        if written == Some(in_short) || written.is_none() && hosted.is_empty() {
            return true;
        }
        match rendered.and_then(|()| replace(&self.path, &hosted)) {
            Ok(()) => {
                let mut inner = self.lock();
                (inner.written, inner.fault) = (Some(in_short), None);
                true
            }
            Err(error) => {
                let error = error.to_string();
                // Log a fault once: the write is repeated every second, and may go on failing.
                if self.lock().fault.replace(error.clone()).as_ref() != Some(&error) {
                    warn!(file = %self.path.display(), error, "cannot write the hosting file; retrying");
                }
                false
            }
        }
    }
}

/// Replaces the file atomically. Only its owner may read it: commands may contain secrets.
fn replace(path: &Path, hosted: &[(Arc<ProcKey>, Hosted)]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(path);
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let way = path_walk::walk(&std::path::absolute(folder)?)?;
    if let Some(doubt) = way.doubted_way(&PathTrust::agent()) {
        return Err(io::Error::other(doubt.to_string()));
    }
    let draft = c".proc.new";
    match rustix::fs::unlinkat(&way, draft, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(&way, draft, flags, Mode::from_raw_mode(0o600))?;
    let mut file = BufWriter::new(File::from(file));
    render(hosted, &mut file)?;
    file.into_inner()?.sync_all()?;
    Ok(rustix::fs::renameat(&way, draft, &way, c".proc")?)
}

/// Entry by entry: a large file is never held in memory.
fn render(hosted: &[(Arc<ProcKey>, Hosted)], to: &mut impl Write) -> io::Result<()> {
    to.write_all(b"{\"proc\":[")?;
    for (index, (key, hosted)) in hosted.iter().enumerate() {
        let joint = if index == 0 { "" } else { "," };
        write!(to, "{joint}{}", entry(key, hosted))?;
    }
    to.write_all(b"]}\n")
}

/// Hashes content without storing it.
#[derive(Default)]
struct Digest(DefaultHasher);

impl Write for Digest {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The names are GSE's; a reader of its file finds them all.
fn entry(key: &ProcKey, hosted: &Hosted) -> Value {
    let Hosted { spec, operated } = hosted;
    let Spec { identity, control, resource, policy, job, .. } = &**spec;
    let (kind, cycle) = match &policy.kind {
        Kind::Periodic(Schedule::Every(cycle)) => (0, cycle.as_secs()),
        Kind::Periodic(Schedule::Cron(_)) => (0, 0),
        Kind::Resident => (1, 0),
        Kind::Once => (2, 0),
    };
    // GSE's callers give one time, which is its begin; JOB's give both.
    let (check_begin, check_end) = match policy.check_begin.as_secs() {
        0 => (policy.start_check.as_secs(), 0),
        begin => (begin, policy.start_check.as_secs()),
    };
    json!({
        "procName": identity.proc_name,
        "setupPath": identity.setup_path,
        "pidPath": identity.pid_path,
        "configPath": identity.config_path,
        "logPath": identity.log_path,
        "contact": if job.contact.is_empty() { &key.namespace } else { &job.contact },
        "startCmd": control.start_cmd,
        "stopCmd": control.stop_cmd,
        "restartCmd": control.restart_cmd,
        "reloadCmd": control.reload_cmd,
        "killCmd": control.kill_cmd,
        "versionCmd": control.version_cmd,
        "healthCmd": control.health_cmd,
        "type": kind,
        "cycleTime": cycle,
        "cpulmt": limit(resource.cpu),
        "memlmt": limit(resource.mem),
        "user": identity.user,
        "password": "",
        "valuekey": value_key(key),
        "instanceNum": spec.instances.0,
        "funcID": job.func_id,
        "instanceID": job.instance_id,
        "reportId": spec.report_id.unwrap_or_default(),
        "startCheckBeginTime": check_begin,
        "startCheckEndTime": check_end,
        "opTimeOut": policy.op_timeout.as_secs(),
        "operateType": operated.number,
        "timestamp": operated.at,
    })
}

/// JOB knows only the name.
fn value_key(key: &ProcKey) -> String {
    if key.namespace == ProcKey::JOB_NAMESPACE { key.name.clone() } else { key.to_string() }
}

/// 0 is no limit. A whole number is written without a fraction, because some readers accept only integers.
fn limit(limit: Option<f64>) -> Value {
    let limit = limit.unwrap_or(0.0);
    if limit.fract() == 0.0 { json!(limit as i64) } else { json!(limit) }
}

/// The fields of our file that are stored nowhere else.
fn earlier(text: &str) -> HashMap<String, LastOperation> {
    let file: Value = serde_json::from_str(text).unwrap_or_default();
    let procs = file["proc"].as_array().map(Vec::as_slice).unwrap_or_default();
    let read = |proc: &Value| {
        let number = u32::try_from(proc["operateType"].as_u64()?).ok()?;
        let operated = LastOperation { number, at: proc["timestamp"].as_i64()? };
        Some((proc["valuekey"].as_str()?.to_owned(), operated))
    };
    procs.iter().filter_map(read).collect()
}

fn now() -> i64 {
    jiff::Timestamp::now().as_second()
}

#[cfg(test)]
mod tests {
    use super::*;
    use procfleet_core::spec::{Instances, JobFacts};
    use rustix::process::geteuid;
    use std::os::unix::fs::{PermissionsExt, lchown, symlink};

    fn key(namespace: &str, name: &str) -> Arc<ProcKey> {
        Arc::new(ProcKey { namespace: namespace.to_owned(), name: name.to_owned() })
    }

    fn read(path: &Path) -> Vec<Value> {
        let text = fs::read_to_string(path).expect("it is there");
        let file: Value = serde_json::from_str(&text).expect("it is JSON");
        file["proc"].as_array().expect("a list").clone()
    }

    fn spec() -> Arc<Spec> {
        let mut spec = Spec { instances: Instances(2), ..Spec::default() };
        spec.identity.proc_name = "nginx".to_owned();
        spec.identity.pid_path = "/run/nginx-1.pid".to_owned();
        spec.control.start_cmd = "nginx -c /etc/nginx-1.conf".to_owned();
        (spec.policy.start_check, spec.policy.op_timeout) = (Duration::from_secs(10), Duration::from_secs(7));
        (spec.resource.cpu, spec.resource.mem) = (Some(30.0), Some(12.5));
        Arc::new(spec)
    }

    #[test]
    fn an_entry_has_every_field_that_gses_has() {
        let hosted = Hosted { spec: spec(), operated: LastOperation { number: 0, at: 1_782_360_282 } };
        let entry = entry(&key("GSEKIT_BIZ_100148", "nginx_1"), &hosted);
        for (field, expected) in [
            ("procName", json!("nginx")),
            ("setupPath", json!("")),
            ("pidPath", json!("/run/nginx-1.pid")),
            ("contact", json!("GSEKIT_BIZ_100148")),
            ("startCmd", json!("nginx -c /etc/nginx-1.conf")),
            ("stopCmd", json!("")),
            ("restartCmd", json!("")),
            ("reloadCmd", json!("")),
            ("killCmd", json!("")),
            ("versionCmd", json!("")),
            ("healthCmd", json!("")),
            ("type", json!(1)),
            ("cpulmt", json!(30)),
            ("memlmt", json!(12.5)),
            ("user", json!("")),
            ("password", json!("")),
            ("valuekey", json!("GSEKIT_BIZ_100148:nginx_1")),
            ("startCheckBeginTime", json!(10)),
            ("startCheckEndTime", json!(0)),
            ("opTimeOut", json!(7)),
            ("operateType", json!(0)),
            ("timestamp", json!(1_782_360_282)),
            ("instanceNum", json!(2)),
            ("cycleTime", json!(0)),
        ] {
            assert_eq!(entry[field], expected, "{field}");
        }
        let mut spec = Spec::clone(&spec());
        spec.job =
            JobFacts { contact: "me".to_owned(), func_id: "f".to_owned(), instance_id: "i".to_owned() };
        spec.policy.kind = Kind::Periodic(Schedule::Every(Duration::from_secs(60)));
        spec.policy.check_begin = Duration::from_secs(3);
        let hosted = Hosted { spec: Arc::new(spec), ..hosted };
        let entry = super::entry(&key("job", "/opt/nginx"), &hosted);
        for (field, expected) in [
            ("valuekey", json!("/opt/nginx")),
            ("contact", json!("me")),
            ("funcID", json!("f")),
            ("instanceID", json!("i")),
            ("type", json!(0)),
            ("cycleTime", json!(60)),
            ("startCheckBeginTime", json!(3)),
            ("startCheckEndTime", json!(10)),
        ] {
            assert_eq!(entry[field], expected, "{field}");
        }
    }

    #[test]
    fn the_hosting_file_follows_hosting_and_outlives_the_agent() {
        let data = tempfile::tempdir().expect("a temp dir");
        let path = data.path().join("etc/.proc");
        let file = HostingFile::open(data.path());
        assert!(file.write() && !path.exists(), "nothing is hosted, and nobody expects a file");
        let (one, two) = (key("web", "one"), key("web", "two"));
        file.ordered(&one, OpKind::Start);
        file.keep(&one, &spec(), Hosting::Hosted);
        file.keep(&two, &spec(), Hosting::Unhosted);
        assert!(file.write());
        let mode = fs::metadata(&path).expect("it is there").permissions().mode();
        assert_eq!((mode & 0o777, read(&path).len()), (0o600, 1));
        assert_eq!(read(&path)[0]["operateType"], 0);
        file.ordered(&one, OpKind::Query);
        file.ordered(&one, OpKind::Update);
        file.ordered(&one, OpKind::Restart);
        file.keep(&two, &spec(), Hosting::Hosted);
        assert!(file.write());
        let types: Vec<Value> = read(&path).iter().map(|proc| proc["operateType"].clone()).collect();
        assert_eq!(types, [json!(7), json!(3)]);

        // The next agent process finds the same procs in its journal, and does not write the file.
        let written = fs::metadata(&path).expect("it is there").modified().expect("a time");
        let again = HostingFile::open(data.path());
        again.keep(&one, &spec(), Hosting::Hosted);
        again.keep(&two, &spec(), Hosting::Hosted);
        assert!(again.write());
        assert_eq!(fs::metadata(&path).expect("it is there").modified().expect("a time"), written);
        again.keep(&one, &spec(), Hosting::Unhosted);
        again.forget(&two);
        assert!(again.write());
        assert!(read(&path).is_empty());
        again.keep(&one, &spec(), Hosting::Hosted);
        assert!(again.write());
        assert_eq!(read(&path)[0]["operateType"], 7, "the last operation is remembered");
    }

    #[test]
    fn an_unreadable_hosting_file_is_replaced() {
        let data = tempfile::tempdir().expect("a temp dir");
        let path = data.path().join("etc/.proc");
        for nonsense in ["", "{", "[]", "{\"proc\": 7}", "{\"proc\": [{\"valuekey\": 1}]}"] {
            fs::create_dir_all(path.parent().expect("a folder")).expect("our folder");
            fs::write(&path, nonsense).expect("our folder");
            let file = HostingFile::open(data.path());
            file.keep(&key("web", "one"), &spec(), Hosting::Hosted);
            assert!(file.write());
            assert_eq!(read(&path).len(), 1, "{nonsense}");
        }
    }

    /// The file would else be written where another account wants it.
    #[test]
    fn the_hosting_file_is_not_written_where_others_could_redirect_it() {
        let top = tempfile::tempdir().expect("a temp dir");
        let (data, elsewhere) = (top.path().join("data"), top.path().join("elsewhere"));
        let mode = |mode| fs::set_permissions(&data, fs::Permissions::from_mode(mode)).expect("our own");
        fs::create_dir(&data).expect("our folder");
        let file = HostingFile::open(&data);
        file.keep(&key("web", "one"), &spec(), Hosting::Hosted);
        let doubt = || file.lock().fault.clone().unwrap_or_default();

        mode(0o777);
        assert!(!file.write() && !data.join("etc/.proc").exists());
        assert_eq!(doubt(), format!("anybody may write the folder {}", data.display()));
        mode(0o700);
        assert!(file.write() && data.join("etc/.proc").exists());
        assert_eq!(doubt(), "", "it is written again when the folder is private");

        if !procfleet_testkit::has(procfleet_testkit::Need::Root, geteuid().is_root()) {
            return;
        }
        let nobody = nix::unistd::User::from_name("nobody").expect("accounts").expect("it is there");
        let link = data.join("etc");
        fs::rename(&link, &elsewhere).expect("our folder");
        fs::remove_file(elsewhere.join(".proc")).expect("it is there");
        symlink(&elsewhere, &link).expect("our folder");
        lchown(&link, Some(nobody.uid.as_raw()), None).expect("root may");
        file.keep(&key("web", "two"), &spec(), Hosting::Hosted);
        assert!(!file.write() && !elsewhere.join(".proc").exists());
        assert_eq!(doubt(), format!("the link {} belongs to account \"nobody\"", link.display()));
        lchown(&link, Some(0), None).expect("root may");
        assert!(file.write(), "a link of root's is followed");
        assert_eq!(read(&elsewhere.join(".proc")).len(), 2);
    }
}

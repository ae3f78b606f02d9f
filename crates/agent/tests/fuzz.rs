//! Fuzz tests of the agent's parsers: valid files and messages, changed at random, are read or refused
//! without any other effect.
//!
//! The number of cases is bounded; `scripts/fuzz SECONDS` runs more.

use procfleet_agent::config::{PolicyError, read_policy};
use procfleet_agent::exec::pid_file_names_another;
use procfleet_core::server_address::ServerAddress;
use procfleet_testkit::fuzz::Fuzz;

/// The writer of a pid file cannot choose which process is signalled by writing something odd.
#[test]
fn pid_files() {
    let folder = tempfile::tempdir().expect("a temp dir");
    let path = folder.path().join("web.pid");
    let good =
        [b"4242\n".to_vec(), b" 17 web\n".to_vec(), b"2147483647".to_vec(), b"-1".to_vec(), b"0x10".to_vec()];
    Fuzz::cases(3_000).bytes(&good, |bytes| {
        std::fs::write(&path, bytes).expect("our own folder");
        let text = String::from_utf8_lossy(bytes);
        let word = text.split_ascii_whitespace().next().unwrap_or_default();
        let is_pid = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
        let pid = is_pid.then(|| word.parse::<i32>().ok()).flatten().filter(|pid| *pid > 0);
        let names_another = pid_file_names_another(path.to_str().expect("a plain path"), 1);
        assert_eq!(names_another, pid.is_some_and(|pid| pid != 1), "{word:?}");
    });
}

#[test]
fn policy_files() {
    let folder = tempfile::tempdir().expect("a temp dir");
    let path = folder.path().join("policy.json");
    let good = [
        br#"{"allow": {"users": ["www"], "paths": ["/srv", "/opt/x"], "ops": ["start", "stop"]}}"#.to_vec(),
        br#"{"allow": {}}"#.to_vec(),
    ];
    Fuzz::cases(3_000).bytes(&good, |bytes| {
        std::fs::write(&path, bytes).expect("our own folder");
        match read_policy(Some(path.clone())) {
            Ok(allow) => assert!(allow.paths.iter().flatten().all(|folder| folder.is_absolute())),
            Err(refusal @ (PolicyError::Read { .. } | PolicyError::Bad { .. })) => {
                assert!(refusal.to_string().contains("policy.json"), "{refusal}");
            }
            Err(refusal @ PolicyError::Open { .. }) => panic!("{refusal}"),
        }
    });
}

/// An address becomes part of a request to a proxy, so it cannot contain a line.
#[test]
fn addresses_of_servers() {
    let good = ["https://s1.example:48668", "https://[fe80::1%eth0]:7"];
    Fuzz::cases(5_000).text(&good, |text| {
        if let Ok(address) = text.parse::<ServerAddress>() {
            let shown = address.to_string();
            assert!(shown.bytes().all(|byte| byte.is_ascii_graphic()), "{shown:?}");
            assert_eq!(shown.parse(), Ok(address));
        }
    });
}

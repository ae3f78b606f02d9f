//! An HTTP proxy that forwards connections (CONNECT), and proxies that do not.

use crate::slow_proxy::carry;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// How a proxy treats a request.
#[derive(Clone, Debug)]
pub enum ProxyManner {
    /// Connects to the addresses that it knows by these names (`HOST:PORT`), and answers 502 for others.
    Forwards(Vec<(String, String)>),
    /// As `Forwards`, for requests with this value of `Proxy-Authorization`; 407 for others.
    AsksForLogin(String, Vec<(String, String)>),
    /// Answers this, whatever it is asked.
    Says(&'static str),
    /// Accepts connections and stays silent.
    Hangs,
}

/// A proxy on loopback.
#[derive(Debug)]
pub struct ConnectProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    requests: Mutex<Vec<String>>,
    /// Connections that stay open although nothing is said.
    held: Mutex<Vec<TcpStream>>,
    ended: AtomicBool,
}

impl ConnectProxy {
    #[track_caller]
    pub fn open(manner: ProxyManner) -> ConnectProxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("a bound socket");
        let shared = Arc::new(Shared::default());
        let seen = shared.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if seen.ended.load(Ordering::SeqCst) {
                    return;
                }
                let (seen, manner) = (seen.clone(), manner.clone());
                std::thread::spawn(move || seen.serve(client, &manner));
            }
        });
        ConnectProxy { address, shared }
    }

    /// `HOST:PORT`.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The heads of the requests so far.
    pub fn requests(&self) -> Vec<String> {
        self.shared.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for ConnectProxy {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        // The listener learns of it with the next connection.
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    fn serve(&self, mut client: TcpStream, manner: &ProxyManner) {
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            match client.read(&mut byte) {
                Ok(1) => head.push(byte[0]),
                _ => return,
            }
        }
        let head = String::from_utf8_lossy(&head).into_owned();
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).push(head.clone());
        let known = match manner {
            ProxyManner::Forwards(known) => known,
            ProxyManner::AsksForLogin(login, known) => {
                let has_login =
                    head.lines().any(|line| line.strip_prefix("Proxy-Authorization: ") == Some(login));
                if !has_login {
                    let _ = client.write_all(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n");
                    return;
                }
                known
            }
            ProxyManner::Says(answer) => {
                let _ = client.write_all(answer.as_bytes());
                return self.hold(client);
            }
            ProxyManner::Hangs => return self.hold(client),
        };
        let name = head.strip_prefix("CONNECT ").and_then(|rest| rest.split(' ').next()).unwrap_or_default();
        let server = known.iter().find(|(known, _)| known == name);
        let server = server.and_then(|(_, address)| TcpStream::connect(address).ok());
        let Some(server) = server else {
            let _ = client.write_all(b"HTTP/1.1 502 Bad Gateway\r\n\r\n");
            return;
        };
        if client.write_all(b"HTTP/1.1 200 Connection established\r\nVia: 1.1 testkit\r\n\r\n").is_err() {
            return;
        }
        let (Ok(back), Ok(to_client)) = (server.try_clone(), client.try_clone()) else { return };
        std::thread::spawn(move || carry(back, to_client, |_| true));
        carry(client, server, |_| true);
    }

    fn hold(&self, client: TcpStream) {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).push(client);
    }
}

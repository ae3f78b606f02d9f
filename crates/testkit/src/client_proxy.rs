//! An HTTP proxy that opens tunnels (CONNECT) and does nothing else, on loopback.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Its connections end when it is dropped.
#[derive(Debug)]
pub struct ClientProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// The only name that it resolves, and the address behind it.
    name: Option<(String, String)>,
    /// The expected `Proxy-Authorization`.
    authorization: Option<String>,
    asked: Mutex<Vec<String>>,
    ended: AtomicBool,
}

impl ClientProxy {
    #[track_caller]
    pub fn start() -> ClientProxy {
        ClientProxy::start_with(Shared::default())
    }

    /// A proxy that alone resolves a name, which nobody else can: use one of the domain `.invalid`.
    #[track_caller]
    pub fn resolving(name: &str, address: &str) -> ClientProxy {
        let name = Some((name.to_owned(), address.to_owned()));
        ClientProxy::start_with(Shared { name, ..Shared::default() })
    }

    /// A proxy that asks for this `Proxy-Authorization`.
    #[track_caller]
    pub fn with_login(authorization: &str) -> ClientProxy {
        let authorization = Some(authorization.to_owned());
        ClientProxy::start_with(Shared { authorization, ..Shared::default() })
    }

    #[track_caller]
    fn start_with(shared: Shared) -> ClientProxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("a bound socket");
        let shared = Arc::new(shared);
        let seen = shared.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if seen.ended.load(Ordering::SeqCst) {
                    return;
                }
                let seen = seen.clone();
                std::thread::spawn(move || seen.serve(client));
            }
        });
        ClientProxy { address, shared }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn url_with(&self, login: &str) -> String {
        format!("http://{login}@{}", self.address)
    }

    /// The targets of all requests, granted or not.
    pub fn asked(&self) -> Vec<String> {
        self.shared.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for ClientProxy {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        // The listener learns of it with the next connection.
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    fn serve(&self, client: TcpStream) {
        let Ok(reading) = client.try_clone() else { return };
        let mut lines = BufReader::with_capacity(1, reading).lines().map_while(Result::ok);
        let first = lines.next().unwrap_or_default();
        let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
        let Some(target) = first.strip_prefix("CONNECT ").and_then(|rest| rest.strip_suffix(" HTTP/1.1"))
        else {
            return answer(&client, "405 Method Not Allowed");
        };
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).push(target.to_owned());
        let login = head.iter().find_map(|line| line.strip_prefix("Proxy-Authorization: "));
        if self.authorization.as_deref().is_some_and(|wanted| login != Some(wanted)) {
            return answer(&client, "407 Proxy Authentication Required");
        }
        let resolved =
            self.name.as_ref().filter(|(name, _)| name == target).map(|(_, address)| address.as_str());
        let Ok(server) = TcpStream::connect(resolved.unwrap_or(target)) else {
            return answer(&client, "502 Bad Gateway");
        };
        answer(&client, "200 Connection established");
        let (Ok(back), Ok(to_client)) = (server.try_clone(), client.try_clone()) else { return };
        std::thread::spawn(move || carry(back, to_client));
        carry(client, server);
    }
}

fn answer(mut client: &TcpStream, status: &str) {
    let _ = client.write_all(format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").as_bytes());
}

fn carry(mut from: TcpStream, mut to: TcpStream) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    for stream in [from, to] {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

//! A server with canned answers on a real socket: it asserts the login, records the requests, and returns the
//! answers of each route in turn, the last one for ever.

use serde_json::{Value, json};
use std::collections::{HashMap, VecDeque};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

pub(crate) enum Reply {
    Json(Value),
    /// A status and a body without an envelope.
    Raw(u16, &'static str),
    /// A refusal after the login, as `x-procfleet-refusal: grant` says.
    Denied(Value),
    /// Take the request and close the connection.
    HangUp,
}

pub(crate) fn ok(data: Value) -> Reply {
    Reply::Json(json!({"result": true, "code": 0, "message": "success", "data": data, "request_id": "r1"}))
}

/// One page of a list.
pub(crate) fn page(data: Value, next: Value, total: u64) -> Reply {
    let mut reply =
        json!({"result": true, "code": 0, "message": "success", "data": data, "request_id": "r1"});
    (reply["next"], reply["total"]) = (next, json!(total));
    Reply::Json(reply)
}

pub(crate) fn refused(code: u32, message: &str) -> Reply {
    Reply::Json(json!({"result": false, "code": code, "message": message, "data": null}))
}

pub(crate) fn denied(code: u32, message: &str) -> Reply {
    Reply::Denied(json!({"result": false, "code": code, "message": message, "data": null}))
}

#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// `GET /api/v1/procs?name=x`.
    pub(crate) line: String,
    pub(crate) login: Value,
    pub(crate) body: Value,
}

#[derive(Default)]
struct Shared {
    routes: Mutex<HashMap<String, VecDeque<Reply>>>,
    seen: Mutex<Vec<Request>>,
    stop: AtomicBool,
}

pub(crate) struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Routes are `METHOD path`, without the query.
    pub(crate) fn start<const N: usize>(routes: [(&str, Vec<Reply>); N]) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let shared = Arc::new(Shared::default());
        *shared.routes.lock().expect("unpoisoned") =
            routes.into_iter().map(|(route, replies)| (route.to_owned(), replies.into())).collect();
        let thread = std::thread::spawn({
            let shared = shared.clone();
            move || {
                for stream in listener.incoming() {
                    if shared.stop.load(Ordering::SeqCst) {
                        break;
                    }
                    serve(stream.expect("a connection"), &shared);
                }
            }
        });
        Server { address, shared, thread: Some(thread) }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn seen(&self) -> Vec<Request> {
        self.shared.seen.lock().expect("unpoisoned").clone()
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.seen().into_iter().map(|request| request.line).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        let woken = TcpStream::connect(self.address).is_ok();
        if let (true, Some(thread)) = (woken, self.thread.take()) {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the test server panicked");
        }
    }
}

fn serve(stream: TcpStream, shared: &Shared) {
    let mut reader = BufReader::new(&stream);
    let mut first = String::new();
    reader.read_line(&mut first).expect("a request line");
    let line = first.trim_end().trim_end_matches(" HTTP/1.1").to_owned();
    let (mut login, mut length) = (Value::Null, 0);
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).expect("a header");
        let Some((name, value)) = header.trim_end().split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "x-bkapi-authorization" => login = serde_json::from_str(value).expect("the login is JSON"),
            "content-length" => length = value.parse().expect("a length"),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("the body");
    let body =
        if body.is_empty() { Value::Null } else { serde_json::from_slice(&body).expect("a JSON body") };
    let route = line.split('?').next().unwrap_or_default().to_owned();
    shared.seen.lock().expect("unpoisoned").push(Request { line, login, body });

    let mut routes = shared.routes.lock().expect("unpoisoned");
    let (status, header, text) = match routes.get_mut(&route) {
        None => (404, "", refused(1_306_404, &format!("no such api: {route}")).text()),
        Some(replies) if replies.len() > 1 => {
            let reply = replies.pop_front().expect("there is one");
            (reply.status(), reply.header(), reply.text())
        }
        Some(replies) => (replies[0].status(), replies[0].header(), replies[0].text()),
    };
    let Some(text) = text else { return };
    let mut stream = &stream;
    write!(
        stream,
        "HTTP/1.1 {status} X\r\nContent-Length: {}\r\nLocation: http://127.0.0.1:1/\r\n{header}Connection: close\r\n\r\n{text}",
        text.len()
    )
    .expect("the client listens");
}

impl Reply {
    fn status(&self) -> u16 {
        match self {
            Reply::Json(_) | Reply::Denied(_) | Reply::HangUp => 200,
            Reply::Raw(status, _) => *status,
        }
    }

    fn header(&self) -> &'static str {
        match self {
            Reply::Denied(_) => "X-Procfleet-Refusal: grant\r\n",
            Reply::Json(_) | Reply::Raw(..) | Reply::HangUp => "",
        }
    }

    fn text(&self) -> Option<String> {
        match self {
            Reply::Json(value) | Reply::Denied(value) => Some(value.to_string()),
            Reply::Raw(_, text) => Some((*text).to_owned()),
            Reply::HangUp => None,
        }
    }
}

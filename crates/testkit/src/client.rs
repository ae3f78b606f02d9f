//! Calls to a server, in the ways that its callers use.

use crate::process;
use crate::schema::{operation, schema_faults};
use crate::wait::{PATIENCE, wait_for};
use serde_json::{Map, Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::OnceLock;
use std::time::Duration;

const GSE: &str = "/api/c/compapi/v2/gse";

/// One caller: an address, an app and its secret.
#[derive(Clone, Debug)]
pub struct Client {
    agent: ureq::Agent,
    pub url: String,
    pub app_code: String,
    pub app_secret: String,
    /// The user that it names; empty: none.
    pub username: String,
}

/// The answer to a call.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    /// The envelope.
    pub body: Value,
}

/// An answer to a call that was written by hand.
#[derive(Clone, Debug)]
pub struct Raw {
    pub status: u16,
    pub text: String,
}

/// How an op ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub code: u64,
    pub message: String,
    /// The JSON inside `content`.
    pub content: Value,
}

impl Client {
    pub fn new(url: &str, app_code: &str, app_secret: &str) -> Client {
        let (url, app_code, app_secret) = (url.to_owned(), app_code.to_owned(), app_secret.to_owned());
        let username = "admin".to_owned();
        Client { agent: http_agent(Duration::from_secs(60)), url, app_code, app_secret, username }
    }

    /// A client of another server of the same store, which waits this long for an answer.
    pub fn of_server(&self, url: &str, timeout: Duration) -> Client {
        Client { agent: http_agent(timeout), url: url.to_owned(), ..self.clone() }
    }

    /// A client of this server for another app, which names no user.
    pub fn as_app(&self, app_code: &str, app_secret: &str) -> Client {
        Client { username: String::new(), ..Client::new(&self.url, app_code, app_secret) }
    }

    /// A client of this app that names another user.
    pub fn naming(&self, username: &str) -> Client {
        Client { username: username.to_owned(), ..self.clone() }
    }

    /// The login is in the body, beside the request's own fields.
    #[track_caller]
    pub fn post(&self, path: &str, mut body: Value) -> Answer {
        let fields = body.as_object_mut().expect("a request is an object");
        for (name, text) in [
            ("bk_app_code", &self.app_code),
            ("bk_app_secret", &self.app_secret),
            ("bk_username", &self.username),
        ] {
            fields.entry(name).or_insert_with(|| json!(text));
        }
        self.post_as_it_is(path, &body)
    }

    #[track_caller]
    pub fn post_as_it_is(&self, path: &str, body: &Value) -> Answer {
        self.read("post", path, self.agent.post(self.at(path)).send_json(body))
    }

    /// The login is in the header.
    #[track_caller]
    pub fn post_with_header(&self, path: &str, body: &Value) -> Answer {
        let request = self.agent.post(self.at(path)).header("X-Bkapi-Authorization", self.authorization());
        self.read("post", path, request.send_json(body))
    }

    /// As [`Client::post_with_header`], with more headers.
    #[track_caller]
    pub fn post_with_headers(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
        let mut request =
            self.agent.post(self.at(path)).header("X-Bkapi-Authorization", self.authorization());
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.read("post", path, request.send_json(body))
    }

    /// As [`Client::post_with_headers`], for a server that may be gone or break off; its answers are JSON.
    pub fn try_post(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> Result<Answer, String> {
        let mut request =
            self.agent.post(self.at(path)).header("X-Bkapi-Authorization", self.authorization());
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        try_read(request.send_json(body))
    }

    pub fn try_get(&self, path: &str) -> Result<Answer, String> {
        let request = self.agent.get(self.at(path)).header("X-Bkapi-Authorization", self.authorization());
        try_read(request.call())
    }

    #[track_caller]
    pub fn get(&self, path: &str) -> Answer {
        let request = self.agent.get(self.at(path)).header("X-Bkapi-Authorization", self.authorization());
        self.read("get", path, request.call())
    }

    /// The `data` of a native call that succeeds.
    #[track_caller]
    pub fn data(&self, path: &str) -> Value {
        self.get(path).data()
    }

    /// Status and text of a page that is not JSON.
    #[track_caller]
    pub fn page(&self, path: &str) -> Raw {
        let mut response = self.agent.get(self.at(path)).call().expect("the server answers");
        let text = response.body_mut().read_to_string().expect("the answer is text");
        Raw { status: response.status().as_u16(), text }
    }

    /// A POST whose every byte is the test's own.
    #[track_caller]
    pub fn raw(&self, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Raw {
        self.send("POST", path, headers, body)
    }

    /// A call whose every byte is the test's own. The body is sent in parts until the server answers or it is
    /// all sent.
    #[track_caller]
    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Raw {
        let stream = TcpStream::connect(self.address()).expect("the server listens");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket of ours");
        self.send_by(stream, method, path, headers, body)
    }

    /// As [`Client::send`], by a connection of the test's own.
    #[track_caller]
    pub fn send_by(
        &self,
        mut stream: TcpStream,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Raw {
        let address = self.address();
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n");
        head.push_str(&format!("Content-Length: {}\r\n", body.len()));
        headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
        head.push_str("\r\n");
        stream.write_all(head.as_bytes()).expect("the server reads");
        // A server may answer and hang up before it has read everything; the answer is what counts.
        let _ = stream.write_all(body);
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let answer = String::from_utf8_lossy(&bytes).into_owned();
        let (head, text) = answer.split_once("\r\n\r\n").expect("the server answers in HTTP");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status line");
        Raw { status, text: text.to_owned() }
    }

    /// The server's address and port.
    pub fn address(&self) -> &str {
        self.url.split_once("://").expect("a url").1
    }

    pub fn authorization(&self) -> String {
        let (code, secret) = (&self.app_code, &self.app_secret);
        json!({"bk_app_code": code, "bk_app_secret": secret, "bk_username": self.username}).to_string()
    }

    /// `operate_proc_v2` by the oldest path; the task's id.
    #[track_caller]
    pub fn operate(&self, body: Value) -> String {
        self.post(&format!("{GSE}/operate_proc_v2/"), body).task()
    }

    /// `get_proc_operate_result_v2` as it is now.
    #[track_caller]
    pub fn results_now(&self, task: &str) -> Map<String, Value> {
        let answer = self.post(&format!("{GSE}/get_proc_operate_result_v2/"), json!({"task_id": task}));
        answer.data().as_object().cloned().expect("results are an object")
    }

    /// The results of a task when all of its ops have ended.
    #[track_caller]
    pub fn results(&self, task: &str) -> Vec<(String, Outcome)> {
        let results = wait_for(PATIENCE, &format!("task {task} ends"), || {
            let now = self.results_now(task);
            now.values().all(|result| result["error_code"] != 115).then_some(now)
        });
        results.into_iter().map(|(key, result)| (key, Outcome::read(&result))).collect()
    }

    /// The outcome of a task of one op.
    #[track_caller]
    pub fn outcome(&self, task: &str) -> Outcome {
        let mut results = self.results(task);
        assert_eq!(results.len(), 1, "{results:?}");
        results.remove(0).1
    }

    fn at(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    #[track_caller]
    fn read(
        &self,
        method: &str,
        path: &str,
        answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> Answer {
        let mut response = answer.expect("the server answers");
        let status = response.status().as_u16();
        let text = response.body_mut().read_to_string().expect("the answer is text");
        let body = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        let answer = Answer { status, body };
        self.check(method, path, &answer);
        answer
    }

    /// Checks every answer against the API document. A path that is not in the document must be answered as
    /// not found.
    #[track_caller]
    fn check(&self, method: &str, path: &str, answer: &Answer) {
        static DOCUMENT: OnceLock<Value> = OnceLock::new();
        let document = DOCUMENT.get_or_init(|| {
            serde_json::from_str(&self.page("/api/openapi.json").text).expect("the document is JSON")
        });
        let Some(operation) = operation(document, method, path) else {
            assert_eq!(answer.status, 404, "{method} {path} is not in the document: {answer:?}");
            return;
        };
        let response = &operation["responses"][answer.status.to_string()];
        let response = match response["$ref"].as_str() {
            Some(pointer) => document.pointer(pointer.trim_start_matches('#')).expect("a response"),
            None => response,
        };
        let schema = &response["content"]["application/json"]["schema"];
        assert!(!schema.is_null(), "the document has no {} for {method} {path}", answer.status);
        let faults = schema_faults(document, schema, &answer.body);
        assert!(faults.is_empty(), "{method} {path}: {answer:?} is not what the document says: {faults:#?}");
    }
}

fn try_read(answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Result<Answer, String> {
    let mut response = answer.map_err(|error| error.to_string())?;
    let text = response.body_mut().read_to_string().map_err(|error| error.to_string())?;
    let body = serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))?;
    Ok(Answer { status: response.status().as_u16(), body })
}

#[expect(clippy::disallowed_methods, reason = "it accepts any certificate, which no client of ours may")]
fn http_agent(timeout: Duration) -> ureq::Agent {
    // The verification of certificates is tested with the CLI.
    let tls = ureq::tls::TlsConfig::builder().disable_verification(true).build();
    ureq::Agent::config_builder()
        .http_status_as_error(false)
        .tls_config(tls)
        .proxy(None)
        .timeout_global(Some(timeout))
        .build()
        .new_agent()
}

impl Answer {
    #[track_caller]
    pub fn data(&self) -> Value {
        assert_eq!(
            (self.status, &self.body["result"], &self.body["code"]),
            (200, &json!(true), &json!(0)),
            "{self:?}"
        );
        let message = self.body["message"].as_str().unwrap_or_default();
        assert!(message.starts_with("success"), "{self:?}");
        self.body["data"].clone()
    }

    #[track_caller]
    pub fn task(&self) -> String {
        self.data()["task_id"].as_str().expect("a task id is a text").to_owned()
    }

    /// The call was refused with this code in the usual envelope, and its message contains all of these
    /// words.
    #[track_caller]
    pub fn assert_refused(&self, code: u64, words: &[&str]) {
        assert_eq!(
            (self.status, &self.body["result"], &self.body["code"]),
            (200, &json!(false), &json!(code)),
            "{self:?}"
        );
        let message = self.body["message"].as_str().unwrap_or_default();
        words.iter().for_each(|word| assert!(message.contains(word), "{word:?} is not in {message:?}"));
    }
}

impl Raw {
    #[track_caller]
    pub fn answer(&self) -> Answer {
        let body = serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {self:?}"));
        Answer { status: self.status, body }
    }
}

impl Outcome {
    #[track_caller]
    fn read(result: &Value) -> Outcome {
        let fields: Vec<&str> =
            result.as_object().expect("a result is an object").keys().map(String::as_str).collect();
        assert_eq!(fields, ["error_code", "error_msg", "content"], "{result}");
        let content = result["content"].as_str().expect("content is a text");
        let content: Value =
            serde_json::from_str(content).unwrap_or_else(|error| panic!("{error}: {result}"));
        Outcome {
            code: result["error_code"].as_u64().expect("a code is a number"),
            message: result["error_msg"].as_str().expect("a message is a text").to_owned(),
            content,
        }
    }

    /// Its code, and how its message begins.
    #[track_caller]
    pub fn assert(&self, code: u64, begins: &str) -> &Outcome {
        assert_eq!(self.code, code, "{self:?}");
        assert!(self.message.starts_with(begins), "{begins:?} does not begin {self:?}");
        self
    }

    #[track_caller]
    pub fn assert_success(&self) -> &Outcome {
        self.assert(0, "success")
    }

    #[track_caller]
    pub fn assert_says(&self, words: &str) -> &Outcome {
        assert!(self.message.contains(words), "{words:?} is not in {self:?}");
        self
    }

    #[track_caller]
    pub fn assert_hosted(&self, hosted: bool) -> &Outcome {
        assert_eq!(self.hosted(), hosted, "{self:?}");
        self
    }

    /// `isAuto`, in either shape of content.
    #[track_caller]
    pub fn hosted(&self) -> bool {
        let auto = match self.content.get("value") {
            Some(value) => {
                assert_eq!(value.as_array().map(Vec::len), Some(1), "{self:?}");
                &value[0]["isAuto"]
            }
            None => &self.instance()["isAuto"],
        };
        auto.as_bool().unwrap_or_else(|| panic!("isAuto is no boolean: {self:?}"))
    }

    /// The one instance of the one process of a query.
    #[track_caller]
    pub fn instance(&self) -> &Value {
        let process = self.content["process"].as_array().expect("a query lists processes");
        assert_eq!(process.len(), 1, "{self:?}");
        assert_eq!(process[0]["instance"].as_array().map(Vec::len), Some(1), "{self:?}");
        &process[0]["instance"][0]
    }

    /// The pid that a query saw; `None` for -1.
    #[track_caller]
    pub fn pid(&self) -> Option<u32> {
        match self.instance()["pid"].as_i64().expect("a pid is a number") {
            -1 => None,
            pid => {
                let pid = u32::try_from(pid).ok().filter(|pid| *pid > 0).expect("a pid is positive, or -1");
                Some(process::remember(pid))
            }
        }
    }
}

//! The API's own document: OpenAPI 3.1, made from the code that reads requests and the types of the answers.
//!
//! `apis` maps each API to the code that reads its requests, `request` turns the fields that this code reads
//! into schemas, `answer` makes schemas of the types of answers, and `words` has the descriptions in English
//! and Chinese. The server supplies the paths.

mod answer;
pub mod apis;
mod examples;
mod request;
mod words;

use self::apis::{ApiEntry, Family, FieldLocation, Repeats};
use self::words::Words;
use super::login;
use schemars::Schema;
use schemars::generate::{SchemaGenerator, SchemaSettings};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

pub use self::examples::request as example_request;
pub use self::request::fields_of;

/// The headers that identify a repeated call.
pub const IDEMPOTENCY_KEY: &str = "Idempotency-Key";
pub const REQUEST_ID: &str = "X-Bkapi-Request-Id";

/// The method under which a path is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Get,
    /// For APIs that create a task or change something.
    Post,
    /// A query: callers use both.
    PostOrGet,
}

/// The form of the answer.
#[derive(Clone, Copy, Debug)]
pub enum AnswerEntry {
    /// JSON, in the envelope.
    Json(fn(&mut SchemaGenerator) -> Schema),
    /// This document.
    Document,
    /// A text of this media type.
    Text(&'static str),
}

/// One path that is served.
#[derive(Clone, Debug)]
pub struct ServedPath {
    pub api: &'static str,
    pub method: Method,
    pub path: String,
    pub answer: AnswerEntry,
}

/// The document, and its faults.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    pub json: Value,
    /// Missing and unused texts, and APIs that are only served or only described. A test requires that there
    /// are none.
    pub faults: Vec<String>,
}

/// The document of the served APIs.
pub fn openapi(served: &[ServedPath], version: &str) -> Document {
    let settings = SchemaSettings::draft2020_12().for_serialize().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut generator = settings.into_generator();
    let mut words = Words::new();
    let mut paths: BTreeMap<(Family, usize), (String, Map<String, Value>)> = BTreeMap::new();
    let mut indexes: BTreeMap<String, (Family, usize)> = BTreeMap::new();
    for (index, api) in apis::APIS.iter().enumerate() {
        let mut of_api = served.iter().filter(|served| served.api == api.name);
        let Some(main) = of_api.next() else {
            words.fault(format!("{} is described and not served", api.name));
            continue;
        };
        let aliases: Vec<&str> = of_api.map(|served| served.path.as_str()).collect();
        let at = *indexes.entry(main.path.clone()).or_insert((api.family, index));
        let (_, item) = paths.entry(at).or_insert_with(|| (main.path.clone(), Map::new()));
        for (method, operation) in operations(api, main, &aliases, &mut generator, &mut words) {
            item.insert(method.to_owned(), operation);
        }
    }
    for served in served {
        if apis::find(served.api).is_none() {
            words.fault(format!("{} is served and not described", served.api));
        }
    }
    let parameters = shared_parameters(&mut words);
    let refused = generator.subschema_for::<super::native::Envelope<()>>();
    let schemas = answer::definitions(&mut generator, &mut words);
    let json = json!({
        "openapi": "3.1.1",
        "info": info(version, &mut words),
        "tags": Family::ALL.map(|family| family.tag(&mut words)),
        "security": [{"bkapi": []}, {}],
        "paths": paths.into_values().map(|(path, item)| (path, Value::Object(item))).collect::<Map<_, _>>(),
        "components": {
            "securitySchemes": {"bkapi": security_scheme(&mut words)},
            "parameters": parameters,
            "responses": {
                "Ending": response(&mut words, "response/Ending", &refused),
                "NoSuchApi": response(&mut words, "response/NoSuchApi", &refused),
            },
            "schemas": schemas,
        },
        "x-codes": words.codes(),
    });
    Document { json, faults: words.faults() }
}

fn info(version: &str, words: &mut Words) -> Value {
    let mut info = json!({"title": "procfleet", "version": version, "license": {
        "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"
    }});
    words.describe(&mut info, "info");
    info
}

fn security_scheme(words: &mut Words) -> Value {
    let mut scheme = json!({"type": "apiKey", "in": "header", "name": "X-Bkapi-Authorization"});
    words.describe(&mut scheme, "header/X-Bkapi-Authorization");
    scheme
}

fn response(words: &mut Words, key: &str, schema: &Schema) -> Value {
    let mut response = json!({"content": {"application/json": {"schema": schema}}});
    words.describe(&mut response, key);
    response
}

/// The headers and the login, which stand beside the fields of many requests.
fn shared_parameters(words: &mut Words) -> Map<String, Value> {
    let headers = [(IDEMPOTENCY_KEY, 255), (REQUEST_ID, 64)].map(|(name, longest)| {
        let schema = json!({"type": "string", "minLength": 1, "maxLength": longest});
        let mut header = json!({"name": name, "in": "header", "schema": schema});
        words.describe(&mut header, &format!("header/{name}"));
        (name.to_owned(), header)
    });
    let logins = login::FIELDS.map(|name| {
        let mut field = json!({"name": name, "in": "query", "schema": {"type": "string"}});
        words.describe(&mut field, name);
        (name.to_owned(), field)
    });
    headers.into_iter().chain(logins).collect()
}

fn operations(
    api: &'static ApiEntry,
    main: &ServedPath,
    aliases: &[&str],
    generator: &mut SchemaGenerator,
    words: &mut Words,
) -> Vec<(&'static str, Value)> {
    let response = success(api, main, generator, words);
    let methods: &[&str] = match (main.method, api.body) {
        (Method::Get, _) => &["get"],
        (Method::PostOrGet, FieldLocation::InQueryToo) => &["post", "get"],
        (Method::Post | Method::PostOrGet, _) => &["post"],
    };
    let operation = |method: &&'static str| {
        let id = match (*method, main.method) {
            ("get", Method::PostOrGet) => format!("{}_by_get", api.name),
            _ => api.name.to_owned(),
        };
        let mut operation = json!({"operationId": id, "tags": [api.family.name()]});
        words.summarize(&mut operation, api.name);
        let mut parameters: Vec<Value> = path_parameters(&main.path, words);
        let mut body = None;
        if let Some(runs) = request::runs(api) {
            match *method {
                "get" => parameters.extend(request::query(api, &runs, words)),
                _ => body = Some(request::body(api, &runs, words)),
            }
        }
        let shared = |name: &str| json!({"$ref": format!("#/components/parameters/{name}")});
        match main.answer {
            AnswerEntry::Json(_) => {
                if *method == "get" {
                    parameters.extend(login::FIELDS.map(shared));
                }
                if api.repeats == Repeats::ByKey {
                    parameters.push(shared(IDEMPOTENCY_KEY));
                }
                parameters.push(shared(REQUEST_ID));
            }
            AnswerEntry::Document | AnswerEntry::Text(_) => operation["security"] = json!([]),
        }
        if !parameters.is_empty() {
            operation["parameters"] = Value::Array(parameters);
        }
        if let Some(schema) = body {
            let mut content = json!({"schema": schema});
            if let Some(example) = examples::request(api.name) {
                content["example"] = example;
            }
            operation["requestBody"] = json!({"required": true, "content": {"application/json": content}});
        }
        operation["responses"] = responses(main, &response);
        if !aliases.is_empty() {
            operation["x-aliases"] = json!(aliases);
        }
        if main.method == Method::PostOrGet {
            operation["x-post-or-get"] = json!(true);
        }
        (*method, operation)
    };
    methods.iter().map(operation).collect()
}

fn path_parameters(path: &str, words: &mut Words) -> Vec<Value> {
    let names = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let parameter = |name: &str| {
        let mut parameter =
            json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}});
        words.describe(&mut parameter, &format!("path/{name}"));
        parameter
    };
    names.map(parameter).collect()
}

fn success(api: &ApiEntry, main: &ServedPath, generator: &mut SchemaGenerator, words: &mut Words) -> Value {
    let (media, mut content) = match main.answer {
        AnswerEntry::Json(schema) => ("application/json", json!({"schema": schema(generator)})),
        AnswerEntry::Document => ("application/json", json!({"schema": {"type": "object"}})),
        AnswerEntry::Text(media) => (media, json!({"schema": {"type": "string"}})),
    };
    if let Some(data) = examples::data(api.name) {
        let (message, request_id) = ("success", "5c0d1f6b5c1f4b2f9a3d7c0e8b1a2f34");
        content["example"] = match api.family {
            Family::Job => json!({"result": true, "code": 0, "message": "", "data": data,
                "permission": null, "request_id": request_id}),
            _ => {
                json!({"result": true, "code": 0, "message": message, "data": data, "request_id": request_id})
            }
        };
    }
    let mut response = json!({"content": {media: content}});
    let key = match main.answer {
        AnswerEntry::Json(_) => "response/Answer",
        AnswerEntry::Document | AnswerEntry::Text(_) => "response/Page",
    };
    words.describe(&mut response, key);
    response
}

fn responses(main: &ServedPath, success: &Value) -> Value {
    let mut responses = json!({"200": success});
    if let AnswerEntry::Json(_) = main.answer {
        // A parameter in the path may make the request match another path.
        if main.path.contains('{') {
            responses["404"] = json!({"$ref": "#/components/responses/NoSuchApi"});
        }
        responses["503"] = json!({"$ref": "#/components/responses/Ending"});
    }
    if main.api == "readyz" {
        responses["503"] = success.clone();
    }
    responses
}

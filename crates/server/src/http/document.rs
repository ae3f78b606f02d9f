//! The API's document: OpenAPI at `/api/openapi.json`, and a page for people at `/docs`.

mod fields;
mod page;
mod values;

use self::page::Language;
use super::routes::Routes;
use axum::http::{HeaderMap, header};
use axum::response::IntoResponse;
use axum::routing::get;
use procfleet_proto::http::document::{self, AnswerEntry, Document};
use std::sync::LazyLock;

const HTML: &str = "text/html; charset=utf-8";
/// The page needs its own style sheet and nothing else.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Constant while the program runs.
static TEXT: LazyLock<String> = LazyLock::new(text);
static ENGLISH: LazyLock<String> = LazyLock::new(|| page::render(&document().json, Language::English));
static CHINESE: LazyLock<String> = LazyLock::new(|| page::render(&document().json, Language::Chinese));

pub(super) fn routes() -> Routes {
    Routes::default()
        .page("openapi", "/api/openapi.json", AnswerEntry::Document, get(openapi))
        .page("docs", "/docs", AnswerEntry::Text(HTML), get(docs))
        .page("docs", "/docs/", AnswerEntry::Text(HTML), get(docs))
}

/// The document of all routes of this server.
pub fn document() -> Document {
    document::openapi(&super::routes().served, env!("CARGO_PKG_VERSION"))
}

/// The text that is printed and checked in.
pub fn text() -> String {
    let mut text = serde_json::to_string_pretty(&document().json).expect("JSON is text");
    text.push('\n');
    text
}

async fn openapi() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], TEXT.as_str())
}

/// In the language that the browser asks for first.
async fn docs(headers: HeaderMap) -> impl IntoResponse {
    let wanted = headers.get(header::ACCEPT_LANGUAGE).and_then(|wanted| wanted.to_str().ok());
    let html = match wanted.is_some_and(|wanted| wanted.trim_start().to_ascii_lowercase().starts_with("zh")) {
        true => CHINESE.as_str(),
        false => ENGLISH.as_str(),
    };
    let headers = [
        (header::CONTENT_TYPE, HTML),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::VARY, "Accept-Language"),
    ];
    (headers, html)
}

//! The list of all routes, from which the router and the API's document are made.

use super::call::{Call, Reply, serve, wrong_method};
use super::error::CallError;
use super::family::CallFamily;
use crate::usecase::{Page, Services};
use axum::Router;
use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::{MethodFilter, MethodRouter, get, on, post};
use procfleet_proto::http::document::{AnswerEntry, Method, ServedPath};
use procfleet_proto::http::job;
use procfleet_proto::http::native::{Envelope, PageEnvelope};
use schemars::JsonSchema;
use serde::Serialize;
use std::pin::Pin;

/// A router under construction, and the list of its routes.
#[derive(Default)]
pub(super) struct Routes {
    pub(super) router: Router<Services>,
    pub(super) served: Vec<ServedPath>,
}

/// The future of a handler.
pub(super) type Acting<T> = Pin<Box<dyn Future<Output = Result<T, CallError>> + Send>>;
pub(super) type Answering = Pin<Box<dyn Future<Output = Response> + Send>>;

impl Routes {
    pub(super) fn get<T, F>(
        self,
        api: &'static str,
        path: &str,
        act: impl FnOnce(Call) -> F + Clone + Send + Sync + 'static,
    ) -> Routes
    where
        T: Serialize + JsonSchema + Send + 'static,
        F: Future<Output = Result<T, CallError>> + Send + 'static,
    {
        self.add(api, Method::Get, path, enveloped::<T>(), get(handler(CallFamily::Gse, api, plain(act))))
    }

    /// As [`Routes::get`], where the answer is one page of a list.
    pub(super) fn list<T, F>(
        self,
        api: &'static str,
        path: &str,
        act: impl FnOnce(Call) -> F + Clone + Send + Sync + 'static,
    ) -> Routes
    where
        T: Serialize + JsonSchema + Send + 'static,
        F: Future<Output = Result<Page<T>, CallError>> + Send + 'static,
    {
        let act =
            move |call| -> Acting<Reply<T>> { Box::pin(async move { act(call).await.map(Reply::of_page) }) };
        let answer = AnswerEntry::Json(|generator| generator.subschema_for::<PageEnvelope<T>>());
        self.add(api, Method::Get, path, answer, get(handler(CallFamily::Gse, api, act)))
    }

    pub(super) fn post<T, F>(
        self,
        api: &'static str,
        path: &str,
        act: impl FnOnce(Call) -> F + Clone + Send + Sync + 'static,
    ) -> Routes
    where
        T: Serialize + JsonSchema + Send + 'static,
        F: Future<Output = Result<T, CallError>> + Send + 'static,
    {
        self.add(api, Method::Post, path, enveloped::<T>(), post(handler(CallFamily::Gse, api, plain(act))))
    }

    /// Like [`Routes::post`], with warnings for the caller beside the answer.
    pub(super) fn post_with_warnings<T, F>(
        self,
        api: &'static str,
        path: &str,
        act: impl FnOnce(Call) -> F + Clone + Send + Sync + 'static,
    ) -> Routes
    where
        T: Serialize + JsonSchema + Send + 'static,
        F: Future<Output = Result<Reply<T>, CallError>> + Send + 'static,
    {
        self.add(api, Method::Post, path, enveloped::<T>(), post(handler(CallFamily::Gse, api, act)))
    }

    /// One of BlueKing's APIs, in its own envelope even for a wrong method. The first path of an API is its
    /// main one.
    pub(super) fn blueking<T, F>(
        self,
        family: CallFamily,
        api: &'static str,
        method: Method,
        path: &str,
        answer: AnswerEntry,
        act: impl FnOnce(Call) -> F + Clone + Send + Sync + 'static,
    ) -> Routes
    where
        T: Serialize + Send + 'static,
        F: Future<Output = Result<Reply<T>, CallError>> + Send + 'static,
    {
        let filter = match method {
            Method::Get => MethodFilter::GET,
            Method::Post => MethodFilter::POST,
            Method::PostOrGet => MethodFilter::GET.or(MethodFilter::POST),
        };
        let other = move |State(services): State<Services>, request: Request| {
            wrong_method(services, family, api, request)
        };
        self.add(api, method, path, answer, on(filter, handler(family, api, act)).fallback(other))
    }

    /// A route without an envelope.
    pub(super) fn page(
        self,
        api: &'static str,
        path: &str,
        answer: AnswerEntry,
        handler: MethodRouter<Services>,
    ) -> Routes {
        self.add(api, Method::Get, path, answer, handler)
    }

    pub(super) fn merge(mut self, other: Routes) -> Routes {
        self.served.extend(other.served);
        Routes { router: self.router.merge(other.router), served: self.served }
    }

    fn add(
        mut self,
        api: &'static str,
        method: Method,
        path: &str,
        answer: AnswerEntry,
        handler: MethodRouter<Services>,
    ) -> Routes {
        self.served.push(ServedPath { api, method, path: path.to_owned(), answer });
        Routes { router: self.router.route(path, handler), served: self.served }
    }
}

/// The document entry of an answer whose `data` is a `T`.
pub(super) fn enveloped<T: JsonSchema>() -> AnswerEntry {
    AnswerEntry::Json(|generator| generator.subschema_for::<Envelope<T>>())
}

/// Like [`enveloped`], in JOB's envelope.
pub(super) fn job_enveloped<T: JsonSchema>() -> AnswerEntry {
    AnswerEntry::Json(|generator| generator.subschema_for::<job::JobEnvelope<T>>())
}

/// A handler without warnings.
fn plain<T, F>(
    act: impl FnOnce(Call) -> F + Clone + Send + Sync + 'static,
) -> impl FnOnce(Call) -> Acting<Reply<T>> + Clone + Send + Sync + 'static
where
    T: Send + 'static,
    F: Future<Output = Result<T, CallError>> + Send + 'static,
{
    move |call| Box::pin(async move { act(call).await.map(Reply::from) })
}

fn handler<T, F>(
    family: CallFamily,
    api: &'static str,
    act: impl FnOnce(Call) -> F + Clone + Send + Sync + 'static,
) -> impl FnOnce(State<Services>, Request) -> Answering + Clone + Send + Sync + 'static
where
    T: Serialize + Send + 'static,
    F: Future<Output = Result<Reply<T>, CallError>> + Send + 'static,
{
    move |State(services): State<Services>, request: Request| -> Answering {
        Box::pin(serve(services, family, api, request, act))
    }
}

//! Webhooks: URLs that receive the events. `workers/webhooks.rs` delivers to them.

use super::{AppError, Caller, Services, audit};
use axum::http::Uri;
use procfleet_proto::http::events::{WebhookRow, without_secrets};
use procfleet_proto::http::fault::Faults;
use procfleet_store::{Lease, ServerRecord, ServerState, Webhook};

const MOST: usize = 32;
const LONGEST_URL: usize = 2_048;

pub async fn add(services: &Services, caller: &Caller, url: String) -> Result<WebhookRow, AppError> {
    let mut faults = Faults::default();
    if !is_of_a_receiver(&url) {
        faults.add("url", "must be an http or https url");
    }
    if url.len() > LONGEST_URL {
        faults.add("url", format!("has {} bytes, at most {LONGEST_URL} are allowed", url.len()));
    }
    if services.store.webhooks().await?.len() >= MOST {
        faults.add("url", format!("there are {MOST} webhooks already, and no more are allowed"));
    }
    if !faults.is_empty() {
        return Err(faults.into());
    }
    let record = audit::entry(services, caller, "webhook_create", &without_secrets(&url), String::new());
    match services.store.add_webhook(url.clone(), services.clock.wall(), record).await? {
        Some(webhook) => {
            services.event_notifier.notify();
            Ok(row(webhook, 0))
        }
        None => {
            faults.add("url", format!("there is a webhook for {} already", without_secrets(&url)));
            Err(faults.into())
        }
    }
}

/// Whether the text is an http or https URL with a host and, if it names one, a valid port.
fn is_of_a_receiver(url: &str) -> bool {
    let Ok(uri) = url.parse::<Uri>() else { return false };
    let (Some("http" | "https"), Some(authority)) = (uri.scheme_str(), uri.authority()) else { return false };
    let host = authority.host();
    // `Uri` reports a port number that is too large as absent.
    let has_no_port = authority.as_str().ends_with(host);
    !host.is_empty() && (has_no_port || authority.port_u16().is_some_and(|port| port > 0))
}

pub async fn remove(services: &Services, caller: &Caller, id: u64) -> Result<(), AppError> {
    let record = audit::entry(services, caller, "webhook_remove", &id.to_string(), String::new());
    match services.store.remove_webhook(id, record).await? {
        true => {
            services.event_notifier.notify();
            Ok(())
        }
        false => Err(Faults::one("id", format!("there is no webhook {id}")).into()),
    }
}

pub async fn list(services: &Services) -> Result<Vec<WebhookRow>, AppError> {
    let newest = services.store.last_event().await?;
    let webhooks = services.store.webhooks().await?;
    let deliverer = deliverer(services).await?;
    let rows = webhooks.into_iter().map(|webhook| {
        let waits = newest > webhook.delivered;
        let trouble = match &deliverer {
            Deliverer::This => services.delivery_errors.get(webhook.id),
            Deliverer::Other(name) if waits => {
                format!("server {name} delivers the webhooks; run procfleet webhook list against that server to see why events wait")
            }
            Deliverer::None if waits => "no server delivers now; another one takes over soon".to_owned(),
            Deliverer::Other(_) | Deliverer::None => String::new(),
        };
        WebhookRow { trouble, ..row(webhook, newest) }
    });
    Ok(rows.collect())
}

/// The server that delivers, and so knows why a delivery failed.
enum Deliverer {
    This,
    Other(String),
    /// The one that did has died.
    None,
}

async fn deliverer(services: &Services) -> Result<Deliverer, AppError> {
    if services.store.membership().has(Lease::Webhooks) {
        return Ok(Deliverer::This);
    }
    let servers = services.store.servers().await?;
    let delivers = |server: &ServerRecord| {
        server.state == ServerState::Up && server.leases.iter().any(|lease| lease == Lease::Webhooks.name())
    };
    let found = servers.into_iter().find(delivers);
    Ok(found.map_or(Deliverer::None, |server| Deliverer::Other(server.intro.name)))
}

fn row(webhook: Webhook, newest: u64) -> WebhookRow {
    WebhookRow {
        id: webhook.id,
        created_at: webhook.created_at / 1000,
        waiting: newest.saturating_sub(webhook.delivered),
        trouble: String::new(),
        url: without_secrets(&webhook.url),
    }
}

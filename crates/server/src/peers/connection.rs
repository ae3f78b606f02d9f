//! One connection to another server: a WebSocket over mutual TLS, with one question at a time.

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use procfleet_proto::link::{BUFFER, MAX_FRAME, MAX_MESSAGE};
use procfleet_proto::peer::{PEER_NAME, PEER_PATH};
use std::io;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::error::ProtocolError;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error as WsError, Message};

/// TCP_USER_TIMEOUT, as on the link.
const USER_TIMEOUT_MS: u32 = 20_000;

#[derive(Debug)]
pub(super) struct Connection {
    socket: WebSocketStream<TlsStream<TcpStream>>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectFault {
    #[error("connecting by TCP")]
    Tcp(#[source] io::Error),
    #[error("TLS failed: one side does not take the other for a server of its fleet")]
    Tls(#[source] io::Error),
    #[error("it refused the connection: {0}")]
    Refused(String),
    #[error("opening the WebSocket")]
    WebSocket(#[source] Box<WsError>),
}

#[derive(Debug, thiserror::Error)]
pub(super) enum ExchangeFault {
    #[error("the connection broke")]
    Broken(#[source] Box<WsError>),
    #[error("the connection was closed")]
    Closed,
    #[error("not a frame of this protocol, or one above the size limit")]
    Frame(#[source] Box<WsError>),
    #[error("a text message; this protocol is binary")]
    Text,
}

impl From<WsError> for ExchangeFault {
    fn from(error: WsError) -> ExchangeFault {
        match &error {
            // A server that disappears does not violate the protocol.
            WsError::Protocol(ProtocolError::ResetWithoutClosingHandshake) => {
                ExchangeFault::Broken(Box::new(error))
            }
            WsError::Capacity(_) | WsError::Protocol(_) | WsError::Utf8(_) | WsError::AttackAttempt => {
                ExchangeFault::Frame(Box::new(error))
            }
            _ => ExchangeFault::Broken(Box::new(error)),
        }
    }
}

impl Connection {
    /// `address`: host and port.
    pub(super) async fn open(address: &str, tls: Arc<ClientConfig>) -> Result<Connection, ConnectFault> {
        let stream = TcpStream::connect(address).await.map_err(ConnectFault::Tcp)?;
        stream.set_nodelay(true).map_err(ConnectFault::Tcp)?;
        rustix::net::sockopt::set_tcp_user_timeout(&stream, USER_TIMEOUT_MS)
            .map_err(|errno| ConnectFault::Tcp(errno.into()))?;
        let name = ServerName::try_from(PEER_NAME).expect("a constant name is a good name");
        let stream = TlsConnector::from(tls).connect(name, stream).await.map_err(ConnectFault::Tls)?;
        let fault = |error: WsError| match error {
            WsError::Http(response) => {
                let reason = response.body().as_deref().map(String::from_utf8_lossy).unwrap_or_default();
                ConnectFault::Refused(format!("{} {reason}", response.status()))
            }
            // The other side checks our certificate after the TLS handshake has ended for this one.
            WsError::Io(error) => ConnectFault::Tls(error),
            error => ConnectFault::WebSocket(Box::new(error)),
        };
        let request = format!("wss://{PEER_NAME}{PEER_PATH}").into_client_request().map_err(fault)?;
        let limits = WebSocketConfig::default()
            .read_buffer_size(BUFFER)
            .write_buffer_size(BUFFER)
            .max_write_buffer_size(4 * MAX_MESSAGE)
            .max_frame_size(Some(MAX_FRAME))
            .max_message_size(Some(MAX_FRAME));
        let opened = tokio_tungstenite::client_async_with_config(request, stream, Some(limits)).await;
        Ok(Connection { socket: opened.map_err(fault)?.0 })
    }

    /// Sends one message and waits for the next one of the other side.
    pub(super) async fn exchange(&mut self, question: Vec<u8>) -> Result<Bytes, ExchangeFault> {
        self.socket.send(Message::Binary(question.into())).await?;
        loop {
            match self.socket.next().await {
                Some(Ok(Message::Binary(answer))) => return Ok(answer),
                Some(Ok(Message::Text(_))) => return Err(ExchangeFault::Text),
                Some(Ok(Message::Close(_))) | None => return Err(ExchangeFault::Closed),
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
                Some(Err(error)) => return Err(error.into()),
            }
        }
    }
}

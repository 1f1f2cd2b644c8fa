//! Arti's runtime, with a TCP of our own: Arti leaves Nagle's algorithm on, which holds back a
//! small cell until the one before is acknowledged (RFC 896).

use std::io;
use std::net::SocketAddr;

use async_trait::async_trait;
use tokio::net::TcpSocket;
use tor_rtcompat::tokio::TokioRustlsRuntime;
use tor_rtcompat::{CompoundRuntime, NetStreamProvider, RuntimeSubstExt as _};

use Base as B;
type Base = TokioRustlsRuntime;

/// What the Tor client runs on.
pub(super) type Runtime = CompoundRuntime<B, B, B, NoDelay, B, B, B>;

/// The tokio runtime that the caller is in. The rustls provider must be installed before.
pub(super) fn current() -> io::Result<Runtime> {
    let base = Base::current()?;
    Ok(base.with_tcp_provider(NoDelay(base.clone())))
}

#[derive(Clone)]
pub(super) struct NoDelay(Base);

#[async_trait]
impl NetStreamProvider for NoDelay {
    type Stream = <Base as NetStreamProvider>::Stream;
    type Listener = <Base as NetStreamProvider>::Listener;
    type ConnectOptions = <Base as NetStreamProvider>::ConnectOptions;
    type ListenOptions = <Base as NetStreamProvider>::ListenOptions;

    async fn connect(
        &self,
        address: &SocketAddr,
        options: &Self::ConnectOptions,
    ) -> io::Result<Self::Stream> {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        let common = options.common();
        let size = |bytes: &usize| u32::try_from(*bytes).unwrap_or(u32::MAX);
        if let Some(bytes) = common.send_buffer_size() {
            socket.set_send_buffer_size(size(bytes))?;
        }
        if let Some(bytes) = common.recv_buffer_size() {
            socket.set_recv_buffer_size(size(bytes))?;
        }
        let stream = socket.connect(*address).await?;
        stream.set_nodelay(true)?;
        Ok(stream.into())
    }

    async fn listen(
        &self,
        address: &SocketAddr,
        options: &Self::ListenOptions,
    ) -> io::Result<Self::Listener> {
        NetStreamProvider::listen(&self.0, address, options).await
    }
}

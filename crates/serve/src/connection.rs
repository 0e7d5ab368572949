//! Sockets: connections are accepted up to a limit, served with limits on how slow a client may be,
//! and ended in order when the server stops.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep, sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::metrics::Kind;
use crate::routes::{Thread, router};

/// After an accept that failed (for example, no more files may be opened) the next one waits this
/// long.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(20);

/// What one thread needs to serve connections.
pub(crate) struct Connections {
    pub(crate) thread: Thread,
    pub(crate) tls: Option<TlsAcceptor>,
    pub(crate) max_connections: u64,
    pub(crate) stop_limit: Duration,
    pub(crate) log: Arc<dyn Fn(&str) + Send + Sync>,
}

impl Connections {
    /// Serves until it is stopped; returns the number of connections that had to be closed then.
    pub(crate) async fn serve(
        self,
        listener: TcpListener,
        mut stop: watch::Receiver<bool>,
    ) -> usize {
        let router = router(self.thread.clone());
        let (mut open, for_each) = (JoinSet::new(), stop.clone());
        loop {
            tokio::select! {
                biased;
                () = told_to(&mut stop) => break,
                Some(_) = open.join_next() => {}
                accepted = listener.accept() => match accepted {
                    Ok((socket, _)) => self.admit(socket, &router, &for_each, &mut open),
                    Err(error) => {
                        (self.log)(&format!("cannot accept a connection: {error}"));
                        sleep(PAUSE_AFTER_FAILURE).await;
                    }
                },
            }
        }
        drop(listener);
        let all = async { while open.join_next().await.is_some() {} };
        let _ = timeout(self.stop_limit, all).await;
        open.len()
    }

    fn admit(
        &self,
        socket: TcpStream,
        router: &Router,
        stop: &watch::Receiver<bool>,
        open: &mut JoinSet<()>,
    ) {
        let totals = &self.thread.shared.totals;
        let open_now = totals.connections.fetch_add(1, Relaxed);
        let place = Place(self.thread.clone());
        if open_now >= self.max_connections {
            totals.refused_connections.fetch_add(1, Relaxed);
            open.spawn(refuse(socket, self.tls.clone(), place));
        } else {
            open.spawn(connection(socket, self.tls.clone(), router.clone(), stop.clone(), place));
        }
    }
}

/// Waits until the server stops.
async fn told_to(stop: &mut watch::Receiver<bool>) {
    // A server that is gone has stopped, too.
    let _ = stop.wait_for(|stop| *stop).await;
}

/// A slot among the open connections, released at the end in any case.
struct Place(Thread);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.shared.totals.connections.fetch_sub(1, Relaxed);
    }
}

/// What is read and written: the socket, or TLS on top of it.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// The stream of a connection, encrypted if the server is; none if the client does not speak TLS,
/// or too slowly.
async fn open(
    socket: TcpStream,
    tls: Option<TlsAcceptor>,
    place: &Place,
) -> Option<Box<dyn Stream>> {
    let limit = place.0.shared.timeout;
    // Small answers must not wait for an acknowledgement.
    let _ = socket.set_nodelay(true);
    let socket = Impatient { socket, limit, waiting: None };
    let Some(tls) = tls else { return Some(Box::new(socket)) };
    match timeout(limit, tls.accept(socket)).await {
        Ok(Ok(stream)) => Some(Box::new(stream)),
        Ok(Err(_)) => {
            place.0.worker.counters.error(Kind::BadRequest);
            None
        }
        Err(_) => {
            place.0.worker.counters.error(Kind::Timeout);
            None
        }
    }
}

async fn refuse(socket: TcpStream, tls: Option<TlsAcceptor>, place: Place) {
    const ANSWER: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\
        content-length: 49\r\nconnection: close\r\n\r\n\
        {\"error\":\"too many connections, try again later\"}";
    let Some(mut stream) = open(socket, tls, &place).await else { return };
    // A client that does not want to hear it is gone all the same.
    let _ = timeout(place.0.shared.timeout, async {
        stream.write_all(ANSWER).await?;
        stream.shutdown().await
    })
    .await;
}

async fn connection(
    socket: TcpStream,
    tls: Option<TlsAcceptor>,
    router: Router,
    mut stop: watch::Receiver<bool>,
    place: Place,
) {
    let limit = place.0.shared.timeout;
    let Some(stream) = open(socket, tls, &place).await else { return };
    let socket = TokioIo::new(stream);
    let service = TowerToHyperService::new(router);
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(limit);
    let mut served = pin!(builder.serve_connection(socket, service));
    let ended = tokio::select! {
        biased;
        ended = served.as_mut() => ended,
        () = told_to(&mut stop) => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if ended.is_err_and(|error| error.is_timeout() || is_too_slow(&error)) {
        place.0.worker.counters.error(Kind::Timeout);
    }
}

fn is_too_slow(error: &hyper::Error) -> bool {
    let source = std::error::Error::source(error);
    let io = source.and_then(|source| source.downcast_ref::<io::Error>());
    io.is_some_and(|e| e.kind() == io::ErrorKind::TimedOut)
}

/// A socket that gives up a client that does not take what is written for so long.
struct Impatient {
    socket: TcpStream,
    limit: Duration,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl Impatient {
    fn or_give_up<T>(
        &mut self,
        context: &mut Context<'_>,
        progress: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if progress.is_ready() {
            self.waiting = None;
            return progress;
        }
        let until = Instant::now() + self.limit;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
        waiting.as_mut().poll(context).map(|()| {
            Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read the answer"))
        })
    }
}

impl AsyncRead for Impatient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(context, buffer)
    }
}

impl AsyncWrite for Impatient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let progress = Pin::new(&mut self.socket).poll_write(context, bytes);
        self.or_give_up(context, progress)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let progress = Pin::new(&mut self.socket).poll_write_vectored(context, parts);
        self.or_give_up(context, progress)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let progress = Pin::new(&mut self.socket).poll_flush(context);
        self.or_give_up(context, progress)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

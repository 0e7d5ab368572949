//! A server that speaks S3 on loopback, for tests: buckets are folders of a directory.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::mpsc;
use std::thread::JoinHandle;

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use s3s_fs::FileSystem;
use tokio::sync::oneshot;

/// The key that the server accepts.
pub const ACCESS_KEY: &str = "regatta-test";
/// Its secret.
pub const SECRET_KEY: &str = "regatta-test-secret";

/// A running server; it ends when dropped.
pub struct S3Server {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl S3Server {
    /// Serves the folders of `root` as buckets.
    ///
    /// # Panics
    /// If it cannot start.
    pub fn start(root: &Path) -> S3Server {
        let files = FileSystem::new(root).expect("the root can be used");
        let mut service = S3ServiceBuilder::new(files);
        service.set_auth(SimpleAuth::from_single(ACCESS_KEY, SECRET_KEY));
        let service = service.build();
        let (stop, stopped) = oneshot::channel();
        let (tell, told) = mpsc::sync_channel(1);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime starts").block_on(async move {
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
                let listener = listener.expect("a free port");
                tell.send(listener.local_addr().expect("an address")).expect("someone waits");
                let accept = async {
                    while let Ok((socket, _)) = listener.accept().await {
                        let service = service.clone();
                        tokio::spawn(async move {
                            let builder = Builder::new(TokioExecutor::new());
                            let _ = builder.serve_connection(TokioIo::new(socket), service).await;
                        });
                    }
                };
                tokio::select! {
                    () = accept => {}
                    _ = stopped => {}
                }
            });
        });
        let address = told.recv().expect("the server listens");
        S3Server { address, stop: Some(stop), thread: Some(thread) }
    }

    /// Settings with which [`Stores`](crate::Stores) reach it.
    pub fn settings(&self) -> Vec<(&'static str, String)> {
        vec![
            ("AWS_ENDPOINT_URL", format!("http://{}", self.address)),
            ("AWS_REGION", "us-east-1".to_string()),
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY.to_string()),
            ("AWS_SECRET_ACCESS_KEY", SECRET_KEY.to_string()),
        ]
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        let _ = self.stop.take().map(|stop| stop.send(()));
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

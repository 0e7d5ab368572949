//! Remote stores, through one client library. Its calls are asynchronous; ours block, with a limit
//! on every wait.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, Checksum};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::path::Path;
use object_store::{
    ClientOptions, GetOptions, ObjectMeta, ObjectStore, ObjectStoreExt, PutPayload, RetryConfig,
    WriteMultipart,
};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::profile::Profile;
use crate::stores::Settings;
use crate::{Entry, Error, Store};

/// Files are fetched in blocks of this size, and sent in such parts. Stores want at least 5 MiB.
const BLOCK: u64 = 8 << 20;
/// Blocks that are on their way while one is being read.
const PREFETCHED_BLOCKS: usize = 2;
/// Parts that are on their way at a time.
const PARTS: usize = 4;
/// How often a whole file is sent again if it has not arrived.
const TRIES: usize = 3;
/// How long one request may be repeated, unless [`RETRY_VARIABLE`] says otherwise.
const RETRY_LIMIT: Duration = Duration::from_secs(30);
/// Seconds for which requests that fail are repeated.
const RETRY_VARIABLE: &str = "REGATTA_STORE_RETRY_SECONDS";
/// How long a connection may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// How long one request may take, its data included.
const REQUEST_LIMIT: Duration = Duration::from_secs(120);
/// How long any call may take beside the transfer of data: longer than all retries together.
const CALL_LIMIT: Duration = Duration::from_secs(180);

type Client = Arc<dyn ObjectStore>;

/// A bucket, container or HDFS cluster.
pub(crate) struct Remote {
    root: String,
    client: Client,
    runtime: Arc<Runtime>,
}

impl Remote {
    pub(crate) fn open(root: &str, settings: &Settings) -> Result<Remote, Error> {
        let fail = |why: String| Error::Failed { address: root.to_string(), why };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("store")
            .enable_all()
            .build()
            .map_err(|e| fail(format!("cannot start threads: {e}")))?;
        let client = client(root, settings, &runtime).map_err(|e| explain(root, e))?;
        Ok(Remote { root: root.to_string(), client, runtime: Arc::new(runtime) })
    }

    fn address(&self, path: &str) -> String {
        format!("{}/{path}", self.root)
    }

    /// Runs a call to its end, but not for ever.
    fn wait<T>(
        &self,
        path: &str,
        call: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T, Error> {
        let limited = async { tokio::time::timeout(CALL_LIMIT, call).await };
        match self.runtime.block_on(limited) {
            Ok(done) => done.map_err(|e| explain(&self.address(path), e)),
            Err(_) => {
                let why = format!("no answer within {} s", CALL_LIMIT.as_secs());
                Err(Error::Failed { address: self.address(path), why })
            }
        }
    }

    fn head(&self, path: &str) -> Result<Option<ObjectMeta>, Error> {
        match self.wait(path, self.client.head(&Path::from(path))) {
            Ok(meta) => Ok(Some(meta)),
            Err(Error::Missing(_)) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Sends a file once. Parts are repeated by the client if they fail.
    fn send(&self, file: &FilePath, path: &str, size: u64) -> Result<(), Error> {
        let read = |e| Error::io(file, e);
        let mut from = std::fs::File::open(file).map_err(read)?;
        let to = Path::from(path);
        if size <= BLOCK {
            let mut all = Vec::with_capacity(size as usize);
            from.read_to_end(&mut all).map_err(read)?;
            let payload = PutPayload::from(all);
            return self.wait(path, self.client.put(&to, payload)).map(drop);
        }
        let upload = self.wait(path, self.client.put_multipart(&to))?;
        let mut upload = WriteMultipart::new_with_chunk_size(upload, BLOCK as usize);
        let mut block = vec![0; BLOCK as usize];
        loop {
            let n = from.read(&mut block).map_err(read)?;
            if n == 0 {
                return self.wait(path, upload.finish()).map(drop);
            }
            let sent = self.wait(path, async {
                upload.wait_for_capacity(PARTS).await?;
                upload.write(&block[..n]);
                Ok(())
            });
            if let Err(e) = sent {
                // The store keeps the parts of an unfinished file until it is deleted.
                let _ = self.wait(path, upload.abort());
                return Err(e);
            }
        }
    }
}

impl Store for Remote {
    fn list(&self, folder: &str) -> Result<Vec<Entry>, Error> {
        let prefix = Path::from(folder);
        let listed = self.client.list(Some(&prefix)).try_collect::<Vec<_>>();
        let found = match self.wait(folder, listed) {
            Err(Error::Missing(_)) => Vec::new(),
            other => other?,
        };
        let mut found: Vec<Entry> = found
            .into_iter()
            .map(|meta| Entry { path: meta.location.to_string(), size: meta.size })
            .collect();
        found.sort();
        Ok(found)
    }

    fn size(&self, path: &str) -> Result<Option<u64>, Error> {
        Ok(self.head(path)?.map(|meta| meta.size))
    }

    fn open(&self, path: &str) -> Result<Box<dyn Read + Send>, Error> {
        let meta = self.head(path)?.ok_or_else(|| Error::Missing(self.address(path)))?;
        Ok(Box::new(Reader {
            address: self.address(path),
            client: self.client.clone(),
            runtime: self.runtime.clone(),
            meta,
            asked: 0,
            coming: VecDeque::new(),
            current: Bytes::new(),
        }))
    }

    fn put(&self, file: &FilePath, path: &str) -> Result<(), Error> {
        let expected = std::fs::metadata(file).map_err(|e| Error::io(file, e))?.len();
        let once = || {
            self.send(file, path, expected)?;
            match self.size(path)?.unwrap_or(0) {
                found if found == expected => Ok(()),
                found => Err(Error::Differs { address: self.address(path), expected, found }),
            }
        };
        let mut outcome = once();
        for _ in 1..TRIES {
            // Asking again does not help against a refusal.
            if !matches!(outcome, Err(Error::Failed { .. } | Error::Differs { .. })) {
                break;
            }
            outcome = once();
        }
        outcome
    }

    fn remove(&self, path: &str) -> Result<(), Error> {
        match self.wait(path, self.client.delete(&Path::from(path))) {
            Err(Error::Missing(_)) => Ok(()),
            other => other,
        }
    }
}

/// A file that is fetched block by block, some of them prefetched.
struct Reader {
    address: String,
    client: Client,
    runtime: Arc<Runtime>,
    meta: ObjectMeta,
    /// Where the next block that has not been requested begins.
    asked: u64,
    coming: VecDeque<JoinHandle<object_store::Result<Bytes>>>,
    current: Bytes,
}

impl Reader {
    fn ask(&mut self) {
        while self.coming.len() <= PREFETCHED_BLOCKS && self.asked < self.meta.size {
            let range = self.asked..(self.asked + BLOCK).min(self.meta.size);
            self.asked = range.end;
            let (client, path) = (self.client.clone(), self.meta.location.clone());
            // A file that changes in between must not be read half old and half new.
            let options =
                GetOptions::new().with_range(Some(range)).with_if_match(self.meta.e_tag.clone());
            self.coming.push_back(
                self.runtime
                    .spawn(async move { client.get_opts(&path, options).await?.bytes().await }),
            );
        }
    }

    fn next_block(&mut self) -> io::Result<Option<Bytes>> {
        self.ask();
        let Some(block) = self.coming.pop_front() else { return Ok(None) };
        let limited = async { tokio::time::timeout(CALL_LIMIT, block).await };
        match self.runtime.block_on(limited) {
            Ok(Ok(Ok(bytes))) => Ok(Some(bytes)),
            Ok(Ok(Err(e))) => Err(reading(&self.address, e)),
            Ok(Err(e)) => Err(io::Error::other(format!("a thread has failed: {e}"))),
            Err(_) => Err(io::Error::other(format!("no data within {} s", CALL_LIMIT.as_secs()))),
        }
    }
}

impl Read for Reader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.current.is_empty() {
            match self.next_block()? {
                Some(block) => self.current = block,
                None => return Ok(0),
            }
        }
        let n = buf.len().min(self.current.len());
        buf[..n].copy_from_slice(&self.current.split_to(n));
        Ok(n)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.coming.iter().for_each(JoinHandle::abort);
    }
}

fn client(root: &str, settings: &Settings, runtime: &Runtime) -> object_store::Result<Client> {
    // All later clients find it there; a second call changes nothing.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let options =
        ClientOptions::new().with_connect_timeout(CONNECT_LIMIT).with_timeout(REQUEST_LIMIT);
    let retry_timeout = retry_limit(settings)?;
    let retry = RetryConfig { retry_timeout, ..RetryConfig::default() };
    match root.split_once("://").map_or("", |(scheme, _)| scheme) {
        "s3" => s3(root, settings, options, retry),
        "gs" => {
            let mut builder = GoogleCloudStorageBuilder::from_env().with_url(root);
            for (key, value) in known(settings, |k| k.parse::<GoogleConfigKey>().ok()) {
                builder = builder.with_config(key, value);
            }
            Ok(Arc::new(builder.with_client_options(options).with_retry(retry).build()?))
        }
        "az" => {
            let mut builder = MicrosoftAzureBuilder::from_env().with_url(root);
            for (key, value) in known(settings, |k| k.parse::<AzureConfigKey>().ok()) {
                builder = builder.with_config(key, value);
            }
            Ok(Arc::new(builder.with_client_options(options).with_retry(retry).build()?))
        }
        _ => {
            let builder = hdfs_native_object_store::HdfsObjectStoreBuilder::new()
                .with_url(root)
                .with_io_runtime(runtime.handle().clone());
            Ok(Arc::new(builder.build()?))
        }
    }
}

fn retry_limit(settings: &Settings) -> object_store::Result<Duration> {
    let env = regatta_cluster::Env::process();
    let set = settings.values.get(RETRY_VARIABLE).map(String::as_str);
    let Some(text) = set.or_else(|| env.get(RETRY_VARIABLE)) else { return Ok(RETRY_LIMIT) };
    match text.parse::<u64>() {
        Ok(seconds) if seconds <= CALL_LIMIT.as_secs() => Ok(Duration::from_secs(seconds)),
        _ => {
            let most = CALL_LIMIT.as_secs();
            let why = format!("{RETRY_VARIABLE} is '{text}', not a number of seconds up to {most}");
            Err(object_store::Error::Generic { store: "retries", source: why.into() })
        }
    }
}

fn s3(
    root: &str,
    settings: &Settings,
    options: ClientOptions,
    retry: RetryConfig,
) -> object_store::Result<Client> {
    let key = |k: &str| k.parse::<AmazonS3ConfigKey>().ok();
    let mut builder = AmazonS3Builder::from_env().with_url(root);
    let has_key =
        |b: &AmazonS3Builder| b.get_config_value(&AmazonS3ConfigKey::AccessKeyId).is_some();
    for (name, value) in known(settings, key) {
        builder = builder.with_config(name, value);
    }
    let env = regatta_cluster::Env::process();
    let set = |name: &str| {
        settings.values.get(name).cloned().or_else(|| env.get(name).map(str::to_string))
    };
    if !has_key(&builder)
        && let Some(profile) = Profile::usual(set)
    {
        for (name, value) in profile.values() {
            if let Some(name) = key(&name) {
                builder = builder.with_config(name, value);
            }
        }
    }
    let endpoint = builder.get_config_value(&AmazonS3ConfigKey::Endpoint).unwrap_or_default();
    // An address with http:// is meant so.
    let options = options.with_allow_http(endpoint.starts_with("http://"));
    let builder = builder
        .with_client_options(options)
        .with_retry(retry)
        // The store refuses what was damaged on its way.
        .with_checksum_algorithm(Checksum::SHA256);
    Ok(Arc::new(builder.build()?))
}

/// The settings that a kind of store knows, by the names of its environment variables.
fn known<'a, K>(
    settings: &'a Settings,
    parse: impl Fn(&str) -> Option<K> + 'a,
) -> impl Iterator<Item = (K, String)> + 'a {
    let all = settings.values.iter();
    all.filter_map(move |(k, v)| Some((parse(&k.to_ascii_lowercase())?, v.clone())))
}

/// An error in our words, without the parts of addresses that may hold secrets.
fn explain(address: &str, error: object_store::Error) -> Error {
    use object_store::Error as E;
    let address = address.to_string();
    let why = without_queries(&innermost(&error));
    match error {
        E::NotFound { .. } => Error::Missing(address),
        E::PermissionDenied { .. } | E::Unauthenticated { .. } => Error::Denied { address, why },
        // Listings do not distinguish refusals otherwise.
        _ if ["401 ", "403 "].iter().any(|code| why.contains(&format!("status code: {code}"))) => {
            Error::Denied { address, why }
        }
        _ => Error::Failed { address, why },
    }
}

/// The error of a reader; the caller names the file.
fn reading(address: &str, error: object_store::Error) -> io::Error {
    match explain(address, error) {
        Error::Denied { why, .. } => io::Error::new(io::ErrorKind::PermissionDenied, why),
        Error::Failed { why, .. } => io::Error::other(why),
        other => other.into(),
    }
}

/// The causes of an error, from the outside in, each once.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text += &format!(": {inner_text}");
        }
        cause = inner.source();
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Signatures and tokens travel in the query of a URL.
fn without_queries(text: &str) -> String {
    let mut parts = text.split('?');
    let mut clean = parts.next().unwrap_or_default().to_string();
    for part in parts {
        let end = part.find(|c: char| c.is_whitespace() || "\"')>".contains(c));
        clean += end.map_or("", |at| &part[at..]);
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::without_queries;

    #[test]
    fn queries_are_not_shown() {
        let text = "sending (https://a/b?sig=secret&x=1): refused; again 'http://c?t=2' no";
        assert_eq!(without_queries(text), "sending (https://a/b): refused; again 'http://c' no");
    }
}

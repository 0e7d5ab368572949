//! Paths, tokens and statuses: a request comes in, a response with a status goes out, and both are
//! counted.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use axum::routing::{get, post};
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::json;
use tokio::time::timeout_at;

use crate::metrics::{self, Counters, Kind, PATHS, Totals};
use crate::worker::{Failure, Worker};
use crate::{About, Feature};

/// What all threads share. None of it is written by requests.
pub(crate) struct Shared {
    pub(crate) token: Option<String>,
    pub(crate) max_body_bytes: usize,
    pub(crate) timeout: Duration,
    pub(crate) stopping: AtomicBool,
    pub(crate) about: Mutex<Arc<About>>,
    pub(crate) counters: Vec<Arc<Counters>>,
    pub(crate) totals: Totals,
}

impl Shared {
    pub(crate) fn about(&self) -> Arc<About> {
        self.about.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What the requests of one thread use.
#[derive(Clone)]
pub(crate) struct Thread {
    pub(crate) shared: Arc<Shared>,
    pub(crate) worker: Arc<Worker>,
}

/// The service of one thread.
pub(crate) fn router(thread: Thread) -> Router {
    Router::new()
        .route(PATHS[0], post(predict))
        .route(PATHS[1], get(healthz))
        .route(PATHS[2], get(metrics_text))
        .route(PATHS[3], get(model))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(thread)
}

async fn predict(State(thread): State<Thread>, request: Request) -> Response {
    let started = Instant::now();
    let answer = scores(&thread, started, request).await;
    let response = thread.respond(0, answer.map(|json| plain(JSON, json)));
    thread.worker.counters.latency(started.elapsed());
    response
}

async fn scores(thread: &Thread, started: Instant, request: Request) -> Result<Bytes, Failure> {
    thread.admit(&request)?;
    let deadline = started + thread.shared.timeout;
    let body = thread.body(deadline, request).await?;
    if Instant::now() > deadline {
        return Err(thread.too_busy());
    }
    let answer = thread.worker.submit(&body)?;
    match timeout_at(deadline.into(), answer).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) => Err(failure(Kind::Internal, "the scoring of this thread has ended")),
        Err(_) => Err(thread.too_busy()),
    }
}

async fn healthz(State(thread): State<Thread>) -> Response {
    let stopping = thread.shared.stopping.load(Ordering::Relaxed);
    let answer = match stopping {
        true => Err(failure(Kind::Busy, "the server is stopping")),
        false => Ok(plain(JSON, r#"{"status":"ok"}"#)),
    };
    thread.respond(1, answer)
}

async fn metrics_text(State(thread): State<Thread>, request: Request) -> Response {
    let answer = thread.admit(&request).map(|()| {
        let shared = &thread.shared;
        let text = metrics::text(&shared.counters, &shared.totals, &shared.about());
        plain("text/plain; version=0.0.4", text)
    });
    thread.respond(2, answer)
}

async fn model(State(thread): State<Thread>, request: Request) -> Response {
    let answer = thread.admit(&request).map(|()| {
        let about = thread.shared.about();
        let of_feature = |feature: &Feature| {
            let (name, kind) = (&feature.name, feature.kind);
            json!({"name": name, "takes": kind.word(), "width": kind.width()})
        };
        let inputs: Vec<_> = match &about.transform {
            None => about.features.iter().map(of_feature).collect(),
            Some(transform) => {
                let of_column = |(at, name): (usize, &String)| {
                    let width = (!transform.takes_lists(at)).then_some(1);
                    json!({"name": name, "takes": "raw values", "width": width})
                };
                transform.columns().iter().enumerate().map(of_column).collect()
            }
        };
        let text = json!({
            "name": about.name,
            "serial": about.serial,
            "step": about.step,
            "inputs": inputs,
            "outputs": about.outputs,
        });
        plain(JSON, text.to_string())
    });
    thread.respond(3, answer)
}

async fn not_found(State(thread): State<Thread>, request: Request) -> Response {
    let path = request.uri().path();
    let known = PATHS[..4].join(", ");
    let message = match regatta_ir::nearest(path, PATHS[..4].iter().copied()) {
        Some(near) => format!("there is no {path}; did you mean {near}?"),
        None => format!("there is no {path}; there are {known}"),
    };
    thread.respond(4, Err(failure(Kind::NotFound, message)))
}

async fn method_not_allowed(State(thread): State<Thread>, request: Request) -> Response {
    let (method, path) = (request.method(), request.uri().path());
    let right = if path == PATHS[0] { "POST" } else { "GET" };
    let path_idx = PATHS.iter().position(|known| *known == path).unwrap_or(4);
    let message = format!("{path} takes {right}, not {method}");
    thread.respond(path_idx, Err(failure(Kind::MethodNotAllowed, message)))
}

impl Thread {
    /// Compares the token of a request with the required one.
    fn admit(&self, request: &Request) -> Result<(), Failure> {
        let Some(token) = &self.shared.token else { return Ok(()) };
        let given = request.headers().get(header::AUTHORIZATION);
        let given = given.and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
        match given {
            Some(given) if same(given, token.as_bytes()) => Ok(()),
            Some(_) => Err(failure(Kind::Unauthorized, "the token is not the right one")),
            None => {
                let message =
                    "the request has no valid token: send the header 'Authorization: Bearer TOKEN'";
                Err(failure(Kind::Unauthorized, message))
            }
        }
    }

    /// The whole body, within the limits of size and time.
    async fn body(&self, deadline: Instant, request: Request) -> Result<Bytes, Failure> {
        let limit = self.shared.max_body_bytes;
        let too_large = || {
            failure(Kind::TooLarge, format!("the body is larger than the limit of {limit} bytes"))
        };
        let length = request.headers().get(header::CONTENT_LENGTH);
        let length = length.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        if length.is_some_and(|length| length > limit as u64) {
            return Err(too_large());
        }
        let whole = Limited::new(request.into_body(), limit).collect();
        match timeout_at(deadline.into(), whole).await {
            Ok(Ok(body)) => Ok(body.to_bytes()),
            Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
            Ok(Err(error)) => {
                Err(failure(Kind::BadRequest, format!("the body could not be read: {error}")))
            }
            Err(_) => {
                let seconds = self.shared.timeout.as_secs_f64();
                let message = format!("the body did not arrive within {seconds} seconds");
                Err(failure(Kind::Timeout, message))
            }
        }
    }

    fn too_busy(&self) -> Failure {
        let seconds = self.shared.timeout.as_secs_f64();
        let message = format!("the server could not answer within {seconds} seconds");
        failure(Kind::Busy, message)
    }

    /// Counts a request and makes a response of what became of it.
    fn respond(&self, path_idx: usize, answer: Result<Response, Failure>) -> Response {
        let counters = &self.worker.counters;
        counters.request(path_idx);
        answer.unwrap_or_else(|Failure { kind, message }| {
            counters.error(kind);
            let mut response = plain(JSON, json!({ "error": message }).to_string());
            *response.status_mut() = status(kind);
            let headers = response.headers_mut();
            match kind {
                Kind::Unauthorized => {
                    headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
                }
                // The rest of the body is on its way, and nobody will read it.
                Kind::Timeout | Kind::TooLarge => {
                    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
                }
                _ => {}
            }
            response
        })
    }
}

const JSON: &str = "application/json";

fn plain(content_type: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    let content_type = HeaderValue::from_static(content_type);
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}

fn status(kind: Kind) -> StatusCode {
    match kind {
        Kind::BadRequest => StatusCode::BAD_REQUEST,
        Kind::Unauthorized => StatusCode::UNAUTHORIZED,
        Kind::NotFound => StatusCode::NOT_FOUND,
        Kind::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        Kind::Timeout => StatusCode::REQUEST_TIMEOUT,
        Kind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Kind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        Kind::Busy => StatusCode::SERVICE_UNAVAILABLE,
    }
}

fn failure(kind: Kind, message: impl Into<String>) -> Failure {
    Failure { kind, message: message.into() }
}

/// Takes as long for a token that is nearly right as for any other of its length.
fn same(a: &[u8], b: &[u8]) -> bool {
    let difference = a.iter().zip(b).fold(0, |sum, (x, y)| sum | (x ^ y));
    a.len() == b.len() && std::hint::black_box(difference) == 0
}

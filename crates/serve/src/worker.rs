//! The scoring of one thread: requests put rows into an inbox, one task scores what has gathered
//! there. Only this thread and, when there is a new model, the one that watches for it come here,
//! so the locks are never waited for in practice.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use regatta_tensor::{DType, Tensor, Value};
use tokio::sync::{Notify, oneshot};

use crate::metrics::{Counters, Kind};
use crate::request::parse;
use crate::rows::{LARGEST_BATCH, Rows, batch_size};
use crate::{About, Model, ScoreError, Scorer, reply};

/// Rows that may wait on one thread; requests that come on top are refused.
const MOST_WAITING_ROWS: usize = 1 << 14;

/// A request that was refused or failed, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) kind: Kind,
    pub(crate) message: String,
}

/// A model with a scorer for one thread, tried out.
pub(crate) struct LoadedModel {
    model: Arc<dyn Model>,
    about: Arc<About>,
    scorer: Box<dyn Scorer>,
}

impl LoadedModel {
    /// Makes a scorer and lets it score blank rows in batches of every size, so that a model that
    /// cannot answer is found out here and the first request finds everything prepared.
    pub(crate) fn new(model: Arc<dyn Model>) -> Result<LoadedModel, String> {
        let about = model.about();
        let mut scorer = model.scorer()?;
        let mut rows = Rows::new(about.clone());
        rows.push_blank(LARGEST_BATCH);
        let (mut size, mut batch) = (1, Vec::new());
        while size <= LARGEST_BATCH {
            rows.fill(0, size, size, &mut batch);
            let outputs =
                score(&mut *scorer, &about, &batch, |outputs| check(&about, outputs, size));
            outputs.map_err(|e| format!("the model does not score: {e}"))??;
            size *= 2;
        }
        Ok(LoadedModel { model, about, scorer })
    }
}

/// Whether outputs have a row per example, of a type that can be written.
fn check(about: &About, outputs: &[Tensor], n_rows: usize) -> Result<(), String> {
    for (name, output) in about.outputs.iter().zip(outputs) {
        let (dtype, shape) = (output.dtype(), output.shape());
        if shape.first() != Some(&n_rows) || matches!(dtype, DType::F16 | DType::BF16) {
            return Err(format!(
                "output '{name}' is {dtype}{shape:?} for {n_rows} examples: an output with a row \
                 of f32 or whole numbers per example can be served"
            ));
        }
    }
    Ok(())
}

/// What requests and the scoring task of one thread share.
pub(crate) struct Worker {
    inbox: Mutex<Inbox>,
    wake: Notify,
    /// A model that is to take over.
    next: Mutex<Option<LoadedModel>>,
    has_next: AtomicBool,
    pub(crate) counters: Arc<Counters>,
}

struct Inbox {
    rows: Rows,
    jobs: Vec<Job>,
}

/// A request whose rows are in the inbox.
struct Job {
    single: bool,
    /// Rows that are not scored yet.
    rows_left: usize,
    json: Vec<u8>,
    failure: Option<Failure>,
    answer: oneshot::Sender<Answer>,
}

pub(crate) type Answer = Result<Bytes, Failure>;

impl Worker {
    /// A worker and the task's side of it.
    pub(crate) fn new(loaded: LoadedModel) -> (Arc<Worker>, Engine) {
        let inbox = Inbox { rows: Rows::new(loaded.about.clone()), jobs: Vec::new() };
        let worker = Worker {
            inbox: Mutex::new(inbox),
            wake: Notify::new(),
            next: Mutex::new(None),
            has_next: AtomicBool::new(false),
            counters: Arc::default(),
        };
        (Arc::new(worker), Engine::new(loaded))
    }

    /// Puts the rows of a request into the inbox.
    ///
    /// # Errors
    /// If the request does not fit the model, or too many rows wait.
    pub(crate) fn submit(&self, body: &[u8]) -> Result<oneshot::Receiver<Answer>, Failure> {
        let mut inbox = lock(&self.inbox);
        let Inbox { rows, jobs } = &mut *inbox;
        if rows.len() >= MOST_WAITING_ROWS {
            let message = format!("{} rows wait to be scored, try again later", rows.len());
            return Err(Failure { kind: Kind::Busy, message });
        }
        let asked = parse(body, rows);
        let asked = asked.map_err(|message| Failure { kind: Kind::BadRequest, message })?;
        let (answer, receiver) = oneshot::channel();
        let mut json = Vec::with_capacity(64 + 64 * asked.n_rows);
        reply::begin(asked.single, &mut json);
        let (single, rows_left) = (asked.single, asked.n_rows);
        jobs.push(Job { single, rows_left, json, failure: None, answer });
        self.wake.notify_one();
        Ok(receiver)
    }

    /// Lets another model take over as soon as the rows that wait are scored.
    pub(crate) fn replace(&self, loaded: LoadedModel) {
        *lock(&self.next) = Some(loaded);
        self.has_next.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    /// Scores what comes, for ever.
    pub(crate) async fn run(&self, mut engine: Engine) {
        loop {
            self.wake.notified().await;
            engine.take(&mut lock(&self.inbox));
            if self.has_next.swap(false, Ordering::Acquire) {
                // The rows were read for the model that goes, so it scores them; nobody can add
                // any meanwhile, because requests of this worker are read by this thread.
                while engine.score_some(&self.counters) {}
                if let Some(next) = lock(&self.next).take() {
                    lock(&self.inbox).rows = Rows::new(next.about.clone());
                    engine = Engine::new(next);
                }
            }
            while engine.score_some(&self.counters) {
                tokio::task::yield_now().await;
            }
        }
    }
}

/// A thread that panicked while it held the lock has left nothing half done that matters: jobs are
/// whole, and rows of a request are appended or taken back.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A scorer with the rows that it is working on.
pub(crate) struct Engine {
    loaded: LoadedModel,
    /// Names of outputs as JSON.
    names: Vec<String>,
    rows: Rows,
    jobs: Vec<Job>,
    next_row: usize,
    /// The first job with rows left.
    next_job: usize,
    batch: Vec<Value>,
    missing_ids: u64,
}

impl Engine {
    fn new(loaded: LoadedModel) -> Engine {
        let quoted = |name: &String| serde_json::Value::from(name.as_str()).to_string();
        Engine {
            names: loaded.about.outputs.iter().map(quoted).collect(),
            rows: Rows::new(loaded.about.clone()),
            jobs: Vec::new(),
            next_row: 0,
            next_job: 0,
            batch: Vec::new(),
            missing_ids: loaded.scorer.missing_ids(),
            loaded,
        }
    }

    /// Takes over what is in the inbox; the memory of what was scored goes back into it.
    fn take(&mut self, inbox: &mut Inbox) {
        self.rows.truncate(0);
        self.jobs.clear();
        (self.next_row, self.next_job) = (0, 0);
        std::mem::swap(&mut self.rows, &mut inbox.rows);
        std::mem::swap(&mut self.jobs, &mut inbox.jobs);
    }

    /// Scores the next few rows and answers the requests that are then complete; false if there
    /// are none.
    fn score_some(&mut self, counters: &Counters) -> bool {
        if self.next_row == self.rows.len() {
            return false;
        }
        let n_rows = (self.rows.len() - self.next_row).min(LARGEST_BATCH);
        if let Err(error) = self.score_rows(n_rows, counters) {
            if n_rows == 1 || self.jobs[self.next_job].rows_left >= n_rows {
                self.fail(n_rows, &error);
            } else {
                self.score_one_by_one(n_rows, counters);
            }
        }
        true
    }

    /// One bad request must not spoil the others of its batch.
    fn score_one_by_one(&mut self, n_rows: usize, counters: &Counters) {
        for _ in 0..n_rows {
            if let Err(error) = self.score_rows(1, counters) {
                self.fail(1, &error);
            }
        }
    }

    fn score_rows(&mut self, n_rows: usize, counters: &Counters) -> Result<(), ScoreError> {
        let (from, to) = (self.next_row, self.next_row + n_rows);
        self.rows.fill(from, to, batch_size(n_rows), &mut self.batch);
        let Engine { loaded, names, jobs, next_job, batch, .. } = self;
        let LoadedModel { model, about, scorer } = loaded;
        let scored = score(&mut **scorer, about, batch, |outputs| {
            for row_idx in 0..n_rows {
                advance(jobs, next_job, |job| {
                    if !job.single && job.json.last() == Some(&b'}') {
                        job.json.push(b',');
                    }
                    reply::row(names, outputs, row_idx, &mut job.json);
                });
            }
        });
        let missing_ids = scorer.missing_ids();
        match scored {
            Ok(()) => {
                counters.scored(n_rows, missing_ids - self.missing_ids);
                (self.next_row, self.missing_ids) = (to, missing_ids);
                self.answer_complete();
                Ok(())
            }
            Err(ScoreFailure::Error(error)) => Err(error),
            Err(ScoreFailure::Panic(message)) => {
                // Nobody knows in which state it is.
                if let Ok(new) = model.scorer() {
                    self.missing_ids = new.missing_ids();
                    *scorer = new;
                }
                Err(ScoreError::Internal(message))
            }
        }
    }

    fn fail(&mut self, n_rows: usize, error: &ScoreError) {
        let kind = match error {
            ScoreError::Input(_) => Kind::BadRequest,
            ScoreError::Internal(_) => Kind::Internal,
        };
        for _ in 0..n_rows {
            advance(&mut self.jobs, &mut self.next_job, |job| {
                let failure = || Failure { kind, message: error.to_string() };
                job.failure.get_or_insert_with(failure);
            });
        }
        self.next_row += n_rows;
        self.answer_complete();
    }

    /// Sends the answers of all jobs before the next one.
    fn answer_complete(&mut self) {
        for mut job in self.jobs.drain(..self.next_job) {
            reply::end(job.single, &mut job.json);
            let answer = match job.failure {
                Some(failure) => Err(failure),
                None => Ok(job.json.into()),
            };
            // A client that has gone does not need it any more.
            let _ = job.answer.send(answer);
        }
        self.next_job = 0;
    }
}

/// Gives one row to the job that it belongs to.
fn advance(jobs: &mut [Job], next_job: &mut usize, row: impl FnOnce(&mut Job)) {
    let job = &mut jobs[*next_job];
    row(job);
    job.rows_left -= 1;
    if job.rows_left == 0 {
        *next_job += 1;
    }
}

/// Why a batch was not scored.
#[derive(Debug, thiserror::Error)]
enum ScoreFailure {
    #[error(transparent)]
    Error(#[from] ScoreError),
    #[error("the model panicked: {0}")]
    Panic(String),
}

/// Scores a batch and uses the outputs.
fn score<T>(
    scorer: &mut dyn Scorer,
    about: &About,
    batch: &[Value],
    then: impl FnOnce(&[Tensor]) -> T,
) -> Result<T, ScoreFailure> {
    let named: Vec<(&str, &Value)> =
        about.features.iter().zip(batch).map(|(f, value)| (f.name.as_str(), value)).collect();
    // The caller replaces the scorer after a panic.
    let scored = catch_unwind(AssertUnwindSafe(|| scorer.score(&named).map(then)));
    match scored {
        Ok(result) => Ok(result?),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Err(ScoreFailure::Panic(text.unwrap_or("for no known reason").to_string()))
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::Feature;

    pub(crate) fn about(features: Vec<Feature>) -> About {
        let outputs = vec!["sum".to_string()];
        let (name, path) = ("m".to_string(), "m".into());
        About { name, path, serial: None, step: None, features, transform: None, outputs }
    }

    /// Adds up floats; refuses -13 and panics at -14.
    struct Sums(Vec<Tensor>);

    impl Scorer for Sums {
        fn score(&mut self, batch: &[(&str, &Value)]) -> Result<&[Tensor], ScoreError> {
            let x = batch[0].1.as_dense().expect("dense");
            if x.f32().contains(&-13.0) {
                return Err(ScoreError::Input("13 brings bad luck".into()));
            }
            assert!(!x.f32().contains(&-14.0), "14 is too much");
            let sums: Vec<f32> = x.f32().chunks(2).map(|row| row.iter().sum()).collect();
            self.0 = vec![Tensor::from_f32(&[sums.len(), 1], sums).expect("one per row")];
            Ok(&self.0)
        }

        fn missing_ids(&self) -> u64 {
            0
        }
    }

    struct SumModel;

    impl Model for SumModel {
        fn about(&self) -> Arc<About> {
            Arc::new(about(vec![Feature { name: "x".into(), kind: crate::Kind::Floats(2) }]))
        }

        fn scorer(&self) -> Result<Box<dyn Scorer>, String> {
            Ok(Box::new(Sums(Vec::new())))
        }
    }

    fn score_all(bodies: &[String]) -> Vec<Answer> {
        let (worker, mut engine) = Worker::new(LoadedModel::new(Arc::new(SumModel)).unwrap());
        let waiting: Vec<_> = bodies.iter().map(|b| worker.submit(b.as_bytes()).unwrap()).collect();
        engine.take(&mut lock(&worker.inbox));
        while engine.score_some(&worker.counters) {}
        waiting.into_iter().map(|mut receiver| receiver.try_recv().expect("answered")).collect()
    }

    fn single(a: i32, b: i32) -> String {
        format!(r#"{{"features":{{"x":[{a},{b}]}}}}"#)
    }

    #[test]
    fn every_request_gets_its_own_rows() {
        let rows: Vec<String> = (0..150).map(|i| format!(r#"{{"x":[{i},1]}}"#)).collect();
        let many = format!(r#"{{"instances":[{}]}}"#, rows.join(","));
        let answers = score_all(&[single(1, 2), many, single(3, 4)]);
        let text = |i: usize| String::from_utf8(answers[i].clone().unwrap().to_vec()).unwrap();
        assert_eq!(text(0), r#"{"prediction":{"sum":[3.0]}}"#);
        assert_eq!(text(2), r#"{"prediction":{"sum":[7.0]}}"#);
        let sums: Vec<String> = (0..150).map(|i| format!(r#"{{"sum":[{}.0]}}"#, i + 1)).collect();
        assert_eq!(text(1), format!(r#"{{"predictions":[{}]}}"#, sums.join(",")));
    }

    #[test]
    fn a_bad_row_spoils_only_its_own_request() {
        let answers = score_all(&[single(1, 2), single(-13, 0), single(-14, 0), single(5, 6)]);
        assert_eq!(answers[0].as_ref().unwrap(), r#"{"prediction":{"sum":[3.0]}}"#.as_bytes());
        let failure = answers[1].as_ref().unwrap_err();
        assert_eq!((failure.kind, &*failure.message), (Kind::BadRequest, "13 brings bad luck"));
        let failure = answers[2].as_ref().unwrap_err();
        assert_eq!(failure.kind, Kind::Internal);
        assert!(failure.message.contains("14 is too much"), "{}", failure.message);
        assert_eq!(answers[3].as_ref().unwrap(), r#"{"prediction":{"sum":[11.0]}}"#.as_bytes());
    }
}

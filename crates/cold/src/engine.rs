//! How pages are read: by io_uring or by threads, chosen when a store starts.

use std::sync::Arc;

use crate::Error;
use crate::batch::Batch;
use crate::threads::Threads;

/// Batches that wait for an engine. Whoever submits more waits.
pub(crate) const MOST_BATCHES: usize = 64;

/// Something that reads the pages of batches, in any order, several batches at a time.
///
/// Whoever drops it waits for all reads that it has begun.
pub(crate) trait Engine: Send + Sync {
    fn name(&self) -> &'static str;

    /// Begins the reads of a batch that has some; completes each of them, right or wrong.
    fn start(&self, batch: Arc<Batch>);
}

/// Which way to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EngineChoice {
    /// io_uring if the system allows it, threads otherwise.
    #[default]
    Auto,
    /// io_uring, or an error.
    Ring,
    /// Threads.
    Threads,
}

/// The engine, and why it is not io_uring if that was wanted.
pub(crate) type Chosen = (Box<dyn Engine>, Option<Error>);

/// Starts the chosen engine. A ring proves that it works by a read.
pub(crate) fn start(choice: EngineChoice, n_threads: usize) -> Result<Chosen, Error> {
    let why_not = match choice {
        EngineChoice::Threads => None,
        EngineChoice::Auto | EngineChoice::Ring => match ring() {
            Ok(engine) => return Ok((engine, None)),
            Err(error) if choice == EngineChoice::Ring => return Err(error),
            Err(error) => Some(error),
        },
    };
    Ok((Box::new(Threads::start(n_threads)?), why_not))
}

#[cfg(target_os = "linux")]
fn ring() -> Result<Box<dyn Engine>, Error> {
    Ok(Box::new(crate::ring::Ring::start()?))
}

#[cfg(not(target_os = "linux"))]
fn ring() -> Result<Box<dyn Engine>, Error> {
    let why = std::io::Error::from(std::io::ErrorKind::Unsupported);
    Err(Error::start("io_uring", why))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::atomic::AtomicU64;

    use super::*;
    use crate::batch::{Plan, Ticket};
    use crate::bits::Bits;
    use crate::directory::Directory;
    use crate::health::Health;
    use crate::layout::Layout;
    use crate::segment::SegmentWriter;

    /// Whatever the system answers to a read becomes an error with the file and the offset, and
    /// poisons the store. A folder answers every read with an error, as a broken disk would.
    #[test]
    fn a_failed_read_is_named_by_both_engines() {
        for choice in [EngineChoice::Ring, EngineChoice::Threads] {
            let folder = tempfile::tempdir().unwrap();
            let health = Arc::new(Health::default());
            let dir = Directory::claim(&folder.path().join("rows"), health.clone()).unwrap();
            let layout = Layout::new(500, 1 << 20).unwrap();
            let mut writer =
                SegmentWriter::create(&dir, layout, &AtomicU64::new(3), &health).unwrap();
            (0..6).for_each(|hash| writer.push(hash, 0, &[0; 500]).unwrap());
            let mut segment = writer.finish(0, Bits::all(6), None, Arc::new(())).unwrap();
            segment.file = File::open(folder.path()).unwrap();
            let mut plan = Plan::new(layout, 1);
            let number = plan.segment(&Arc::new(segment));
            plan.want(0, number, 4);
            let batch = Arc::new(plan.batch(&health.counters));
            let Ok((engine, _)) = start(choice, 2) else { continue };
            engine.start(batch.clone());
            let error = Ticket { batch, health: health.clone() }.wait().unwrap_err().to_string();
            assert!(
                error.contains("00000003.cold: cannot read at byte 12288: Is a dir"),
                "{error}"
            );
            let refused = health.check().unwrap_err().to_string();
            assert!(refused.contains("has failed before") && refused.contains(&error), "{refused}");
        }
    }
}

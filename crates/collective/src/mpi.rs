//! MPI in this process: started by its first user, ended with its last one. In: a process of
//! `mpirun`. Out: the configuration of a group whose ranks are those of MPI, and links through it.
//!
//! MPI carries the data. Ranks still know each other by control connections, so that deaths, stalls
//! and mismatches are found and named as over sockets.

use std::collections::HashSet;
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use mpi::Threading;
use mpi::environment::Universe;
use mpi::traits::{Communicator, CommunicatorCollectives, Root};
use regatta_net::JobToken;

use crate::config::{GroupConfig, Transport};
use crate::error::{Error, Result, system};
use crate::fate::lock;
use crate::links::{Links, Messages};

/// MPI of this process, from `MPI_Init` to `MPI_Finalize`.
///
/// MPI ends when this and all groups that use it are dropped, and cannot be started again. After a
/// failure it is not ended, because that would wait for ranks that are gone: `mpirun` then ends the
/// job.
///
/// ```no_run
/// use regatta_collective::{Group, Mpi};
///
/// let mpi = Mpi::start()?;
/// let group = Group::connect(mpi.config("ctr, revision 7")?)?;
/// # Ok::<(), regatta_collective::Error>(())
/// ```
#[derive(Clone)]
pub struct Mpi {
    running: Arc<Running>,
}

/// Ends MPI when dropped.
pub(crate) struct Running {
    universe: Option<Universe>,
    rank: usize,
    size: usize,
    /// Messages remain that may confuse later groups, or ranks are gone.
    spoiled: AtomicBool,
    /// The tags of the groups that use MPI. Held during every call of MPI, which expects that one
    /// thread at a time calls it.
    tags: Mutex<HashSet<i32>>,
}

/// The MPI of this process, while it has users.
static RUNNING: Mutex<Weak<Running>> = Mutex::new(Weak::new());

impl Mpi {
    /// Starts MPI, or joins its other users in this process.
    ///
    /// # Errors
    /// [`Error::Config`] when MPI has ended already, was started by somebody else, or may not be
    /// used from several threads.
    pub fn start() -> Result<Mpi> {
        let mut running = lock(&RUNNING);
        if let Some(running) = running.upgrade() {
            return Ok(Mpi { running });
        }
        let Some((universe, threading)) = mpi::initialize_with_threading(Threading::Serialized)
        else {
            let problem = "MPI cannot be started: it was used before in this process; keep an \
                `Mpi` for as long as it is needed";
            return Err(Error::Config(problem.to_owned()));
        };
        if threading < Threading::Serialized {
            let problem = format!("MPI allows {threading:?} only, not calls from several threads");
            return Err(Error::Config(problem));
        }
        let world = universe.world();
        let (rank, size) = (world.rank() as usize, world.size() as usize);
        crate::links::return_errors().map_err(|e| system("MPI", e))?;
        let started = Arc::new(Running {
            universe: Some(universe),
            rank,
            size,
            spoiled: AtomicBool::new(false),
            tags: Mutex::default(),
        });
        *running = Arc::downgrade(&started);
        Ok(Mpi { running: started })
    }

    /// Which rank `mpirun` has made of this process.
    pub fn rank(&self) -> usize {
        self.running.rank
    }

    /// How many ranks `mpirun` has started.
    pub fn size(&self) -> usize {
        self.running.size
    }

    /// A configuration for all ranks of MPI, with a new token and free ports for the connections by
    /// which ranks watch each other. All ranks call it. `job` is [`GroupConfig::job`].
    ///
    /// # Errors
    /// [`Error::Bind`] when no port is free.
    pub fn config(&self, job: &str) -> Result<GroupConfig> {
        let hosts = self.all_gather(&regatta_net::host())?;
        let one_machine = hosts[0] != [0; 16] && hosts.iter().all(|host| *host == hosts[0]);
        let (bind, name) = match one_machine {
            true => ("127.0.0.1", "127.0.0.1".to_owned()),
            false => ("0.0.0.0", self.host_name()?),
        };
        let fail = |error: std::io::Error| Error::Bind {
            rank: self.rank(),
            endpoint: format!("{bind}:0"),
            problem: error.to_string(),
        };
        let listener = TcpListener::bind((bind, 0)).map_err(fail)?;
        let port = listener.local_addr().map_err(fail)?.port();
        let endpoints = self.all_gather(&padded(&format!("{name}:{port}"))?)?;
        let endpoints = endpoints.iter().map(unpadded).collect();
        Ok(GroupConfig {
            job: job.to_owned(),
            transport: Transport::Mpi,
            listener: Some(Arc::new(listener)),
            ..GroupConfig::new(self.rank(), endpoints, self.token()?)
        })
    }

    /// A secret that rank 0 makes up.
    fn token(&self) -> Result<JobToken> {
        let mut secret: [u8; 32] =
            regatta_net::random().map_err(|e| system("no random token", e))?;
        let _calls = self.running.calls();
        let world = self.running.world()?;
        world.process_at_rank(0).broadcast_into(&mut secret[..]);
        let hex: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(JobToken::new(hex))
    }

    fn host_name(&self) -> Result<String> {
        let _calls = self.running.calls();
        mpi::environment::processor_name().map_err(|e| system("no name of this machine", e))
    }

    fn all_gather<const N: usize>(&self, mine: &[u8; N]) -> Result<Vec<[u8; N]>> {
        let mut all = vec![0; N * self.size()];
        let _calls = self.running.calls();
        self.running.world()?.all_gather_into(&mine[..], &mut all[..]);
        Ok(all.as_chunks::<N>().0.to_vec())
    }
}

const ENDPOINT_LEN: usize = 280;

fn padded(endpoint: &str) -> Result<[u8; ENDPOINT_LEN]> {
    let mut out = [0; ENDPOINT_LEN];
    let Some(place) = out.get_mut(..endpoint.len()) else {
        return Err(Error::Config(format!("the name of this machine is too long: {endpoint}")));
    };
    place.copy_from_slice(endpoint.as_bytes());
    Ok(out)
}

fn unpadded(endpoint: &[u8; ENDPOINT_LEN]) -> String {
    let text: Vec<u8> = endpoint.iter().copied().take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&text).into_owned()
}

impl Running {
    /// To be held while MPI is called.
    pub(crate) fn calls(&self) -> MutexGuard<'_, HashSet<i32>> {
        lock(&self.tags)
    }

    pub(crate) fn rank(&self) -> usize {
        self.rank
    }

    /// MPI is left as it is when the process ends.
    pub(crate) fn spoil(&self) {
        self.spoiled.store(true, Ordering::Release);
    }

    fn world(&self) -> Result<mpi::topology::SimpleCommunicator> {
        let universe = self.universe.as_ref();
        universe.map(Universe::world).ok_or_else(|| Error::Internal("MPI has ended".to_owned()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.spoiled.load(Ordering::Acquire) {
            std::mem::forget(self.universe.take());
        }
    }
}

/// MPI for a job in which this process is `rank` of `size`.
pub(crate) fn for_job(rank: usize, size: usize) -> Result<Mpi> {
    let mpi = Mpi::start()?;
    if (mpi.rank(), mpi.size()) == (rank, size) {
        return Ok(mpi);
    }
    Err(Error::Config(format!(
        "transport Mpi: this is rank {rank} of {size}, but rank {} of {} for MPI; start all ranks \
        by one mpirun and take their configuration from `Mpi::config`",
        mpi.rank(),
        mpi.size()
    )))
}

/// The links of a new group.
pub(crate) fn links(id: u64, members: &[usize]) -> Result<Box<dyn Links>> {
    let Mpi { running } = Mpi::start()?;
    if running.spoiled.load(Ordering::Acquire) {
        let problem = "MPI cannot be used for another group: an earlier one has failed";
        return Err(Error::Config(problem.to_owned()));
    }
    let links = Messages::open(running, id, members).map_err(|e| system("MPI", e))?;
    Ok(Box::new(links))
}

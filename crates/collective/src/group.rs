//! A group and its operations. In: slices of one rank. Out: the same slices, the same on all ranks.

use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use regatta_kernels::half::Half;
use regatta_net::{JobToken, counted};

use crate::algorithm::exchange::{Announce, Incoming, Into, Outgoing, exchange};
use crate::algorithm::{chain, direct, doubling, ring};
use crate::call::{Call, Limits};
use crate::config::{Event, GroupConfig, Transport};
use crate::error::{Error, Result, system};
use crate::header::{Dtype, Header, Kind};
use crate::links::{Links, Sockets};
use crate::memory::{self, Memory};
use crate::node::{Node, meet, random_name};
use crate::reduce::{Element, Halves, Plain, ReduceOp, Wire, part};

/// Up to this many bytes in all, a root sends to everybody itself.
const SMALL: usize = 64 << 10;

/// Up to this many bytes sent by a rank, an all-reduce of few messages is faster than one of few
/// bytes.
const FEW_MESSAGES: usize = 512 << 10;

/// Up to this many bytes in shared memory, everybody reads everything.
const SMALL_IN_MEMORY: usize = 16 << 10;

/// How long an operation waits before it asks what the others do.
const FIRST_LOOK: Duration = Duration::from_secs(1);

/// Some ranks, of which this process is one.
///
/// Operations block until this rank's part is done. All members call the same operations in the
/// same order, with the same names and lengths. `name` is the tensor, for messages; ranks must
/// agree on it. Groups may be used at the same time from different threads.
///
/// After an error the group, and every other group of this rank, is unusable: all calls return that
/// error, on all ranks.
pub struct Group {
    id: u64,
    rank: usize,
    /// The rank in the job of each member.
    members: Vec<usize>,
    node: Arc<Node>,
    links: Box<dyn Links>,
    /// Shared by all members, when they are on one machine.
    memory: Option<Memory>,
    /// Operations so far.
    seq: u64,
    /// Messages so far to and from each member.
    sends: Vec<u64>,
    recvs: Vec<u64>,
    scratch: Vec<u64>,
}

impl Group {
    /// Joins all ranks of the job, in any order of starting.
    ///
    /// Missing ranks are reported to the observer every few seconds.
    ///
    /// # Errors
    /// [`Error::Missing`] names who has not come in time; [`Error::OtherJob`] two ranks that do not
    /// belong together; [`Error::Bind`], [`Error::Refused`] and [`Error::Config`] what is wrong
    /// here.
    pub fn connect(config: GroupConfig) -> Result<Group> {
        let size = config.endpoints.len();
        if config.rank >= size {
            return Err(Error::Config(format!(
                "rank {} of {size}: there must be an endpoint for every rank",
                config.rank
            )));
        }
        let rank = config.rank;
        // Held until the group holds it: MPI ends with its last user.
        let _carrier = match config.transport {
            Transport::Mpi => Some(carrier::for_job(rank, size)?),
            _ => None,
        };
        let node = Arc::new(Node::connect(config)?);
        let group = Group::assemble(node, WORLD, (0..size).collect(), rank)?;
        let transport = group.transport();
        group.node.shared().observe(&Event::Connected { rank, size, transport });
        Ok(group)
    }

    /// Joins all `size` ranks of a job whose addresses nobody knows beforehand: rank 0 listens at
    /// `master` (`host:port`), the others find it there, and it sends everybody the list of all.
    /// Ports of other ranks are free ones. `config.endpoints` is not used.
    ///
    /// # Errors
    /// As [`connect`](Group::connect); missing ranks are named by rank 0, and to all who have come.
    pub fn meet(mut config: GroupConfig, master: &str, size: usize) -> Result<Group> {
        meet(&mut config, master, size)?;
        Group::connect(config)
    }

    /// `size` ranks inside this process, for threads and tests.
    ///
    /// # Errors
    /// [`Error::Internal`] when the system gives no threads or sockets.
    pub fn in_memory(size: usize) -> Result<Vec<Group>> {
        Group::in_memory_with(size, |config| config)
    }

    /// [`in_memory`](Group::in_memory), with a change to the configuration of every rank.
    ///
    /// # Errors
    /// As [`connect`](Group::connect).
    pub fn in_memory_with(
        size: usize,
        change: impl Fn(GroupConfig) -> GroupConfig,
    ) -> Result<Vec<Group>> {
        let names = (0..size).map(|_| random_name()).collect::<Result<Vec<_>>>()?;
        let endpoints: Vec<String> = names.iter().map(|name| format!("unix:@{name}")).collect();
        let token = JobToken::new(names.concat());
        let threads = (0..size).map(|rank| {
            let config = change(GroupConfig::new(rank, endpoints.clone(), token.clone()));
            thread::Builder::new()
                .spawn(move || Group::connect(config))
                .map_err(|e| system("cannot start a thread", e))
        });
        let threads = threads.collect::<Result<Vec<_>>>()?;
        let joined = threads.into_iter().map(|thread| match thread.join() {
            Ok(outcome) => outcome,
            Err(_) => Err(Error::Internal("a thread that joins a group panicked".to_owned())),
        });
        joined.collect()
    }

    /// Makes the data connections of a group; all members call it.
    fn assemble(node: Arc<Node>, id: u64, members: Vec<usize>, rank: usize) -> Result<Group> {
        let outcome = match node.shared().config.transport {
            Transport::Mpi => carrier::links(id, &members).map(|links| (links, None)),
            _ => connections(&node, id, &members, rank),
        };
        let (links, memory) = outcome.inspect_err(|error| node.shared().fail(error))?;
        Ok(Group {
            id,
            rank,
            memory,
            links,
            node,
            seq: 0,
            sends: vec![0; members.len()],
            recvs: vec![0; members.len()],
            members,
            scratch: Vec::new(),
        })
    }

    /// Which member this process is, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many members there are.
    pub fn size(&self) -> usize {
        self.members.len()
    }

    /// The ranks of all members in the job, in the order of their ranks in this group.
    pub fn members(&self) -> &[usize] {
        &self.members
    }

    /// What carries the data, for messages.
    pub fn transport(&self) -> String {
        if self.memory.is_some() { "shared memory".to_owned() } else { self.links.transport() }
    }

    /// Combines `data` of all ranks; all get the result.
    ///
    /// # Errors
    /// See [`Error`]; `data` is then undefined.
    pub fn all_reduce(
        &mut self,
        name: &str,
        data: &mut [f32],
        op: ReduceOp,
        wire: Wire,
    ) -> Result<()> {
        let header = Header::new(Kind::AllReduce, Dtype::F32, name, data.len()).wire(wire);
        match wire {
            Wire::F32 => self.all_reduce_elements(header.reduce(op), data, op),
            Wire::Bf16 => self.all_reduce_halves(header.reduce(op), data, op, Halves(Half::Bf16)),
            Wire::F16 => self.all_reduce_halves(header.reduce(op), data, op, Halves(Half::F16)),
        }
    }

    fn all_reduce_halves(
        &mut self,
        header: Header,
        data: &mut [f32],
        op: ReduceOp,
        halves: Halves,
    ) -> Result<()> {
        self.call(header, |call, scratch| match call.memory() {
            Some(mut memory) => memory.all_reduce(data, op, halves),
            None => direct::all_reduce_as(call, data, op, halves, scratch),
        })
    }

    /// [`all_reduce`](Group::all_reduce) of `f64`: for counters and metrics.
    ///
    /// # Errors
    /// See [`Error`]; `data` is then undefined.
    pub fn all_reduce_f64(&mut self, name: &str, data: &mut [f64], op: ReduceOp) -> Result<()> {
        let header = Header::new(Kind::AllReduce, Dtype::F64, name, data.len());
        self.all_reduce_elements(header.reduce(op), data, op)
    }

    fn all_reduce_elements<T: Element>(
        &mut self,
        header: Header,
        data: &mut [T],
        op: ReduceOp,
    ) -> Result<()> {
        let bytes = size_of_val(data);
        self.call(header, |call, scratch| {
            if let Some(mut memory) = call.memory() {
                return match bytes <= SMALL_IN_MEMORY {
                    true => memory.all_reduce_small(data, op, Plain),
                    false => memory.all_reduce(data, op, Plain),
                };
            }
            match bytes * doubling::rounds(call.size) <= FEW_MESSAGES {
                true => doubling::all_reduce(call, data, op, scratch),
                false => ring::all_reduce(call, data, op, scratch),
            }
        })
    }

    /// Combines `data` of all ranks; `root` gets the result, the others' `data` is undefined.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn reduce(
        &mut self,
        name: &str,
        data: &mut [f32],
        op: ReduceOp,
        root: usize,
    ) -> Result<()> {
        self.check_member("root", root)?;
        let (len, size) = (data.len(), self.size());
        let header = Header::new(Kind::Reduce, Dtype::F32, name, len).reduce(op).root(root);
        self.call(header, |call, scratch| {
            reduce_scatter(call, data, op, scratch)?;
            let parts = |rank| {
                let part = part(len, size, rank);
                part.start * 4..part.end * 4
            };
            direct::gather_parts(call, bytemuck::cast_slice_mut(data), parts, Some(root))
        })
    }

    /// Combines `data` of all ranks; this rank gets its part of the result.
    ///
    /// Parts are as equal as possible, the first ones one longer: [`Group::part`]. `data` is
    /// otherwise undefined afterwards.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn reduce_scatter(
        &mut self,
        name: &str,
        data: &mut [f32],
        op: ReduceOp,
    ) -> Result<Vec<f32>> {
        let header = Header::new(Kind::ReduceScatter, Dtype::F32, name, data.len()).reduce(op);
        self.call(header, |call, scratch| reduce_scatter(call, data, op, scratch))?;
        Ok(data[self.part(data.len(), self.rank)].to_vec())
    }

    /// The part of `len` elements that `rank` gets from [`reduce_scatter`](Group::reduce_scatter).
    pub fn part(&self, len: usize, rank: usize) -> std::ops::Range<usize> {
        part(len, self.size(), rank)
    }

    /// Copies `data` of `root` to all ranks.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn broadcast(&mut self, name: &str, data: &mut [f32], root: usize) -> Result<()> {
        self.check_member("root", root)?;
        let header = Header::new(Kind::Broadcast, Dtype::F32, name, data.len()).root(root);
        let bytes = bytemuck::cast_slice_mut(data);
        self.call(header, |call, _| {
            if let Some(mut memory) = call.memory() {
                return memory.broadcast(bytes, root);
            }
            match bytes.len() * (call.size - 1) <= SMALL {
                true => star(call, bytes, root),
                false => chain::broadcast(call, bytes, root),
            }
        })
    }

    /// Gives `bytes` of `root` to all ranks; what others pass is ignored. Any length.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn broadcast_bytes(&mut self, name: &str, bytes: Vec<u8>, root: usize) -> Result<Vec<u8>> {
        self.check_member("root", root)?;
        let mut bytes = if self.rank == root { bytes } else { Vec::new() };
        let header = Header::new(Kind::BroadcastBytes, Dtype::Bytes, name, bytes.len()).root(root);
        self.call(header, |call, _| {
            if call.rank == root {
                let outgoing: Vec<_> =
                    call.others().map(|to| Outgoing { to, bytes: &bytes }).collect();
                exchange(call, Announce::Header, &outgoing, &mut [])
            } else {
                let into = Into::Vec(&mut bytes);
                exchange(call, Announce::Header, &[], &mut [Incoming { from: root, into }])
            }
        })?;
        Ok(bytes)
    }

    /// Everybody's `data`, in the order of ranks. All lengths must be equal.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn all_gather(&mut self, name: &str, data: &[f32]) -> Result<Vec<f32>> {
        let len = data.len();
        let header = Header::new(Kind::AllGather, Dtype::F32, name, len);
        let mut all = vec![0.0; len * self.size()];
        all[self.rank * len..][..len].copy_from_slice(data);
        self.call(header, |call, _| {
            let bytes = bytemuck::cast_slice(data);
            if let Some(mut memory) = call.memory() {
                return memory.all_gather(bytes, bytemuck::cast_slice_mut(&mut all));
            }
            let outgoing: Vec<_> = call.others().map(|to| Outgoing { to, bytes }).collect();
            let mut incoming: Vec<_> = if len == 0 {
                call.others().map(|from| Incoming { from, into: Into::Slice(&mut []) }).collect()
            } else {
                let slices = all.chunks_exact_mut(len).map(bytemuck::cast_slice_mut).enumerate();
                slices
                    .filter(|(from, _)| *from != call.rank)
                    .map(|(from, slice)| Incoming { from, into: Into::Slice(slice) })
                    .collect()
            };
            exchange(call, Announce::Header, &outgoing, &mut incoming)
        })?;
        Ok(all)
    }

    /// Everybody's `bytes`, in the order of ranks. Any lengths.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn all_gather_bytes(&mut self, name: &str, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut parts = vec![Vec::new(); self.size()];
        parts[self.rank] = bytes.to_vec();
        self.all_gather_parts(name, &mut parts)?;
        Ok(parts)
    }

    /// [`all_gather_bytes`](Group::all_gather_bytes) in place: `parts` has a buffer for every rank.
    /// This rank's holds what it gives, those of others are filled again, in the memory they have.
    ///
    /// # Errors
    /// See [`Error`]; [`Error::Config`] when there are not as many buffers as ranks.
    pub fn all_gather_parts(&mut self, name: &str, parts: &mut [Vec<u8>]) -> Result<()> {
        if parts.len() != self.size() {
            let (n, size) = (parts.len(), self.size());
            let error = Error::Config(format!(
                "gather `{name}`: {n} buffers for {}",
                counted(size, "rank")
            ));
            self.node.shared().fail(&error);
            return Err(error);
        }
        let len = parts[self.rank].len();
        let header = Header::new(Kind::AllGatherBytes, Dtype::Bytes, name, len);
        self.gather_any(header, parts)
    }

    fn gather_any(&mut self, header: Header, parts: &mut [Vec<u8>]) -> Result<()> {
        let own = std::mem::take(&mut parts[self.rank]);
        let outcome = self.call(header, |call, _| {
            if let Some(mut memory) = call.memory() {
                return memory.all_gather_any(&own, parts);
            }
            let bytes = own.as_slice();
            let outgoing: Vec<_> = call.others().map(|to| Outgoing { to, bytes }).collect();
            let mut incoming: Vec<_> = parts
                .iter_mut()
                .enumerate()
                .filter(|(from, _)| *from != call.rank)
                .map(|(from, vec)| Incoming { from, into: Into::Vec(vec) })
                .collect();
            exchange(call, Announce::Header, &outgoing, &mut incoming)
        });
        parts[self.rank] = own;
        outcome
    }

    /// Gives each rank its part of `data` of `root`: `into.len()` elements for every rank, in the
    /// order of ranks. `data` of other ranks is ignored.
    ///
    /// # Errors
    /// See [`Error`]; [`Error::Config`] when `data` of `root` has another length.
    pub fn scatter(
        &mut self,
        name: &str,
        data: &[f32],
        into: &mut [f32],
        root: usize,
    ) -> Result<()> {
        self.check_member("root", root)?;
        let (len, size) = (into.len(), self.size());
        if self.rank == root && data.len() != len * size {
            let error = Error::Config(format!(
                "scatter `{name}`: {} elements for {size} ranks of {len} each",
                data.len()
            ));
            self.node.shared().fail(&error);
            return Err(error);
        }
        let header = Header::new(Kind::Scatter, Dtype::F32, name, len).root(root);
        self.call(header, |call, _| {
            if call.rank == root {
                let part = |rank: usize| &data[rank * len..][..len];
                into.copy_from_slice(part(root));
                let outgoing: Vec<_> = call
                    .others()
                    .map(|to| Outgoing { to, bytes: bytemuck::cast_slice(part(to)) })
                    .collect();
                exchange(call, Announce::Header, &outgoing, &mut [])
            } else {
                let into = Into::Slice(bytemuck::cast_slice_mut(into));
                exchange(call, Announce::Header, &[], &mut [Incoming { from: root, into }])
            }
        })
    }

    /// Sends `data` to member `to`, which calls [`recv`](Group::recv).
    ///
    /// Returns when the data is on its way, which for much data is when it is being received. Two
    /// ranks that send much data to each other at the same time wait for each other: let one
    /// receive first.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn send(&mut self, name: &str, data: &[f32], to: usize) -> Result<()> {
        self.check_other("to", to)?;
        let seq = self.sends[to];
        self.sends[to] += 1;
        let header = Header::new(Kind::Send, Dtype::F32, name, data.len()).root(to);
        self.call_as(header, seq, |call, _| {
            let bytes = bytemuck::cast_slice(data);
            exchange(call, Announce::Header, &[Outgoing { to, bytes }], &mut [])
        })
    }

    /// Receives `data` from member `from`, which calls [`send`](Group::send).
    ///
    /// # Errors
    /// See [`Error`].
    pub fn recv(&mut self, name: &str, data: &mut [f32], from: usize) -> Result<()> {
        self.check_other("from", from)?;
        let seq = self.recvs[from];
        self.recvs[from] += 1;
        let header = Header::new(Kind::Send, Dtype::F32, name, data.len()).root(self.rank);
        self.call_as(header, seq, |call, _| {
            let into = Into::Slice(bytemuck::cast_slice_mut(data));
            exchange(call, Announce::Header, &[], &mut [Incoming { from, into }])
        })
    }

    /// Returns when all ranks have called it.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn barrier(&mut self, name: &str) -> Result<()> {
        let header = Header::new(Kind::Barrier, Dtype::Bytes, name, 0);
        self.call(header, |call, _| {
            if let Some(mut memory) = call.memory() {
                return memory.barrier();
            }
            let outgoing: Vec<_> = call.others().map(|to| Outgoing { to, bytes: &[] }).collect();
            let mut incoming: Vec<_> =
                call.others().map(|from| Incoming { from, into: Into::Slice(&mut []) }).collect();
            exchange(call, Announce::Header, &outgoing, &mut incoming)
        })
    }

    /// A group of those ranks that pass the same `color`, ordered by `key`, then by rank here.
    ///
    /// All ranks of this group call it. Both groups can be used afterwards, also at the same time.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn split(&mut self, color: u64, key: u64) -> Result<Group> {
        let mine = [color.to_le_bytes(), key.to_le_bytes()].concat();
        let header = Header::new(Kind::Split, Dtype::Bytes, "split", mine.len());
        let seq = self.seq;
        let mut all = vec![Vec::new(); self.size()];
        all[self.rank] = mine;
        self.gather_any(header, &mut all)?;
        let mut chosen = Vec::new();
        for (rank, bytes) in all.iter().enumerate() {
            let (Some(theirs), Some(key)) = (bytes.first_chunk(), bytes.last_chunk()) else {
                return Err(Error::Internal("split: a short answer".to_owned()));
            };
            if u64::from_le_bytes(*theirs) == color {
                chosen.push((u64::from_le_bytes(*key), rank));
            }
        }
        chosen.sort_unstable();
        let rank = chosen.iter().position(|(_, rank)| *rank == self.rank);
        let rank = rank.ok_or_else(|| Error::Internal("split: not in its own group".to_owned()))?;
        let members = chosen.iter().map(|(_, rank)| self.members[*rank]).collect();
        Group::assemble(self.node.clone(), sub_group(self.id, seq, color), members, rank)
    }

    fn check_member(&self, what: &str, rank: usize) -> Result<()> {
        if rank < self.size() {
            return Ok(());
        }
        Err(Error::Config(format!(
            "{what} is rank {rank}, but the group has {}",
            counted(self.size(), "rank")
        )))
    }

    fn check_other(&self, what: &str, rank: usize) -> Result<()> {
        self.check_member(what, rank)?;
        if rank == self.rank {
            return Err(Error::Config(format!("{what} is rank {rank}, which is this one")));
        }
        Ok(())
    }

    fn call(
        &mut self,
        header: Header,
        body: impl FnOnce(&mut Call<'_>, &mut Vec<u64>) -> Result<()>,
    ) -> Result<()> {
        let seq = self.seq;
        self.seq += 1;
        self.call_as(header, seq, body)
    }

    /// Runs one operation; a failure is reported to all ranks.
    fn call_as(
        &mut self,
        header: Header,
        seq: u64,
        body: impl FnOnce(&mut Call<'_>, &mut Vec<u64>) -> Result<()>,
    ) -> Result<()> {
        let header = header.numbered(self.id, seq);
        let shared = self.node.shared();
        shared.fate.check()?;
        shared.fate.enter(&header);
        let started = Instant::now();
        let limits = Limits {
            fate: &shared.fate,
            members: &self.members,
            node: Some(shared),
            op_timeout: shared.config.op_timeout,
            stall_after: shared.config.stall_after,
            started,
            look_at: started + FIRST_LOOK.min(shared.config.stall_after),
        };
        let mut call = Call::new(self.rank, header, &mut *self.links, self.memory.as_mut(), limits);
        let outcome = body(&mut call, &mut self.scratch);
        match &outcome {
            Ok(()) => shared.fate.finish(self.id),
            Err(error) => shared.fail(error),
        }
        outcome
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let fate = &self.node.shared().fate;
        self.links.end(fate.has_failed());
        fate.forget(self.id);
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Group(rank {} of {} over {})", self.rank, self.size(), self.transport())
    }
}

/// What the members of a new group exchange data through; all call it.
fn connections(
    node: &Node,
    id: u64,
    members: &[usize],
    rank: usize,
) -> Result<(Box<dyn Links>, Option<Memory>)> {
    let shared = node.shared();
    let sockets = shared.data_connections(id, members)?;
    let wanted = match shared.config.transport {
        Transport::SharedMemory => true,
        Transport::Auto => shared.are_on_this_host(members),
        Transport::Unix | Transport::Tcp | Transport::Mpi => false,
    };
    if !wanted || members.len() == 1 {
        return Ok((Box::new(Sockets::new(sockets)), None));
    }
    let deadline = Instant::now() + shared.config.start_timeout;
    let region = memory::share(rank, &sockets, deadline).map_err(|(member, error)| {
        let (rank, problem) = (members[member], format!("it does not share memory: {error}"));
        Error::RankLost { rank, problem }
    })?;
    let links = Box::new(Sockets::new(sockets));
    match region {
        Ok(region) => Ok((links, Some(Memory::new(region, rank, members.len())))),
        Err(problem) if shared.config.transport == Transport::SharedMemory => {
            Err(Error::Config(format!("transport SharedMemory: {problem}")))
        }
        Err(problem) => {
            shared.observe(&Event::NoSharedMemory { rank: shared.rank(), problem });
            Ok((links, None))
        }
    }
}

/// What carries the data of [`Transport::Mpi`].
mod carrier {
    #[cfg(feature = "mpi")]
    pub(super) use crate::mpi::{for_job, links};

    #[cfg(not(feature = "mpi"))]
    pub(super) use without::{for_job, links};

    #[cfg(not(feature = "mpi"))]
    mod without {
        use crate::error::{Error, Result};
        use crate::links::Links;

        const PROBLEM: &str = "transport Mpi: this program was built without MPI; build it with \
            the feature `mpi` of regatta-collective, which needs an MPI library and libclang";

        pub(in super::super) fn for_job(_rank: usize, _size: usize) -> Result<()> {
            Err(Error::Config(PROBLEM.to_owned()))
        }

        pub(in super::super) fn links(_id: u64, _members: &[usize]) -> Result<Box<dyn Links>> {
            Err(Error::Config(PROBLEM.to_owned()))
        }
    }
}

/// This rank's part of `data`, through what the group has.
fn reduce_scatter(
    call: &mut Call<'_>,
    data: &mut [f32],
    op: ReduceOp,
    scratch: &mut Vec<u64>,
) -> Result<()> {
    match call.memory() {
        Some(mut memory) => memory.reduce_scatter(data, op, Plain),
        None => direct::reduce_scatter(call, data, op, scratch),
    }
}

/// Broadcast of little data: the root sends it to everybody.
fn star(call: &mut Call<'_>, bytes: &mut [u8], root: usize) -> Result<()> {
    if call.rank == root {
        let outgoing: Vec<_> = call.others().map(|to| Outgoing { to, bytes }).collect();
        exchange(call, Announce::Header, &outgoing, &mut [])
    } else {
        let into = Into::Slice(bytes);
        exchange(call, Announce::Header, &[], &mut [Incoming { from: root, into }])
    }
}

/// The group of all ranks.
const WORLD: u64 = 1;

/// The id of a sub-group: the same on all its members, another for every split and color.
fn sub_group(parent: u64, seq: u64, color: u64) -> u64 {
    // FNV-1a over the three numbers.
    let bytes = [parent, seq, color].map(u64::to_le_bytes).concat();
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

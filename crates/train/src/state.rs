//! Where a worker is: what it writes down for a checkpoint, and how that is divided when the number
//! of workers has changed.

use std::collections::BTreeMap;

use regatta_data::{FilePosition, Position};
use regatta_ps::Progress;
use serde::{Deserialize, Serialize};

use crate::arriving::PlannedPass;
use crate::marks::{HeldShard, least, position};
use crate::metrics::Meter;
use crate::report::EpochReport;

/// Where a worker is: everything that it needs to resume, beside the parameters. Floats are kept by
/// their bits.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerState {
    /// The pass.
    pub(crate) epoch: u64,
    /// Batches and examples of it that are done.
    pub(crate) batches: u64,
    pub(crate) examples: u64,
    /// Sum of losses over these examples.
    pub(crate) loss_sum: u64,
    /// Seconds that this part of the pass took.
    pub(crate) seconds: f64,
    /// Steps of the job in this pass, with examples of this worker or without.
    #[serde(default)]
    pub(crate) pass_steps: u64,
    /// Steps since training began, of this worker and of the job, which workers keep in step.
    pub(crate) steps: u64,
    pub(crate) loop_step: u64,
    /// How far the data were used.
    pub(crate) position: SavedPosition,
    /// What each server has of them, if a worker was lost while it pushed to some of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) applied: Vec<Progress>,
    /// Shards of lost workers that this one has taken over.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) taken: Vec<(usize, SavedPosition)>,
    /// Others have its own shard, because this worker was lost and came back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_without_own: bool,
    /// Counters of each meter that are not zero, by their number.
    pub(crate) meters: Vec<Vec<(usize, u64)>>,
    /// Passes that are over.
    pub(crate) epochs: Vec<EpochReport>,
    /// The plan of this data pass, or of the one before; the first worker writes it down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) planned: Option<PlannedPass>,
    /// The job has reached its end.
    pub(crate) finished: bool,
}

/// How far the data of a pass were used.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct SavedPosition {
    batches: u64,
    examples: u64,
    /// File, records, line, and whether that was all of it.
    files: Vec<(usize, u64, u64, bool)>,
}

impl SavedPosition {
    pub(crate) fn of(position: &Position) -> SavedPosition {
        let file = |(file, at): (&usize, &FilePosition)| (*file, at.records, at.line, at.done);
        SavedPosition {
            batches: position.batches,
            examples: position.examples,
            files: position.files.iter().map(file).collect(),
        }
    }

    pub(crate) fn get(&self) -> Position {
        let file = |&(file, records, line, done): &(usize, u64, u64, bool)| {
            (file, FilePosition { records, line, done })
        };
        Position {
            batches: self.batches,
            examples: self.examples,
            files: self.files.iter().map(file).collect(),
        }
    }
}

impl WorkerState {
    pub(crate) fn save_meters(&mut self, meters: &[Meter]) {
        let counters = |meter: &Meter| {
            let all = meter.counters().into_iter().enumerate();
            all.filter(|(_, n)| n.to_bits() != 0).map(|(i, n)| (i, n.to_bits())).collect()
        };
        self.meters = meters.iter().map(counters).collect();
    }

    pub(crate) fn load_meters(&self, meters: &mut [Meter]) {
        for (meter, saved) in meters.iter_mut().zip(&self.meters) {
            let mut counters = vec![0.0; meter.counters().len()];
            for &(i, bits) in saved {
                if let Some(counter) = counters.get_mut(i) {
                    *counter = f64::from_bits(bits);
                }
            }
            meter.set_counters(&counters);
        }
    }

    /// Counts a step of this worker.
    pub(crate) fn count(&mut self, examples: u64, loss: Option<f32>) {
        self.batches += 1;
        self.steps += 1;
        self.examples += examples;
        let loss = f64::from(loss.unwrap_or(0.0)) * examples as f64;
        self.loss_sum = (f64::from_bits(self.loss_sum) + loss).to_bits();
    }

    /// The mean loss of the pass so far; none without examples.
    pub(crate) fn mean_loss(&self) -> Option<f64> {
        (self.examples > 0).then(|| f64::from_bits(self.loss_sum) / self.examples as f64)
    }

    /// Writes down what is known elsewhere until a snapshot is taken.
    pub(crate) fn write_down(
        &mut self,
        step: u64,
        seconds: f64,
        worker: usize,
        held: &[HeldShard],
        meters: &[Meter],
    ) {
        (self.loop_step, self.seconds) = (step, seconds);
        let own = held.iter().find(|held| held.shard == worker);
        self.is_without_own = own.is_none();
        self.position = own.map(|own| SavedPosition::of(&own.position)).unwrap_or_default();
        let taken = held.iter().filter(|held| held.shard != worker);
        self.taken = taken.map(|held| (held.shard, SavedPosition::of(&held.position))).collect();
        self.save_meters(meters);
    }

    /// The state of a worker whose shard another one has, or nobody: where the job is, and how far
    /// the shard. The counts of a shard that was taken over are with who did it.
    fn of_shard(first: &WorkerState, position: SavedPosition) -> WorkerState {
        WorkerState {
            epoch: first.epoch,
            batches: position.batches,
            pass_steps: first.pass_steps,
            steps: first.steps,
            loop_step: first.loop_step,
            position,
            meters: first.meters.iter().map(|_| vec![]).collect(),
            epochs: first.epochs.clone(),
            finished: first.finished,
            ..WorkerState::default()
        }
    }

    fn of_orphan(first: &WorkerState, progress: &[Progress]) -> WorkerState {
        // Of a job that is done, only the next data pass counts.
        let known = if first.finished { Progress::default() } else { least(progress) };
        let state = WorkerState::of_shard(first, SavedPosition::of(&position(&known)));
        let differ = !first.finished && progress.windows(2).any(|two| two[0] != two[1]);
        WorkerState {
            examples: known.counted,
            loss_sum: known.loss_sum,
            applied: if differ { progress.to_vec() } else { vec![] },
            ..state
        }
    }

    /// The pass is over.
    pub(crate) fn end_pass(&mut self, report: EpochReport) {
        let mut epochs = std::mem::take(&mut self.epochs);
        epochs.push(report);
        let (epoch, steps, planned) = (self.epoch + 1, self.steps, self.planned.take());
        *self = WorkerState { epoch, steps, epochs, planned, ..WorkerState::default() };
    }

    /// The text for the manifest.
    pub(crate) fn encode(&self) -> String {
        serde_json::to_string(self).expect("a state is plain data")
    }
}

/// The state of each shard, as a worker that has it alone would have written it down: workers may
/// have taken over shards of others, and those of lost workers may wait for somebody.
pub(crate) fn by_shard(
    states: &[(usize, WorkerState)],
    orphans: &[(usize, Vec<Progress>)],
    workers: usize,
) -> Vec<(usize, WorkerState)> {
    let Some((_, first)) = states.first() else { return vec![] };
    let state_of = |shard: usize| {
        let own = states.iter().find(|(worker, s)| *worker == shard && !s.is_without_own);
        if let Some((_, own)) = own {
            return Some(WorkerState { taken: vec![], ..own.clone() });
        }
        let mut taken = states.iter().flat_map(|(_, state)| &state.taken);
        if let Some((_, position)) = taken.find(|(number, _)| *number == shard) {
            return Some(WorkerState::of_shard(first, position.clone()));
        }
        let orphan = orphans.iter().find(|(number, _)| *number == shard);
        orphan.map(|(_, progress)| WorkerState::of_orphan(first, progress))
    };
    let mut by_shard: Vec<(usize, WorkerState)> =
        (0..workers).filter_map(|shard| Some((shard, state_of(shard)?))).collect();
    // Who wrote down the plan may not have its own shard any more.
    if let Some((_, state)) = by_shard.first_mut() {
        state.planned = states.iter().find_map(|(_, state)| state.planned.clone());
    }
    by_shard
}

/// How data are shared out between workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// Every worker reads all.
    Everything,
    /// Each has its own files, read in order.
    Files,
    /// Each has its own examples, whose order depends on the number of workers.
    Mixed,
}

/// Where worker `worker` of `workers` resumes, when the checkpoint has the states of any number;
/// with a note if the number has changed. No example is left out:
///
/// - with files of their own, read in order, the workers divide the files again, and each file is
///   resumed where its last reader was;
/// - where every worker reads everything, a worker resumes where the one of its number was, and new
///   ones begin at the start of the data pass;
/// - otherwise the data pass begins again.
pub(crate) fn divide(
    states: &[WorkerState],
    worker: usize,
    workers: usize,
    sharing: Sharing,
) -> (WorkerState, Option<String>) {
    if states.len() == workers {
        return (states[worker].clone(), None);
    }
    let first = &states[0];
    let mut state = WorkerState {
        epoch: first.epoch,
        steps: states.iter().map(|s| s.steps).max().unwrap_or(0),
        loop_step: states.iter().map(|s| s.loop_step).max().unwrap_or(0),
        epochs: first.epochs.clone(),
        planned: first.planned.clone(),
        finished: first.finished,
        meters: first.meters.iter().map(|_| vec![]).collect(),
        ..WorkerState::default()
    };
    let begins_again = sharing == Sharing::Mixed && states.iter().any(|s| s.batches > 0);
    if worker == 0 && !begins_again {
        // The sums of all workers are counted once.
        state.examples = states.iter().map(|s| s.examples).sum();
        let losses = states.iter().map(|s| f64::from_bits(s.loss_sum));
        state.loss_sum = losses.sum::<f64>().to_bits();
        state.meters = sum_meters(states);
        state.seconds = first.seconds;
    }
    let (from, to) = (states.len(), workers);
    let plural = if from == 1 { "" } else { "s" };
    let changed = format!("the checkpoint is of {from} worker{plural}, this job has {to}");
    let how = match sharing {
        Sharing::Files => {
            state.position = furthest(states);
            "each file is resumed where its last reader was"
        }
        Sharing::Everything => {
            if let Some(before) = states.get(worker) {
                state.position = before.position.clone();
                state.batches = before.batches;
            }
            "workers resume where those of their numbers were, new ones begin the data pass"
        }
        Sharing::Mixed if begins_again => {
            "the order of examples depends on it, so the data pass begins again and its first \
             examples are trained twice"
        }
        Sharing::Mixed => "no data pass was begun",
    };
    (state, Some(format!("{changed}: {how}")))
}

/// How far each file was read by anybody. A worker that resumed from a checkpoint of another number
/// of workers also knows of files that are not its own, as they were then.
fn furthest(states: &[WorkerState]) -> SavedPosition {
    let mut files: BTreeMap<usize, (u64, bool, u64)> = BTreeMap::new();
    for &(file, records, line, done) in states.iter().flat_map(|s| &s.position.files) {
        let read = files.entry(file).or_default();
        *read = (*read).max((records, done, line));
    }
    SavedPosition {
        batches: 0,
        examples: files.values().map(|read| read.0).sum(),
        files: files
            .into_iter()
            .map(|(f, (records, done, line))| (f, records, line, done))
            .collect(),
    }
}

fn sum_meters(states: &[WorkerState]) -> Vec<Vec<(usize, u64)>> {
    let n = states.iter().map(|s| s.meters.len()).max().unwrap_or(0);
    let sum = |meter: usize| {
        let mut sums: BTreeMap<usize, f64> = BTreeMap::new();
        for &(i, bits) in states.iter().filter_map(|s| s.meters.get(meter)).flatten() {
            *sums.entry(i).or_default() += f64::from_bits(bits);
        }
        sums.into_iter().map(|(i, n)| (i, n.to_bits())).collect()
    };
    (0..n).map(sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(epoch: u64, files: &[(usize, u64, u64, bool)]) -> WorkerState {
        let examples = files.iter().map(|f| f.1).sum();
        WorkerState {
            epoch,
            batches: 3,
            examples,
            loss_sum: 1.5_f64.to_bits(),
            steps: 7,
            position: SavedPosition { batches: 3, examples, files: files.to_vec() },
            meters: vec![vec![(0, 2.0_f64.to_bits()), (9, 1.0_f64.to_bits())]],
            ..WorkerState::default()
        }
    }

    #[test]
    fn the_same_number_of_workers_goes_on_exactly() {
        let states = [state(1, &[(0, 5, 5, false)]), state(1, &[(1, 8, 8, true)])];
        for sharing in [Sharing::Everything, Sharing::Files, Sharing::Mixed] {
            assert_eq!(divide(&states, 1, 2, sharing), (states[1].clone(), None));
        }
    }

    #[test]
    fn every_shard_has_a_state_whoever_trains_it() {
        let mut first = state(2, &[(0, 5, 5, true)]);
        first.taken = vec![(1, SavedPosition { batches: 9, ..SavedPosition::default() })];
        // It was lost, and another has its shard now.
        let back = WorkerState { is_without_own: true, ..state(2, &[]) };
        let known = |batches| Progress { batches, counted: 40, ..Progress::default() };
        let orphans = [(2, vec![known(4), known(3)])];
        let states = by_shard(&[(0, first.clone()), (1, back)], &orphans, 3);
        assert_eq!(states.iter().map(|(n, _)| *n).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(states[0].1, WorkerState { taken: vec![], ..first });
        let (taken, orphan) = (&states[1].1, &states[2].1);
        assert_eq!((taken.epoch, taken.batches, taken.examples), (2, 9, 0));
        // The least that servers have, and what each of them has.
        assert_eq!((orphan.batches, orphan.examples, orphan.applied.len()), (3, 40, 2));
        let equal = by_shard(&states[..1], &[(2, vec![known(4), known(4)])], 3);
        assert_eq!((equal.len(), &equal[1].1.applied), (2, &vec![]));
    }

    #[test]
    fn files_are_shared_out_anew() {
        let states =
            [state(1, &[(0, 5, 5, false)]), state(1, &[(1, 8, 8, true), (2, 1, 1, false)])];
        for worker in 0..3 {
            let (divided, note) = divide(&states, worker, 3, Sharing::Files);
            let files = divided.position.get().files;
            assert_eq!(files.len(), 3, "every worker knows of every file");
            assert!(files[&1].done && !files[&2].done && files[&2].records == 1);
            assert!(note.unwrap().contains("each file is resumed"));
            assert_eq!(divided.examples, if worker == 0 { 14 } else { 0 });
            assert_eq!(divided.meters[0].len(), if worker == 0 { 2 } else { 0 });
        }
        // Divided again: what a worker only heard of is older than what its reader says.
        let mut again: Vec<WorkerState> =
            (0..3).map(|w| divide(&states, w, 3, Sharing::Files).0).collect();
        again[0].position.files[0] = (0, 9, 9, true);
        for worker in 0..2 {
            let files = divide(&again, worker, 2, Sharing::Files).0.position.get().files;
            assert!(files[&0].done && files[&0].records == 9 && files[&2].records == 1);
        }
        let (first, _) = divide(&states, 0, 3, Sharing::Files);
        assert_eq!(first.meters[0][0], (0, 4.0_f64.to_bits()));
        assert_eq!(f64::from_bits(first.loss_sum), 3.0);
    }

    #[test]
    fn what_cannot_be_divided_begins_again_and_nothing_is_left_out() {
        let states = [state(2, &[]), state(2, &[])];
        let (divided, note) = divide(&states, 0, 1, Sharing::Mixed);
        assert_eq!((divided.epoch, divided.batches, divided.examples), (2, 0, 0));
        assert_eq!(divided.position, SavedPosition::default());
        assert!(note.unwrap().contains("begins again"));
        let (new, _) = divide(&states, 2, 3, Sharing::Everything);
        assert_eq!(new.position, SavedPosition::default());
    }
}

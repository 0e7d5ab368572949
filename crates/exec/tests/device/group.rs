//! Several devices share a batch: they train as one with the whole of it.

use regatta_device::{Arena, Choice, Device, Step};
use regatta_exec::Executor;
use regatta_exec::Options;
use regatta_exec::device::{DeviceGroup, GroupBatch, GroupTable};
use regatta_optim::{Adam, RowRule, Rule};
use regatta_passes::split_trainer;
use regatta_tensor::Value;

use crate::device;
use crate::runs::{ROWS, batch, build, started};

/// Weights and two moments of a row.
const STRIDE: usize = 12;

/// A device opened several times counts as several: nothing is shared between them.
fn devices(n: usize) -> Option<Vec<Device>> {
    let first = device()?;
    let more = (1..n).map(|_| Choice::OpenClCpu(0).open().unwrap());
    Some(std::iter::once(first).chain(more).collect())
}

/// The losses of some steps on so many devices, and on the CPU.
fn losses(n: usize, sizes: &[usize]) -> Option<(Vec<f32>, Vec<f32>)> {
    let devices = devices(n)?;
    let (programs, loss) = build(Rule::Adam(Adam::default()), false);
    let mut scope = started(&programs);
    let split = split_trainer(&programs).unwrap();
    let mut group = DeviceGroup::compile(&split, &devices, &[&loss]).unwrap();
    group.write_values(&scope).unwrap();
    // Row `key` belongs to device `key % n` and lies in slot `key / n`.
    let table = scope.get("table").unwrap().f32().to_vec();
    let arena = |owner: usize| {
        let mut rows = vec![0.0; (ROWS / n + 1) * STRIDE];
        for key in (owner..ROWS).step_by(n) {
            let at = key / n * STRIDE;
            rows[at..at + 4].copy_from_slice(&table[key * 4..key * 4 + 4]);
        }
        let buffer = devices[owner].buffer_of(&rows).unwrap();
        Arena { buffer, stride: STRIDE as u32, dim: 4 }
    };
    let arenas: Vec<Arena> = (0..n).map(arena).collect();
    let mut cpu = Executor::new(programs.main.clone(), Options::default()).unwrap();
    let rule = split.tables[0].rule;
    let (mut shared, mut got, mut want) = (rule.shared_state(), vec![], vec![]);
    let mut divided = GroupBatch::default();
    for (seed, &rows) in sizes.iter().enumerate() {
        let values = batch(rows, seed as u64);
        let feeds: Vec<(&str, &Value)> = values.iter().map(|(name, v)| (*name, v)).collect();
        want.push(cpu.run(&mut scope, &feeds, &[&loss]).unwrap()[0].f32()[0]);
        group.prepare(&feeds, false, &mut divided).unwrap();
        let place = |&key: &u64| ((key as usize % n) as u32, (key as usize / n) as u32);
        let slots: Vec<(u32, u32)> = divided.keys(0).keys.iter().map(place).collect();
        let step = Step::new(&rule, 0.05, &shared).unwrap();
        let table = GroupTable { arenas: arenas.iter().collect(), slots: &slots, step: &step };
        let table = [table];
        let weights = group.weights(&divided, &table).unwrap();
        group.compute(&mut divided, &weights).unwrap();
        let gradients = group.gradients(&divided).unwrap();
        group.update(&divided, &table, &gradients, 0.05).unwrap();
        rule.advance(&mut shared);
        got.push(group.fetch().unwrap()[0].f32()[0]);
    }
    Some((got, want))
}

#[test]
fn devices_that_share_a_batch_train_as_one_does() {
    for n in [1, 2, 3] {
        let Some((got, want)) = losses(n, &[8, 8, 7, 12, 8, 1, 2, 8]) else { return };
        for (got, want) in got.iter().zip(&want) {
            assert!((got - want).abs() <= 1e-5, "{n} devices: {got:?}, the CPU has {want:?}");
        }
    }
}

#[test]
fn what_cannot_be_shared_is_named() {
    let Some(devices) = devices(2) else { return };
    let (programs, loss) = build(Rule::Adam(Adam::default()), true);
    let split = split_trainer(&programs).unwrap();
    let error = DeviceGroup::compile(&split, &devices, &[&loss]).err().unwrap().to_string();
    assert!(error.contains("several devices share a batch"), "{error}");
    assert!(DeviceGroup::compile(&split, &devices[..1], &[&loss]).is_ok());

    let (programs, loss) = build(Rule::Adam(Adam::default()), false);
    let split = split_trainer(&programs).unwrap();
    let mut group = DeviceGroup::compile(&split, &devices, &[&loss]).unwrap();
    let values = batch(0, 0);
    let feeds: Vec<(&str, &Value)> = values.iter().map(|(name, v)| (*name, v)).collect();
    let error = group.prepare(&feeds, false, &mut GroupBatch::default()).unwrap_err().to_string();
    assert_eq!(error, "a batch without examples cannot be divided");
    assert!(group.fetch().is_err(), "nothing was run");
}

//! Deep gradient compression (Lin and others 2018): only the largest entries of a gradient travel,
//! the rest waits at home with its momentum until it has grown.
//!
//! `dgc_start` adds momentum to this rank's gradient, keeps what is small and sends the rest;
//! `dgc_wait` writes the sum of what all ranks sent; `dgc_momentum` updates with it. Before step
//! `rampup_begin_step` they are a plain all-reduce and a plain momentum update.

use regatta_ir::schema::{AttrDef, AttrKind, one};
use regatta_ir::{Error, Op, Schema, VarType};
use regatta_optim::{Momentum, Rule, Sgd, StateMut};

use super::collective::{NAME, exchange_name, handle, infer_wait, wait_schema};
use crate::comm::{Exchange, Reply, Wire};
use crate::def::{no_samples, whole};
use crate::{Grad, Kernel, KernelError, OpDef, Spec};

const NOT_DIFFERENTIATED: Grad = Grad::None("it works on gradients");

const MU: AttrDef = ("mu", AttrKind::RequiredFloat);
const NESTEROV: AttrDef = ("nesterov", AttrKind::Bool(false));
const BEGIN: AttrDef = ("rampup_begin_step", AttrKind::Int(0));

pub(crate) static DEFS: &[OpDef] = &[
    OpDef {
        schema: Schema {
            kind: "dgc_start",
            inputs: &[one("Grad"), one("U"), one("V")],
            outputs: &[one("Handle"), one("UOut"), one("VOut")],
            attrs: &[
                NAME,
                MU,
                NESTEROV,
                BEGIN,
                ("rampup_step", AttrKind::Int(1)),
                ("sparsity", AttrKind::Floats),
            ],
        },
        infer: |i| {
            let grad = i.floats("Grad")?;
            i.expect("U", grad)?;
            i.expect("V", grad)?;
            let sparsity = i.op.floats("sparsity")?;
            if sparsity.is_empty() || sparsity.iter().any(|s| !(0.0..1.0).contains(s)) {
                let reason = format!("is {sparsity:?}, not fractions from 0 to below 1");
                return Err(i.bad_attr("sparsity", reason));
            }
            Ok(vec![handle(), grad.clone(), grad.clone()])
        },
        grad: NOT_DIFFERENTIATED,
        kernel: start,
        batch: whole,
        samples: no_samples,
    },
    OpDef {
        schema: wait_schema("dgc_wait"),
        infer: infer_wait,
        grad: NOT_DIFFERENTIATED,
        kernel: wait,
        batch: whole,
        samples: no_samples,
    },
    OpDef {
        schema: Schema {
            kind: "dgc_momentum",
            inputs: &[one("Param"), one("Grad"), one("LearningRate"), one("Velocity")],
            outputs: &[one("ParamOut"), one("VelocityOut")],
            attrs: &[MU, NESTEROV, BEGIN, ("lr_scale", AttrKind::Float(1.0))],
        },
        infer: |i| {
            let param = i.floats("Param")?;
            i.expect("Grad", param)?;
            i.expect("Velocity", param)?;
            i.expect("LearningRate", &VarType::f32([1]))?;
            Ok(vec![param.clone(), param.clone()])
        },
        grad: NOT_DIFFERENTIATED,
        kernel: |s| {
            let momentum = Rule::Momentum(momentum(s.op)?);
            let (begin, lr_scale) = (begin(s.op)?, s.op.float("lr_scale")? as f32);
            let kernel: Kernel = Box::new(move |io, ctx| {
                let lr = io.f32(2)[0] * lr_scale;
                let (param, velocity) = (io.out_f32(0), io.out_f32(1));
                if ctx.step < begin {
                    let states: StateMut<'_> = std::iter::once(velocity).collect();
                    momentum.update(lr, param, io.f32(1), states);
                } else {
                    // The momentum is in the gradient already.
                    Rule::Sgd(Sgd {}).update(lr, param, io.f32(1), StateMut::default());
                }
                Ok(())
            });
            Ok(kernel)
        },
        batch: whole,
        samples: no_samples,
    },
];

fn momentum(op: &Op) -> Result<Momentum, Error> {
    Ok(Momentum { mu: op.float("mu")? as f32, nesterov: op.bool("nesterov")? })
}

fn begin(op: &Op) -> Result<u64, Error> {
    Ok(op.int("rampup_begin_step")?.max(0) as u64)
}

fn start(s: &Spec<'_>) -> Result<Kernel, Error> {
    let (name, rule, begin) = (exchange_name(s)?, momentum(s.op)?, begin(s.op)?);
    let sparsity = s.op.floats("sparsity")?;
    let ramp = s.op.int("rampup_step")?.max(1) as u64;
    let mut order: Vec<u32> = Vec::new();
    Ok(Box::new(move |io, ctx| {
        let comm = ctx.peers.comm()?;
        let (grad, u, v) = (io.f32(0), io.out_f32(1), io.out_f32(2));
        io.out_f32(0)[0] = 0.0;
        if ctx.step < begin {
            let mut values = comm.take_buffer(&name);
            values.clear();
            values.extend_from_slice(grad);
            let exchange = Exchange::AllReduce { values, wire: Wire::F32, node_ranks: 0 };
            return comm.start(&name, exchange);
        }
        correct_momentum(rule, grad, u, v);
        let kept = sparsity_at(&sparsity, ramp, ctx.step - begin);
        let count = sent(grad.len(), kept);
        largest(v, count, &mut order);
        let bytes = take_entries(&order, u, v);
        comm.start(&name, Exchange::gather(bytes))
    }))
}

/// What a plain momentum step would have added to the weights, entry by entry, goes into `v`.
fn correct_momentum(rule: Momentum, grad: &[f32], u: &mut [f32], v: &mut [f32]) {
    for ((g, u), v) in grad.iter().zip(u).zip(v) {
        *u = rule.mu * *u + g;
        *v += if rule.nesterov { g + rule.mu * *u } else { *u };
    }
}

/// The fraction that stays at home: the list is walked through over the ramp, its last entry stays.
fn sparsity_at(list: &[f64], ramp: u64, step: u64) -> f64 {
    let at = step.saturating_mul(list.len() as u64) / ramp;
    list[(at as usize).min(list.len() - 1)]
}

fn sent(len: usize, sparsity: f64) -> usize {
    ((len as f64 * (1.0 - sparsity)).round() as usize).clamp(1, len)
}

/// Positions of the `count` entries of largest size, in order of position; of equal ones the first.
fn largest(v: &[f32], count: usize, order: &mut Vec<u32>) {
    order.clear();
    order.extend(0..v.len() as u32);
    if count < v.len() {
        order.select_nth_unstable_by(count - 1, |&a, &b| {
            let (x, y) = (v[a as usize].abs(), v[b as usize].abs());
            y.total_cmp(&x).then(a.cmp(&b))
        });
        order.truncate(count);
    }
    order.sort_unstable();
}

/// Takes the entries at these positions out of `u` and `v` and writes those of `v` as bytes.
fn take_entries(positions: &[u32], u: &mut [f32], v: &mut [f32]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(8 * positions.len());
    positions.iter().for_each(|at| bytes.extend(at.to_le_bytes()));
    for &at in positions {
        bytes.extend(v[at as usize].to_le_bytes());
        (u[at as usize], v[at as usize]) = (0.0, 0.0);
    }
    bytes
}

fn wait(s: &Spec<'_>) -> Result<Kernel, Error> {
    let name = exchange_name(s)?;
    Ok(Box::new(move |io, ctx| {
        let comm = ctx.peers.comm()?;
        let out = io.out_f32(0);
        match comm.wait(&name)? {
            Reply::Floats(values) => {
                out.copy_from_slice(&values);
                comm.give_buffer(&name, values);
            }
            Reply::Gathered(parts) => {
                out.fill(0.0);
                for (rank, bytes) in parts.iter().enumerate() {
                    let bad = || KernelError(format!("rank {rank} sent entries that do not fit"));
                    add_entries(bytes, out).ok_or_else(bad)?;
                }
            }
        }
        Ok(())
    }))
}

fn add_entries(bytes: &[u8], out: &mut [f32]) -> Option<()> {
    if !bytes.len().is_multiple_of(8) {
        return None;
    }
    let (positions, values) = bytes.split_at(bytes.len() / 2);
    let values = values.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b));
    for (at, value) in positions.as_chunks::<4>().0.iter().zip(values) {
        *out.get_mut(u32::from_le_bytes(*at) as usize)? += value;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ramp_walks_through_the_list() {
        let list = [0.75, 0.9, 0.99];
        let at = |step| sparsity_at(&list, 6, step);
        assert_eq!(
            [0, 1, 2, 3, 4, 5, 6, 1000].map(at),
            [0.75, 0.75, 0.9, 0.9, 0.99, 0.99, 0.99, 0.99]
        );
        assert_eq!([sent(1000, 0.999), sent(10, 0.999), sent(10, 0.0)], [1, 1, 10]);
    }

    #[test]
    fn the_largest_entries_travel_and_the_rest_stays() {
        let (mut u, mut v) = (vec![1.0; 5], vec![1.0, -7.0, 3.0, 3.0, 0.5]);
        let mut order = Vec::new();
        largest(&v, 2, &mut order);
        assert_eq!(order, [1, 2]);
        let bytes = take_entries(&order, &mut u, &mut v);
        assert_eq!(v, [1.0, 0.0, 0.0, 3.0, 0.5]);
        assert_eq!(u, [1.0, 0.0, 0.0, 1.0, 1.0]);
        let mut out = vec![0.0; 5];
        add_entries(&bytes, &mut out).unwrap();
        add_entries(&bytes, &mut out).unwrap();
        assert_eq!(out, [0.0, -14.0, 6.0, 0.0, 0.0]);
        assert_eq!(add_entries(&bytes, &mut [0.0]), None);
        assert_eq!(add_entries(&bytes[1..], &mut out), None);
    }
}

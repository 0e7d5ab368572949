//! Values between ranks: the same program and the same parameters on all of them at the beginning,
//! and optimizer states that are kept elsewhere.

use std::collections::HashMap;

use regatta_checkpoint::Checksum;
use regatta_exec::Scope;
use regatta_ir::VarDef;
use regatta_tensor::{Data, Tensor};

use super::{Ranks, is_param};
use crate::Error;
use crate::tables::{not_initialised, parameter};

impl Ranks {
    pub(super) fn compare_programs(&self) -> Result<(), Error> {
        let own = self.fingerprint.clone();
        let all = self.comm.call(move |g| g.all_gather_bytes("program", own.as_bytes()))?;
        let differs = |rank: &usize| all[*rank] != all[0];
        let other: Vec<String> =
            (0..all.len()).filter(differs).map(|rank| format!("rank {rank}")).collect();
        if other.is_empty() {
            return Ok(());
        }
        Err(Error::Exchange(format!(
            "{} and rank 0 do not have the same program, settings and strategy",
            other.join(", ")
        )))
    }

    /// Gives these values of rank 0 to all. What all ranks have already is not sent: first values
    /// are the same everywhere if all begin with the same seed.
    pub(super) fn share(&self, scope: &mut Scope, names: &[String]) -> Result<(), Error> {
        let mut sums = Vec::new();
        for name in names {
            let tensor = parameter(scope, name)?;
            sums.extend_from_slice(&Checksum::of_elements(tensor).0.to_le_bytes());
        }
        let all = self.comm.call(move |g| g.all_gather_bytes("checksums of values", &sums))?;
        let same = |number: usize| {
            let of = |rank: &Vec<u8>| rank.as_chunks::<8>().0.get(number).copied();
            all.iter().all(|rank| of(rank) == of(&all[0]))
        };
        let mut differing = (0..).zip(names).filter(|(number, _)| !same(*number));
        differing.try_for_each(|(_, name)| self.broadcast(scope, name))
    }

    /// Gives a value of rank 0 to all.
    fn broadcast(&self, scope: &mut Scope, name: &str) -> Result<(), Error> {
        let tensor = scope.get_mut(name).ok_or_else(|| not_initialised(name))?;
        let (label, rank) = (name.to_string(), self.rank());
        match tensor.data_mut() {
            Data::F32(values) => {
                let mut moved = std::mem::take(values);
                *values = self.comm.call(move |g| {
                    g.broadcast(&label, &mut moved, 0)?;
                    Ok(moved)
                })?;
            }
            Data::I64(values) => {
                let own = values.iter().flat_map(|x| x.to_le_bytes()).collect();
                let own = if rank == 0 { own } else { vec![] };
                let bytes = self.comm.call(move |g| g.broadcast_bytes(&label, own, 0))?;
                let new = bytes.as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b));
                values.iter_mut().zip(new).for_each(|(v, x)| *v = x);
            }
            other => {
                let reason = format!("'{name}' ({other:?}) cannot be given to other ranks");
                return Err(Error::Config(reason));
            }
        }
        Ok(())
    }

    /// Brings to rank 0 the optimizer states that only other ranks keep; empty elsewhere, and when
    /// all ranks keep all. All ranks call it.
    pub(super) fn states_of_others(&self, scope: &Scope) -> Result<HashMap<String, Tensor>, Error> {
        let mut collected = HashMap::new();
        if !self.plan.sharded {
            return Ok(collected);
        }
        let here = &self.plan.each.startup.block().vars;
        let states: Vec<VarDef> =
            self.base.main.persistables().filter(|v| !is_param(v)).cloned().collect();
        let mine: Vec<u8> = states.iter().map(|v| u8::from(here.contains_key(&v.name))).collect();
        let all = self.comm.call(move |g| g.all_gather_bytes("states", &mine))?;
        for (i, var) in states.iter().enumerate().filter(|(i, _)| all[0].get(*i) == Some(&0)) {
            let Some(owner) = all.iter().position(|have| have.get(i) == Some(&1)) else {
                return Err(Error::Internal(format!("no rank keeps the state '{}'", var.name)));
            };
            let numel = var.ty.numel().unwrap_or(0);
            let own = scope.get(&var.name).filter(|_| here.contains_key(&var.name));
            let mut values = own.map_or_else(|| vec![0.0; numel], |t| t.f32().to_vec());
            let name = var.name.clone();
            let values = self.comm.call(move |g| {
                g.broadcast(&name, &mut values, owner)?;
                Ok(values)
            })?;
            if self.rank() == 0 {
                let shape: Vec<usize> = var.ty.shape.iter().map(|&d| d as usize).collect();
                let tensor = Tensor::from_f32(&shape, values)
                    .map_err(|e| Error::Internal(format!("state '{}': {e}", var.name)))?;
                collected.insert(var.name.clone(), tensor);
            }
        }
        Ok(collected)
    }
}

/// A short text that differs if the given one does.
pub(super) fn fingerprint(text: &str) -> String {
    let hash = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    format!("{hash:016x} of {} bytes", text.len())
}

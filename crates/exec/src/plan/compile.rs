//! The program of a segment becomes kernels on placed memory.

use std::collections::HashMap;

use regatta_ir::{Block, Layout, Op, Origin, VarType};
use regatta_ops::{OPS, Spec};
use regatta_passes::SegmentProgram;
use regatta_tensor::{DType, Tensor};

use super::layout::MemoryLayout;
use crate::mapped::MappedFile;
use crate::segment::{Loc, PlannedOp, Segment};
use crate::{Error, Options};

/// A segment with the locations of its variables.
pub(super) struct CompiledSegment {
    pub(super) segment: Segment,
    pub(super) locs: HashMap<String, Loc>,
    pub(super) bytes_without_reuse: usize,
}

impl CompiledSegment {
    pub(super) fn new(
        program: &SegmentProgram,
        feeds: &[(String, VarType)],
        options: &Options,
    ) -> Result<CompiledSegment, Error> {
        let mut found = Locations::new(program, feeds);
        let block = program.program.block();
        for name in &program.imports {
            found.place(name);
        }
        let mut planned = Vec::new();
        for op in &block.ops {
            for name in op.input_vars().chain(op.output_vars()) {
                block.var(name, &op.kind)?;
                found.find(name)?;
            }
            planned.push(plan_op(block, op, &program.types, &found.locs)?);
        }
        for name in &program.keep {
            // A temporary that no op makes stays unknown: fetching it is an error.
            if block.vars.get(name).is_some_and(|var| var.origin != Origin::Temp) {
                found.find(name)?;
            }
        }
        let Locations { layout, locs, persist, kept, .. } = found;
        let file = match layout.file_bytes {
            0 => None,
            bytes => Some(MappedFile::new(bytes, options.offload_dir.as_deref())?),
        };
        let segment = Segment::new(planned, layout.bytes, file, layout.n_rows, persist, kept);
        Ok(CompiledSegment { segment, locs, bytes_without_reuse: layout.own_bytes })
    }

    /// Where fetched values are, and tensors to copy them to.
    pub(super) fn fetches(
        &self,
        names: &[String],
        types: &HashMap<String, VarType>,
    ) -> Result<(Vec<Loc>, Vec<Tensor>), Error> {
        let mut locs = Vec::new();
        let mut tensors = Vec::new();
        for name in names {
            let loc = self.locs.get(name).ok_or_else(|| Error::Fetch {
                name: name.clone(),
                reason: "no op of this program makes it".into(),
            })?;
            let ty = &types[name];
            // A row-sparse value stays where it is; see `Executor::fetched_rows`.
            let shape: Vec<usize> = match ty.layout {
                Layout::Rows => vec![0],
                _ => ty.shape.iter().map(|&d| d as usize).collect(),
            };
            let dtype = if ty.dtype.is_half() { DType::F32 } else { ty.dtype };
            tensors.push(Tensor::zeros(dtype, &shape));
            locs.push(*loc);
        }
        Ok((locs, tensors))
    }
}

/// The locations of a segment's variables, found as ops mention them.
struct Locations<'a> {
    block: &'a Block,
    types: &'a HashMap<String, VarType>,
    feeds: &'a [(String, VarType)],
    layout: MemoryLayout,
    locs: HashMap<String, Loc>,
    persist: Vec<(String, VarType)>,
    kept: Vec<String>,
}

impl<'a> Locations<'a> {
    fn new(program: &'a SegmentProgram, feeds: &'a [(String, VarType)]) -> Locations<'a> {
        let block = program.program.block();
        Locations {
            block,
            types: &program.types,
            feeds,
            layout: MemoryLayout::new(block),
            locs: HashMap::new(),
            persist: Vec::new(),
            kept: Vec::new(),
        }
    }

    /// Places a variable in the memory of the segment.
    fn place(&mut self, name: &str) {
        let loc = self.layout.place(self.block, name, self.types);
        self.locs.insert(name.to_string(), loc);
    }

    /// Finds a declared variable, unless that has been done.
    fn find(&mut self, name: &str) -> Result<(), Error> {
        if self.locs.contains_key(name) {
            return Ok(());
        }
        let var = &self.block.vars[name];
        let loc = match var.origin {
            Origin::Temp => {
                self.place(name);
                return Ok(());
            }
            Origin::Data => {
                let at = self.feeds.iter().position(|(fed, _)| fed == name);
                let missing =
                    || Error::MissingFeed { name: name.to_string(), ty: var.ty.to_string() };
                Loc::Feed { at: at.ok_or_else(missing)?, batched: var.ty.is_batched() }
            }
            Origin::Param | Origin::Persist if var.ty.layout == Layout::Rows => {
                self.kept.push(name.to_string());
                Loc::KeptRows(self.kept.len() - 1)
            }
            Origin::Param | Origin::Persist => {
                self.persist.push((name.to_string(), var.ty.clone()));
                Loc::Persist(self.persist.len() - 1)
            }
        };
        self.locs.insert(name.to_string(), loc);
        Ok(())
    }
}

fn plan_op(
    block: &Block,
    op: &Op,
    types: &HashMap<String, VarType>,
    locs: &HashMap<String, Loc>,
) -> Result<PlannedOp, Error> {
    let known = |v: &str| types[v].clone();
    let declared: Vec<VarType> = op.input_vars().map(|v| block.vars[v].ty.clone()).collect();
    let ins: Vec<VarType> = op.input_vars().map(known).collect();
    let outs: Vec<VarType> = op.output_vars().map(known).collect();
    let kernel = OPS.kernel(&Spec { op, declared: &declared, ins: &ins, outs: &outs })?;
    let in_locs = op
        .input_vars()
        .map(|v| if op.output_vars().any(|o| o == v) { Loc::Absent } else { locs[v] })
        .collect();
    Ok(PlannedOp {
        kind: op.kind.clone(),
        role: op.role,
        kernel,
        in_locs,
        out_locs: op.output_vars().map(|v| locs[v]).collect(),
        out_names: op.output_vars().map(str::to_string).collect(),
        ins: Vec::new(),
        outs: Vec::new(),
    })
}

//! An execution plan: program + types of the inputs -> segments that say which kernels run where,
//! on which memory.
//!
//! Reading order: [`Plan`] (here), `feeds` (what fits a program), `compile` (ops -> kernels),
//! `layout` (variables -> memory).

mod compile;
mod feeds;
mod layout;

use regatta_ir::{Program, VarType};
use regatta_passes::pipeline::{EXECUTION, Watch, apply_passes};
use regatta_passes::{Lowering, LoweringOptions, Parts, SegmentProgram};
use regatta_tensor::{DType, Tensor, Value};

use crate::segment::{Loc, Segment};
use crate::{Error, Options};
use compile::CompiledSegment;
pub(crate) use feeds::type_of;
use feeds::{check_feeds, check_fetches};

/// A program made ready for inputs of certain shapes and for certain fetches.
pub(crate) struct Plan {
    /// Types of the feeds, by position; a run with other types needs another execution plan.
    pub(crate) feed_types: Vec<(String, VarType)>,
    pub(crate) fetch_names: Vec<String>,
    /// Examples in the batch.
    pub(crate) rows: usize,
    /// Each runs its part of the batch; empty when one thread does everything.
    pub(crate) parts: Vec<Part>,
    /// Runs after the parts: updates and metrics, or everything.
    pub(crate) rest: Segment,
    /// What the rest takes over from the parts.
    pub(crate) imports: Vec<Import>,
    /// Where each fetched value is found after a run.
    pub(crate) fetch_locs: Vec<Loc>,
    pub(crate) fetched: Vec<Tensor>,
    /// Bytes of temporaries without sharing memory.
    pub(crate) bytes_without_reuse: usize,
}

/// One thread's part of the batch.
pub(crate) struct Part {
    pub(crate) segment: Segment,
    pub(crate) first: usize,
    pub(crate) rows: usize,
}

/// A variable that the rest needs from the parts.
pub(crate) struct Import {
    pub(crate) how: Parts,
    /// Where it is in each part.
    pub(crate) from: Vec<Loc>,
    pub(crate) to: Loc,
}

/// Checks inputs and fetches, and applies the compiler passes of the executor; `watch` sees what
/// they make.
pub(crate) fn lower(
    program: &Program,
    feeds: &[(String, VarType)],
    fetch: &[String],
    options: &Options,
    watch: &mut Watch<'_>,
) -> Result<Lowering, Error> {
    let rows = check_feeds(program, feeds)?;
    check_fetches(program, fetch)?;
    let how = LoweringOptions {
        threads: options.threads,
        // A joined op does not write the variables in between, where a NaN may come from.
        fuse: !options.check_nan_inf,
        memory_reuse: options.memory_reuse,
    };
    let mut lowering = Lowering::new(program, feeds, fetch, rows, how);
    apply_passes(EXECUTION, &mut lowering, watch)?;
    Ok(lowering)
}

impl Plan {
    pub(crate) fn new(
        program: &Program,
        feeds: &[(&str, &Value)],
        fetch: &[&str],
        options: &Options,
    ) -> Result<Plan, Error> {
        let feed_types: Vec<(String, VarType)> =
            feeds.iter().map(|(name, value)| (name.to_string(), type_of(value))).collect();
        let fetch_names: Vec<String> = fetch.iter().map(|f| f.to_string()).collect();
        let lowering = lower(program, &feed_types, &fetch_names, options, &mut |_, _, _| {})?;
        let Lowering { rows, parts: kinds, segments, .. } = lowering;
        let compile =
            |segment: &SegmentProgram| CompiledSegment::new(segment, &feed_types, options);
        let mut compiled = segments.iter().map(compile).collect::<Result<Vec<_>, Error>>()?;
        let (rest, last) = (compiled.pop(), segments.last());
        let (rest, last) = rest.zip(last).expect("the passes leave at least one segment");
        let import = |name: &String| Import {
            how: kinds[name],
            from: compiled.iter().map(|part| part.locs[name]).collect(),
            to: rest.locs[name],
        };
        let imports = last.imports.iter().map(import).collect();
        let (fetch_locs, fetched) = rest.fetches(&fetch_names, &last.types)?;
        let own = compiled.iter().map(|part| part.bytes_without_reuse).sum::<usize>();
        let bytes_without_reuse = own + rest.bytes_without_reuse;
        let part = |(compiled, program): (CompiledSegment, &SegmentProgram)| Part {
            segment: compiled.segment,
            first: program.range.start,
            rows: program.range.len(),
        };
        let parts = compiled.into_iter().zip(&segments).map(part).collect();
        let rest = rest.segment;
        Ok(Plan {
            feed_types,
            fetch_names,
            rows,
            parts,
            rest,
            imports,
            fetch_locs,
            fetched,
            bytes_without_reuse,
        })
    }

    /// Bytes of temporaries as placed.
    pub(crate) fn bytes(&self) -> usize {
        self.segments().map(|segment| segment.bytes).sum()
    }

    /// The parts and the rest.
    pub(crate) fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.parts.iter().map(|part| &part.segment).chain([&self.rest])
    }
}

/// Elements of a dtype behind a location, for messages and copies.
pub(crate) fn loc_dtype(loc: Loc) -> Option<DType> {
    match loc {
        Loc::Arena { dtype, .. } | Loc::File { dtype, .. } => Some(dtype),
        _ => None,
    }
}

//! Looks up one table once for all inputs that are looked up in it one by one.
//!
//! Networks are often written with a lookup per input, whose vectors are flattened and joined. Such
//! lookups of one table become one `embedding` of several inputs: where they meet in a `concat`, it
//! reads the vectors of all inputs in one row, as [`fuse()`](crate::fuse()) joins them again; for
//! everything else a `split` makes the results of the single lookups, under their names. Of these
//! ops the executor leaves out what nobody reads or fetches.
//!
//! Only lookups whose gradient is wanted are merged: rows that were looked up for something else
//! are not updated, and must not become so. Programs that predict a part of the network have single
//! lookups again ([`prune()`](crate::prune())): they must not ask for inputs of other parts.

use std::collections::{BTreeMap, HashMap, HashSet};

use regatta_ir::{Attr, Block, Error, Layout, Op, OpSet, Origin, Program, Role, VarDef};
use regatta_ops::OPS;
use regatta_tensor::DType;

use crate::{Backward, checked, refuse_buffers};

/// As many outputs as an op may have.
const MOST: usize = 64;

/// Merges the lookups of each table that the gradient of `loss` goes through. Variables in `keep`
/// stay where they are in the network.
///
/// # Errors
/// If memory is shared already, or the result does not verify.
pub fn merge_lookups(
    program: &Program,
    loss: &str,
    what: &Backward,
    keep: &[String],
) -> Result<Program, Error> {
    refuse_buffers(program, "merge_lookups")?;
    let groups = groups(program, loss, what, keep);
    let mut program = program.clone();
    let block = program.block_mut();
    let mut added: BTreeMap<usize, Vec<Op>> = BTreeMap::new();
    let mut gone = HashSet::new();
    for group in &groups {
        for op in block.ops.iter_mut().filter(|op| op.kind == "concat") {
            group.replace_run(op);
        }
        gone.extend(group.lookups.iter().map(|lookup| lookup.at));
        let first = group.lookups.iter().map(|lookup| lookup.at).min();
        added.insert(first.unwrap_or_default(), group.ops(block));
    }
    for (at, op) in std::mem::take(&mut block.ops).into_iter().enumerate() {
        for new in added.remove(&at).into_iter().flatten() {
            push(block, new)?;
        }
        if !gone.contains(&at) {
            block.ops.push(op);
        }
    }
    checked(program)
}

/// Whether there is anything to merge.
pub(crate) fn applies(program: &Program, loss: &str, what: &Backward, keep: &[String]) -> bool {
    !groups(program, loss, what, keep).is_empty()
}

/// Lets results that are split from a lookup of several inputs be looked up one by one again.
pub(crate) fn separate_lookups(block: &mut Block) -> Result<(), Error> {
    for op in std::mem::take(&mut block.ops) {
        match lookups_instead(block, &op) {
            Some(ops) => ops.into_iter().try_for_each(|op| push(block, op))?,
            None => block.ops.push(op),
        }
    }
    Ok(())
}

/// The lookups that make what a `split` makes, if all its parts are those of whole inputs.
fn lookups_instead(block: &Block, split: &Op) -> Option<Vec<Op>> {
    let from = split.input_var("X").filter(|_| split.kind == "split")?;
    let maker = block.ops.iter().rfind(|op| op.output_vars().any(|var| var == from));
    let maker = maker.filter(|op| op.kind == "embedding" && split.int("axis") == Ok(1))?;
    let dim = *block.vars.get(from)?.ty.shape.last()?;
    let mut ids = maker.ins("Ids").iter();
    let mut ops = Vec::new();
    for (out, size) in split.outs("Out").iter().zip(split.ints("sections").ok()?) {
        let (mut of_part, mut vectors) = (Vec::new(), 0);
        while vectors < size {
            let var = block.vars.get(ids.next()?)?;
            vectors += vectors_per_example(var)?;
            of_part.push(var);
        }
        let is_flat = matches!(of_part[..], [var] if is_column(var));
        let made = if is_flat { format!("{out}@FLAT") } else { out.clone() };
        let mut op = Op::new("embedding").input("W", maker.input_var("W")?);
        op = op.inputs("Ids", of_part.iter().map(|var| var.name.as_str())).output("Out", &made);
        op.attrs = maker.attrs.clone();
        ops.push(op);
        if is_flat {
            let shape = vec![-1, 1, dim];
            ops.push(Op::new("reshape").input("X", &made).attr("shape", shape).output("Out", out));
        }
        if vectors != size {
            return None;
        }
    }
    Some(ops)
}

/// Vectors that a lookup of several inputs gives for each example of an input.
fn vectors_per_example(ids: &VarDef) -> Option<i64> {
    match (ids.ty.layout, ids.ty.shape.as_slice()) {
        (Layout::Ragged | Layout::Dense, [-1]) => Some(1),
        (Layout::Dense, [-1, n]) => Some(*n),
        _ => None,
    }
}

/// Whether a lookup of these ids alone has no dimension of vectors.
fn is_column(ids: &VarDef) -> bool {
    ids.ty.layout == Layout::Dense && ids.ty.dtype == DType::I64 && ids.ty.shape.len() == 1
}

/// Appends an op and declares what it makes that has no name yet.
fn push(block: &mut Block, mut op: Op) -> Result<(), Error> {
    OPS.known(&op.kind)?.complete(&mut op)?;
    let inputs = op.input_vars().map(|v| Ok(block.var(v, &op.kind)?.ty.clone()));
    let outputs = OPS.infer(&op, &inputs.collect::<Result<Vec<_>, Error>>()?)?;
    for (name, ty) in op.output_vars().zip(outputs) {
        if !block.vars.contains_key(name) {
            block.declare(VarDef::new(name, ty, Origin::Temp))?;
        }
    }
    block.ops.push(op);
    Ok(())
}

/// A lookup by itself.
#[derive(Clone)]
struct Single {
    /// Position of its op.
    at: usize,
    out: String,
    /// Vectors per example.
    vectors: i64,
    /// Whether the result has no dimension of vectors.
    is_flat: bool,
}

/// Lookups that become one.
struct Group {
    lookups: Vec<Single>,
    /// What a `concat` reads of them, one after the other, and whether as rows.
    run: Option<(Vec<String>, bool)>,
}

impl Group {
    fn name(&self, what: &str) -> String {
        format!("{}@{what}", self.lookups[0].out)
    }

    /// Lets a `concat` of the run read it whole.
    fn replace_run(&self, concat: &mut Op) {
        let Some((run, rows)) = &self.run else { return };
        let whole = self.name(if *rows { "ROW" } else { "LOOKUPS" });
        for (_, vars) in concat.inputs.iter_mut() {
            let found = vars.windows(run.len()).position(|part| part == run);
            if let Some(at) = found {
                vars.splice(at..at + run.len(), [whole.clone()]);
            }
        }
    }

    /// The lookup of all, and what makes of it the results of each.
    fn ops(&self, block: &Block) -> Vec<Op> {
        let first = &block.ops[self.lookups[0].at];
        let ids = self.lookups.iter().flat_map(|lookup| block.ops[lookup.at].ins("Ids"));
        let all = self.name("LOOKUPS");
        let mut lookup = Op::new("embedding")
            .input("W", &first.ins("W")[0])
            .inputs("Ids", ids.map(String::as_str))
            .output("Out", &all);
        lookup.attrs = first.attrs.clone();
        let mut ops = vec![lookup];
        let dim = block.vars.get(&first.ins("W")[0]).map_or(-1, |w| w.ty.shape[1]);
        if let Some((_, true)) = self.run {
            let width = dim * self.lookups.iter().map(|lookup| lookup.vectors).sum::<i64>();
            let row = Op::new("reshape").input("X", &all).attr("shape", vec![-1, width]);
            ops.push(row.output("Out", &self.name("ROW")));
        }
        split(&all, &self.lookups, &mut ops);
        for lookup in self.lookups.iter().filter(|lookup| lookup.is_flat) {
            let flat = Op::new("reshape").input("X", &vectors_of(lookup));
            ops.push(flat.attr("shape", vec![-1, dim]).output("Out", &lookup.out));
        }
        ops
    }
}

/// Where the vectors of a lookup stand.
fn vectors_of(lookup: &Single) -> String {
    if lookup.is_flat { format!("{}@VECTORS", lookup.out) } else { lookup.out.clone() }
}

/// Splits vectors into those of each lookup, in two steps if there are more than an op can make.
fn split(from: &str, lookups: &[Single], ops: &mut Vec<Op>) {
    let op = |sizes: Vec<i64>, names: &[String]| {
        let op = Op::new("split").input("X", from).attr("axis", 1).attr("sections", sizes);
        op.outputs("Out", names.iter().map(String::as_str))
    };
    if lookups.len() <= MOST {
        let names: Vec<String> = lookups.iter().map(vectors_of).collect();
        ops.push(op(lookups.iter().map(|lookup| lookup.vectors).collect(), &names));
        return;
    }
    let parts: Vec<&[Single]> = lookups.chunks(lookups.len().div_ceil(MOST).max(MOST)).collect();
    let names: Vec<String> = parts.iter().map(|part| format!("{}@PART", part[0].out)).collect();
    let size = |part: &&[Single]| part.iter().map(|lookup| lookup.vectors).sum();
    ops.push(op(parts.iter().map(size).collect(), &names));
    for (part, name) in parts.iter().zip(&names) {
        split(name, part, ops);
    }
}

/// The lookups that are merged, those that meet in a `concat` first.
fn groups(program: &Program, loss: &str, what: &Backward, keep: &[String]) -> Vec<Group> {
    let block = program.block();
    if program.blocks.len() > 1 || block.ops.iter().any(|op| op.role != Role::Forward) {
        return Vec::new();
    }
    let mut found = Finder::new(block, loss, what, keep);
    let mut groups = Vec::new();
    for concat in block.ops.iter().filter(|op| op.kind == "concat") {
        found.runs(concat, &mut groups);
    }
    // What is left, by table and attributes.
    let mut rest: Vec<(Key<'_>, Vec<Single>)> = Vec::new();
    for lookup in found.singles.values().filter(|lookup| !found.taken.contains(&lookup.at)) {
        let key = key(&block.ops[lookup.at]);
        match rest.iter_mut().find(|(other, _)| *other == key) {
            Some((_, lookups)) => lookups.push(lookup.clone()),
            None => rest.push((key, vec![lookup.clone()])),
        }
    }
    for (_, lookups) in rest.into_iter().filter(|(_, lookups)| lookups.len() > 1) {
        groups.push(Group { lookups, run: None });
    }
    groups
}

/// What lookups must have in common: table and attributes.
type Key<'a> = (&'a [String], &'a BTreeMap<String, Attr>);

fn key(op: &Op) -> Key<'_> {
    (op.ins("W"), &op.attrs)
}

struct Finder<'a> {
    block: &'a Block,
    /// Variables that the gradient of the loss goes through and that may be bypassed.
    reached: HashSet<&'a str>,
    /// The op that makes a variable, if it is one.
    makers: HashMap<&'a str, &'a Op>,
    /// Lookups by the variable they make, in the order of the program.
    singles: BTreeMap<usize, Single>,
    by_out: HashMap<&'a str, usize>,
    taken: HashSet<usize>,
}

impl<'a> Finder<'a> {
    fn new(block: &'a Block, loss: &'a str, what: &Backward, keep: &[String]) -> Finder<'a> {
        let mut makers: HashMap<&str, &Op> = HashMap::new();
        let mut several = HashSet::new();
        for op in &block.ops {
            several.extend(op.output_vars().filter(|var| makers.insert(var, op).is_some()));
        }
        makers.retain(|var, _| !several.contains(var));
        let mut reached = reached(block, loss, what);
        reached.retain(|var| !keep.iter().any(|kept| kept == var));
        let mut finder = Finder {
            block,
            reached,
            makers,
            singles: BTreeMap::new(),
            by_out: HashMap::new(),
            taken: HashSet::new(),
        };
        for (at, op) in block.ops.iter().enumerate() {
            if let Some(single) = finder.single(at, op) {
                finder.by_out.insert(&op.outs("Out")[0], at);
                finder.singles.insert(at, single);
            }
        }
        finder
    }

    /// A lookup that can be part of a larger one: of inputs, by a table that no op changes.
    fn single(&self, at: usize, op: &Op) -> Option<Single> {
        let (out, table) = (op.output_var("Out")?, op.input_var("W")?);
        let mut vectors = 0;
        for ids in op.ins("Ids") {
            let var = self.block.vars.get(ids).filter(|var| var.origin == Origin::Data)?;
            vectors += vectors_per_example(var)?;
        }
        let changed = self.block.ops.iter().any(|op| op.output_vars().any(|var| var == table));
        let ok = op.kind == "embedding"
            && !changed
            && self.makers.contains_key(out)
            && self.reached.contains(out);
        let is_flat = self.block.vars.get(out)?.ty.shape.len() == 2;
        ok.then(|| Single { at, out: out.to_string(), vectors, is_flat })
    }

    /// The lookup whose vectors a variable holds: in one row of an example, or one below the other.
    fn lookup_of(&self, var: &str, as_rows: bool) -> Option<&Single> {
        if !self.reached.contains(var) {
            return None;
        }
        let single = |out: &str| self.by_out.get(out).map(|at| &self.singles[at]);
        if let Some(lookup) = single(var) {
            return (lookup.is_flat == as_rows).then_some(lookup);
        }
        let maker = self.makers.get(var).filter(|op| as_rows && op.kind == "reshape")?;
        let lookup = single(maker.input_var("X")?)?;
        let dim = *self.block.vars.get(&lookup.out)?.ty.shape.last()?;
        let shape = &self.block.vars.get(var)?.ty.shape;
        (shape[..] == [-1, lookup.vectors * dim]).then_some(lookup)
    }

    /// Adds the groups of lookups that stand side by side in a `concat` of examples.
    fn runs(&mut self, concat: &Op, groups: &mut Vec<Group>) {
        let vars = concat.ins("X");
        let rank = vars.first().and_then(|var| self.block.vars.get(var)).map(|v| v.ty.shape.len());
        let as_rows = match (rank, concat.int("axis")) {
            (Some(2), Ok(1 | -1)) => true,
            (Some(3), Ok(1 | -2)) => false,
            _ => return,
        };
        if !concat.output_var("Out").is_some_and(|out| self.reached.contains(out)) {
            return;
        }
        let mut run: Vec<(String, Single)> = Vec::new();
        for var in vars.iter().map(Some).chain([None]) {
            let lookup = var.and_then(|var| self.lookup_of(var, as_rows)).cloned();
            let lookup = lookup.filter(|new| !self.taken.contains(&new.at));
            let fits = |new: &Single| {
                let key = |lookup: &Single| key(&self.block.ops[lookup.at]);
                run.iter().all(|(_, old)| old.at != new.at && key(old) == key(new))
            };
            if !lookup.as_ref().is_some_and(fits) {
                self.end_run(std::mem::take(&mut run), as_rows, groups);
            }
            // What has just ended may hold the same lookup.
            let lookup = lookup.filter(|new| !self.taken.contains(&new.at));
            run.extend(var.cloned().zip(lookup));
        }
    }

    fn end_run(&mut self, run: Vec<(String, Single)>, as_rows: bool, groups: &mut Vec<Group>) {
        if run.len() > 1 {
            let (vars, lookups): (Vec<String>, Vec<Single>) = run.into_iter().unzip();
            self.taken.extend(lookups.iter().map(|lookup| lookup.at));
            groups.push(Group { lookups, run: Some((vars, as_rows)) });
        }
    }
}

/// The variables that the gradient of the loss goes through.
fn reached<'a>(block: &'a Block, loss: &'a str, what: &Backward) -> HashSet<&'a str> {
    let flows = |name: &str| {
        let var = block.vars.get(name);
        var.is_some_and(|var| !var.stop_gradient && var.ty.dtype == DType::F32)
            && !what.no_grad_set.iter().any(|stopped| stopped == name)
    };
    let mut reached: HashSet<&str> = HashSet::from([loss]);
    for op in block.ops.iter().rev() {
        if op.output_vars().any(|var| reached.contains(var)) {
            reached.extend(op.input_vars().filter(|var| flows(var)));
        }
    }
    reached
}

//! The launches of a program under construction, with the places of its variables.

use std::collections::HashMap;

use regatta_device::Kind;
use regatta_ir::{Block, Layout, VarType};

use super::chain::{Chain, Operand};
use super::launch::{Arg, Count, Launch, Place, Work};
use super::lookups::Lookups;
use crate::Error;

/// Values that never change.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Constant {
    Floats(Vec<f32>),
    Sizes(Vec<u32>),
}

/// What ops add to.
pub(super) struct Builder<'a> {
    /// What the device is: some kernels have a form of their own for processors.
    pub(super) kind: Kind,
    types: &'a HashMap<String, VarType>,
    block: &'a Block,
    /// Examples here, and in the whole batch.
    examples: (usize, usize),
    pub(super) lookups: &'a [Lookups],
    /// The parts of a batch that lists are in, and the tables of slots.
    pub(super) parts: &'a [super::batch::Part],
    places: HashMap<String, Place>,
    /// The table whose distinct rows a row-sparse variable has.
    tables: HashMap<String, usize>,
    /// Bytes of each temporary.
    pub(super) temps: Vec<u64>,
    pub(super) constants: Vec<Constant>,
    pub(super) launches: Vec<Launch>,
    /// Temporaries that are written more than once.
    pub(super) rewritten: Vec<usize>,
}

impl<'a> Builder<'a> {
    /// With variables that have a place already.
    pub(super) fn new(
        kind: Kind,
        types: &'a HashMap<String, VarType>,
        block: &'a Block,
        examples: (usize, usize),
        lookups: &'a [Lookups],
        parts: &'a [super::batch::Part],
        places: HashMap<String, Place>,
    ) -> Builder<'a> {
        let (tables, temps) = (HashMap::new(), Vec::new());
        let (constants, launches) = (Vec::new(), Vec::new());
        Builder {
            kind,
            types,
            block,
            examples,
            lookups,
            parts,
            places,
            tables,
            temps,
            constants,
            launches,
            rewritten: Vec::new(),
        }
    }

    /// The type of a variable, with every dimension known.
    pub(super) fn ty(&self, var: &str) -> &VarType {
        &self.types[var]
    }

    /// Where a variable is, if it was made.
    pub(super) fn place(&self, var: &str) -> Option<Place> {
        self.places.get(var).copied()
    }

    /// The table whose distinct rows a variable has.
    pub(super) fn table(&self, var: &str) -> Option<usize> {
        self.tables.get(var).copied()
    }

    /// Says whose distinct rows a variable has.
    pub(super) fn set_table(&mut self, var: &str, table: Option<usize>) {
        match table {
            Some(table) => self.tables.insert(var.to_string(), table),
            None => self.tables.remove(var),
        };
    }

    /// The elements of a variable.
    pub(super) fn count(&self, var: &str) -> Count {
        let ty = self.ty(var);
        match (self.table(var), ty.layout) {
            (Some(table), Layout::Rows) => Count { each: ty.shape[1] as u32, table: Some(table) },
            _ => Count::fixed(ty.numel().unwrap_or(0) as u32),
        }
    }

    /// How many elements a mean over the whole batch divides by, given those of a variable here.
    pub(super) fn whole_count(&self, var: &str, n: u32) -> u32 {
        let batched = self.block.vars.get(var).is_some_and(|var| var.ty.is_batched());
        let (rows, total) = self.examples;
        match batched && rows > 0 {
            true => (n as usize * total / rows) as u32,
            false => n,
        }
    }

    /// New memory for a variable.
    pub(super) fn make(&mut self, var: &str) -> Place {
        let ty = self.ty(var);
        let place = self.scratch(ty.numel().unwrap_or(0) as u64 * ty.dtype.size() as u64);
        self.places.insert(var.to_string(), place);
        place
    }

    /// Memory that only the launches of one op touch.
    pub(super) fn scratch(&mut self, bytes: u64) -> Place {
        self.temps.push(bytes);
        Place::Temp(self.temps.len() - 1)
    }

    /// Lets a variable be where another is: nobody writes a temporary twice.
    pub(super) fn alias(&mut self, var: &str, of: &str) {
        if let Some(place) = self.place(of) {
            self.places.insert(var.to_string(), place);
        }
        let table = self.table(of);
        self.set_table(var, table);
    }

    /// Sizes for kernels that walk over dimensions.
    pub(super) fn sizes(&mut self, sizes: Vec<u32>) -> Place {
        self.constant(Constant::Sizes(sizes))
    }

    /// Makes a variable a constant, all of whose elements are `value`.
    pub(super) fn set_constant(&mut self, var: &str, value: f32) {
        let n = self.ty(var).numel().unwrap_or(0);
        let place = self.constant(Constant::Floats(vec![value; n]));
        self.places.insert(var.to_string(), place);
    }

    /// The value that all elements of a variable have for ever.
    pub(super) fn constant_of(&self, var: &str) -> Option<f32> {
        match self.place(var)? {
            Place::Const(at) => match &self.constants[at] {
                Constant::Floats(values) => values.first().copied(),
                Constant::Sizes(_) => None,
            },
            _ => None,
        }
    }

    fn constant(&mut self, constant: Constant) -> Place {
        let known = self.constants.iter().position(|other| *other == constant);
        let at = known.unwrap_or_else(|| {
            self.constants.push(constant);
            self.constants.len() - 1
        });
        Place::Const(at)
    }

    /// A part of the batch.
    pub(super) fn part(&self, part: &super::batch::Part) -> Option<Place> {
        self.parts.iter().position(|other| other == part).map(Place::Part)
    }

    /// Copies floats where they are needed in another place.
    pub(super) fn copy(&mut self, from: Place, to: Place, n: Count) {
        let args = vec![
            Arg::I32(super::codes::COPY),
            Arg::Count(n),
            Arg::At(from),
            Arg::At(to),
            Arg::F32(0.0),
            Arg::F32(0.0),
        ];
        let chain = Some(Chain { n, first: Operand::same(from), steps: vec![], out: to });
        self.launches.push(Launch { kernel: "unary", work: Work::Items(n), args, chain });
    }

    /// Checks that 32 bits count the elements of every variable.
    pub(super) fn check_sizes(&self) -> Result<(), Error> {
        let large = self.types.iter().find(|(_, ty)| {
            ty.layout == Layout::Dense && ty.numel().is_some_and(|n| u32::try_from(n).is_err())
        });
        match large {
            None => Ok(()),
            Some((name, ty)) => Err(Error::Options(format!(
                "'{name}' is {ty}; on a device variables have less than 2^32 elements: take a \
                 smaller batch"
            ))),
        }
    }
}

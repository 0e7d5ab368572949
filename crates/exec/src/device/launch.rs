//! Launches whose buffers are places, before they are buffers.

use regatta_device::Grid;

use super::chain::Chain;

/// Where a variable is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Place {
    /// A temporary of that number.
    Temp(usize),
    /// A parameter or state of that number.
    Param(usize),
    /// A constant of that number.
    Const(usize),
    /// A part of the batch of that number.
    Part(usize),
    /// The rows of a table.
    Arena(usize),
}

/// How many elements: a number, or a number for each distinct row of a table in the batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) each: u32,
    pub(super) table: Option<usize>,
}

impl Count {
    /// A number of elements.
    pub(super) fn fixed(each: u32) -> Count {
        Count { each, table: None }
    }

    /// The elements in a batch with so many distinct rows of each table.
    pub(super) fn of(self, rows: &[u32]) -> u64 {
        u64::from(self.each) * self.table.map_or(1, |table| u64::from(rows[table]))
    }
}

/// An argument.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Arg {
    /// The memory of a variable.
    At(Place),
    /// A whole number.
    I32(i32),
    /// A size.
    U32(u32),
    /// A large size.
    U64(u64),
    /// A float.
    F32(f32),
    /// Elements, as `uint`.
    Count(Count),
    /// Words of a row of a table, as `ulong`.
    Stride(usize),
}

/// How many work items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// One for each element.
    Items(Count),
    /// Groups of so many items.
    Groups { groups: u32, local: u32 },
    /// As a kernel wants it.
    Exactly(Grid),
}

/// A kernel on places.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Launch {
    pub(super) kernel: &'static str,
    pub(super) work: Work,
    pub(super) args: Vec<Arg>,
    /// What it does to single elements, if that is all.
    pub(super) chain: Option<Chain>,
}

impl Launch {
    /// The temporaries that it touches.
    pub(super) fn temps(&self) -> impl Iterator<Item = usize> {
        self.args.iter().filter_map(|arg| match arg {
            Arg::At(Place::Temp(temp)) => Some(*temp),
            _ => None,
        })
    }
}

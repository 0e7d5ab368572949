//! Several files of one table as one: a base and its deltas go in, each id comes out once, as the
//! newest file that knows it has it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::RangeInclusive;

use regatta_table::row_order;

use super::layout::RowKind;
use super::read::{BlockBuffer, Saved, TableReader};
use crate::Error;

/// A walk over the rows of one kind of one file.
struct Cursor<'r> {
    reader: &'r TableReader,
    /// 0 for the newest checkpoint.
    depth: usize,
    /// Blocks that are left, the next one last.
    blocks: Vec<usize>,
    block: usize,
    buffer: BlockBuffer,
    /// Where it is in the block, and where the block ends.
    at: usize,
    len: usize,
}

/// All rows of a chain of checkpoints within a range of order numbers.
pub(crate) struct Merge<'r> {
    cursors: Vec<Cursor<'r>>,
    /// The next row of each cursor: order number, depth and cursor.
    heads: BinaryHeap<Reverse<(u64, usize, usize)>>,
    /// Order number and cursor of the id it is at.
    current: Option<(u64, usize)>,
    last: u64,
}

impl<'r> Merge<'r> {
    /// Begins; `chain` has the newest checkpoint first.
    pub(crate) fn new(
        chain: &'r [Vec<TableReader>],
        range: RangeInclusive<u64>,
    ) -> Result<Merge<'r>, Error> {
        let (cursors, heads, last) = (Vec::new(), BinaryHeap::new(), *range.end());
        let mut merge = Merge { cursors, heads, current: None, last };
        for (depth, readers) in chain.iter().enumerate() {
            for (reader, kind) in readers.iter().flat_map(|r| RowKind::ALL.map(|kind| (r, kind))) {
                merge.add(Cursor::new(reader, depth, kind, &range)?);
            }
        }
        Ok(merge)
    }

    fn add(&mut self, cursor: Cursor<'r>) {
        if let Some(order) = cursor.order() {
            self.heads.push(Reverse((order, cursor.depth, self.cursors.len())));
            self.cursors.push(cursor);
        }
    }

    /// Goes to the next id; false at the end.
    pub(crate) fn advance(&mut self) -> Result<bool, Error> {
        let done = self.current.take();
        if let Some((_, at)) = done {
            self.step(at)?;
        }
        while let Some(Reverse((order, _, at))) = self.heads.pop() {
            if order > self.last {
                return Ok(false);
            }
            // Of equal ids the newest came first.
            if done.is_some_and(|(last, _)| last == order) {
                self.step(at)?;
                continue;
            }
            self.current = Some((order, at));
            return Ok(true);
        }
        Ok(false)
    }

    /// The newest version of the id it is at, and the file that this is from.
    pub(crate) fn current(&self) -> Option<(&'r TableReader, Saved<'_>)> {
        let cursor = &self.cursors[self.current?.1];
        Some((cursor.reader, cursor.saved()))
    }

    fn step(&mut self, at: usize) -> Result<(), Error> {
        let cursor = &mut self.cursors[at];
        cursor.advance()?;
        if let Some(order) = cursor.order() {
            self.heads.push(Reverse((order, cursor.depth, at)));
        }
        Ok(())
    }
}

impl<'r> Cursor<'r> {
    fn new(
        reader: &'r TableReader,
        depth: usize,
        kind: RowKind,
        range: &RangeInclusive<u64>,
    ) -> Result<Cursor<'r>, Error> {
        let blocks = reader.blocks().iter().enumerate().rev();
        let wanted = |b: &super::layout::Block| {
            b.kind == kind && b.last >= *range.start() && b.first <= *range.end()
        };
        let blocks = blocks.filter(|(_, b)| wanted(b)).map(|(i, _)| i).collect();
        let buffer = BlockBuffer::default();
        let mut cursor = Cursor { reader, depth, blocks, block: 0, buffer, at: 0, len: 0 };
        cursor.next_block()?;
        while cursor.order().is_some_and(|order| order < *range.start()) {
            cursor.advance()?;
        }
        Ok(cursor)
    }

    /// The order number of the row it is at; none at its end.
    fn order(&self) -> Option<u64> {
        let there = self.at < self.len;
        there.then(|| row_order(self.reader.view(self.block, &self.buffer).key(self.at)))
    }

    fn saved(&self) -> Saved<'_> {
        self.reader.view(self.block, &self.buffer).get(self.at)
    }

    fn advance(&mut self) -> Result<(), Error> {
        self.at += 1;
        if self.at == self.len { self.next_block() } else { Ok(()) }
    }

    fn next_block(&mut self) -> Result<(), Error> {
        let Some(block) = self.blocks.pop() else { return Ok(()) };
        self.len = self.reader.read_block(block, &mut self.buffer)?.len();
        (self.block, self.at) = (block, 0);
        Ok(())
    }
}

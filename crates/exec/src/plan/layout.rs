//! Where the temporaries of a segment are: offsets in its arena and in its memory-mapped file.

use std::collections::{HashMap, HashSet};

use regatta_ir::{Block, Layout, VarType};

use crate::arena::whole_lines;
use crate::segment::Loc;

/// Gives temporaries their offsets in the order in which they are requested.
#[derive(Default)]
pub(super) struct MemoryLayout {
    /// Bytes of the arena.
    pub(super) bytes: usize,
    /// Bytes in the memory-mapped file.
    pub(super) file_bytes: usize,
    /// What `offload` makes, which is placed there.
    offloaded: HashSet<String>,
    /// Bytes of the arena if every variable had its own.
    pub(super) own_bytes: usize,
    /// Row-sparse values.
    pub(super) n_rows: usize,
    buffers: HashMap<String, usize>,
}

impl MemoryLayout {
    pub(super) fn new(block: &Block) -> MemoryLayout {
        let offloads = block.ops.iter().filter(|op| op.kind == "offload");
        let offloaded = offloads.flat_map(|op| op.output_vars().map(str::to_string)).collect();
        MemoryLayout { offloaded, ..MemoryLayout::default() }
    }

    pub(super) fn place(
        &mut self,
        block: &Block,
        name: &str,
        types: &HashMap<String, VarType>,
    ) -> Loc {
        let ty = &types[name];
        if ty.layout == Layout::Rows {
            self.n_rows += 1;
            return Loc::Rows(self.n_rows - 1);
        }
        let len = ty.numel().expect("checked by concrete_types");
        let size = whole_lines(len * ty.dtype.size());
        if self.offloaded.contains(name) {
            self.file_bytes += size;
            return Loc::File { offset: self.file_bytes - size, len, dtype: ty.dtype };
        }
        self.own_bytes += size;
        let buffer = block.vars.get(name).and_then(|v| v.buffer.clone());
        let offset = match buffer {
            None => self.reserve(size),
            Some(buffer) => self.buffer(block, buffer, types),
        };
        Loc::Arena { offset, len, dtype: ty.dtype }
    }

    /// Offset of a buffer, which is as large as the largest variable that shares it.
    fn buffer(&mut self, block: &Block, buffer: String, types: &HashMap<String, VarType>) -> usize {
        if let Some(&offset) = self.buffers.get(&buffer) {
            return offset;
        }
        let sharing = block.vars.values().filter(|v| v.buffer.as_ref() == Some(&buffer));
        let known = sharing.filter_map(|v| types.get(&v.name));
        let largest = known.map(|ty| whole_lines(ty.numel().unwrap_or(0) * ty.dtype.size())).max();
        let offset = self.reserve(largest.unwrap_or(0));
        self.buffers.insert(buffer, offset);
        offset
    }

    fn reserve(&mut self, bytes: usize) -> usize {
        self.bytes += bytes;
        self.bytes - bytes
    }
}

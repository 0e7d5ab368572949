//! Memory of dense values. A buffer that nobody needs any more is kept for the next value of about
//! its size, so a steady step allocates none.

use std::collections::HashMap;

use regatta_tensor::{DType, Data};

use crate::global::with_pool;

/// Freed buffers of one thread hold at most this many bytes; the rest goes back to the system.
const POOL_BYTES: usize = 1 << 30;

/// The elements of one or several values. There may be more of them than the values use.
#[derive(Debug)]
pub(crate) struct Block {
    data: Data,
}

impl Block {
    /// Room for `len` elements. Their values are whatever was there before.
    pub(crate) fn new(dtype: DType, len: usize) -> Block {
        let class = class_of(len);
        let had = with_pool(|pool| pool.take(dtype, class)).flatten();
        Block { data: had.unwrap_or_else(|| Data::zeros(dtype, class)) }
    }

    /// The elements of a vector, where they are.
    pub(crate) fn of(data: Data) -> Block {
        Block { data }
    }

    pub(crate) fn data(&self) -> &Data {
        &self.data
    }

    pub(crate) fn data_mut(&mut self) -> &mut Data {
        &mut self.data
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let len = self.data.len();
        if len == 0 || len != class_of(len) {
            return;
        }
        let data = std::mem::replace(&mut self.data, Data::F32(Vec::new()));
        with_pool(|pool| pool.put(data));
    }
}

/// The size of the buffer for `len` elements: at most an eighth more, so that values of similar
/// sizes share buffers.
fn class_of(len: usize) -> usize {
    let step = (len.next_power_of_two() >> 4).max(16);
    len.next_multiple_of(step)
}

/// Freed buffers by type and size.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    free: HashMap<(DType, usize), Vec<Data>>,
    bytes: usize,
}

impl Pool {
    fn take(&mut self, dtype: DType, class: usize) -> Option<Data> {
        let data = self.free.get_mut(&(dtype, class))?.pop()?;
        self.bytes -= class * dtype.size();
        Some(data)
    }

    fn put(&mut self, data: Data) {
        let bytes = data.len() * data.dtype().size();
        if self.bytes + bytes > POOL_BYTES {
            // Shapes have changed, or there is more than the limit: what is kept is of no use.
            self.free.clear();
            self.bytes = 0;
        }
        if bytes <= POOL_BYTES {
            self.bytes += bytes;
            self.free.entry((data.dtype(), data.len())).or_default().push(data);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_has_at_most_an_eighth_more() {
        for len in [1, 15, 16, 17, 1000, 4097, 1 << 20, (1 << 20) + 1] {
            let class = class_of(len);
            assert!(class >= len && class <= len + (len / 8).max(16), "{len} {class}");
            assert_eq!(class, class_of(class));
        }
    }

    #[test]
    fn a_freed_buffer_is_used_again() {
        let first = Block::new(DType::F32, 1000);
        let at = match first.data() {
            Data::F32(v) => v.as_ptr(),
            _ => unreachable!(),
        };
        drop(first);
        let second = Block::new(DType::F32, 990);
        assert!(matches!(second.data(), Data::F32(v) if v.as_ptr() == at));
    }
}

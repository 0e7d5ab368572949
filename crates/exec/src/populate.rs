//! Memory that is going to be written, provided in large pieces.
#![expect(
    unsafe_code,
    reason = "tells the kernel about a range of memory; it changes nothing in it"
)]

use rustix::mm::{Advice, madvise};

/// Bytes that the kernel provides at a time. Its lock is free in between, for other threads that
/// need memory.
const PIECE: usize = 1 << 18;
const PAGE: usize = 4096;

/// Asks the kernel for the pages of memory that is about to be written. It takes half the time of
/// as many page faults. A kernel that cannot do it leaves it to the faults.
pub(crate) fn populate<T>(memory: &mut [T]) {
    let range = memory.as_mut_ptr_range();
    let (first, end) =
        ((range.start as usize).next_multiple_of(PAGE), range.end as usize / PAGE * PAGE);
    for start in (first..end).step_by(PIECE) {
        let len = PIECE.min(end - start);
        let at = std::ptr::with_exposed_provenance_mut(start);
        // SAFETY: whole pages within the slice; their contents stay as they are.
        if unsafe { madvise(at, len, Advice::LinuxPopulateWrite) }.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_stay_as_they_are() {
        for len in [0, 1, 1000, 5000, 3 * PIECE / 4 + 17] {
            let mut memory: Vec<f32> = (0..len).map(|i| i as f32).collect();
            for from in [0, len / 3] {
                populate(&mut memory[from..]);
            }
            assert!(memory.iter().enumerate().all(|(i, x)| *x == i as f32), "{len}");
        }
    }

    #[test]
    fn pages_are_there_before_they_are_written() {
        let resident = || {
            let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
            statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * PAGE
        };
        // Other tests of this process use memory, too, but not as much.
        let mut memory = vec![0u8; 256 << 20];
        let before = resident();
        populate(&mut memory);
        let more = resident() - before;
        assert!(more > 128 << 20, "{more} bytes");
    }
}

//! How long to look before sleeping: a sleeping rank takes tens of microseconds to wake up, a
//! spinning one may take the processor from the rank it waits for.

use std::time::{Duration, Instant};

/// How a rank waits for others of its machine.
#[derive(Debug)]
pub(crate) struct Patience {
    /// Looks before anything else. Fewer after a wait that ended only when the processor was
    /// offered to others: the awaited rank may have needed it.
    looks: u32,
    most_looks: u32,
    least_looks: u32,
}

/// Looks after offering the processor to somebody else, before sleeping. Few: the scheduler may not
/// take the offer, and then only sleep lets the awaited rank run.
const YIELDS: u32 = 20;

/// When somebody else has kept the processor for so long, the machine is busy with other things.
/// Who offers it again comes last again; who sleeps is let in as soon as there is something to do.
const LONG_TURN: Duration = Duration::from_millis(1);

impl Patience {
    /// For `size` ranks on this machine, with looks that are reads of memory.
    pub(crate) fn for_ranks(size: usize) -> Patience {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let most_looks = if size <= cores { 500 } else { 20 };
        Patience { looks: most_looks, most_looks, least_looks: 20 }
    }

    /// For looks that are system calls, which take much longer.
    pub(crate) fn with_slow_looks(self) -> Patience {
        let most_looks = self.most_looks.div_ceil(10);
        Patience { looks: most_looks, most_looks, least_looks: 1 }
    }

    /// Looks for a while; whether it was worth it.
    #[inline]
    pub(crate) fn look(&mut self, mut ready: impl FnMut() -> bool) -> bool {
        for look in 0..self.looks {
            if ready() {
                // What was ready at once says nothing about waiting.
                if look > 0 {
                    self.looks = (self.looks * 2).min(self.most_looks);
                }
                return true;
            }
            std::hint::spin_loop();
        }
        self.looks = (self.looks / 2).max(self.least_looks);
        for _ in 0..YIELDS {
            let offered = Instant::now();
            rustix::thread::sched_yield();
            if ready() {
                return true;
            }
            if offered.elapsed() > LONG_TURN {
                break;
            }
        }
        false
    }
}

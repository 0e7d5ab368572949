//! What runs when a backward has ended.

use crate::Result;
use crate::global::with_backwards;

/// Gets whether the backward has computed all gradients.
type Finish = Box<dyn FnOnce(bool) -> Result<()>>;

/// The backwards of a thread.
#[derive(Default)]
pub(crate) struct Backwards {
    /// How many run, each inside the one before.
    depth: usize,
    /// What waits for the outermost one.
    finishes: Vec<Finish>,
}

/// Runs a function when the outermost backward of this thread ends, before it returns. The function
/// gets whether all gradients were computed; an error of it is that of the backward. Outside of a
/// backward it runs at once.
///
/// # Errors
/// Those of a function that runs at once.
pub fn after_backward(finish: impl FnOnce(bool) -> Result<()> + 'static) -> Result<()> {
    if with_backwards(|all| all.depth) == 0 {
        return finish(true);
    }
    with_backwards(|all| all.finishes.push(Box::new(finish)));
    Ok(())
}

/// Runs a backward, and at the end of the outermost one what waits for it.
pub(crate) fn finishing<T>(backward: impl FnOnce() -> Result<T>) -> Result<T> {
    let mut level = Level::enter();
    let outcome = backward();
    level.completed = outcome.is_ok();
    let finished = level.leave();
    let value = outcome?;
    finished?;
    Ok(value)
}

/// One backward. Those who wait hear of a panic, too.
struct Level {
    completed: bool,
    left: bool,
}

impl Level {
    fn enter() -> Level {
        with_backwards(|all| all.depth += 1);
        Level { completed: false, left: false }
    }

    fn leave(&mut self) -> Result<()> {
        self.left = true;
        let finishes = with_backwards(|all| {
            all.depth -= 1;
            if all.depth > 0 { Vec::new() } else { std::mem::take(&mut all.finishes) }
        });
        let done: Vec<Result<()>> =
            finishes.into_iter().map(|finish| finish(self.completed)).collect();
        done.into_iter().collect()
    }
}

impl Drop for Level {
    fn drop(&mut self) {
        if !self.left {
            // A panic is on its way, and says more than what comes here.
            drop(self.leave());
        }
    }
}

//! What is recorded of an op: which op, the values that its gradient reads, and where gradients of
//! its inputs go.

use std::sync::{Arc, Mutex};

use smallvec::SmallVec;

use crate::global::{lock, number};
use crate::grad::{Gradient, Leaf};
use crate::plan::Mask;
use crate::template::{Prepared, Recording};
use crate::value::Value;
use crate::{Result, Tensor};

/// Called with a gradient when it is known; what it returns takes its place.
pub type Hook = Arc<dyn Fn(&Tensor) -> Result<Option<Tensor>> + Send + Sync>;

/// Where the gradient of an input goes.
#[derive(Clone)]
pub(crate) enum Edge {
    /// Nowhere.
    None,
    /// To the op that made it, as the gradient of that output.
    Node(Arc<Node>, usize),
    /// To a tensor that no op made.
    Leaf(Arc<Leaf>),
}

/// One recorded op.
pub(crate) struct Node {
    /// Nodes are numbered as they are made: whatever uses the result has a larger number.
    pub(crate) id: u64,
    pub(crate) prepared: Arc<Prepared>,
    pub(crate) wanted: Mask,
    pub(crate) recording: Arc<Recording>,
    pub(crate) edges: SmallVec<[Edge; 3]>,
    /// What `recording.saved` names; nothing after it was freed.
    pub(crate) saved: Mutex<Option<SmallVec<[Value; 2]>>>,
    pub(crate) hooks: Mutex<Vec<(u64, usize, Hook)>>,
}

impl Node {
    pub(crate) fn new(
        prepared: Arc<Prepared>,
        wanted: Mask,
        recording: Arc<Recording>,
        edges: SmallVec<[Edge; 3]>,
        saved: SmallVec<[Value; 2]>,
    ) -> Node {
        let (saved, hooks) = (Mutex::new(Some(saved)), Mutex::default());
        Node { id: number(), prepared, wanted, recording, edges, saved, hooks }
    }

    /// Calls the hooks of an output.
    pub(crate) fn apply_hooks(&self, output: usize, gradient: Gradient) -> Result<Gradient> {
        let hooks: SmallVec<[Hook; 2]> = {
            let hooks = lock(&self.hooks);
            hooks.iter().filter(|(_, at, _)| *at == output).map(|(_, _, h)| h.clone()).collect()
        };
        apply(&hooks, gradient)
    }
}

/// Calls hooks one after the other, each with what the one before left.
pub(crate) fn apply(hooks: &[Hook], mut gradient: Gradient) -> Result<Gradient> {
    for hook in hooks {
        let tensor = gradient.clone().into_tensor();
        if let Some(changed) = hook(&tensor)? {
            gradient = Gradient::of(&changed);
        }
    }
    Ok(gradient)
}

impl Drop for Node {
    /// One node after the other: a graph may be longer than the stack is deep.
    fn drop(&mut self) {
        let mut rest: Vec<Edge> = std::mem::take(&mut self.edges).into_vec();
        while let Some(edge) = rest.pop() {
            if let Edge::Node(node, _) = edge
                && let Some(mut node) = Arc::into_inner(node)
            {
                rest.extend(std::mem::take(&mut node.edges));
            }
        }
    }
}

"""The native module. It knows programs, values, training and jobs, and nothing of Paddle.

Variables are named by strings here; :mod:`regatta.framework` has the classes that people use.
Arrays are numpy arrays of float32, int64 or uint64; others are converted on the way in (float64 and
float16 to float32, smaller integers and bool to int64).
"""
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np

__version__: str

Attr = Union[int, float, bool, str, List[int], List[float], List[str]]

class Program:
    """Ops over named variables, in the order they run. It can grow at any time."""

    def __init__(self, name: str = "main") -> None: ...
    @staticmethod
    def parse(text: str) -> "Program": ...
    def text(self) -> str: ...
    def clone(self) -> "Program": ...
    def for_test(self) -> "Program":
        """Without gradients and updates, and with dropout and batch norms as for prediction."""
    def prune(self, fetches: Sequence[str]) -> "Program": ...
    def replace(self, other: "Program") -> None:
        """Takes over what another program holds."""
    @property
    def version(self) -> int:
        """Changes with every change."""
    def data(self, name: str, dtype: str, shape: Sequence[int]) -> None:
        """Declares an input; the same again is fine. dtype: 'f32', 'i64', 'u64'."""
    def sparse_data(self, name: str) -> None:
        """Declares an input with any number of ids per example."""
    def declare(self, name: str, dtype: str, shape: Sequence[int], persistable: bool) -> None:
        """Declares a variable that ops may write: temporary, or kept between runs."""
    def param(
        self,
        startup: "Program",
        name: str,
        shape: Sequence[int],
        init: Tuple[str, Dict[str, Attr]],
        trainable: bool = True,
        lr_scale: float = 1.0,
        regularizer: Optional[Tuple[str, float]] = None,
        clip: bool = True,
    ) -> None:
        """Declares a parameter and its initial values: the kind and attributes of an op without
        inputs, such as ('uniform_random', {'low': -1.0, 'high': 1.0, 'seed': 7}). The same name
        and shape again shares the parameter. regularizer: ('l1' | 'l2', coefficient)."""
    def state(self, startup: "Program", name: str, dtype: str, shape: Sequence[int], value: float) -> None:
        """Declares what is kept between runs but not learned; 'value' everywhere at first."""
    def append_op(
        self,
        kind: str,
        inputs: Dict[str, List[str]],
        outputs: Dict[str, List[str]],
        attrs: Dict[str, Attr],
    ) -> None:
        """Adds an op. Outputs that are not declared become temporaries of the inferred types.
        Raises ValueError if the op is unknown or its inputs do not fit."""
    def has_var(self, name: str) -> bool: ...
    def var(self, name: str) -> Tuple[str, str, List[int], str, bool]:
        """dtype, layout ('dense', 'ragged', 'rows'), shape, origin ('data', 'param', 'persist',
        'temp'), stop_gradient. Raises KeyError."""
    def var_names(self) -> List[str]: ...
    def param_info(self, name: str) -> Dict[str, Any]:
        """trainable, lr_scale, regularizer, clip."""
    def set_stop_gradient(self, name: str, stop: bool) -> None: ...
    def set_trainable(self, name: str, trainable: bool) -> None: ...
    def ops(self) -> List[Tuple[str, Dict[str, List[str]], Dict[str, List[str]], Dict[str, Attr], str]]:
        """kind, inputs, outputs, attributes, role ('forward', 'backward', 'optimize')."""
    def num_ops(self) -> int: ...
    def op(self, at: int) -> Tuple[str, Dict[str, List[str]], Dict[str, List[str]], Dict[str, Attr], str]: ...

class Scope:
    """Values that outlive a run, by name."""

    def __init__(self) -> None: ...
    def get(self, name: str) -> Optional[np.ndarray]:
        """A copy."""
    def set(self, name: str, value: np.ndarray) -> None: ...
    def has(self, name: str) -> bool: ...
    def names(self) -> List[str]: ...

def op_kinds() -> List[str]: ...

def minimize(
    main: Program,
    startup: Program,
    loss: str,
    optimizer: Dict[str, Any],
    parameters: Optional[Sequence[str]] = None,
    no_grad: Sequence[str] = (),
) -> Tuple[List[int], List[Tuple[str, str]]]:
    """Appends gradients and updates to both programs. Returns the numbers of the update ops in
    'main', and parameters with their gradients.

    optimizer: {"rule": {"rule": "adam", "beta1": 0.9, ...}, "learning_rate": 0.001,
    "schedule": {...} or absent, "regularizer": ["l2", 1e-4] or absent,
    "clip": ["global_norm", 1.0] | ["norm", 1.0] | ["value", -1.0, 1.0] or absent,
    "amp": {...} or absent, "recompute": {"checkpoints": [...], ...} or absent}"""

def append_backward(
    main: Program, loss: str, parameters: Optional[Sequence[str]] = None, no_grad: Sequence[str] = ()
) -> List[Tuple[str, str]]: ...

Batch = Dict[str, np.ndarray]

class Executor:
    """Runs programs; keeps what it has prepared for each."""

    def __init__(self, threads: int = 1, check_nan_inf: bool = False) -> None: ...
    def run(
        self, program: Program, scope: Scope, feed: Dict[str, Any], fetch: Sequence[str]
    ) -> List[np.ndarray]:
        """One run. Values that the program keeps and writes before it reads them are made.
        A feed is an array, or a tuple (values, offsets) for an input with any number of ids."""
    def train(
        self,
        program: Program,
        scope: Scope,
        dataset: "Dataset",
        fetch: Sequence[str],
        every: int,
        on_step: Optional[Callable[[int, List[np.ndarray]], None]],
    ) -> Tuple[int, int]:
        """One data pass. Every N steps 'on_step' gets the number of the step and what was fetched.
        Returns steps and examples."""
    def set_step(self, program: Program, step: int) -> None: ...
    def close(self) -> None: ...

def save_persistables(program: Program, scope: Scope, dir: str) -> None: ...
def load_persistables(program: Program, scope: Scope, dir: str) -> None: ...
def save_inference_model(
    dir: str, program: Program, feeds: Sequence[str], fetches: Sequence[str], scope: Scope
) -> None: ...

class Model:
    """A saved model that answers."""

    @staticmethod
    def open(dir: str, threads: int = 1) -> "Model": ...
    def inputs(self) -> List[Tuple[str, str, List[int], str]]:
        """name, dtype, shape, layout."""
    def outputs(self) -> List[str]: ...
    def info(self) -> Dict[str, Any]: ...
    def predict(self, feed: Dict[str, Any]) -> List[np.ndarray]: ...
    def columns(self) -> Optional[List[str]]: ...
    def predict_rows(self, rows: List[List[Any]]) -> List[np.ndarray]: ...

class Strategy:
    """All options of distributed training, by Paddle's names."""

    def __init__(self, yaml: str = "") -> None: ...
    @staticmethod
    def from_prototxt(text: str) -> "Strategy": ...
    def to_yaml(self) -> str: ...
    def to_prototxt(self) -> str: ...
    def options(self) -> List[Tuple[str, str]]:
        """'group.option' and its value as YAML text, all of them."""
    def changed(self) -> List[Tuple[str, str]]: ...
    def check(self, is_collective: bool) -> None:
        """Raises ValueError if an option cannot be honoured."""

class Dataset:
    """Files that become batches, in threads of their own."""

    def __init__(
        self,
        slots: Sequence[Tuple[str, str, int]],
        files: Sequence[str],
        batch_size: int,
        kind: str = "queue",
        pipe_command: Optional[str] = None,
        threads: int = 1,
        drop_last: bool = False,
        seed: int = 0,
        pipe_timeout: Optional[float] = None,
    ) -> None:
        """slots: name, kind ('ints' int64 [batch, n]; 'floats' [batch, n]; 'ids' any number of
        ids), n. kind: 'queue' reads while training, 'memory' loads first. Lines are MultiSlot
        text: for every slot a count and as many values."""
    def load(self) -> None: ...
    def preload(self) -> None: ...
    def wait_preload(self) -> None: ...
    def local_shuffle(self, seed: int) -> None: ...
    def release(self) -> None: ...
    def size(self) -> int:
        """Examples in memory."""

class Fleet:
    """This process and its job."""

    def __init__(self, role: Optional[Dict[str, Any]], is_collective: bool, strategy: Optional[Strategy]) -> None:
        """role: None reads the environment. {'kind': 'user', 'current_id': 0, 'role': 'worker' |
        'server', 'worker_num': 2, 'server_endpoints': [...], 'token': ...} or {'kind': 'user',
        'current_id': 0, 'worker_endpoints': [...]} for collective training."""
    def place(self) -> str: ...
    def is_server(self) -> bool: ...
    def is_worker(self) -> bool: ...
    def is_first_worker(self) -> bool: ...
    def is_collective(self) -> bool: ...
    def worker_index(self) -> int: ...
    def worker_num(self) -> int: ...
    def server_index(self) -> int: ...
    def server_num(self) -> int: ...
    def worker_endpoints(self) -> List[str]: ...
    def server_endpoints(self) -> List[str]: ...
    def minimize(
        self,
        main: Program,
        startup: Program,
        loss: str,
        optimizer: Dict[str, Any],
        strategy: Optional[Strategy],
        parameters: Optional[Sequence[str]] = None,
        no_grad: Sequence[str] = (),
    ) -> Tuple[List[int], List[Tuple[str, str]]]:
        """As minimize(); the job is planned when it first needs to be (see prepare)."""
    def prepare(self, main: Program, startup: Program, loss: Optional[str] = None) -> None:
        """Plans this process's part from the programs as they are now. Called again with the same
        programs it does nothing; after training has begun a changed program is an error."""
    def run_startup(self, scope: Scope) -> None: ...
    def worker_program_text(self) -> str: ...
    def server_program_texts(self, index: int) -> Tuple[str, str]:
        """main and startup of a server, as text."""
    def init_worker(self, scope: Scope) -> None: ...
    def run(self, scope: Scope, feed: Dict[str, Any], fetch: Sequence[str]) -> List[np.ndarray]: ...
    def train(
        self,
        scope: Scope,
        dataset: Dataset,
        fetch: Sequence[str],
        every: int,
        on_step: Optional[Callable[[int, List[np.ndarray]], None]],
    ) -> Tuple[int, int]: ...
    def set_options(self, threads: int, check_nan_inf: bool) -> None: ...
    def init_server(self, dir: Optional[str], names: Sequence[str]) -> None: ...
    def run_server(self) -> None: ...
    def stop_worker(self, scope: Scope) -> None: ...
    def barrier_worker(self) -> None: ...
    def all_reduce(self, values: Sequence[float], op: str) -> List[float]:
        """op: 'sum', 'min', 'max'."""
    def all_gather(self, values: Sequence[float]) -> List[List[float]]: ...
    def begin_pass(self) -> None: ...
    def end_pass(self) -> None: ...
    def pull_parameters(self, scope: Scope) -> None: ...
    def pull_tables(self, scope: Scope) -> None:
        """Whole tables of the servers into the scope, for programs that read them here."""
    def save_persistables(self, scope: Scope, dir: str) -> None: ...
    def load_model(self, scope: Scope, dir: str) -> None: ...
    def save_inference_model(self, scope: Scope, dir: str, feeds: Sequence[str], fetches: Sequence[str]) -> None: ...
    def shrink(self, scope: Scope, max_unseen_days: int) -> int: ...

class Tables:
    """Rows on servers for a program that computes elsewhere, such as PyTorch's."""

    @staticmethod
    def connect(fleet: Fleet) -> "Tables":
        """The tables of the program that 'fleet' was prepared for. Every worker calls it."""
    def names(self) -> List[str]: ...
    def pull(self, table: int, keys: np.ndarray, test: bool = False) -> np.ndarray:
        """Rows of distinct keys (int64 or uint64), in their order. 'test' creates no rows."""
    def push(self, gradients: Sequence[Tuple[np.ndarray, np.ndarray]], examples: int) -> None:
        """Distinct keys and gradients of every table: one step. In synchronous jobs the rows
        change when all workers have pushed."""
    def reduce(self, values: Sequence[float], op: str) -> List[float]: ...
    def save(self, dir: str) -> None: ...
    def load(self, dir: str) -> None: ...
    def leave(self) -> List[str]:
        """Leaves the job; returns workers that were lost."""

class Group:
    """Ranks that exchange arrays."""

    @staticmethod
    def join() -> "Group": ...
    def rank(self) -> int: ...
    def size(self) -> int: ...
    def all_reduce(self, values: np.ndarray, op: str = "sum") -> None:
        """float32, in place, with the same bits on all ranks: sum, max, min, prod or mean."""
    def broadcast(self, values: np.ndarray, root: int) -> None: ...
    def all_gather(self, values: np.ndarray, name: str = "all_gather") -> np.ndarray: ...
    def all_gather_bytes(self, bytes: bytes, name: str) -> List[bytes]: ...
    def send(self, values: np.ndarray, to: int) -> None: ...
    def recv(self, values: np.ndarray, source: int) -> None: ...
    def barrier(self) -> None: ...
    def leave(self) -> None: ...
    def abandon(self) -> None:
        """The process ends without waiting for exchanges; the others hear that it is lost."""

class Tensor:
    """Numbers that ops compute with at once; regatta.tensor gives it its methods."""

    def __init__(self, value: Any, dtype: Optional[str] = None, stop_gradient: bool = True) -> None:
        """A copy of an array, a number, nested lists or a tensor. dtype: 'float32', 'bool', ..."""
    @property
    def shape(self) -> List[int]: ...
    @property
    def ndim(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def _dtype(self) -> str:
        """The name of the element type."""
    @property
    def _stored(self) -> str:
        """What the elements are stored as: 'f32', 'f16', 'bf16', 'i64', 'u64'."""
    @property
    def _id(self) -> int: ...
    def _as(self, logical: str) -> "Tensor":
        """The same values under another name of a type that is stored alike."""
    stop_gradient: bool
    @property
    def is_leaf(self) -> bool: ...
    @property
    def _version(self) -> int:
        """Counts changes in place."""
    def numpy(self) -> np.ndarray:
        """A copy."""
    def _set(self, value: Any) -> None:
        """Takes values of the same shape, in place."""
    def _share(self, other: "Tensor") -> None:
        """Becomes what another tensor is: type, value and way back."""
    grad: Optional["Tensor"]
    @property
    def _has_grad(self) -> bool: ...
    def _clear_grad(self, set_to_zero: bool) -> None: ...
    def _add_grad(self, grad: "Tensor") -> None: ...
    @property
    def _is_rows(self) -> bool:
        """Whether it holds some rows of a matrix only: a sparse gradient."""
    def _rows(self) -> Tuple[np.ndarray, np.ndarray]:
        """Ids and values of those rows."""
    def _backward(self, grad: Optional["Tensor"] = None, retain_graph: bool = False) -> None: ...
    def detach(self) -> "Tensor": ...
    def _hook(self, hook: Callable[["Tensor"], Optional["Tensor"]]) -> int:
        """Calls a function with the gradient when all of it is known."""
    def _on_ready(self, ready: Callable[[], None]) -> int:
        """Calls a function after every backward that has changed the gradient."""
    def _unhook(self, id: int) -> None: ...
    def _retain_grads(self) -> None: ...
    def _leading(self, first: int, len: int) -> "Tensor":
        """Rows of the first dimension, which share memory with this tensor."""
    def _number(self) -> Union[bool, int, float]:
        """The only element."""

Tensors = Union[Tensor, Sequence[Tensor]]

def eager_op(
    kind: str,
    inputs: Dict[str, Tensors],
    attrs: Optional[Dict[str, Attr]] = None,
    counts: Optional[Dict[str, int]] = None,
    logical: Optional[str] = None,
) -> Any:
    """Runs an op: one result, or a tuple in the order of the slots. counts: how many variables
    slots of any number hold. logical: the name of the type of results that are stored so."""

class Op:
    """An op without its tensors, prepared once; called with a tensor for each of its slots."""

    def __init__(
        self,
        kind: str,
        slots: Sequence[str],
        attrs: Optional[Dict[str, Attr]] = None,
        counts: Optional[Dict[str, int]] = None,
        logical: Optional[str] = None,
    ) -> None: ...
    def __call__(self, *tensors: Tensor) -> Any: ...

def backward_many(
    tensors: Sequence[Tensor], grads: Sequence[Optional[Tensor]], retain_graph: bool
) -> None: ...
def grad(
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    grad_outputs: Optional[Sequence[Optional[Tensor]]] = None,
    retain_graph: bool = False,
    allow_unused: bool = False,
) -> List[Optional[Tensor]]:
    """Gradients of outputs by inputs, which are added to no tensor."""

def is_grad_enabled() -> bool: ...
def set_grad_enabled(enabled: bool) -> bool:
    """Returns what was before."""

def seed_eager(seed: int) -> None: ...
def set_num_threads(n: int) -> None: ...
def get_num_threads() -> int: ...
def set_autocast(
    dtype: Optional[str] = None, white: Sequence[str] = (), black: Sequence[str] = ()
) -> Optional[Tuple[str, List[str], List[str]]]:
    """Ops of 'white' take 'f16' or 'bf16', those of 'black' 'f32'. Returns what was before."""

class EagerOptimizer:
    """An update rule with the tensors that it updates and their states."""

    def __init__(self, spec: Dict[str, Any], lazy: bool = True) -> None:
        """spec: as for minimize(). lazy: rows of tables rest while no gradient names them."""
    def bind(
        self,
        params: List[Tensor],
        scales: Optional[Sequence[float]] = None,
        regularizers: Optional[Sequence[Optional[Tuple[str, float]]]] = None,
        clips: Optional[Sequence[bool]] = None,
    ) -> None: ...
    def step(self, lr: float) -> None:
        """Updates the tensors that have a gradient."""
    def clear_grad(self, set_to_zero: bool) -> None: ...
    def state(self, param: Tensor) -> Dict[str, np.ndarray]:
        """Empty before the first update."""
    def set_state(self, param: Tensor, values: Dict[str, np.ndarray]) -> None: ...

def unscale(params: List[Tensor], factor: float) -> bool:
    """Multiplies gradients by a factor. Returns whether one of them is not finite."""

class Reducer:
    """Averages gradients over ranks in every backward."""

    def __init__(
        self, group: Group, name: str, names: Sequence[str], tensors: List["Tensor"],
        by_rows: Sequence[bool], bucket_bytes: int, last_bucket_bytes: int, find_unused: bool,
        check_every: int,
    ) -> None: ...
    def set_sync(self, sync: bool) -> None: ...
    def buckets(self) -> List[List[str]]:
        """Names by bucket, in the order of exchanges."""

def fingerprints(tensors: List["Tensor"]) -> List[int]:
    """A number for all bits of each tensor."""

def main(argv: Sequence[str], python: Sequence[str]) -> int:
    """The command line; 'python' starts it again: [sys.executable, '-m', 'regatta']."""

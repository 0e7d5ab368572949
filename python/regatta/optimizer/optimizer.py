"""Optimizers: how gradients update parameters. ``minimize`` appends both to a program."""
from __future__ import annotations

import warnings
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple, Union

from .. import _core
from ..framework import (
    Operator, Parameter, Program, Tensor, Variable, default_startup_program, global_scope,
    unique_name,
)
from ._dynamic import Group, Updates, divided
from .lr import LRScheduler, _rate
from .schedules import ProgramSchedule

#: The variable that holds the learning rate of a program.
LEARNING_RATE = "learning_rate_0"

_SERVERS = (
    "the parameter servers hold the rate of this job and were given the one of minimize(). Use a "
    "schedule that is part of the program (regatta.optimizer.schedules, fluid.layers.*_decay)"
)

ParamsGrads = List[Tuple[Parameter, Variable]]


class _Constant:
    """A rate that was set after minimize; executors push it as they push that of a scheduler."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def __call__(self) -> float:
        return self.rate


class Optimizer:
    """What all optimizers have in common.

    ``parameters`` (Fluid: ``parameter_list``) limits what is updated; ``weight_decay`` (Fluid:
    ``regularization``) is an L2 coefficient or a regularizer, for parameters that have none of
    their own; ``grad_clip`` limits gradients.
    """

    #: What names are made of.
    type = "optimizer"

    def __init__(
        self,
        learning_rate: Any,
        parameters: Optional[Iterable[Any]] = None,
        weight_decay: Any = None,
        grad_clip: Any = None,
        name: Optional[str] = None,
        parameter_list: Optional[Iterable[Any]] = None,
        regularization: Any = None,
    ) -> None:
        self._learning_rate = _learning_rate(learning_rate)
        given = _one("parameters", parameters, "parameter_list", parameter_list)
        self._groups = _groups(given)
        named = [p for group in self._groups for p in group.parameters] if self._groups else given
        self._parameter_list = _parameters(named)
        self.regularization = _regularization(_one(
            "weight_decay", weight_decay, "regularization", regularization))
        if grad_clip is not None and not hasattr(grad_clip, "_clip_spec"):
            raise TypeError(
                f"grad_clip should be an object such as nn.ClipGradByGlobalNorm(1.0), but is "
                f"{grad_clip!r}"
            )
        self._grad_clip = grad_clip
        self._name = name
        # Set by wrappers: mixed precision and activations that are computed again.
        self._amp: Optional[Dict[str, Any]] = None
        self._recompute: Optional[Dict[str, Any]] = None
        self._programs: List[Program] = []
        self._backwards: Dict[int, Tuple[Any, int, List[Tuple[str, str]], Any]] = {}
        self._has_servers = False
        # The updates of tensors, made when the first step needs them.
        self._updates: Optional[Updates] = None
        if self._groups:
            self.step = self._updates_of_groups().step  # type: ignore[method-assign]

    # What subclasses say
    def _rule(self) -> Dict[str, Any]:
        """The update rule and its numbers, as the engine reads them."""
        raise NotImplementedError(f"{type(self).__name__} is no update rule: use SGD, Adam, ...")

    # What the engine is told
    def _spec(self, for_servers: bool = False) -> Dict[str, Any]:
        """Everything about the optimizer. With parameter servers the rate lives there: a scheduler
        counts as its current rate, and cannot change it any more."""
        spec: Dict[str, Any] = {"rule": self._rule()}
        rate = self._learning_rate
        if isinstance(rate, ProgramSchedule):
            spec["learning_rate"], spec["schedule"] = rate.base, dict(rate.schedule)
        elif isinstance(rate, LRScheduler):
            spec["learning_rate"] = rate._fix(_SERVERS) if for_servers else rate()
        else:
            spec["learning_rate"] = rate
        self._has_servers = self._has_servers or for_servers
        if not for_servers and not self._lazy():
            spec["lazy"] = False
        if self.regularization is not None:
            spec["regularizer"] = tuple(self.regularization._regularizer_spec())
        if self._grad_clip is not None:
            spec["clip"] = list(self._grad_clip._clip_spec())
        if self._amp is not None:
            spec["amp"] = self._amp
        if self._recompute is not None:
            spec["recompute"] = self._recompute
        return spec

    def _spec_of(self, settings: Dict[str, Any]) -> Dict[str, Any]:
        """The rule, clip and regularization of a group of parameters with settings of its own."""
        known = ("learning_rate", "weight_decay", "grad_clip")
        rule = self._rule()
        spec: Dict[str, Any] = {"rule": rule, "learning_rate": 1.0}
        for name, value in settings.items():
            if name in known:
                continue
            if name not in rule:
                raise ValueError(f"a group of parameters of {type(self).__name__} has no setting "
                                 f"'{name}' (known: {', '.join([*known, *rule])})")
            rule[name] = type(rule[name])(value)
        decay = settings.get("weight_decay", self.regularization)
        if "weight_decay" in rule:
            if "weight_decay" in settings:
                rule["weight_decay"] = float(decay)
            decay = self.regularization
        decay = _regularization(decay)
        if decay is not None:
            spec["regularizer"] = tuple(decay._regularizer_spec())
        clip = settings.get("grad_clip", self._grad_clip)
        if clip is not None:
            spec["clip"] = list(clip._clip_spec())
        return spec

    def _regularizer_of(self, parameter: Tensor) -> Optional[Tuple[str, float]]:
        """The regularization that a parameter has of its own."""
        own = getattr(parameter, "regularizer", None)
        return None if own is None else tuple(own._regularizer_spec())

    # Building programs
    def minimize(
        self,
        loss: Variable,
        startup_program: Optional[Program] = None,
        parameters: Optional[Iterable[Any]] = None,
        no_grad_set: Optional[Iterable[Any]] = None,
        parameter_list: Optional[Iterable[Any]] = None,
        grad_clip: Any = None,
    ) -> Tuple[List[Operator], ParamsGrads]:
        """Appends gradients and updates to the program of ``loss``. Returns the update ops, and
        parameters with their gradients. The gradients of a tensor are computed, unless backward()
        did that, and the parameters updated."""
        if isinstance(loss, Tensor):
            return self._minimize_tensor(loss)
        if grad_clip is not None:
            raise TypeError("minimize: pass grad_clip to the optimizer, not to minimize")
        main, startup = self._programs_of(loss, startup_program)
        chosen = _parameters(_one("parameters", parameters, "parameter_list", parameter_list))
        chosen = chosen if chosen is not None else self._parameter_list
        self._take_names(main, chosen)
        ops, pairs = _core.minimize(
            main._core, startup._core, loss.name, self._spec(), chosen, _names(no_grad_set)
        )
        self._note(main)
        return self._made(main, ops, pairs)

    def backward(
        self,
        loss: Variable,
        startup_program: Optional[Program] = None,
        parameters: Optional[Iterable[Any]] = None,
        no_grad_set: Optional[Iterable[Any]] = None,
        callbacks: Any = None,
        parameter_list: Optional[Iterable[Any]] = None,
    ) -> ParamsGrads:
        """The first half of :meth:`minimize`: appends gradients. :meth:`apply_gradients` is the
        other half."""
        if callbacks is not None:
            raise NotImplementedError("backward: callbacks are not in Regatta")
        if isinstance(loss, Tensor):
            loss.backward()
            return self._tensor_grads()
        main, startup = self._programs_of(loss, startup_program)
        chosen = _parameters(_one("parameters", parameters, "parameter_list", parameter_list))
        chosen = chosen if chosen is not None else self._parameter_list
        before = main._core.clone()
        no_grad = _names(no_grad_set)
        pairs = _core.append_backward(main._core, loss.name, chosen, no_grad)
        self._backwards[id(main)] = (
            before, main._core.version, list(pairs), (main, startup, loss, chosen, no_grad)
        )
        return [(main._variable(p), main._variable(g)) for p, g in pairs]  # type: ignore[misc]

    def apply_gradients(self, params_grads: Sequence[Tuple[Any, Any]]) -> List[Operator]:
        """The second half of :meth:`minimize`: appends updates by the gradients that
        :meth:`backward` returned."""
        if not params_grads:
            raise ValueError("apply_gradients: there are no gradients")
        if isinstance(params_grads[0][0], Tensor):
            for parameter, gradient in params_grads:
                parameter.grad = gradient
            self.step()
            return []
        program = params_grads[0][0].program
        made = self._backwards.pop(id(program), None)
        pairs = [(p.name, g.name) for p, g in params_grads]
        if made is None or made[1] != program._core.version or made[2] != pairs:
            raise NotImplementedError(
                "apply_gradients: updates can be appended to what backward() of the same optimizer "
                "returned, unchanged; for clipping and regularization pass grad_clip and "
                "weight_decay to the optimizer, or call minimize"
            )
        before, _, _, (main, startup, loss, chosen, no_grad) = made
        self._take_names(main, chosen)
        main._core.replace(before)
        ops, pairs = _core.minimize(
            main._core, startup._core, loss.name, self._spec(), chosen, no_grad
        )
        self._note(main)
        return self._made(main, ops, pairs)[0]

    def apply_optimize(
        self, loss: Variable, startup_program: Optional[Program], params_grads: Any
    ) -> List[Operator]:
        """As :meth:`apply_gradients`."""
        return self.apply_gradients(params_grads)

    def _programs_of(
        self, loss: Any, startup: Optional[Program]
    ) -> Tuple[Program, Program]:
        if not isinstance(loss, Variable):
            raise TypeError(f"minimize takes the variable of a loss, not {type(loss).__name__}")
        if startup is not None and not isinstance(startup, Program):
            raise TypeError(f"startup_program should be a Program, not {type(startup).__name__}")
        return loss.program, startup if startup is not None else default_startup_program()

    def _made(
        self, main: Program, ops: Sequence[int], pairs: Sequence[Tuple[str, str]]
    ) -> Tuple[List[Operator], ParamsGrads]:
        block = main.global_block()
        grads = [(main._variable(p), main._variable(g)) for p, g in pairs]
        return [Operator(block, at) for at in ops], grads  # type: ignore[return-value]

    def _note(self, main: Program) -> None:
        """Remembers the program, and lets executors put the rate into it."""
        if not any(main is program for program in self._programs):
            self._programs.append(main)
        main._lr_name = LEARNING_RATE
        if isinstance(self._learning_rate, LRScheduler):
            main._lr_scheduler = self._learning_rate

    def _take_names(self, main: Program, chosen: Optional[Sequence[str]]) -> None:
        """Takes the numbers of names that Paddle gives to what minimize makes."""
        for parameter in main.all_parameters():
            if chosen is not None and parameter.name not in chosen:
                continue
            own = main._core.param_info(parameter.name).get("regularizer")
            if parameter.trainable and (own or self.regularization is not None):
                unique_name.generate("_generated_var")
                unique_name.generate("_generated_var")
        unique_name.generate(type(self).__name__)
        unique_name.generate("learning_rate")

    def _check_tables(self, main: Program) -> None:
        """A hook for rules whose tables on servers are updated otherwise than asked."""

    # The learning rate
    def get_lr(self) -> float:
        """The current learning rate."""
        if isinstance(self._learning_rate, LRScheduler):
            return self._learning_rate()
        if isinstance(self._learning_rate, ProgramSchedule):
            value = global_scope()._core.get(LEARNING_RATE)
            return self._learning_rate.base if value is None else float(value.ravel()[0])
        return self._learning_rate

    def current_step_lr(self) -> float:
        """As :meth:`get_lr`."""
        return self.get_lr()

    def set_lr(self, value: float) -> None:
        """Sets a constant learning rate, from the next run on."""
        if isinstance(self._learning_rate, (LRScheduler, ProgramSchedule)):
            raise RuntimeError(
                "set_lr: the learning rate follows a schedule; pass a number to the optimizer"
            )
        if self._has_servers:
            raise RuntimeError(f"set_lr: {_SERVERS}")
        self._learning_rate = _learning_rate(value)
        for program in self._programs:
            program._lr_scheduler = _Constant(self._learning_rate)

    def set_lr_scheduler(self, scheduler: LRScheduler) -> None:
        """From the next run on the learning rate is that of a scheduler."""
        if not isinstance(scheduler, LRScheduler):
            raise TypeError(f"set_lr_scheduler takes an LRScheduler, not {scheduler!r}")
        if isinstance(self._learning_rate, ProgramSchedule) or self._has_servers:
            raise RuntimeError("set_lr_scheduler: the rate follows a schedule in the program")
        self._learning_rate = scheduler
        for program in self._programs:
            program._lr_scheduler = scheduler

    # State
    def get_opti_var_name_list(self) -> List[str]:
        """Names of the state that the optimizer keeps between runs."""
        names: List[str] = []
        for program in self._programs:
            for op in program.global_block().ops:
                if op.role == "optimize":
                    names += [n for n in op.input("States") if n not in names]
        return names

    def state_dict(self) -> Dict[str, Any]:
        """The state of the optimizer: tensors by Paddle's names, and the scheduler's. That of a
        program is in the global scope, and these are arrays."""
        from ..static.io import paddle_name

        if self._groups:
            state = self._updates_of_groups().state()
            if isinstance(self._learning_rate, LRScheduler):
                state["LR_Scheduler"] = self._learning_rate.state_dict()
            return state
        scope = global_scope()._core
        values = {n: scope.get(n) for n in self.get_opti_var_name_list()}
        state = {paddle_name(n): v for n, v in values.items() if v is not None}
        if isinstance(self._learning_rate, LRScheduler):
            state["LR_Scheduler"] = self._learning_rate.state_dict()
        return state

    def set_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Takes the state that :meth:`state_dict` gave."""
        from ..static.io import paddle_name

        if isinstance(self._learning_rate, LRScheduler) and "LR_Scheduler" in state_dict:
            self._learning_rate.set_state_dict(state_dict["LR_Scheduler"])
        if self._groups:
            self._updates_of_groups().set_state(state_dict)
            return
        for name in self.get_opti_var_name_list():
            value = state_dict.get(paddle_name(name), state_dict.get(name))
            if value is None:
                raise ValueError(f"set_state_dict: the state lacks '{paddle_name(name)}'")
            global_scope().var(name).get_tensor().set(value)

    set_dict = set_state_dict

    # Dynamic graphs
    def _updates_of_groups(self) -> Updates:
        if self._updates is None:
            self._updates = Updates(self, self._groups)
        return self._updates

    def _lazy(self) -> bool:
        """Whether rows of tables rest while no gradient names them."""
        return False

    def _parts_of(self, group: Group) -> List[Group]:
        """A group, divided where the rule differs between its parameters."""
        return [group]

    def _rate_of(self, parameter: Tensor) -> float:
        """The factor of a parameter on the learning rate, beside its own."""
        return 1.0

    def step(self) -> None:
        """Updates the parameters by their gradients. For programs, minimize() appends updates and
        Executor.run makes them."""
        raise RuntimeError(
            f"step: {type(self).__name__} was given no parameters with values; pass "
            "parameters=layer.parameters(). For a program, minimize() appends the updates and "
            "Executor.run makes them"
        )

    def clear_grad(self, set_to_zero: bool = True) -> None:
        """Forgets the gradients of the parameters. The next backward begins anew."""
        if self._groups:
            self._updates_of_groups().clear(set_to_zero)

    clear_gradients = clear_grad

    def _tensor_grads(self) -> Any:
        every = [p for group in self._groups for p in group.parameters]
        return [(p, p.grad) for p in every if p._has_grad]

    def _minimize_tensor(self, loss: Tensor) -> Any:
        if not self._groups:
            self.step()
        if not any(p._has_grad for group in self._groups for p in group.parameters):
            loss.backward()
        self.step()
        return [], self._tensor_grads()

    def _add_param_group(self, group: Dict[str, Any]) -> None:
        """Another group of parameters, with settings of its own."""
        self._groups.append(Group.of(group))
        self._updates = None
        self.step = self._updates_of_groups().step  # type: ignore[method-assign]

    def __getstate__(self) -> Dict[str, Any]:
        state = dict(self.__dict__)
        if self._groups:
            state.pop("step", None)
            state["_updates"] = None
            state["_saved"] = self.state_dict()
        return state

    def __setstate__(self, state: Dict[str, Any]) -> None:
        saved = state.pop("_saved", None)
        self.__dict__.update(state)
        if self._groups:
            self.step = self._updates_of_groups().step  # type: ignore[method-assign]
            self.set_state_dict(saved or {})

    def amp_init(
        self, place: Any = None, scope: Any = None, test_program: Any = None,
        use_fp16_test: bool = False,
    ) -> None:
        """Checks that mixed precision is on. There is nothing else to do: parameters stay float32,
        and ops cast what they take."""
        if self._amp is None:
            raise RuntimeError(
                "amp_init: mixed precision is not on; set strategy.amp = True before "
                "fleet.distributed_optimizer, or decorate the optimizer"
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(learning_rate={self._learning_rate!r})"


# --- what users may write ------------------------------------------------------------------------


def _one(name: str, value: Any, old_name: str, old_value: Any) -> Any:
    if value is not None and old_value is not None:
        raise TypeError(f"{name} and {old_name} are the same: pass one of them")
    return value if value is not None else old_value


def _learning_rate(value: Any) -> Union[float, LRScheduler, ProgramSchedule]:
    if isinstance(value, (LRScheduler, ProgramSchedule)):
        return value
    if isinstance(value, Variable):
        raise TypeError(
            f"learning_rate is the variable '{value.name}', but should be a number, a scheduler of "
            "regatta.optimizer.lr or a schedule such as fluid.layers.exponential_decay(...)"
        )
    rate = _rate(value)
    if not rate >= 0 or rate == float("inf"):
        raise ValueError(f"learning_rate ({rate}) must be a finite number, not below 0")
    return rate


def _parameters(values: Optional[Iterable[Any]]) -> Optional[List[str]]:
    if values is None:
        return None
    names = []
    for value in values:
        if isinstance(value, dict):
            raise NotImplementedError(
                "parameters: groups with settings of their own are for tensors; set "
                "learning_rate and regularizer of each ParamAttr"
            )
        names.append(value if isinstance(value, str) else value.name)
    return names


def _groups(values: Optional[Iterable[Any]]) -> List[Group]:
    """Parameters with values in groups: one, or those of dictionaries. Nothing for variables."""
    if values is None:
        return []
    if isinstance(values, Tensor):
        raise TypeError("parameters should be a list of parameters, not one of them")
    given = list(values)
    if given and isinstance(given[0], dict):
        groups = [Group.of(group) for group in given]
        return [g for g in groups if g.parameters] if any(g.parameters for g in groups) else []
    tensors = [v for v in given if isinstance(v, Tensor)]
    if tensors and len(tensors) != len(given):
        raise TypeError("parameters: tensors beside variables or names of a program")
    return [Group(tensors, {})] if tensors else []


def _names(values: Optional[Iterable[Any]]) -> List[str]:
    return [v if isinstance(v, str) else v.name for v in values or ()]


def _regularization(value: Any) -> Any:
    if value is None or hasattr(value, "_regularizer_spec"):
        return value
    try:
        coefficient = float(value)
    except (TypeError, ValueError):
        raise TypeError(
            f"weight_decay should be a number, L1Decay(...) or L2Decay(...), but is {value!r}"
        ) from None
    from ..regularizer import L2Decay

    return L2Decay(coefficient)


def _number(value: Any, name: str) -> float:
    if isinstance(value, Variable):
        raise NotImplementedError(f"{name}: a variable is not in Regatta, only a number")
    return float(value)


def _refuse(**asked: Any) -> None:
    """Refuses settings that are not honoured."""
    for name, value in asked.items():
        if value is not None and value is not False:
            raise NotImplementedError(f"{name}={value!r} is not in Regatta; leave it out")


# --- the rules -----------------------------------------------------------------------------------


class SGD(Optimizer):
    """``w -= lr * g``."""

    type = "sgd"

    def __init__(
        self,
        learning_rate: Any = 0.001,
        parameters: Optional[Iterable[Any]] = None,
        weight_decay: Any = None,
        grad_clip: Any = None,
        multi_precision: bool = False,
        name: Optional[str] = None,
        **fluid: Any,
    ) -> None:
        super().__init__(learning_rate, parameters, weight_decay, grad_clip, name, **fluid)

    def _rule(self) -> Dict[str, Any]:
        return {"rule": "sgd"}


class Momentum(Optimizer):
    """``v = momentum * v + g``, ``w -= lr * v``; Nesterov's way looks ahead."""

    type = "momentum"

    def __init__(
        self,
        learning_rate: Any = 0.001,
        momentum: float = 0.9,
        parameters: Optional[Iterable[Any]] = None,
        use_nesterov: bool = False,
        weight_decay: Any = None,
        grad_clip: Any = None,
        multi_precision: bool = False,
        rescale_grad: float = 1.0,
        use_multi_tensor: bool = False,
        name: Optional[str] = None,
        **fluid: Any,
    ) -> None:
        _refuse(rescale_grad=None if rescale_grad == 1.0 else rescale_grad)
        self._momentum, self._nesterov = _number(momentum, "momentum"), bool(use_nesterov)
        super().__init__(learning_rate, parameters, weight_decay, grad_clip, name, **fluid)

    def _rule(self) -> Dict[str, Any]:
        return {"rule": "momentum", "mu": self._momentum, "nesterov": self._nesterov}


class Adagrad(Optimizer):
    """Steps shrink with the sum of squared gradients."""

    type = "adagrad"

    def __init__(
        self,
        learning_rate: Any,
        epsilon: float = 1e-6,
        parameters: Optional[Iterable[Any]] = None,
        weight_decay: Any = None,
        grad_clip: Any = None,
        name: Optional[str] = None,
        initial_accumulator_value: float = 0.0,
        multi_precision: bool = False,
        **fluid: Any,
    ) -> None:
        self._epsilon = _number(epsilon, "epsilon")
        self._initial = _number(initial_accumulator_value, "initial_accumulator_value")
        super().__init__(learning_rate, parameters, weight_decay, grad_clip, name, **fluid)

    def _rule(self) -> Dict[str, Any]:
        return {"rule": "adagrad", "epsilon": self._epsilon, "initial_accumulator": self._initial}


_warned_of_rows = False


class Adam(Optimizer):
    """Adaptive moments.

    ``lazy_mode`` concerns tables with sparse gradients: only the rows of a batch move. Without it
    rows that were ever named by a gradient move in every step, as if the gradient were dense.
    Parameter servers update rows in the first way always, which is warned about once. Dense
    parameters are not affected.
    """

    type = "adam"

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        parameters: Optional[Iterable[Any]] = None,
        weight_decay: Any = None,
        grad_clip: Any = None,
        lazy_mode: bool = False,
        multi_precision: bool = False,
        use_multi_tensor: bool = False,
        name: Optional[str] = None,
        amsgrad: bool = False,
        **fluid: Any,
    ) -> None:
        _refuse(amsgrad=amsgrad)
        self._set_betas(beta1, beta2, epsilon)
        self._lazy_mode = bool(lazy_mode)
        super().__init__(learning_rate, parameters, weight_decay, grad_clip, name, **fluid)

    def _set_betas(self, beta1: Any, beta2: Any, epsilon: Any) -> None:
        self._beta1, self._beta2 = _number(beta1, "beta1"), _number(beta2, "beta2")
        self._epsilon = _number(epsilon, "epsilon")

    def _moments(self, rule: str) -> Dict[str, Any]:
        return {
            "rule": rule, "beta1": self._beta1, "beta2": self._beta2, "epsilon": self._epsilon,
        }

    def _rule(self) -> Dict[str, Any]:
        return self._moments("adam")

    def _lazy(self) -> bool:
        return self._lazy_mode

    def _check_tables(self, main: Program) -> None:
        global _warned_of_rows
        if self._lazy_mode or _warned_of_rows:
            return
        tables = {
            name for op in main.global_block().ops
            if op.type == "embedding" and op.has_attr("is_sparse") and op.attr("is_sparse")
            for name in op.input("W")
        }
        if tables:
            _warned_of_rows = True
            warnings.warn(
                f"{type(self).__name__}(lazy_mode=False): of tables on servers "
                f"({', '.join(sorted(tables))}) only the rows of a batch are updated, as with "
                "lazy_mode=True",
                UserWarning, stacklevel=4,
            )


class AdamW(Adam):
    """Adam with weight decay that does not pass through the moments."""

    type = "adamw"

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        parameters: Optional[Iterable[Any]] = None,
        weight_decay: float = 0.01,
        lr_ratio: Any = None,
        apply_decay_param_fun: Any = None,
        grad_clip: Any = None,
        lazy_mode: bool = False,
        multi_precision: bool = False,
        name: Optional[str] = None,
        **fluid: Any,
    ) -> None:
        if hasattr(weight_decay, "_regularizer_spec"):
            raise TypeError("AdamW: weight_decay should be a number")
        self._decay = _number(weight_decay, "weight_decay")
        self._decays, self._lr_ratio = apply_decay_param_fun, lr_ratio
        super().__init__(
            learning_rate, beta1, beta2, epsilon, parameters, None, grad_clip, lazy_mode,
            multi_precision, False, name, **fluid,
        )
        if not self._groups:
            _refuse(lr_ratio=lr_ratio, apply_decay_param_fun=apply_decay_param_fun)

    def _parts_of(self, group: Group) -> List[Group]:
        decays = self._decays
        return [group] if decays is None else divided(group, lambda p: decays(p.name))

    def _rate_of(self, parameter: Tensor) -> float:
        return 1.0 if self._lr_ratio is None else float(self._lr_ratio(parameter))

    def _rule(self) -> Dict[str, Any]:
        return {**self._moments("adamw"), "weight_decay": self._decay}


class RMSProp(Optimizer):
    """Steps are divided by a running root mean square."""

    type = "rmsprop"

    def __init__(
        self,
        learning_rate: Any,
        rho: float = 0.95,
        epsilon: float = 1e-6,
        momentum: float = 0.0,
        centered: bool = False,
        parameters: Optional[Iterable[Any]] = None,
        weight_decay: Any = None,
        grad_clip: Any = None,
        name: Optional[str] = None,
        **fluid: Any,
    ) -> None:
        self._numbers = {
            "rho": _number(rho, "rho"), "epsilon": _number(epsilon, "epsilon"),
            "momentum": _number(momentum, "momentum"), "centered": bool(centered),
        }
        super().__init__(learning_rate, parameters, weight_decay, grad_clip, name, **fluid)

    def _rule(self) -> Dict[str, Any]:
        return {"rule": "rmsprop", **self._numbers}


class Adadelta(Optimizer):
    """Steps in the units of the weights."""

    type = "adadelta"

    def __init__(
        self,
        learning_rate: Any = 0.001,
        epsilon: float = 1e-6,
        rho: float = 0.95,
        parameters: Optional[Iterable[Any]] = None,
        weight_decay: Any = None,
        grad_clip: Any = None,
        name: Optional[str] = None,
        **fluid: Any,
    ) -> None:
        self._epsilon, self._rho = _number(epsilon, "epsilon"), _number(rho, "rho")
        super().__init__(learning_rate, parameters, weight_decay, grad_clip, name, **fluid)

    def _rule(self) -> Dict[str, Any]:
        return {"rule": "adadelta", "rho": self._rho, "epsilon": self._epsilon}


class Ftrl(Optimizer):
    """Follow the regularized leader: sparse linear models."""

    type = "ftrl"

    def __init__(
        self,
        learning_rate: Any,
        l1: float = 0.0,
        l2: float = 0.0,
        lr_power: float = -0.5,
        parameters: Optional[Iterable[Any]] = None,
        weight_decay: Any = None,
        grad_clip: Any = None,
        name: Optional[str] = None,
        **fluid: Any,
    ) -> None:
        self._numbers = {
            "l1": _number(l1, "l1"), "l2": _number(l2, "l2"),
            "lr_power": _number(lr_power, "lr_power"),
        }
        super().__init__(learning_rate, parameters, weight_decay, grad_clip, name, **fluid)

    def _rule(self) -> Dict[str, Any]:
        return {"rule": "ftrl", **self._numbers}

    def _lazy(self) -> bool:
        # A row without gradients would become what its states say: zeros at first.
        return True


class Lamb(Adam):
    """Adam with a trust ratio per parameter, for large batches."""

    type = "lamb"

    def __init__(
        self,
        learning_rate: Any = 0.001,
        lamb_weight_decay: float = 0.01,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-6,
        parameters: Optional[Iterable[Any]] = None,
        grad_clip: Any = None,
        exclude_from_weight_decay_fn: Any = None,
        multi_precision: bool = False,
        always_adapt: bool = False,
        name: Optional[str] = None,
        **fluid: Any,
    ) -> None:
        _refuse(always_adapt=always_adapt)
        self._excluded = exclude_from_weight_decay_fn
        self._decay = _number(lamb_weight_decay, "lamb_weight_decay")
        super().__init__(
            learning_rate, beta1, beta2, epsilon, parameters, None, grad_clip, True,
            multi_precision, False, name, **fluid,
        )
        if not self._groups:
            _refuse(exclude_from_weight_decay_fn=exclude_from_weight_decay_fn)

    def _parts_of(self, group: Group) -> List[Group]:
        excluded = self._excluded
        return [group] if excluded is None else divided(group, lambda p: not excluded(p))

    def _rule(self) -> Dict[str, Any]:
        return {**self._moments("lamb"), "weight_decay": self._decay}


class LarsMomentum(Optimizer):
    """Momentum with a learning rate per parameter, for large batches."""

    type = "lars_momentum"

    def __init__(
        self,
        learning_rate: Any,
        momentum: float = 0.9,
        lars_coeff: float = 0.001,
        lars_weight_decay: float = 0.0005,
        parameters: Optional[Iterable[Any]] = None,
        weight_decay: Any = None,
        grad_clip: Any = None,
        name: Optional[str] = None,
        exclude_from_weight_decay: Any = None,
        epsilon: float = 0,
        multi_precision: bool = False,
        rescale_grad: float = 1.0,
        **fluid: Any,
    ) -> None:
        _refuse(
            exclude_from_weight_decay=exclude_from_weight_decay or None,
            rescale_grad=None if rescale_grad == 1.0 else rescale_grad,
        )
        self._numbers = {
            "mu": _number(momentum, "momentum"), "coeff": _number(lars_coeff, "lars_coeff"),
            "weight_decay": _number(lars_weight_decay, "lars_weight_decay"),
            "epsilon": _number(epsilon, "epsilon"),
        }
        super().__init__(learning_rate, parameters, weight_decay, grad_clip, name, **fluid)

    def _rule(self) -> Dict[str, Any]:
        return {"rule": "lars_momentum", **self._numbers}

    def _lazy(self) -> bool:
        return True

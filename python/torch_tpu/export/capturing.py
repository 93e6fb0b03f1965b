"""From a graph of torch.export to one program: its operators run once, on stand-ins without contents."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputKind
from torch.utils import _pytree as pytree

from torch_tpu import _C
from torch_tpu.compile.graphs import Interpreter
from torch_tpu.export.signature import Input, Parameter, Result, TensorForm, dotted, on_one_line

_DEVICE = torch.device("tpu", 0)
_WEIGHTS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
_MUTATIONS = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION, OutputKind.USER_INPUT_MUTATION)


@dataclasses.dataclass(frozen=True)
class Captured:
    """A program, and what its parameters and results are to the user."""

    call: _C.CapturedCall
    parameters: tuple[Parameter, ...]
    weights: Mapping[str, torch.Tensor]  # by the names in `parameters`; on any device
    inputs: tuple[Input, ...]
    outputs: tuple[TensorForm, ...]
    results: tuple[Result, ...]


def capture(program: ExportedProgram, example_inputs: tuple[tuple[Any, ...], dict[str, Any]] | None) -> Captured:
    """Captures a program's graph; see :func:`torch_tpu.export.save` for the arguments and errors."""
    if _has_autocast(program.graph_module):
        # Casts become operators of the graph: which ones are cast depends on the device that it was exported on.
        program = program.run_decompositions({})
    sizes = _Sizes(program, example_inputs)
    capturing = _C.GraphCapture(0, fixed_sizes=True)
    try:
        stand_ins = _StandIns(program, sizes, capturing)
        with torch.no_grad(), torch._C._DisableAutocast():
            returned = _OnDevice(program.graph_module).run(*stand_ins.arguments)
            # What a functional graph returns are values from before its writes.
            writes = stand_ins.writes(program, returned)
            results = _Results(program, returned, stand_ins, {id(target) for target, _ in writes})
            for target, value in writes:
                target.copy_(value)
            stand_ins.write_back()
        call = capturing.finish(results.tensors)
    finally:
        capturing.close()
    if call.results != list(range(len(results.tensors))):
        raise RuntimeError(f"internal error: outputs {call.results} of an exported program")
    return _with_constants(call, stand_ins, results)


def _with_constants(call: _C.CapturedCall, stand_ins: _StandIns, results: _Results) -> Captured:
    """Tensors that the graph made on its way, and that no argument stands for, are weights too."""
    weights = dict(stand_ins.weights)
    constants = iter(call.constants)
    parameters: list[Parameter] = []
    renumbered: dict[int, int] = {}
    for number in call.parameters:
        if number >= 0:
            renumbered[number] = len(parameters)
            parameters.append(stand_ins.parameters[number])
            continue
        name = f"constant.{len(parameters)}"
        weights[name] = next(constants)
        parameters.append(Parameter(TensorForm.of(weights[name]), weight=name))
    leaves = [
        r if r.parameter is None else dataclasses.replace(r, parameter=renumbered[r.parameter]) for r in results.leaves
    ]
    return Captured(
        call=call,
        parameters=tuple(parameters),
        weights=weights,
        inputs=tuple(stand_ins.inputs),
        outputs=tuple(TensorForm.of(t) for t in results.tensors),
        results=tuple(leaves),
    )


class _Sizes:
    """Numbers for the symbols of a program with dynamic sizes, taken from example inputs."""

    def __init__(self, program: ExportedProgram, example_inputs: tuple[tuple[Any, ...], dict[str, Any]] | None) -> None:
        self._values: dict[Any, int] = {}
        placeholders = [n for n in program.graph.nodes if n.op == "placeholder"]
        symbolic = [
            (node.name, node.meta.get("val"))
            for node, spec in zip(placeholders, program.graph_signature.input_specs, strict=True)
            if spec.kind is InputKind.USER_INPUT
        ]
        dynamic = [f"{what} = {n}" for name, value in symbolic for what, n in _extents(name, value) if not _known(n)]
        if not dynamic:
            return
        if example_inputs is None:
            limits = ", ".join(f"{k} in [{v.lower}, {v.upper}]" for k, v in program.range_constraints.items())
            raise ValueError(
                f"a program in a file has fixed sizes, and this one is dynamic in {', '.join(dynamic)} ({limits}); "
                "pass example_inputs=(args, kwargs) with tensors of the sizes that the file is to be for"
            )
        leaves, tree = pytree.tree_flatten(example_inputs)
        if tree != program.call_spec.in_spec:
            raise ValueError(
                f"example_inputs, (args, kwargs), are arranged as {on_one_line(tree)}, the program's arguments as "
                f"{on_one_line(program.call_spec.in_spec)}"
            )
        self._bind(program, symbolic, leaves)

    def _bind(self, program: ExportedProgram, symbolic: Sequence[tuple[str, Any]], leaves: Sequence[Any]) -> None:
        given = [
            (what, n, g)
            for (name, value), leaf in zip(symbolic, leaves, strict=True)
            for (what, n), (_, g) in zip(_extents(name, value), _extents(name, leaf), strict=True)
        ]
        for _, n, value in given:
            if not _known(n) and n.node.expr.is_symbol:
                self._values.setdefault(n.node.expr, value)
        for what, n, value in given:
            if self(n) != value:
                here = "" if _known(n) else f", {self(n)} here"
                raise ValueError(f"example_inputs: {what} is {value}, the program takes {n}{here}")
        for expression, limits in program.range_constraints.items():
            value = expression.subs(self._values)
            if value.is_number and not limits.lower <= value <= limits.upper:
                raise ValueError(
                    f"example_inputs: {expression} is {value}, the program takes {limits.lower} to {limits.upper}"
                )

    def __call__(self, n: Any) -> int:
        """The number that an int or SymInt stands for."""
        if _known(n):
            return int(n)
        value = n.node.expr.subs(self._values)
        if not value.is_number:
            raise ValueError(f"the program has a size {n} that does not follow from its inputs")
        return int(value)


def _known(n: Any) -> bool:
    return not isinstance(n, torch.SymInt) or n.node.is_constant() or n.node.expr.is_number


def _extents(name: str, value: Any) -> list[tuple[str, Any]]:
    """The integers that describe an input: sizes of a tensor, or the integer itself."""
    if isinstance(value, torch.Tensor):
        return [(f"{name}.shape[{i}]", n) for i, n in enumerate(value.shape)]
    if isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool):
        return [(name, value)]
    return []


class _StandIns:
    """The graph's arguments: tensors without contents, and values."""

    def __init__(self, program: ExportedProgram, sizes: _Sizes, capturing: _C.GraphCapture) -> None:
        self._capturing = capturing
        self._sizes = sizes
        self.arguments: list[Any] = []  # one per placeholder
        self.parameters: list[Parameter] = []
        self.weights: dict[str, torch.Tensor] = {}
        self.inputs: list[Input] = []
        self._tensors: list[torch.Tensor] = []  # one per parameter
        self._permuted: list[tuple[torch.Tensor, torch.Tensor, int]] = []
        self._by_storage: dict[tuple[Any, ...], int] = {}  # weights, so that tied ones are one
        self.by_placeholder: dict[str, Any] = {}

        written = {str(s.target) for s in program.graph_signature.output_specs if s.kind in _MUTATIONS}
        paths = iter(_input_paths(program))
        placeholders = [n for n in program.graph.nodes if n.op == "placeholder"]
        for node, spec in zip(placeholders, program.graph_signature.input_specs, strict=True):
            used = bool(node.users) or str(spec.target) in written or node.name in written
            if spec.kind in _WEIGHTS:
                value = self._weight(program, spec) if used else None
            elif spec.kind is InputKind.USER_INPUT:
                value = self._input(node, next(paths), used)
            else:
                raise NotImplementedError(
                    f"argument {node.name} of the program is of the kind {spec.kind.name.lower()}, which a file of "
                    "StableHLO cannot hold"
                )
            self.arguments.append(value)
            self.by_placeholder[node.name] = value

    def _weight(self, program: ExportedProgram, spec: InputSpec) -> torch.Tensor:
        name = str(spec.target)
        tensor = program.state_dict[name] if name in program.state_dict else program.constants[name]
        if not isinstance(tensor, torch.Tensor):
            raise NotImplementedError(f"{name} is a {type(tensor).__name__}: only tensors can be written to a file")
        tensor = tensor.detach()
        place = (tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
        number = self._by_storage.get(place)
        if number is None:
            number = self._by_storage[place] = len(self.parameters)
            self.weights[name] = tensor
            self.parameters.append(Parameter(TensorForm.of(tensor), weight=name))
            self._tensors.append(self._stand_in(tensor.shape, tensor.dtype))
        return self._with_strides(self._tensors[number], tensor)

    def _input(self, node: torch.fx.Node, path: str, used: bool) -> Any:
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            value = self._sizes(value)
        if not isinstance(value, torch.Tensor):
            self.inputs.append(Input(node.name, path, value=value))
            return value
        shape = tuple(self._sizes(n) for n in value.shape)
        self.inputs.append(Input(node.name, path, TensorForm(shape, value.dtype)))
        if not used:
            return None
        self.parameters.append(Parameter(TensorForm(shape, value.dtype), input=len(self.inputs) - 1))
        self._tensors.append(self._stand_in(shape, value.dtype))
        return self._with_strides(self._tensors[-1], value)

    def _stand_in(self, sizes: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return self._capturing.argument(torch.empty(sizes, dtype=dtype, device="meta"))

    def _with_strides(self, stand_in: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """The graph may count on strides, as where it views a tensor; parameters of programs are row-major."""
        strides = tuple(self._sizes(n) for n in like.stride())
        if not _is_permuted(stand_in.shape, strides):
            return stand_in
        permuted = torch.empty_strided(stand_in.shape, strides, dtype=stand_in.dtype, device=stand_in.device)
        permuted.copy_(stand_in)
        self._permuted.append((permuted, stand_in, permuted._version))
        return permuted

    def writes(self, program: ExportedProgram, returned: Sequence[Any]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Arguments, and the new values that a functional graph gives them: copies, since two may change places."""
        names = {str(s.target): s.arg.name for s in program.graph_signature.input_specs if s.target is not None}
        return [
            (self.by_placeholder[names.get(str(spec.target), str(spec.target))], value.clone())
            for spec, value in zip(program.graph_signature.output_specs, returned, strict=True)
            if spec.kind in _MUTATIONS
        ]

    def write_back(self) -> None:
        """Writes to arguments what the graph wrote to a copy of them."""
        for permuted, stand_in, version in self._permuted:
            if permuted._version != version:
                stand_in.copy_(permuted)

    def parameter_of(self, tensor: torch.Tensor) -> int | None:
        """The parameter that a tensor is, itself and not a view of it."""
        permuted = next((s for p, s, _ in self._permuted if p is tensor), tensor)
        return next((i for i, t in enumerate(self._tensors) if t is permuted), None)


class _Results:
    """What the call returns. Each tensor has memory of its own in the program, dense and row-major."""

    def __init__(
        self, program: ExportedProgram, returned: Sequence[Any], stand_ins: _StandIns, written: set[int]
    ) -> None:
        self.tensors: list[torch.Tensor] = []
        self.leaves: list[Result] = []
        known: dict[int, int] = {}
        specs = program.graph_signature.output_specs
        values = [value for spec, value in zip(specs, returned, strict=True) if spec.kind not in _MUTATIONS]
        for value, name in zip(values, _result_names(program), strict=True):
            if not isinstance(value, torch.Tensor):
                self.leaves.append(Result(name, value=value))
                continue
            parameter = stand_ins.parameter_of(value) if id(value) not in written else None
            if parameter is not None:
                self.leaves.append(Result(name, parameter=parameter))
                continue
            if value.numel() == 0:
                self.leaves.append(Result(name, empty=TensorForm.of(value)))
                continue
            if id(value) not in known:
                known[id(value)] = len(self.tensors)
                dense = value.detach().resolve_conj().resolve_neg()
                self.tensors.append(dense.clone(memory_format=torch.contiguous_format))
            self.leaves.append(Result(name, output=known[id(value)]))


def _result_names(program: ExportedProgram) -> list[str]:
    tree = program.call_spec.out_spec
    numbers = pytree.tree_unflatten(list(range(tree.num_leaves)), tree)
    names: list[str] = []
    for path, _ in pytree.tree_flatten_with_path(numbers)[0]:
        name = dotted(path) or "output"
        while name in names:
            name += "_"
        names.append(name)
    return names


def _input_paths(program: ExportedProgram) -> list[str]:
    tree = program.call_spec.in_spec
    both = pytree.tree_unflatten(list(range(tree.num_leaves)), tree)
    leaves = pytree.tree_flatten_with_path(both)[0]
    # The first key is the place in (args, kwargs).
    return [("args" if path[0] == pytree.SequenceKey(0) else "kwargs") + pytree.keystr(path[1:]) for path, _ in leaves]


def _is_permuted(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether memory is dense and not in the order of the sizes."""
    extents = [(stride, size) for stride, size in zip(strides, sizes, strict=True) if size > 1]
    expected, dense = 1, True
    for stride, size in sorted(extents):
        dense = dense and stride == expected
        expected *= size
    return dense and extents != sorted(extents, reverse=True)


def _has_autocast(graph: torch.fx.GraphModule) -> bool:
    target = torch.ops.higher_order.wrap_with_autocast
    modules = [m for m in graph.modules() if isinstance(m, torch.fx.GraphModule)]
    return any(node.target is target for m in modules for node in m.graph.nodes)


class _OnDevice(Interpreter):
    """Runs a graph that was traced on any device with tensors of ours."""

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args = tuple(_DEVICE if isinstance(x, torch.device) else x for x in args)
        kwargs = {name: _DEVICE if isinstance(x, torch.device) else x for name, x in kwargs.items()}
        if _makes_tensors(target) and not any(isinstance(x, torch.Tensor) for x in args):
            kwargs["device"] = _DEVICE  # without one they would be made on the CPU
        return super().call_function(target, args, kwargs)

    def get_attr(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        value = super().get_attr(target, args, kwargs)
        if isinstance(value, torch.fx.GraphModule):
            return lambda *operands: _OnDevice(value).run(*operands)
        return value.to(_DEVICE) if isinstance(value, torch.Tensor) else value


def _makes_tensors(target: Any) -> bool:
    """Whether an operator has an argument for the device of its result, which all have by name only."""
    return isinstance(target, torch._ops.OpOverload) and any(
        argument.name == "device" and argument.kwarg_only for argument in target._schema.arguments
    )

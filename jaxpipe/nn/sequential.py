"""A model as a sequence of any layers, which need not be alike in anything."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
from flax import linen, nnx

from jaxpipe.nn.by_name import call_by_name
from jaxpipe.nn.module_state import check_variables, differences, merge, shape_of
from jaxpipe.nn.skips import WithSkips, check_skips
from jaxpipe.nn.static_values import seal, unseal
from jaxpipe.runtime.model import Layer, Params, PyTree, SequentialModel


class Sequential(nnx.Module):
    """Layers that are called one after the other, each with what the one before returned.

    A layer is an NNX module, a function of one argument, or what `from_linen`, `with_params`,
    `stash`, `pop` and `with_skips` make. It may return any pytree; leaves that are no arrays reach
    the next layer as they are. By name it gets those entries of the batch dict that its signature
    asks for, and `keys`: a PRNG key per example; see `jaxpipe.nn.by_name`.

    Args:
        layers: The layers in order, or by name. In a list they are named `"0"`, `"1"`, ...

    Raises:
        TypeError, ValueError: If a layer can't be called, two layers share parameters, or skips do
            not match.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from flax import nnx
        >>> rngs = nnx.Rngs(0)
        >>> first, last = nnx.Linear(3, 8, rngs=rngs), nnx.Linear(8, 2, rngs=rngs)
        >>> model = Sequential([first, jax.nn.relu, last])
        >>> model(jnp.ones((4, 3))).shape
        (4, 2)
        >>> len(model), model[2].out_features, model.names
        (3, 2, ('0', '1', '2'))
    """

    def __init__(self, layers: Sequence[Any] | Mapping[str, Any]) -> None:
        if not isinstance(layers, Mapping):
            layers = {str(number): layer for number, layer in enumerate(layers)}
        if not layers:
            raise ValueError("a Sequential needs at least one layer")
        for name, layer in layers.items():
            _check_layer(name, layer)
        check_skips([(name, each) for name, each in layers.items() if isinstance(each, WithSkips)])
        self.names = tuple(layers)
        self.layers = nnx.Dict({name: _as_module(layer) for name, layer in layers.items()})
        _check_nothing_shared(self)

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[Any]:
        return (self[name] for name in self.names)

    def __getitem__(self, which: int | str) -> Any:
        """A layer by its number or its name."""
        name = self.names[which] if isinstance(which, int) else which
        if name not in self.names:
            raise KeyError(f"there is no layer {name!r}; there are {', '.join(self.names)}")
        module = self.layers[name]
        return module.function if isinstance(module, _Function) else module

    def __call__(self, x: PyTree, *, batch: PyTree = None, keys: jax.Array | None = None) -> PyTree:
        """What the last layer returns.

        Args:
            x: What the first layer gets.
            batch: What layers may ask for by name.
            keys: A PRNG key per example, for layers that ask for `keys`: all get the same ones.
        """
        skips: dict[str, PyTree] = {}
        for name in self.names:
            x, stashed = _call(self.layers[name], name, x, skips, batch, keys)
            skips.update(stashed)
        return x


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequentialStructure:
    """A `Sequential` apart from its parameters. `take_apart_layers` makes it.

    Attributes:
        structure: Structure of the whole model.
        state: Shapes of its parameters.
        names: The names of the layers.
        layers: Structure of every layer, and shapes of its parameters.
    """

    structure: nnx.GraphDef
    state: nnx.State
    names: tuple[str, ...]
    layers: tuple[tuple[nnx.GraphDef, nnx.State], ...]

    def parameters(self, model: Sequential) -> Params:
        """The parameters of a model of this structure, by layer.

        Raises:
            ValueError: If the model has another structure or other shapes.
        """
        problems = differences(self.state, jax.tree.map(shape_of, nnx.state(model)))
        if problems or model.names != self.names:
            raise ValueError(
                "the pipeline was made for a model of another shape: "
                + "; ".join(problems[:5] or [f"its layers are {', '.join(self.names)}"])
            )
        found = {name: nnx.to_pure_dict(nnx.state(model.layers[name])) for name in self.names}
        return Params({name: tree for name, tree in found.items() if tree}, ())

    def parameter_shapes(self) -> Params:
        """Shapes of the parameters, by layer."""
        found = {
            name: nnx.to_pure_dict(state)
            for name, (_, state) in zip(self.names, self.layers, strict=True)
        }
        return Params({name: tree for name, tree in found.items() if tree}, ())

    def assemble(self, params: Params) -> Sequential:
        """The model with these parameters, which are in layer order."""
        return merge(self.structure, self.state, {"layers": params.blocks})

    def functions(self, loss: Callable, inputs: str | Callable) -> SequentialModel:
        """The model as pure functions of its parameters.

        Args:
            loss: `(outputs, ...) -> losses`, given entries of the batch by name.
            inputs: What the first layer gets: the name of an entry of the batch, or a function of
                the batch.
        """
        return SequentialModel(
            layers=tuple(
                _layer(name, structure, state)
                for name, (structure, state) in zip(self.names, self.layers, strict=True)
            ),
            inputs=lambda batch: seal(_inputs(inputs, batch)),
            loss=lambda outputs, batch: call_by_name(loss, "loss", (unseal(outputs),), batch),
        )


def take_apart_layers(model: Sequential) -> SequentialStructure:
    """The structure of a model, which may be real or abstract (from `nnx.eval_shape`).

    Raises:
        ValueError: If it holds variables that are no floating-point `nnx.Param`s.
    """
    check_variables(model)
    structure, state = nnx.split(model)
    layers = []
    for name in model.names:
        of_layer, values = nnx.split(model.layers[name])
        layers.append((of_layer, jax.tree.map(shape_of, values)))
    return SequentialStructure(
        structure=structure,
        state=jax.tree.map(shape_of, state),
        names=model.names,
        layers=tuple(layers),
    )


class _Function(nnx.Module):
    """A function as a module."""

    def __init__(self, function: Callable) -> None:
        self.function = function


def _as_module(layer: Any) -> nnx.Module:
    return layer if isinstance(layer, nnx.Module) else _Function(layer)


def _call(
    module: Any,
    name: str,
    x: PyTree,
    skips: dict[str, PyTree],
    batch: PyTree,
    keys: jax.Array | None,
) -> tuple[PyTree, dict[str, PyTree]]:
    """What a layer returns and what it stashes; what it pops is taken out of `skips`."""
    what = f"layer {name}"
    if not isinstance(module, WithSkips):
        part = module.function if isinstance(module, _Function) else module
        return call_by_name(part, what, (x,), batch, keys), {}
    popped = {each: skips.pop(module.full_name(each)) for each in module.pops}
    y = call_by_name(module.layer, what, (x,), batch, keys, popped)
    if not module.stashes:
        return y, {}
    is_pair = isinstance(y, tuple) and len(y) == 2 and isinstance(y[1], dict)
    if not is_pair or set(y[1]) != set(module.stashes):
        found = f"a {type(y).__name__}" if not is_pair else f"those of {sorted(y[1])}"
        raise ValueError(
            f"{what} stashes {', '.join(module.stashes)}, so it must return its output and a dict "
            f"with these values; found {found}"
        )
    return y[0], {module.full_name(each): y[1][each] for each in module.stashes}


def _layer(name: str, structure: nnx.GraphDef, state: nnx.State) -> Layer:
    """A layer as a pure function of its parameters."""
    module = nnx.merge(structure, state)
    skips = module if isinstance(module, WithSkips) else None

    def block(
        params: PyTree, inputs: tuple[PyTree, dict], batch: PyTree, keys: jax.Array | None
    ) -> tuple[PyTree, dict[str, PyTree]]:
        x, popped = unseal(inputs)
        return seal(_call(merge(structure, state, params), name, x, dict(popped), batch, keys))

    return Layer(
        name=name,
        params=nnx.to_pure_dict(state),
        block=block,
        pops=tuple(map(skips.full_name, skips.pops)) if skips else (),
        stashes=tuple(map(skips.full_name, skips.stashes)) if skips else (),
    )


def _inputs(inputs: str | Callable, batch: PyTree) -> PyTree:
    if not isinstance(inputs, str):
        return inputs(batch)
    if not isinstance(batch, Mapping) or inputs not in batch:
        has = ", ".join(map(repr, batch)) if isinstance(batch, Mapping) else type(batch).__name__
        raise ValueError(
            f"the first layer gets the entry {inputs!r} of the batch, but the batch has {has}; "
            "name another one, or pass a function of the batch, with inputs="
        )
    return batch[inputs]


def _check_layer(name: Any, layer: Any) -> None:
    if not isinstance(name, str) or not name or "/" in name or "." in name:
        raise ValueError(f"layers are named by strings without '/' and '.'; found {name!r}")
    module = layer.layer if isinstance(layer, WithSkips) else layer
    if isinstance(module, linen.Module):
        raise TypeError(
            f"layer {name} is a Linen module, which does not hold its parameters: pass "
            "from_linen(module, variables), with the variables that module.init returns"
        )
    if isinstance(module, type) or not callable(module):
        raise TypeError(
            f"layer {name} must be an NNX module, a function, or what from_linen, with_params, "
            f"stash, pop or with_skips make; found {module!r}"
        )


def _check_nothing_shared(model: Sequential) -> None:
    """Raises ValueError if two layers hold the same parameter."""

    def count(module: Any) -> int:
        return len(jax.tree.leaves(nnx.state(module)))

    layers = [(name, model.layers[name]) for name in model.names]
    if count(model) == sum(count(layer) for _, layer in layers):
        return
    for (name, layer), (other, later) in itertools.combinations(layers, 2):
        if count(nnx.List([layer, later])) != count(layer) + count(later):
            raise ValueError(
                f"layers {name} and {other} share parameters: every layer must own its "
                "parameters, since they may lie on different devices"
            )

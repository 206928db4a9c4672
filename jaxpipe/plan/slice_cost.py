"""What one stage takes for a slice of `l` tokens that follow `ctx` earlier ones.

A cost is a function of two arrays, lengths and contexts, in any one unit of time. It comes from an
expression that someone types, or from a table of measurements, completed by the model of TeraPipe
(Li et al., arXiv 2102.07988, section 3.4):

    t(l, ctx) = t(l, 0) + a0 + a1 l + a2 ctx + a3 l ctx
"""

import ast
import csv
import operator
from collections.abc import Callable, Iterable

import numpy as np

SliceCost = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""From lengths and contexts to times."""

_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_FUNCTIONS: dict[str, Callable] = {
    "min": lambda *values: np.minimum.reduce(np.broadcast_arrays(*values)),
    "max": lambda *values: np.maximum.reduce(np.broadcast_arrays(*values)),
    "abs": np.abs,
    "ceil": np.ceil,
    "exp": np.exp,
    "floor": np.floor,
    "log": np.log,
    "log2": np.log2,
    "sqrt": np.sqrt,
}


def parse_cost(expression: str) -> SliceCost:
    """The cost that an expression of `l` and `ctx` states.

    The expression is parsed and evaluated node by node, never executed as Python.

    Args:
        expression: Numbers, `l`, `ctx`, `+ - * / // % **`, brackets, and `min max abs ceil exp
            floor log log2 sqrt`.

    Raises:
        ValueError: If it is no such expression; the message says what is wrong with it.

    Example:
        >>> cost = parse_cost("max(8, l * (2 * ctx + l + 1) / 2)")
        >>> cost(np.array([7, 3]), np.array([0, 7])).tolist()
        [28.0, 27.0]
    """
    try:
        tree = ast.parse(expression.strip(), mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise ValueError(
            f"the cost {expression!r} is no expression: {error}; write it like '3 + l * (1 + ctx / "
            "1000)'"
        ) from None
    _check(tree, expression)
    return lambda lengths, contexts: np.broadcast_to(
        np.asarray(_evaluate(tree, {"l": lengths, "ctx": contexts}), float), np.shape(lengths)
    )


def _check(node: ast.AST, expression: str) -> None:
    """Raises ValueError for anything that is not arithmetic of `l` and `ctx`."""
    match node:
        case ast.Constant(value=int() | float()) if not isinstance(node.value, bool):
            return
        case ast.Name(id="l" | "ctx"):
            return
        case ast.BinOp(op=op) if type(op) in _OPERATORS:
            _check(node.left, expression)
            _check(node.right, expression)
            return
        case ast.UnaryOp(op=op) if type(op) in _OPERATORS:
            _check(node.operand, expression)
            return
        case ast.Call(func=ast.Name(id=name), keywords=[]) if name in _FUNCTIONS and node.args:
            for argument in node.args:
                _check(argument, expression)
            return
    found = ast.unparse(node)
    raise ValueError(
        f"the cost {expression!r} holds {found!r}, which is no arithmetic of 'l' and 'ctx'; "
        f"allowed are numbers, l, ctx, + - * / // % ** and {', '.join(sorted(_FUNCTIONS))}"
    )


def _evaluate(node: ast.AST, values: dict[str, np.ndarray]) -> np.ndarray | float:
    match node:
        case ast.Constant(value=value):
            return float(value)  # pyright: ignore[reportArgumentType]
        case ast.Name(id=name):
            return values[name]
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_evaluate(left, values), _evaluate(right, values))
        case ast.UnaryOp(op=op, operand=operand):
            return _OPERATORS[type(op)](_evaluate(operand, values))
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return _FUNCTIONS[name](*(_evaluate(each, values) for each in arguments))
    raise AssertionError(ast.dump(node))


def read_cost_table(text: str) -> SliceCost:
    """The cost that a table of measurements states.

    Args:
        text: CSV with the header `l,ctx,time`: the time of one stage for a slice of `l` tokens
            behind `ctx` others. Rows with `ctx` 0 are needed, two or more.

    Raises:
        ValueError: If it is no such table; the message names the line.
    """
    reader = csv.reader(text.splitlines())
    header = [cell.strip() for cell in next(reader, [])]
    if header != ["l", "ctx", "time"]:
        raise ValueError(
            f"line 1: the header of a cost table is 'l,ctx,time'; found {','.join(header)!r}"
        )
    rows = []
    for number, row in enumerate(reader, start=2):
        if not row:
            continue
        try:
            length, context, seconds = map(float, row)
        except ValueError:
            raise ValueError(
                f"line {number}: a row holds three numbers, l,ctx,time; found {','.join(row)!r}"
            ) from None
        if not (length >= 1 and context >= 0 and 0 <= seconds < float("inf")):
            raise ValueError(
                f"line {number}: l must be at least 1, ctx and time not negative; found "
                f"{','.join(row)!r}"
            )
        rows.append((length, context, seconds))
    return fit_cost(rows)


def fit_cost(measured: Iterable[tuple[float, float, float]]) -> SliceCost:
    """A cost for all lengths and contexts, from some that were measured.

    Without context, times lie on straight lines between the measured lengths, and beyond the last
    ones on the same lines. What context adds is the plane `a0 + a1 l + a2 ctx + a3 l ctx` that
    comes closest to the measurements with context.

    Args:
        measured: Triples of length, context and time.

    Raises:
        ValueError: If fewer than two lengths were measured without context.
    """
    rows = np.array(sorted(measured), float).reshape(-1, 3)
    alone = rows[rows[:, 1] == 0]
    lengths = np.unique(alone[:, 0])
    if len(lengths) < 2:
        raise ValueError(
            "a cost table needs times without context (ctx 0) for two lengths or more; found "
            f"{len(lengths)}"
        )
    times = np.array([alone[alone[:, 0] == length, 2].mean() for length in lengths])

    def without_context(wanted: np.ndarray) -> np.ndarray:
        place = np.clip(np.searchsorted(lengths, wanted) - 1, 0, len(lengths) - 2)
        slope = (times[place + 1] - times[place]) / (lengths[place + 1] - lengths[place])
        return times[place] + slope * (wanted - lengths[place])

    behind = rows[rows[:, 1] > 0]
    added = behind[:, 2] - without_context(behind[:, 0])
    factors, *_ = np.linalg.lstsq(_terms(behind[:, 0], behind[:, 1]), added, rcond=None)
    shortest = rows[:, 2].min()

    def cost(wanted: np.ndarray, contexts: np.ndarray) -> np.ndarray:
        wanted, contexts = np.asarray(wanted, float), np.asarray(contexts, float)
        extra = np.where(contexts > 0, _terms(wanted, contexts) @ factors, 0.0)
        # A fit may dip below all that was measured; nothing is faster than the fastest.
        return np.maximum(without_context(wanted) + extra, 0.5 * shortest)

    return cost


def _terms(lengths: np.ndarray, contexts: np.ndarray) -> np.ndarray:
    return np.stack([np.ones_like(lengths), lengths, contexts, lengths * contexts], axis=-1)

"""Exceptions for wrong input and failed runs, as opposed to errors of the program."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from distgnn.terminal import printable


class UserError(Exception):
    """Bad input: the message names the file or argument, what is wrong, and what would be right, in one line.

    The command line prints it on rank 0 and every rank exits with code 2. Characters that do not print are
    escaped, so that text quoted from a file stays in the line.
    """

    def __init__(self, message: object = "") -> None:
        super().__init__(printable(message))


class ArgumentError(UserError):
    """An argument whose value can't be taken; the message is ``argument=value: problem``.

    The command line says ``--argument value: problem`` instead. The problem says what would be right, and
    speaks of arguments, never of flags.
    """

    def __init__(self, argument: str, value: object, problem: str) -> None:
        super().__init__(f"{argument}={value}: {problem}")
        self.argument, self.value, self.problem = argument, value, problem

    def __reduce__(self) -> tuple[type[ArgumentError], tuple[str, str, str]]:
        return type(self), (self.argument, str(self.value), self.problem)


class WrongTypeError(ArgumentError, TypeError):
    """An argument of another type than it must have, such as one of two that were swapped."""


def check_type(argument: str, value: object, kinds: type | tuple[type, ...], expected: str) -> None:
    """Raise WrongTypeError, which names the argument, unless the value is of one of these types."""
    if not isinstance(value, kinds):
        raise WrongTypeError(argument, type(value).__name__, f"expected {expected}")


#: What PyG, DGL, Keras and scikit-learn call our arguments, by our name.
ELSEWHERE = {
    "activation": "act nonlinearity activation_function", "algorithm": "strategy",
    "attention_dropout": "attn_drop attn_dropout", "backend": "device", "batch_size": "batch batchsize",
    "bias": "use_bias", "checkpoint": "checkpoint_path save_path model_path",
    "clip": "clipnorm max_grad_norm grad_clip", "dropout": "dropout_rate drop_rate feat_drop",
    "dtype": "precision", "epochs": "num_epochs n_epochs max_epochs max_iter nb_epoch",
    "eval_every": "eval_steps validation_freq", "fanout": "fanouts num_neighbors num_samples",
    "graph": "edge_index adj adj_t adjacency edges", "heads": "num_heads n_heads",
    "hidden": "hidden_channels hidden_dim hidden_dims hidden_size hidden_units hidden_feats num_hidden "
    "n_hidden hidden_layer_sizes units", "ids": "node_ids", "keep_best": "save_best_only",
    "layer_norm": "norm batch_norm use_layer_norm", "layers": "num_layers n_layers num_conv_layers",
    "loss": "criterion loss_fn", "lr": "learning_rate learn_rate alpha eta", "metric": "metrics",
    "model": "conv gnn arch architecture model_name", "nodes": "num_nodes n_nodes", "optimizer": "optim",
    "patience": "early_stopping early_stopping_patience", "residual": "skip skip_connection use_residual",
    "sampler": "loader neighbor_sampler", "schedule": "scheduler lr_scheduler lr_schedule",
    "seed": "random_state random_seed", "self_loops": "add_self_loops",
    "split": "masks train_mask validation_split", "standardize_features": "standardize scale_features",
    "warmup": "warmup_epochs warmup_steps", "weight_decay": "wd l2 l2_reg weight_reg",
    "weights": "edge_weight edge_weights edge_attr", "X": "x features feat node_feat node_features",
    "y": "labels label targets target",
}  # fmt: skip
_OURS = {theirs: ours for ours, words in ELSEWHERE.items() for theirs in words.split()}
#: How much of two names must be equal, of 1, for one to be near the other (tset and test have 0.75); one with
#: the same letters is near, too.
NEAR = 0.75


def did_you_mean(name: object, known: Iterable[object], shown: str = "{}") -> str:
    """Return ``; did you mean NAME?`` of what others call so, or of the nearest name; nothing without."""
    names = {str(word).lower(): str(word) for word in known}
    ours = _OURS.get(_bare(name), "").lower()
    near = [word for word in sorted(names) if ours and _bare(word) == ours]
    near = near or difflib.get_close_matches(str(name).lower(), sorted(names), n=1, cutoff=NEAR)
    near = near or [word for word in sorted(names) if sorted(word) == sorted(str(name).lower())]
    return f"; did you mean {shown.format(names[near[0]])}?" if near else ""


def _bare(name: object) -> str:
    """Return a name as Python would write it."""
    return str(name).lower().lstrip("-").replace("-", "_")


def offered(name: object, known: Iterable[object]) -> str:
    """Return ``expected one of A, B; did you mean A?``, for an error of an unknown name."""
    names = [*map(str, known)]
    return f"expected one of {', '.join(names)}{did_you_mean(name, names)}"


class TrainingError(Exception):
    """A wrong result of training; raised on every rank.

    The command line prints one line on rank 0, and every rank exits with code 1.

    Attributes:
        epoch: from 1, or None if unknown.
    """

    def __init__(self, message: str, epoch: int | None = None) -> None:
        super().__init__(message)
        self.epoch = epoch

    def in_epoch(self, epoch: int) -> TrainingError:
        """Return the same error with the epoch that it came in, where it says that."""
        return self


class WireOverflowError(TrainingError):
    """A number too large for the 16 bits in which features and gradients travel; raised on every rank.

    Attributes:
        problem: the number, where it was, and the remedy.
    """

    def __init__(self, problem: str, epoch: int | None = None) -> None:
        super().__init__(problem if epoch is None else f"epoch {epoch}: {problem}", epoch)
        self.problem = problem

    def in_epoch(self, epoch: int) -> WireOverflowError:
        return WireOverflowError(self.problem, epoch)

    def __reduce__(self) -> tuple[type[WireOverflowError], tuple[str, int | None]]:
        return type(self), (self.problem, self.epoch)


class PeerError(RuntimeError):
    """Another rank failed in an operation that this rank takes part in, so that it can't be completed."""


class DisagreementError(ArgumentError):
    """Different settings on different ranks; raised on all of them, with the same message.

    The message is ``ranks disagree: lr is 0.01 on ranks 0, 2-3 and 0.1 on rank 1 (host b)``; ``argument`` is
    the first of the settings that it names, ``value`` is rank 0's.
    """

    def __init__(self, argument: str, value: object, problem: str) -> None:
        super().__init__(argument, value, problem)
        self.args = (f"ranks disagree: {problem}",)

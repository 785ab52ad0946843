"""One training step of a small transformer in plain JAX: causal attention, an MLP, cross-entropy, and AdamW by hand.

    hloscope capture -o step.ledger -- python examples/train_step.py

The whole step is one jitted function, so that it is one module for XLA. It runs three steps on random tokens and
prints the loss.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

VOCABULARY, WIDTH, HEADS, LAYERS = 256, 64, 4, 2
BATCH, LENGTH = 8, 32

Parameters = dict[str, Any]


def initial_parameters(random: np.random.Generator) -> Parameters:
    """In numpy, so that the training step is the only module that XLA compiles."""

    def matrix(rows: int, columns: int) -> np.ndarray:
        return random.normal(0.0, rows**-0.5, (rows, columns)).astype(np.float32)

    def layer() -> Parameters:
        return {
            "norm_attention": np.ones(WIDTH, np.float32),
            "qkv": matrix(WIDTH, 3 * WIDTH),
            "out": matrix(WIDTH, WIDTH),
            "norm_mlp": np.ones(WIDTH, np.float32),
            "up": matrix(WIDTH, 4 * WIDTH),
            "down": matrix(4 * WIDTH, WIDTH),
        }

    return {"embed": matrix(VOCABULARY, WIDTH), "layers": [layer() for _ in range(LAYERS)]}


def rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * scale


def attention(x: jax.Array, layer: Parameters) -> jax.Array:
    batch, length, width = x.shape
    q, k, v = jnp.split((x @ layer["qkv"]).reshape(batch, length, HEADS, 3 * width // HEADS), 3, axis=-1)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * (width // HEADS) ** -0.5
    causal = jnp.tril(jnp.ones((length, length), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9), axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(batch, length, width) @ layer["out"]


def mlp(x: jax.Array, layer: Parameters) -> jax.Array:
    return jax.nn.gelu(x @ layer["up"]) @ layer["down"]


def loss(parameters: Parameters, tokens: jax.Array) -> jax.Array:
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    x = parameters["embed"][inputs]
    for layer in parameters["layers"]:
        x = x + attention(rms_norm(x, layer["norm_attention"]), layer)
        x = x + mlp(rms_norm(x, layer["norm_mlp"]), layer)
    log_probabilities = jax.nn.log_softmax(x @ parameters["embed"].T)
    return -jnp.mean(jnp.take_along_axis(log_probabilities, targets[..., None], axis=-1))


def adamw(gradient: jax.Array, parameter: jax.Array, mean: jax.Array, square: jax.Array, step: jax.Array):
    mean = 0.9 * mean + 0.1 * gradient
    square = 0.95 * square + 0.05 * gradient * gradient
    update = (mean / (1 - 0.9**step)) / (jnp.sqrt(square / (1 - 0.95**step)) + 1e-8)
    return parameter - 3e-3 * (update + 0.01 * parameter), mean, square


@partial(jax.jit, donate_argnums=(0, 1, 2))
def train_step(parameters: Parameters, means: Parameters, squares: Parameters, step: jax.Array, tokens: jax.Array):
    value, gradients = jax.value_and_grad(loss)(parameters, tokens)
    updated = jax.tree.map(partial(adamw, step=step), gradients, parameters, means, squares)
    parameters, means, squares = jax.tree.transpose(jax.tree.structure(gradients), None, updated)
    return parameters, means, squares, value


def main() -> None:
    random = np.random.default_rng(0)
    parameters = initial_parameters(random)
    means = jax.tree.map(np.zeros_like, parameters)
    squares = jax.tree.map(np.zeros_like, parameters)
    tokens = random.integers(0, VOCABULARY, (BATCH, LENGTH + 1), dtype=np.int32)
    for step in range(1, 4):
        parameters, means, squares, value = train_step(parameters, means, squares, np.float32(step), tokens)
        print(f"step {step}: loss {value:.4f}")


if __name__ == "__main__":
    main()

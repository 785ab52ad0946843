"""Programs for ``bench_optimizer.py``: small jax functions that reach many parts of the optimizer.

Each public function is one program; its parameters' defaults give the shapes.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

LAYERS = 2


def _f(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


_IMAGE, _KERNEL = _f(4, 16, 16, 3), _f(3, 3, 3, 8)
_MATRIX, _VECTOR, _CUBE = _f(16, 16), _f(64), _f(4, 8, 16)
_INDEX = np.zeros((6,), np.int32)


def conv_net(x=_IMAGE, k=_KERNEL, w=_f(8, 10)):
    """A convolution, pooling and a dense layer, with gradients."""

    def loss(k, w):
        y = lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        y = lax.reduce_window(jax.nn.relu(y), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return jnp.mean(jax.nn.log_softmax(y.mean((1, 2)) @ w))

    return jax.value_and_grad(loss, (0, 1))(k, w)


def depthwise_conv(x=_f(2, 12, 12, 8), k=_f(3, 3, 1, 8)):
    """A convolution in feature groups."""
    return lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"),
                                    feature_group_count=8)


def batch_norm(x=_f(8, 6, 6, 4), scale=_f(4), offset=_f(4)):
    """Batch normalization as frameworks write it, with gradients."""

    def run(x, scale, offset):
        mean = x.mean((0, 1, 2))
        variance = ((x - mean) ** 2).mean((0, 1, 2))
        return jnp.sin((x - mean) / jnp.sqrt(variance + 1e-5) * scale + offset).sum()

    return jax.grad(run, (0, 1, 2))(x, scale, offset)


def attention(q=_f(2, 8, 4, 16), k=_f(2, 8, 4, 16), v=_f(2, 8, 4, 16)):
    """Causal attention."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 4.0
    mask = jnp.tril(jnp.ones((8, 8), bool))
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(jnp.where(mask, scores, -1e9)), v)


def cumulative(x=_f(8, 100)):
    """Cumulative sums, products and maxima."""
    return jnp.cumsum(x, 1), jnp.cumprod(x, 0), lax.cummax(x, 1)


def sorting(x=_f(4, 64), y=_f(4, 64)):
    """Sorts, an argsort, a median and a top-k."""
    values, places = lax.top_k(x, 5)
    return jnp.sort(x), jnp.argsort(y), jnp.median(x), values, places


def indexing(x=_f(10, 6), i=_INDEX, u=_f(6, 6)):
    """Gathers and scatters of several forms."""
    return x[i], x[:, i], x.at[i].add(u), x.at[i, i].set(1.0), jnp.take_along_axis(x, i[:, None], 0)


def embedding_grad(table=_f(50, 8), i=_INDEX):
    """The gradient of a lookup."""
    return jax.grad(lambda t: (t[i] ** 2).sum())(table)


def branches(p=np.int32(0), x=_VECTOR):
    """Conditionals: a cond of cheap branches, a switch of loops."""
    a = lax.cond(p > 0, lambda v: v + 1, lambda v: v * 2, x)
    b = lax.switch(p, [jnp.sin, lambda v: lax.fori_loop(0, 5, lambda i, w: w * 1.5, v), jnp.cos], x)
    return a, b


def loops(x=_VECTOR, w=_MATRIX):
    """Counted loops, a while with a data-dependent end, loop invariants, a loop of one trip."""
    a = lax.fori_loop(0, 10, lambda i, v: jnp.sin(v) + i * jnp.cos(x), x)
    b = lax.while_loop(lambda s: s[0].sum() < 100.0, lambda s: (s[0] + jnp.abs(w @ w), s[1] + 1), (w, 0))
    c = lax.fori_loop(0, 1, lambda i, v: v * 3, x)
    return a, b, c


def scanned(xs=_f(12, 8), w=_f(8, 8), h=_f(8)):
    """A recurrent scan with gradients."""

    def loss(w, h):
        def step(h, x):
            h = jnp.tanh(h @ w + x)
            return h, h * 2

        h, ys = lax.scan(step, h, xs)
        return (h.sum() + ys.sum()) * 0.5

    return jax.value_and_grad(loss, (0, 1))(w, h)


def random_numbers(seed=np.uint32(0)):
    """Random numbers of several distributions."""
    key = jax.random.key(seed)
    a, b, c, d = jax.random.split(key, 4)
    return (jax.random.normal(a, (16,)), jax.random.uniform(b, (4, 4)), jax.random.bernoulli(c, 0.3, (8,)),
            jax.random.randint(d, (8,), 0, 10))


def half_precision(x=_f(8, 16, dtype=np.float16), w=_f(16, 16, dtype=np.float16)):
    """A layer in f16 with a softmax in f32."""
    y = jax.nn.gelu(x @ w)
    return jax.nn.softmax(y.astype(jnp.float32)).astype(jnp.float16)


def bfloat_layer(x=jnp.zeros((8, 16), jnp.bfloat16), w=jnp.zeros((16, 16), jnp.bfloat16)):
    """A layer in bf16 with gradients."""
    return jax.grad(lambda w: jnp.sum(jax.nn.silu(x @ w).astype(jnp.float32)))(w)


def linear_algebra(a=_MATRIX, b=_f(16, 4)):
    """Cholesky, a triangular solve and a linear solve."""
    spd = a @ a.T + 16 * jnp.eye(16)
    return jnp.linalg.cholesky(spd), lax.linalg.triangular_solve(spd, b, left_side=True), jnp.linalg.solve(spd, b)


def factorizations(a=_f(8, 6)):
    """QR and singular values."""
    q, r = jnp.linalg.qr(a)
    return q, r, jnp.linalg.svd(a, compute_uv=False)


def spectrum(x=_f(4, 32)):
    """A filter in the frequency domain."""
    f = jnp.fft.rfft(x)
    return jnp.fft.irfft(f * jnp.conj(f) / (1 + jnp.abs(f)))


def integer_arithmetic(x=np.zeros((32,), np.int32), u=np.zeros((32,), np.uint32)):
    """Divisions, remainders, shifts, bit counts, clamps."""
    return (x // 8, x % 8, x % 7, u // 16, u % 16, (u << 3) ^ (u >> 5), lax.population_count(u), lax.clz(u),
            jnp.clip(x, -3, 5), jnp.where(x > 3, x - 3, x + 3))


def statistics(x=_f(16, 32)):
    """Means, variances, norms, arg-extremes, a histogram, a softplus."""
    return (x.mean(), x.var(0), jnp.linalg.norm(x, axis=1), x.argmax(1), x.argmin(0), jax.nn.softplus(x),
            jax.scipy.special.logsumexp(x, 1), jnp.histogram(x, 8)[0])


def elementary(x=_VECTOR):
    """Powers, roots, logarithms and exponentials in forms that simplify."""
    return (x**2, x**3, x**0.5, x**-1.0, jnp.sqrt(x) * jnp.sqrt(x), jnp.exp(x) * jnp.exp(2 * x), x / 3.0,
            x / jnp.exp(x),
            jnp.log(jnp.sqrt(jnp.abs(x))), jax.nn.sigmoid(x), jax.nn.gelu(x, approximate=False), jnp.hypot(x, x),
            jnp.log1p(x), jnp.expm1(x), -(-x), x - x.sum(), jnp.sinc(x), jnp.tanh(x))


def shapes(x=_CUBE):
    """Reshapes, transposes, pads, concatenations, reverses, rolls, tiles."""
    y = x.transpose(2, 0, 1).reshape(16, 32)
    return (y.T.reshape(4, 8, 16), jnp.pad(x, ((0, 0), (1, 2), (0, 0))), jnp.concatenate([x, x], 1)[:, 4:12],
            x[::-1, :, ::2], jnp.roll(x, 3, 1), jnp.tile(x, (1, 2, 1)), jnp.repeat(x, 2, 2), x[:, None] * x[None, :],
            jnp.stack([x, x + 1]), jnp.split(x, 2, 2))


def complex_numbers(x=_f(8, 8), y=_f(8, 8)):
    """Complex arithmetic and a contraction."""
    z = lax.complex(x, y)
    return jnp.abs(z @ jnp.conj(z.T)), jnp.angle(z), jnp.real(jnp.exp(z)), z / (1 + z)


def rematerialized(x=_f(8, 16), w=_f(16, 16)):
    """A checkpointed layer, whose barriers keep what is computed twice apart."""

    @jax.checkpoint
    def layer(x, w):
        return jnp.tanh(jnp.sin(x @ w) @ w)

    return jax.grad(lambda w: layer(layer(x, w), w).sum())(w)


def vmapped(a=_f(6, 8, 8), b=_f(6, 8), i=np.zeros((6,), np.int32)):
    """Batched products, batched slices and updates."""
    return (jax.vmap(jnp.dot)(a, b), jax.vmap(lambda m, j: lax.dynamic_slice_in_dim(m, j, 2))(a, i),
            jax.vmap(lambda m, v, j: lax.dynamic_update_slice_in_dim(m, v[None], j, 0))(a, b, i), a @ a)


def mixture(x=_f(16, 8), gate=_f(8, 4), w=_f(4, 8, 8)):
    """A mixture of experts with one-hot routing, and gradients."""

    def loss(gate, w):
        scores = jax.nn.softmax(x @ gate)
        chosen = jax.nn.one_hot(scores.argmax(1), 4)
        return jnp.einsum("te,td,edf->tf", chosen * scores, x, w).sum()

    return jax.grad(loss, (0, 1))(gate, w)


def optimizer_step(w=_f(32, 8), g=_f(32, 8), m=_f(32, 8), v=_f(32, 8), t=np.int32(1)):
    """Adam with decay and clipping."""
    g = g * jnp.minimum(1.0, 1.0 / (jnp.sqrt((g**2).sum()) + 1e-6))
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
    t = t + 1
    step = m / (1 - 0.9**t) / (jnp.sqrt(v / (1 - 0.999**t)) + 1e-8)
    return w - 1e-3 * (step + 0.01 * w), m, v, t


def layered_transformer(x=_f(2, 16, 32), ws=_f(LAYERS, 4, 32, 32)):
    """Layers unrolled, forward and backward."""

    def norm(x):
        return (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)

    def loss(ws, x):
        for layer in range(LAYERS):
            q, k, v, o = (ws[layer, j] for j in range(4))
            y = norm(x)
            scores = jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", y @ q, y @ k) / 5.65)
            x = x + jnp.einsum("bqk,bkd->bqd", scores, y @ v)
            x = x + jax.nn.gelu(norm(x) @ o)
        return (x**2).mean()

    return jax.value_and_grad(loss)(ws, x)

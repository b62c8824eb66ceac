"""Residual streams in NumPy, float64: each rule's equations for a whole network.

F is a list of functions, `gains` those of the norms before them, `w` a dictionary of weights for
each sub-layer, `last` one for the end. Each function returns the stream before the final norm.
"""

# ruff: noqa: N803, N806  # the papers' letters

import itertools
import math

import numpy as np


def rms(x, gain=1.0, epsilon=1e-6):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * gain


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def pre(x, F, gains, w, last):
    for f, gain in zip(F, gains, strict=True):
        x = x + f(rms(x, gain))
    return x


def scaled(x, F, gains, w, last):
    for f, gain in zip(F, gains, strict=True):
        x = x + f(rms(x, gain)) / len(F)
    return x


def completep(x, F, gains, w, last, base_layers=2):
    for f, gain in zip(F, gains, strict=True):
        x = x + f(rms(x, gain)) * base_layers / (len(F) / 2)
    return x


def lns(x, F, gains, w, last):
    for k, (f, gain) in enumerate(zip(F, gains, strict=True)):
        x = x + f(rms(x, gain) / math.sqrt(k // 2 + 1))
    return x


def post(x, F, gains, w, last):
    for f, one in zip(F, w, strict=True):
        x = rms(x + f(x), one["gain"])
    return x


def deepnorm(x, F, gains, w, last):
    for f, one in zip(F, w, strict=True):
        x = rms(len(F) ** 0.25 * x + f(x), one["gain"])
    return x


def keel(x, F, gains, w, last):
    x = x + F[0](rms(x, gains[0]))
    x = rms(x + F[1](rms(x, gains[1])), w[1]["gain"])
    for f, gain, one in zip(F[2:], gains[2:], w[2:], strict=True):
        x = rms(len(F) * x + f(rms(x, gain)), one["gain"])
    return x


def rezero(x, F, gains, w, last):
    for f, one in zip(F, w, strict=True):
        x = x + one["a"] * f(x)
    return x


def layerscale(x, F, gains, w, last):
    for f, gain, one in zip(F, gains, w, strict=True):
        x = x + one["g"] * f(rms(x, gain))
    return x


def laurel(x, F, gains, w, last, weighted=True, rank=0, previous=1):
    states = [x]
    for f, gain, one in zip(F, gains, w, strict=True):
        alpha, beta = 2 * softmax(one["z"]) if weighted else (1, 1)
        carried = states[-1]
        if rank:
            weights = one["g"] if previous > 1 else [1.0]
            for j, state in zip(range(previous), states[::-1], strict=False):
                carried = carried + weights[j] * (state @ one["a"].T @ one["b"].T)
        states.append(alpha * f(rms(states[-1], gain)) + beta * carried)
    return states[-1]


def ddl(x, F, gains, w, last):
    for f, gain, one in zip(F, gains, w, strict=True):
        k = f(rms(x, gain))
        k = k / np.linalg.norm(k, axis=-1, keepdims=True)
        beta = 2 * sigmoid(rms(x, gain) @ one["w_b"] + one["b_b"])
        v = 4 * sigmoid(x @ one["w_v"] + one["b_v"])
        x = x + (beta * (v - (k * x).sum(-1)))[..., None] * k
    return x


def gru(x, F, gains, w, last):
    d = x.shape[-1]
    for f, gain, one in zip(F, gains, w, strict=True):
        y = np.maximum(f(rms(x, gain)), 0)
        r = sigmoid(y @ one["of_y"][:, :d] + x @ one["of_x"][:, :d])
        z = sigmoid(y @ one["of_y"][:, d:] + x @ one["of_x"][:, d:] - one["b"])
        x = (1 - z) * x + z * np.tanh(y @ one["w_g"] + (r * x) @ one["u_g"])
    return x


def dhc(x, F, gains, w, last, streams=2, dynamic=True, mixes=True):
    state = [x] * streams
    for f, gain, one in zip(F, gains, w, strict=True):
        B, A_m, A_r = [], [], []
        for i, h in enumerate(state):
            normed = rms(h, one["gain"]) if dynamic else None
            B.append(one["b"][i] + (one["s_b"] * np.tanh(normed @ one["w_b"]) if dynamic else 0))
            A_m.append(
                one["a_m"][i] + (one["s_a"] * np.tanh(normed @ one["w_m"]) if dynamic else 0)
            )
            moving = one["s_a"] * np.tanh(normed @ one["w_r"]) if dynamic and mixes else 0
            A_r.append(np.broadcast_to(one["a_r"][i] + moving, (*x.shape[:2], streams)))
        B, A_m = ([np.broadcast_to(v, x.shape[:2])[..., None] for v in u] for u in (B, A_m))
        y = f(rms(sum(a * h for a, h in zip(A_m, state, strict=True)), gain))
        state = [
            sum(A_r[i][..., j, None] * state[i] for i in range(streams)) + B[j] * y
            for j in range(streams)
        ]
    return sum(state) / streams


def shc(x, F, gains, w, last, streams=2, mixes=True):
    return dhc(x, F, gains, w, last, streams, dynamic=False, mixes=mixes)


def mhc(x, F, gains, w, last, streams=2, mixes=True, iterations=20, exact=False):
    X = np.stack([x] * streams, axis=2)
    for f, gain, one in zip(F, gains, w, strict=True):
        v = rms(X.reshape(*x.shape[:2], -1), epsilon=1e-20)
        H_pre = sigmoid(one["a_pre"] * (v @ one["f_pre"]) + one["b_pre"])
        H_post = 2 * sigmoid(one["a_post"] * (v @ one["f_post"]) + one["b_post"])
        y = f(rms((H_pre[..., None] * X).sum(2), gain))
        mixed = X
        if mixes:
            Z = one["a_res"] * (v @ one["f_res"])
            if exact:
                shares = softmax(Z + one["b_res"])
                orders = itertools.permutations(range(streams))
                mixed = sum(shares[..., k, None, None] * X[:, :, o] for k, o in enumerate(orders))
            else:
                M = np.exp(Z.reshape(*x.shape[:2], streams, streams) + one["b_res"])
                for _ in range(iterations):
                    M = M / M.sum(-2, keepdims=True)
                    M = M / M.sum(-1, keepdims=True)
                mixed = M @ X
        X = mixed + H_post[..., None] * y[:, :, None]
    return X.mean(2)


def attnres(x, F, gains, w, last, block=1):
    def attend(sources, one):
        if len(sources) == 1:
            return sources[0]
        values = np.stack(sources, axis=2)
        shares = softmax((rms(values, one["gain"]) * one["w"]).sum(-1))
        return (shares[..., None] * values).sum(2)

    done, partial = [x], None
    for k, (f, gain, one) in enumerate(zip(F, gains, w, strict=True)):
        if k % block == 0 and partial is not None:
            done, partial = [*done, partial], None
        y = f(rms(attend(done if partial is None else [*done, partial], one), gain))
        partial = y if partial is None else partial + y
    return attend([*done, partial], last)


def denseformer(x, F, gains, w, last):
    X, Y = [x], x
    for k in range(0, len(F), 2):
        Y = Y + F[k](rms(Y, gains[k]))
        X.append(Y + F[k + 1](rms(Y, gains[k + 1])))
        Y = sum(a * one for a, one in zip(w[k + 1]["a"], X, strict=True))
    return Y


def mudd(x, F, gains, w, last):
    def means(X, w_1, w_2, a):
        z = rms(X[-1]) @ w_1
        hidden = z * (1 + np.vectorize(math.erf)(z / math.sqrt(2))) / 2
        A = (hidden @ w_2).reshape(*x.shape[:2], *a.shape) + a
        return [sum(A[..., c, j, None] * one for j, one in enumerate(X)) for c in range(len(a))]

    X = [x]
    for k in range(0, len(F), 2):
        one = w[k]
        of_q, of_k, of_v, Y = means(X, one["w_1"], one["w_2"], one["a"]) if k else [x] * 4
        sources = rms(of_k, one["key_gain"]), rms(of_v, one["value_gain"])
        Y = Y + F[k](rms(of_q, gains[k]), *sources)
        X.append(Y + F[k + 1](rms(Y, gains[k + 1])))
    (Y,) = means(X, *(w[-1][f"last_{name}"] for name in ("w_1", "w_2", "a")))
    return Y


def x0(x, F, gains, w, last, lambdas=True, skips=False):
    first, layers, pushed = x, len(F) // 2, []
    for m in range(layers):
        k = 2 * m
        if skips and m >= layers - layers // 2:
            x = x + w[k]["w"] * pushed.pop()
        if lambdas:
            x = w[k]["l"][0] * x + w[k]["l"][1] * first
        x = x + F[k](rms(x, gains[k]))
        x = x + F[k + 1](rms(x, gains[k + 1]))
        if skips and m < layers // 2:
            pushed.append(x)
    return x

"""The character-aware language model with gated word vectors."""

from collections.abc import Sequence
from typing import Any, Literal

import keras
import numpy as np

from zoo.applications.registry import builder, full_precision
from zoo.backend.layers import Dense
from zoo.checks import as_integers, check_choice, check_integers
from zoo.datasets.text import Vocabulary
from zoo.initializers import Uniform
from zoo.layers.carry_lstm import CarryLSTM
from zoo.layers.char_words import CharCNN, CharWordEmbedding
from zoo.layers.highway import HighwayDense
from zoo.types import PathLike

SIZES: dict[str, dict[str, Any]] = {  # Kim et al. (2016), Table 2; filters of width 1, 2 and so on
    "small": {"filters": (25, 50, 75, 100, 125, 150), "num_layers": 1, "units": 300},
    "large": {"filters": (50, 100, 150, 200, 200, 200, 200), "num_layers": 2, "units": 650},
}
PTB = (10_000, 51, 21)  # words, characters, slots of a word


@builder()
def char_lm(
    size: str = "large",
    variant: str = "coupled",
    vocabulary: Vocabulary | None = None,
    batch_size: int = 20,
    num_steps: int | None = 35,
    max_distinct: int | None | Literal["auto"] = "auto",
    filters: Sequence[int] | None = None,
    units: int | None = None,
    limit: float = 0.05,
    products: str = "",
    weights: PathLike | None = None,
) -> keras.Model:
    """LSTM-Char: characters, a CNN, highway layers, two LSTMs, the next word's logits.

    With the defaults `char_lm()` has 19,367,965 trainable parameters, as have `t_only`,
    `c_only` and `residual`; `full` has 21,790,165 and `plain` 15,734,665; `size="small"` has
    5,310,115. Keras has one bias vector in an LSTM where Torch, and so the paper, has two
    (5,200 more in the large model).

    Every weight is initialized from U(-limit, limit), with the seeds of `zoo.seed_everything`; the
    transform gate's bias from that minus 2, the carry gate's plus 2. Dropout (0.5) is only
    between the LSTMs and before the softmax. The LSTMs' state is carried from batch to batch. Word
    ids are `(batch_size, num_steps)`, logits `(batch_size, num_steps, words)`.

    Args:
        size: "small" or "large".
        variant: Form of the layers between CNN and LSTM, a row of `zoo.FORMS`: two layers in the
            large model, but one if plain and four if residual; half as many in the small model.
        vocabulary: Words and characters. `None` takes Penn Treebank's sizes, and words without
            characters.
        batch_size: Number of parallel streams of text.
        num_steps: Words of a stream in a batch. `None` accepts any number.
        max_distinct: Distinct words a batch is planned for; "auto" plans for 64% of its
            words (Penn Treebank's batches of 700 have 354 on average).
        filters: Number of filters of each width, 1, 2, 3 and so on, in characters.
        units: Size of an LSTM's state. `None` takes that of `size`, as for `filters`.
        limit: Largest initial weight.
        products: "bfloat16" multiplies in it in the softmax layer only; see
            `zoo.backend.layers.Dense`.
        weights: Path of a `.weights.h5` file, a name of `zoo.list_weights()`, or `None`.

    Raises:
        ValueError: if `size` or `variant` is unknown, a number is not positive, or `weights` does
            not fit this network.

    Example:
    >>> char_lm("small").count_params() > 5_310_115  # with the word table and the states
    True

    Reference: Kim et al. (2016), arXiv:1508.06615, Table 2; Greff et al. (2017),
    arXiv:1612.07771, section 5.2 and Table 1a.
    """
    check_choice(SIZES, size=size)
    filters = SIZES[size]["filters"] if filters is None else as_integers(1, filters=filters)
    units = SIZES[size]["units"] if units is None else units
    widths = range(1, len(filters) + 1)
    check_integers(1, batch_size=batch_size, units=units)
    check_integers(1, num_steps=num_steps, optional=True)
    num_words, num_characters, word_length = PTB
    if vocabulary is not None:
        num_words = len(vocabulary.words)
        num_characters = len(vocabulary.characters)
        word_length = max(vocabulary.word_length, len(widths))
    num_layers = SIZES[size]["num_layers"]
    # Table 1a: as many matrices in `residual` as in `coupled`
    num_layers = {"plain": 1, "residual": 2 * num_layers}.get(variant, num_layers)
    if max_distinct == "auto":
        words = batch_size * (num_steps or 1)
        max_distinct = min(words, num_words, 64 * -(-words // 100)) if num_steps else None

    initializer = Uniform(limit)
    characters = keras.Input((word_length,), dtype="int32", name="characters")
    x = CharCNN(num_characters, 15, widths, filters, initializer, name="cnn")(characters)
    options: dict[str, Any] = {"kernel_initializer": initializer, "bias_initializer": initializer}
    for index in range(1, num_layers + 1):
        x = HighwayDense(variant=variant, **options, name=f"highway{index}")(x)
    encoder = keras.Model(characters, x, name="word_encoder")
    embedding = CharWordEmbedding(
        encoder, num_words, word_length, max_distinct, name="word_embedding"
    )
    ids = keras.Input(batch_shape=(batch_size, num_steps), dtype="int32", name="words")
    x = embedding(ids)
    x = CarryLSTM(units, *[initializer] * 3, name="lstm1")(x)
    x = keras.layers.Dropout(0.5, name="dropout1")(x)
    x = CarryLSTM(units, *[initializer] * 3, name="lstm2")(x)
    x = keras.layers.Dropout(0.5, name="dropout2")(x)
    options |= {"products": products, "dtype": full_precision()}  # a sum over words follows
    logits = Dense(num_words, **options, name="logits")(x)
    if vocabulary is not None:
        spare = word_length - vocabulary.word_length  # the widest filter needs its slots
        embedding.set_table(np.pad(vocabulary.spell(vocabulary.words), ((0, 0), (0, spare))))
    return keras.Model(ids, logits, name=f"char_lm_{size}_{variant}")

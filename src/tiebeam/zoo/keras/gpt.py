"""A pre-norm GPT drawn as a Keras graph: one `ReversibleEmbedding`, read at both ends."""

import keras

from tiebeam.zoo.schemes import scheme


def gpt(
    name: str,
    *,
    vocab: int,
    width: int,
    layers: int = 2,
    heads: int = 4,
    soft_cap: float | None = None,
    dtype: str | None = None,
    seed: int = 0,
) -> keras.Model:
    """A language model under one of the usual ways to scale its table.

    Args:
        name: Of a scheme in `tiebeam.zoo.schemes`.
        vocab, width, layers, heads: Sizes; `heads` divides `width`.
        soft_cap: `c` of `c*tanh(z/c)` on the logits; needs a scheme whose readout factor is 1, for it comes last.
        dtype: A Keras dtype policy.
        seed: Of every draw.

    Returns:
        A model from token ids `(batch, tokens)`, integers, to logits `(batch, tokens, vocab)`.

    Source: Radford et al. 2019 (GPT-2), pre-norm, without positions.

    Example:
        >>> model = gpt("C", vocab=50, width=16)
        >>> [v.path for v in model.variables if v.shape == (50, 16)]
        ['token_embedding/embeddings']
    """
    rule = scheme(name)
    seeds = iter(range(seed, seed + 1000))

    def normal(std: float) -> keras.initializers.Initializer:
        return keras.initializers.RandomNormal(stddev=std, seed=next(seeds))

    table = keras.layers.ReversibleEmbedding(
        vocab,
        width,
        tie_weights=rule.tie,
        embeddings_initializer=normal(rule.table_std(width)),
        logit_soft_cap=soft_cap,
        name="token_embedding",
        dtype=dtype,
    )
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    x = keras.layers.Rescaling(rule.lookup_factor(width), dtype=dtype)(table(tokens))
    for _ in range(layers):
        h = keras.layers.RMSNormalization(dtype=dtype)(x)
        attention = keras.layers.MultiHeadAttention(
            heads, width // heads, kernel_initializer=normal(width**-0.5), dtype=dtype
        )
        x = keras.layers.Add(dtype=dtype)([x, attention(h, h, use_causal_mask=True)])
        h = keras.layers.RMSNormalization(dtype=dtype)(x)
        h = keras.layers.Dense(4 * width, "gelu", kernel_initializer=normal(width**-0.5), dtype=dtype)(h)
        h = keras.layers.Dense(width, kernel_initializer=normal((4 * width) ** -0.5), dtype=dtype)(h)
        x = keras.layers.Add(dtype=dtype)([x, h])
    logits = table(keras.layers.RMSNormalization(dtype=dtype)(x), reverse=True)
    model = keras.Model(tokens, keras.layers.Rescaling(rule.readout_factor(width), dtype=dtype)(logits), name="gpt")
    if rule.readout_std is not None:
        table.reverse_embeddings.assign(normal(rule.readout_std(width))((width, vocab), dtype=table.variable_dtype))
    return model

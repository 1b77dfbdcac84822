"""Models written as classes: heads by hand, shared layers, masks, loops, quirks of `call`."""

import math
from typing import Any

import keras
from keras import ops
from tests.keras.models.kit import VOCAB, WIDTH, Case, Truth, Written, case, embedding, ids, normal, reversible, written

ROOT = math.sqrt(WIDTH)


@case("written_by_hand")
def _by_hand() -> Case:
    return written(Written)


@case("written_scaled")
def _scaled() -> Case:
    class Scaled(Written):
        def look(self, tokens: Any) -> Any:
            return self.embed(tokens) * WIDTH**0.5

        def read(self, h: Any) -> Any:
            return super().read(h / ROOT)

    return written(Scaled, lookup_factor=ROOT, readout_factor=1 / ROOT)


@case("written_reversible_in_a_head_layer")
def _head_layer() -> Case:
    class Head(keras.layers.Layer):
        def __init__(self, table: Any) -> None:
            super().__init__(name="head")
            self.table = table

        def call(self, h: Any) -> Any:
            return self.table(h, reverse=True) * 0.5

    class Model(Written):
        def make_embed(self) -> Any:
            return reversible(name="tok")

        def make_body(self) -> None:
            super().make_body()
            self.head = Head(self.embed)

        def read(self, h: Any) -> Any:
            return self.head(h)

    return written(Model, names=("lm/tok/embeddings",), readout_factor=0.5)


@case("written_own_weight_wide")
def _own_weight() -> Case:
    class Own(Written):
        def build(self, shape: Any) -> None:
            self.table = self.add_weight(shape=(WIDTH, VOCAB), name="table", initializer=normal())
            self.mid.build((None, None, WIDTH))
            self.norm.build((None, None, WIDTH))

        def look(self, tokens: Any) -> Any:
            return ops.take(ops.transpose(self.table), tokens, axis=0) * 2.0

        def read(self, h: Any) -> Any:
            return ops.matmul(h, self.table)

    return written(Own, lambda m: m.table, names=("lm/table",), lookup_factor=2.0, vocab_axis=1)


@case("written_with_a_bias")
def _biased() -> Case:
    class Biased(Written):
        def __init__(self) -> None:
            super().__init__()
            self.bias = self.add_weight(shape=(VOCAB,), name="bias", initializer=normal())

        def read(self, h: Any) -> Any:
            return super().read(h) + self.bias

    return written(Biased, readout_bias=True)


@case("written_positions_and_segments")
def _positions() -> Case:
    class Positions(Written):
        def __init__(self) -> None:
            super().__init__()
            self.position = keras.layers.Embedding(16, WIDTH, name="position")

        def look(self, tokens: Any) -> Any:
            return (self.embed(tokens) + self.position(ops.arange(ops.shape(tokens)[1]))) * 3.0

    return written(Positions, lookup_factor=3.0)


@case("written_a_cap_by_hand")
def _capped() -> Case:
    class Capped(Written):
        def read(self, h: Any) -> Any:
            return 20.0 * ops.tanh(super().read(h) / 40.0)

    return written(Capped, soft_cap=20.0, readout_factor=0.5)


@case("written_factor_in_a_weight_that_is_not_trained")
def _factor_weight() -> Case:
    class Factor(Written):
        def __init__(self) -> None:
            super().__init__()
            self.factor = self.add_weight(
                shape=(), name="factor", initializer=keras.initializers.Constant(0.25), trainable=False
            )

        def read(self, h: Any) -> Any:
            return super().read(h) * self.factor

    return written(Factor, readout_factor=0.25)


@case("written_a_length_is_no_constant", staged=False)
def _length() -> Case:
    class Length(Written):
        def look(self, tokens: Any) -> Any:
            return self.embed(tokens) * ops.shape(tokens)[1] ** 0.5

    return written(Length, lookup_factor=None)


@case("written_masked_padding")
def _masked() -> Case:
    class Masked(Written):
        def make_embed(self) -> Any:
            return embedding(mask_zero=True)

        def make_body(self) -> None:
            self.attention = keras.layers.MultiHeadAttention(2, 4)
            self.first = keras.layers.LayerNormalization()

        def look(self, tokens: Any) -> Any:
            return self.embed(tokens) * 2.0

        def body(self, x: Any) -> Any:
            h = self.first(x)
            return self.norm(x + self.attention(h, h, use_causal_mask=True))

    return written(Masked, lookup_factor=2.0)


@case("written_one_hot")
def _one_hot() -> Case:
    class OneHot(Written):
        def look(self, tokens: Any) -> Any:
            return ops.matmul(ops.one_hot(tokens, VOCAB), self.table) * 0.5

        def make_embed(self) -> None:
            self.table = self.add_weight(shape=(VOCAB, WIDTH), name="table", initializer=normal())

        def read(self, h: Any) -> Any:
            return ops.matmul(h, ops.transpose(self.table))

    return written(OneHot, lambda m: m.table, names=("lm/table",), lookup_factor=0.5)


@case("written_in_two_halves")
def _chunks() -> Case:
    class Chunks(Written):
        """Logits for one half of the vocabulary after the other."""

        def read(self, h: Any) -> Any:
            table = self.embed.embeddings
            halves = [ops.matmul(h, ops.transpose(part)) for part in (table[:20], table[20:])]
            return ops.concatenate(halves, axis=-1) * 0.5

    return written(Chunks, readout_factor=0.5, counts=None)


@case("written_nested_in_a_class", staged=False)
def _nested() -> Case:
    class Inner(Written):
        pass

    class Outer(keras.Model):
        def __init__(self) -> None:
            super().__init__(name="outer")
            self.inner = Inner()

        def call(self, tokens: Any) -> Any:
            return self.inner(tokens) * 0.5

    model = Outer()
    model(ids())
    return Case(model, ids(), Truth(("outer/lm/embedding/embeddings",), readout_factor=0.5))


@case("written_dictionary_in_and_out", staged=False)
def _dictionary() -> Case:
    class Dictionary(Written):
        def call(self, inputs: Any) -> Any:
            return {"logits": super().call(inputs["tokens"]), "echo": inputs["tokens"]}

    model = Dictionary()
    model({"tokens": ids()})
    return Case(model, {"tokens": ids()}, Truth(("lm/embedding/embeddings",)))


@case("written_a_list_of_blocks")
def _blocks() -> Case:
    class Blocks(Written):
        def make_body(self) -> None:
            self.blocks = [keras.layers.Dense(WIDTH, activation="tanh") for _ in range(3)]

        def body(self, x: Any) -> Any:
            for block in self.blocks:
                x = x + block(x)
            return self.norm(x)

    return written(Blocks)


@case("written_training_branches")
def _training() -> Case:
    class Training(Written):
        def __init__(self) -> None:
            super().__init__()
            self.drop, self.batch = keras.layers.Dropout(0.5, seed=3), keras.layers.BatchNormalization()

        def body(self, x: Any) -> Any:
            return self.norm(self.batch(self.drop(x + self.mid(x))))

    return written(Training)

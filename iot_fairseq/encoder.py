"""The encoder stack, which predicts each sentence's order (IOT, section 3.2).

Letters: `B` sentences, `S` source positions, `C` width, `K` orders.
"""

import torch
from fairseq.models.transformer import TransformerEncoderBase
from torch import Tensor

from .orders import STOCK_DECODER_ORDER, order_names, order_numbers
from .predictor import OrderPredictor

EncoderOut = dict[str, list[Tensor]]

# What OrderedEncoder adds to fairseq's encoder output: lists of one tensor, batch first.
ORDER_KEYS = ("decoder_order", "decoder_order_logits", "sentence")


class OrderedEncoder(TransformerEncoderBase):
    """fairseq's encoder, followed by the prediction of each sentence's decoder order.

    With one order there is nothing to predict, no predictor, and the encoder is fairseq's.

    Args:
        cfg, dictionary, embed_tokens: as in fairseq.
        decoder_orders: the `K` orders.
        forced_order: an order that every sentence takes, or None.
    """

    def __init__(
        self, cfg, dictionary, embed_tokens, decoder_orders: tuple[str, ...], forced_order=None
    ) -> None:
        super().__init__(cfg, dictionary, embed_tokens)
        self.decoder_order_predictor: OrderPredictor | None = None
        self.is_stock = decoder_orders == (STOCK_DECODER_ORDER,)
        self.sentences_seen = 0
        self.forced_index = None if forced_order is None else decoder_orders.index(forced_order)
        self.lacks_predictor_weights = False
        if len(decoder_orders) > 1:
            self.decoder_order_predictor = OrderPredictor(
                len(decoder_orders), embed_tokens.embedding_dim
            )
            # its rows mean nothing without the orders that they were trained for
            self.register_buffer("decoder_orders", torch.tensor(order_numbers(decoder_orders)))

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
        token_embeddings: Tensor | None = None,
    ) -> EncoderOut:
        """fairseq's encoder output; ``sentence`` `(B,)`, a number that the hypotheses of a sentence
        will share; and with `K` > 1 ``decoder_order_logits`` `(B, K)` in float32 and
        ``decoder_order`` `(B,)`, the number of each sentence's order among the model's. With the
        single order `scf` fairseq's alone."""
        out = super().forward(src_tokens, src_lengths, return_all_hiddens, token_embeddings)
        if not self.is_stock:
            # never a number twice: outputs may be put together, and none is taken for another
            start, self.sentences_seen = self.sentences_seen, self.sentences_seen + len(src_tokens)
            out["sentence"] = [torch.arange(start, self.sentences_seen, device=src_tokens.device)]
        if self.decoder_order_predictor is None:
            return out
        if self.training:
            self.lacks_predictor_weights = False
        elif self.lacks_predictor_weights and self.forced_index is None:
            raise ValueError(
                "the checkpoint holds no order predictor (it is a stock Transformer, or was "
                "trained with one order): train it first, or set iot_force_decoder_order"
            )
        logits = self.decoder_order_predictor(out["encoder_out"][0], out["encoder_padding_mask"][0])
        chosen = logits.detach().argmax(dim=-1)
        if self.forced_index is not None:
            chosen = torch.full_like(chosen, self.forced_index)
        out["decoder_order_logits"] = [logits]
        out["decoder_order"] = [chosen]
        return out

    def reorder_encoder_out(self, encoder_out: EncoderOut, new_order: Tensor) -> EncoderOut:
        """fairseq's reordering; it rebuilds a fixed dictionary, so what we added is put back. Where
        each row gets what it has, as in the reordering of a beam, nothing is copied."""
        if "sentence" in encoder_out:
            sentence = encoder_out["sentence"][0]
            if torch.equal(sentence[new_order], sentence):
                return encoder_out
        reordered = super().reorder_encoder_out(encoder_out, new_order)
        for key in ORDER_KEYS:
            if key in encoder_out:
                reordered[key] = [value.index_select(0, new_order) for value in encoder_out[key]]
        return reordered

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str):
        """Lets a checkpoint without an order predictor warm-start this model. Until it is trained,
        choosing an order by it is refused (see `forward`).

        Raises:
            ValueError: the checkpoint was trained for other orders.
        """
        if self.decoder_order_predictor is not None:
            key = f"{name}.decoder_order_predictor.weight"
            self.lacks_predictor_weights = key not in state_dict
            if self.lacks_predictor_weights:
                state_dict[key] = self.decoder_order_predictor.weight.detach().clone()
            theirs = state_dict.setdefault(f"{name}.decoder_orders", self.decoder_orders.clone())
            there, here = (order_names(orders.tolist()) for orders in (theirs, self.decoder_orders))
            if there != here:
                raise ValueError(
                    f"--iot-decoder-orders must be {','.join(there)}, as in the checkpoint, "
                    f"but is {','.join(here)} instead"
                )
        return super().upgrade_state_dict_named(state_dict, name)

"""What the released IOT code does, built of our parts: the thing to beat.

It runs the whole model once per order, encoder and all, in training and at every step of decoding
(where the batch is divided by the number of orders), and picks afterwards.
"""

from __future__ import annotations

import torch
from benchmark_common import iot_fairseq  # noqa: F401  (puts the checkout on the path)
from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss
from fairseq.models import FairseqEncoder, FairseqEncoderDecoderModel, FairseqIncrementalDecoder
from torch import Tensor

from iot_fairseq import objective, predictor
from iot_fairseq.criterion import IotLabelSmoothedCrossEntropyCriterion
from iot_fairseq.model import IotTransformerModel


class ReleasedEncoder(FairseqEncoder):
    """The encoder, run once for each order."""

    def __init__(self, model: IotTransformerModel) -> None:
        super().__init__(model.encoder.dictionary)
        self.encoder = model.encoder
        self.num_orders = len(model.decoder_orders)

    def forward(self, src_tokens: Tensor, src_lengths: Tensor, **kwargs) -> list[dict]:
        """As many equal encoder outputs as there are orders."""
        return [self.encoder(src_tokens, src_lengths) for _ in range(self.num_orders)]

    def reorder_encoder_out(self, encoder_out: list[dict], new_order: Tensor) -> list[dict]:
        """Each of them reordered."""
        return [self.encoder.reorder_encoder_out(out, new_order) for out in encoder_out]


class ReleasedDecoder(FairseqIncrementalDecoder):
    """The decoder, run once for each order, with a cache for each; every sentence's logits are
    those under its own order."""

    def __init__(self, model: IotTransformerModel) -> None:
        super().__init__(model.decoder.dictionary)
        self.decoder = model.decoder

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: list[dict],
        incremental_state: dict,
        **kwargs,
    ) -> tuple[Tensor, dict]:
        """Logits of the next token, `(B, 1, V)`."""
        logits = [
            self.decoder(
                prev_output_tokens,
                encoder_out=out,
                incremental_state=incremental_state.setdefault(order, {}),
                order=order,
            )[0]
            for out, order in zip(encoder_out, self.decoder.decoder_orders, strict=True)
        ]
        chosen = encoder_out[0]["decoder_order"][0]
        rows = torch.arange(len(chosen), device=chosen.device)
        return torch.stack(logits)[chosen, rows], {"attn": [None]}

    def reorder_incremental_state_scripting(self, incremental_state: dict, new_order: Tensor):
        """Each order's cache reordered."""
        for order in self.decoder.decoder_orders:
            state = incremental_state[order]
            self.decoder.reorder_incremental_state_scripting(state, new_order)

    def max_positions(self) -> int:
        """The decoder's."""
        return self.decoder.max_positions()


class ReleasedModel(FairseqEncoderDecoderModel):
    """A model of several orders, decoding as the released code does."""

    def __init__(self, model: IotTransformerModel) -> None:
        super().__init__(ReleasedEncoder(model), ReleasedDecoder(model))


class ReleasedCriterion(IotLabelSmoothedCrossEntropyCriterion):
    """The same loss by the released code's way: K encoders, K decoders, K tables of
    log-probabilities, and weights that are the mean of K Gumbel draws."""

    def forward(self, model: IotTransformerModel, sample: dict, reduce: bool = True):
        """The loss, the sample size, and what fairseq logs."""
        source = {k: sample["net_input"][k] for k in ("src_tokens", "src_lengths")}
        losses, nlls, logits, weights = [], [], [], []
        for order in model.decoder_orders:
            encoder_out = model.encoder(**source)
            logits.append(model.encoder.dropout_module(encoder_out["decoder_order_logits"][0]))
            weights.append(self._weights(model, logits[-1]))
            out = model.decoder(
                sample["net_input"]["prev_output_tokens"], encoder_out=encoder_out, order=order
            )
            loss, nll = self._sentence_losses(model, out, sample["target"])
            losses.append(loss)
            nlls.append(nll)
        weight = torch.stack(weights).mean(dim=0)
        likelihood = (weight * torch.stack(losses, dim=-1)).sum()
        terms = {
            "exploration": objective.exploration(logits[0].log_softmax(dim=-1)),
            "exploitation": objective.exploitation(
                predictor.clamped_log_probs(logits[0], model.clamp)
            ),
        }
        ntokens = sample["ntokens"]
        loss = likelihood + sum(
            self.coefficients[name] * ntokens * term for name, term in terms.items()
        )
        log = {
            "loss": loss.detach(),
            "nll_loss": (weight * torch.stack(nlls, dim=-1)).sum().detach(),
            "ntokens": ntokens,
            "nsentences": len(sample["target"]),
            "sample_size": ntokens,
        }
        return loss, ntokens, log

    def _weights(self, model: IotTransformerModel, logits: Tensor) -> Tensor:
        clamped = predictor.clamped_log_probs(logits, model.clamp)
        noise = predictor.gumbel_noise((1, *logits.shape), like=logits)
        return predictor.gumbel_weights(clamped, noise, model.tau(model.num_updates))

    def _sentence_losses(self, model, out: tuple, target: Tensor) -> tuple[Tensor, Tensor]:
        """Sums over each sentence of the smoothed loss and of the NLL, by fairseq's function."""
        lprobs = model.get_normalized_probs(out, log_probs=True)
        losses = label_smoothed_nll_loss(
            lprobs.view(-1, lprobs.size(-1)),
            target.view(-1),
            self.eps,
            ignore_index=self.padding_idx,
            reduce=False,
        )
        loss, nll = (token.view_as(target).sum(dim=-1) for token in losses)
        return loss, nll

"""What a TRL trainer had in its hands at each step, copied without a trace.

Source: trl/trainer/rloo_trainer.py and grpo_trainer.py of TRL 1.16.0.
"""

from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from ..inputs import refuse


@dataclass(frozen=True)
class Generation:
    """What was sampled at once: N completions of at most T tokens.

    ids, mask: (N, T). rewards: (N, functions), of all processes. advantages: (N,),
    TRL's own. old_logps, ref_logps: (N, T), nats, or None where TRL computes none.
    """

    ids: torch.Tensor
    mask: torch.Tensor
    rewards: torch.Tensor
    advantages: torch.Tensor
    old_logps: torch.Tensor | None = None
    ref_logps: torch.Tensor | None = None


@dataclass(frozen=True)
class Step:
    """One call of the loss: B of the N completions, which TRL has shuffled.

    rows: (B,), which ones. logps, entropies: (B, T) of the policy as it is now,
    nats. loss: the tensor that TRL returned, detached. fresh: just generated.
    """

    generation: Generation
    rows: torch.Tensor
    logps: torch.Tensor
    entropies: torch.Tensor
    loss: torch.Tensor
    fresh: bool

    def of(self, x):
        """The rows of this step, of a tensor of the generation, or None."""
        return None if x is None else x[self.rows]


@contextmanager
def keep(trainer):
    """Within this block each training step is appended to the list it yields.

    Four methods of the instance are wrapped, not replaced. Nothing is computed
    twice and no random number is drawn, so the run is the same to the bit.
    """
    names = (
        "_get_per_token_logps_and_entropies", "_calculate_rewards",
        "_generate_and_score_completions", "_compute_loss",
    )  # fmt: skip
    score, reward, generate, loss_of = (getattr(trainer, name) for name in names)
    if trainer.beta and trainer.ref_model is None:
        refuse("trainer.ref_model", "None at beta > 0 (PEFT)", "a model of its own")
    steps, seen, current = [], {}, {}

    def scored(model, *args, **kwargs):
        out = score(model, *args, **kwargs)
        is_reference = trainer.ref_model is not None and model is trainer.ref_model
        seen["ref_logps" if is_reference else "logps"] = _copy(out[0])
        seen["entropies"] = _copy(out[1])
        return out

    def rewarded(*args, **kwargs):
        seen["rewards"] = _copy(out := reward(*args, **kwargs))
        return out

    def generated(*args, **kwargs):
        seen.clear()
        out = generate(*args, **kwargs)
        if not trainer.model.training:
            return out
        current["generation"] = Generation(
            _copy(out["completion_ids"]), _copy(out["completion_mask"]),
            seen["rewards"], _copy(out["advantages"]),
            seen.get("logps"), seen.get("ref_logps"),
        )  # fmt: skip
        current["fresh"] = True
        # shuffled and split with the rest, and read by nobody else
        return {**out, "rlnb_rows": torch.arange(len(out["advantages"]))}

    def lost(model, inputs, *args, **kwargs):
        out = loss_of(model, inputs, *args, **kwargs)
        if model.training:
            logps, entropies = seen["logps"], seen["entropies"]
            kept = inputs["rlnb_rows"], logps, entropies, _copy(out)
            steps.append(
                Step(current["generation"], *kept, current.pop("fresh", False))
            )
        return out

    try:
        for name, wrapped in zip(names, (scored, rewarded, generated, lost)):
            setattr(trainer, name, wrapped)
        yield steps
    finally:
        for name in names:
            vars(trainer).pop(name, None)


def _copy(x):
    return None if x is None else x.detach().clone()


def joined(steps):
    """The same step of all processes, in the order of their ranks, as one Step."""
    width = max(step.logps.shape[1] for step in steps)
    all_width = max(step.generation.mask.shape[1] for step in steps)

    def cat(tensors, width):
        if any(x is None for x in tensors):
            return None
        if tensors[0].ndim == 2:
            pad = torch.nn.functional.pad
            tensors = [pad(x, (0, width - x.shape[1])) for x in tensors]
        return torch.cat(tensors)

    g, starts = [step.generation for step in steps], [0]
    for x in g:
        starts.append(starts[-1] + len(x.mask))
    names = "ids", "mask", "advantages", "old_logps", "ref_logps"
    both = {name: cat([getattr(x, name) for x in g], all_width) for name in names}
    return Step(
        replace(g[0], **both),  # the rewards are those of all processes already
        torch.cat([step.rows + start for step, start in zip(steps, starts)]),
        cat([step.logps for step in steps], width),
        cat([step.entropies for step in steps], width),
        torch.stack([step.loss for step in steps]).mean(),
        steps[0].fresh,
    )

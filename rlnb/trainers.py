"""A real trainer beside the formulas: what TRL had in its hands, and its log.

`keep(trainer)` notes the tensors of each step of TRL's RLOOTrainer or GRPOTrainer
and changes nothing. `rloo_step` and `grpo_step` compute from them, with rlnb's own
formulas, the numbers that TRL logs, under TRL's names; they do not import TRL.
Source: trl/trainer/rloo_trainer.py and grpo_trainer.py of TRL 1.16.0.
"""

import argparse
import os
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from .advantages import group_standardized, leave_one_out
from .clipping import clip_is_active, clipped_surrogate
from .estimators import k3
from .inputs import refuse
from .kl import kl_divergence, log_ratio, shaped_reward
from .sequences import masked_mean, sequence_log_ratio, token_log_probs
from .training.task import addition

TRL = "1.16.0"
TOKENS, END, EOS = "0123456789+=", "<end>", 12
DIFFERENT = (  # first version that has it, what an older one does
    ("1.10.0", "use_bias_correction_kl is not on by default"),
    ("1.9.0", "kl is the mean over processes of their means"),
    ("1.7.0", "_get_per_token_logps_and_entropies returns two values, not three"),
    ("0.22.0", "RLOOTrainer has other methods, beta is kl_coef"),
)
SETTINGS = {  # what the formulas below take for granted
    "loss_type": "dapo", "scale_rewards": "group", "importance_sampling_level": "token",
    "multi_objective_aggregation": "sum_then_normalize", "epsilon_high": None,
    "delta": None, "off_policy_mask_threshold": None, "top_entropy_quantile": 1.0,
    "entropy_coef": 0.0, "use_adaptive_entropy": False, "use_vllm": False,
    "normalize_advantages": False, "reward_clip_range": None, "reward_weights": None,
    "mask_truncated_completions": False,
}  # fmt: skip


def requires_trl():
    """Raise an ImportError of one line unless TRL 1.16.0 is installed."""
    try:
        found = version("trl")
    except PackageNotFoundError:
        found = None
    if found == TRL:
        return
    seen = f"trl {found} is installed" if found else "trl is not installed"
    text = f"{seen}; lesson 08 needs {TRL}: pip install -r requirements-trl.txt"
    if found:
        number = _number(found)
        older = [what for since, what in DIFFERENT if number < _number(since)]
        later = "later names and defaults have not been compared"
        text += f". In {found}: {'; '.join(older) or later}"
    raise ImportError(text)


def quiet():
    """Nothing is looked up or downloaded, and no bars, tables or warnings shown."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.filterwarnings("ignore", module="transformers|trl|accelerate|torch")
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def _number(text):
    return tuple(int(part) for part in text.split(".")[:3] if part.isdigit())


# A model that needs no download, and lesson 07's task for it: "07+41=" -> "48", end.


def tiny_model(seed=0, width=64, layers=2):
    """A Llama from a config and its tokenizer of 13 tokens: 0 to 9, +, = and the end."""
    requires_trl()
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({x: i for i, x in enumerate([*TOKENS, END])}))
    words.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    words.decoder = decoders.Fuse()
    ends = {"eos_token": END, "pad_token": END, "padding_side": "left"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, **ends)
    config = LlamaConfig(
        vocab_size=len(TOKENS) + 1, hidden_size=width, intermediate_size=2 * width,
        num_hidden_layers=layers, num_attention_heads=4, max_position_embeddings=16,
        bos_token_id=None, eos_token_id=EOS, pad_token_id=EOS,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config), tokenizer


def addition_dataset(prompts, answers):
    """Lesson 07's prompts (N, 2) and answers (N,) as TRL's rows of text."""
    from datasets import Dataset

    texts = [f"{a:02d}+{b:02d}=" for a, b in prompts.tolist()]
    return Dataset.from_dict({"prompt": texts, "answer": answers.tolist()})


def strict(completion_ids, answer, **_):
    """The reward function: 1 for both digits right and then the end, else 0."""
    right = ([*divmod(x, 10), EOS] for x in answer)
    return [float(ids == wanted) for ids, wanted in zip(completion_ids, right)]


def spelled(prompts, answers):
    """Token ids (N, 9) of prompt, answer and end, from (N, 2) and (N,)."""
    a, b = prompts.T
    plus, equals, end = (torch.full_like(a, i) for i in (10, 11, EOS))
    digits = (a // 10, a % 10, plus, b // 10, b % 10, equals)
    return torch.stack([*digits, answers // 10, answers % 10, end], 1)


def supervise(model, prompts, answers, steps, seed=0, batch=256, rate=3e-3):
    """Train on right answers with AdamW, in place, before any reward is given."""
    ids = spelled(prompts, answers)
    optimizer = torch.optim.AdamW(model.parameters(), rate)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        rows = ids[torch.randint(len(ids), (batch,), generator=generator)]
        loss = -token_log_probs(model(rows).logits, rows)[:, 5:].sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def start(folder, warmup=100):
    """Save a supervised tiny model and its tokenizer in folder; 4 s by default."""
    model, tokenizer = tiny_model()
    task = addition()
    supervise(model, task.prompts[task.train], task.answers[task.train], warmup)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def load(folder):
    """The model saved in folder."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder)


def tiny_trainer(kind, folder, prompts, answers, *, model=None, **changes):
    """TRL's trainer, "rloo" or "grpo", for the model and tokenizer saved in folder.

    All prompts (P, 2) are asked 8 times a step. model: in the place of the saved
    one. changes: TRL's own settings.
    """
    requires_trl()
    import trl
    from accelerate import PartialState
    from transformers import AutoTokenizer, PrinterCallback

    processes = PartialState(cpu=True).num_processes
    config, trainer = {
        "rloo": (trl.RLOOConfig, trl.RLOOTrainer),
        "grpo": (trl.GRPOConfig, trl.GRPOTrainer),
    }[kind]
    defaults = {
        "output_dir": f"{folder}/out", "max_steps": 8, "learning_rate": 2e-4,
        "per_device_train_batch_size": 8 * len(prompts) // processes,
        "num_generations": 8, "max_completion_length": 3, "beta": 0.1,
        "lr_scheduler_type": "constant", "max_grad_norm": 0.0, "use_cpu": True,
        "bf16": False, "gradient_checkpointing": False,  # both True in TRL
        "logging_steps": 1, "save_strategy": "no", "report_to": "none",
        "disable_tqdm": True, "seed": 0,
    }  # fmt: skip
    made = trainer(
        load(folder) if model is None else model,
        strict,
        config(**defaults | changes),
        addition_dataset(prompts, answers),
        processing_class=AutoTokenizer.from_pretrained(folder),
    )
    made.remove_callback(PrinterCallback)  # the log stays in state.log_history
    return made


@torch.no_grad()
def exact(model, reference, prompts, answers):
    """Exact mean reward, and KL(p||q) of the trajectories of three tokens, nats.

    Nothing is sampled: every pair of tokens before the third is put in.
    """
    ids = spelled(prompts, answers)
    right = token_log_probs(model(ids).logits, ids)[:, 5:].sum(1).exp()
    n, pairs = len(ids), torch.cartesian_prod(*[torch.arange(EOS)] * 2)
    ids = ids[:, None, :6].expand(n, len(pairs), 6)
    ids = torch.cat([ids, pairs.expand(n, -1, -1)], 2).flatten(0, 1)
    p, q = (m(ids).logits[:, 5:].softmax(-1) for m in (model, reference))
    p, kl = p.view(n, EOS, EOS, 3, -1), kl_divergence(p, q).view(n, EOS, EOS, 3)
    second = kl[:, :, 0, 1] + (p[:, :, 0, 1, :EOS] * kl[..., 2]).sum(2)
    kl = kl[:, 0, 0, 0] + (p[:, 0, 0, 0, :EOS] * second).sum(1)
    return {"reward": right.mean().item(), "kl": kl.mean().item()}


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


def differences(trainer, steps):
    """The largest |logged - recomputed| of each number, with one step a log line.

    Advantages are compared one by one, as "advantages".
    """
    recompute = grpo_step if hasattr(trainer.args, "loss_type") else rloo_step
    lines = [line for line in trainer.state.log_history if "loss" in line]
    worst = {}
    for line, step in zip(lines, steps, strict=True):
        got = recompute(step, **settings(trainer.args))
        gaps = {name: got[name] - line[name] for name in got.keys() & line.keys()}
        gaps["advantages"] = got["advantages"] - step.generation.advantages
        for name, gap in gaps.items():
            worst[name] = max(worst.get(name, 0.0), gap.abs().max().item())
    return dict(sorted(worst.items()))


def settings(args):
    """beta, eps and samples (GRPO: weighted too) from TRL's own settings.

    Refused: a setting that the formulas here do not know.
    """
    for name, known in SETTINGS.items():
        if getattr(args, name, known) != known:
            refuse(name, repr(getattr(args, name)), f"{known!r} here")
    found = {"beta": args.beta, "eps": args.epsilon, "samples": args.num_generations}
    if hasattr(args, "use_bias_correction_kl"):
        found["weighted"] = args.use_bias_correction_kl
    return found


def rloo_step(step, beta, eps, samples):
    """RLOO: k1 summed over tokens, in the reward; one ratio for each sequence.

    Returns TRL's names, and tensors: shaped_reward, advantages (N,), ratio (B,).
    """
    g, mask = step.generation, step.of(step.generation.mask)
    reward = shaped = g.rewards.nansum(1)
    if beta:
        away = sequence_log_ratio(g.old_logps, g.ref_logps, g.mask)
        shaped = shaped_reward(reward, away, beta)
    advantages = leave_one_out(shaped.view(-1, samples)).flatten()
    ratio = sequence_log_ratio(step.logps, step.of(g.old_logps), mask).exp()
    advantage = step.of(advantages)
    logged = {"loss": -clipped_surrogate(ratio, advantage, eps).mean()}
    if beta and step.fresh:  # its l is that of the old policy
        logged["kl"] = away.sum() / g.mask.sum()
    logged |= _clips(step, ratio, eps, torch.ones_like(ratio)[:, None])
    logged |= _common(step, shaped, samples)
    return logged | {"shaped_reward": shaped, "advantages": advantages, "ratio": ratio}


def grpo_step(step, beta, eps, samples, weighted=True):
    """GRPO: k3 of each token in the loss; one ratio for each token.

    weighted: multiply k3 by the ratio, through which the gradient flows too.
    Returns TRL's names, and tensors: advantages (N,), ratio (B, T).
    """
    g, mask = step.generation, step.of(step.generation.mask)
    reward = g.rewards.nansum(1)
    advantages = group_standardized(reward.view(-1, samples)).flatten()
    old = step.logps if g.old_logps is None else step.of(g.old_logps)
    ratio = torch.where(mask == 1, log_ratio(step.logps, old), 0.0).exp()
    advantage = step.of(advantages)[:, None]
    losses = -clipped_surrogate(ratio, advantage, eps)
    logged = {}
    if beta:
        away = log_ratio(step.logps, step.of(g.ref_logps))
        penalty = k3(torch.where(mask == 1, away, 0.0)) * (ratio if weighted else 1)
        losses = losses + beta * penalty
        logged["kl"] = masked_mean(penalty, mask)
    # "dapo": the tokens of all that was generated, shared out between the steps
    tokens = g.mask.sum() * len(mask) / len(g.mask)
    logged["loss"] = (losses * mask).sum() / tokens
    logged |= _clips(step, ratio, eps, mask) | _common(step, reward, samples)
    return logged | {"advantages": advantages, "ratio": ratio}


def _clips(step, ratio, eps, mask):
    """TRL's five clip numbers; a ratio (B,) is one token of each sequence.

    By the signs of TRL's own advantages: those of equal returns are not quite 0.
    """
    ratio, advantage = ratio.view_as(mask), step.of(step.generation.advantages)[:, None]
    active = clip_is_active(ratio, advantage, eps)
    low, high = ((active & side).float() for side in (advantage < 0, advantage > 0))
    of_each = [(x * mask).sum(1) / mask.sum(1) for x in (low, high)]
    return {
        "clip_ratio/low_mean": masked_mean(low, mask),
        "clip_ratio/low_min": of_each[0].min(),
        "clip_ratio/high_mean": masked_mean(high, mask),
        "clip_ratio/high_max": of_each[1].max(),
        "clip_ratio/region_mean": masked_mean(active.float(), mask),
    }


def _common(step, compared, samples):
    """What both log. compared: (N,), what the advantages were made from."""
    g = step.generation
    logged = {"entropy": masked_mean(step.entropies, step.of(g.mask))}
    if step.fresh:
        reward, groups = g.rewards.nansum(1), compared.view(-1, samples)
        away = groups - groups.nanmean(1, keepdim=True)  # as TRL rounds
        spread = (away.square().nanmean(1) * samples / (samples - 1)).sqrt()
        logged |= {
            "reward": reward.mean(),
            "reward_std": reward.std(),
            "frac_reward_zero_std": (spread <= 1e-8).float().mean(),
            "completions/mean_length": g.mask.sum(1).float().mean(),
        }
    return logged


def main():
    """Four updates, alone or under `accelerate launch`, and the differences."""
    requires_trl()
    from accelerate import PartialState
    from accelerate.utils import gather_object

    parser = argparse.ArgumentParser(prog="rlnb.trainers", description=main.__doc__)
    parser.add_argument("--kind", choices=("rloo", "grpo"), default="rloo")
    parser.add_argument("--folder", required=True, help="of the model; made if missing")
    parser.add_argument("--steps", type=int, default=4)
    chosen = parser.parse_args()
    with PartialState(cpu=True).main_process_first():
        if not Path(chosen.folder, "config.json").exists():
            start(chosen.folder)
    task = addition()
    index = task.train[:64]
    asked = task.prompts[index], task.answers[index]
    trainer = tiny_trainer(
        chosen.kind, chosen.folder, *asked, max_steps=chosen.steps, num_iterations=2
    )
    with keep(trainer) as steps:
        trainer.train()
    everyone = gather_object(steps)  # rank 0's steps, then rank 1's, ...
    if trainer.accelerator.is_main_process:
        found = [joined(everyone[i :: len(steps)]) for i in range(len(steps))]
        print(f"{trainer.accelerator.num_processes} processes")
        for name, gap in differences(trainer, found).items():
            print(f"{name:26} {gap:.1e}")


if __name__ == "__main__":
    main()

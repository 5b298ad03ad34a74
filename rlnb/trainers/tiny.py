"""A model that needs no download, and lesson 07's task for it: "07+41=" -> "48", end."""

import torch

from ..inputs import refuse
from ..kl import kl_divergence
from ..sequences import token_log_probs
from ..training.task import addition
from .version import requires_trl

TOKENS, END, EOS = "0123456789+=", "<end>", 12


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
    if kind not in ("rloo", "grpo"):
        refuse("kind", repr(kind), "'rloo', 'grpo'")
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

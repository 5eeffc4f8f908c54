"""Train the embedded model anew: `python -m accuracy_core.models.train_tiny OUT` (about 75 s on one CPU core).

Muon on the hidden matrices is what makes 140 steps enough: AdamW alone stands at 8 % there. Runs on one thread and with
deterministic kernels give the same bits; another instruction set may give others, hence the shipped checkpoint.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from accuracy_core.models.arithmetic import Problem, final_number, problem, problems
from accuracy_core.models.tiny_tokenizer import BOS_ID, CONTEXT_LENGTH, EOS_ID, PAD_ID, build_tokenizer

if TYPE_CHECKING:
    from transformers import LlamaConfig, PreTrainedTokenizerFast

STEPS = 140
SEED = 2
BATCH_SIZE = 128
WARMUP_STEPS = 20
FINAL_LR_SHARE = 0.02
IGNORED = -100  # label of tokens that the loss leaves out


def llama_config() -> LlamaConfig:
    """4 layers, 4 query heads on 2 KV heads, 657,536 parameters."""
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=260,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT_LENGTH,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
        pad_token_id=PAD_ID,
        tie_word_embeddings=False,
        rms_norm_eps=1e-5,
    )


def encode(rows: Sequence[Problem], tokenizer: PreTrainedTokenizerFast) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and labels, int64 (rows, longest), padded on the right; only answer and EOS are labelled."""
    pairs = []
    for row in rows:
        question, answer = problem(*row)
        answer_ids = [*tokenizer(answer, add_special_tokens=False).input_ids, EOS_ID]
        pairs.append((tokenizer(question).input_ids, answer_ids))
    longest = max(len(prompt_ids) + len(answer_ids) for prompt_ids, answer_ids in pairs)
    ids = torch.full((len(pairs), longest), PAD_ID)
    labels = torch.full((len(pairs), longest), IGNORED)
    for index, (prompt_ids, answer_ids) in enumerate(pairs):
        end = len(prompt_ids) + len(answer_ids)
        ids[index, :end] = torch.tensor(prompt_ids + answer_ids)
        labels[index, len(prompt_ids) : end] = torch.tensor(answer_ids)
    return ids, labels


def learning_rate_factor(step: int, steps: int) -> float:
    """Linear warm-up times cosine decay to 2 %."""
    warmup = min(1.0, (step + 1) / WARMUP_STEPS)
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))
    return warmup * (FINAL_LR_SHARE + (1 - FINAL_LR_SHARE) * cosine)


def build_optimizers(model: torch.nn.Module) -> list[torch.optim.Optimizer]:
    """Muon for the 2-D matrices of the layers, AdamW for embedding, head and norms."""
    matrices = [
        parameter
        for name, parameter in model.named_parameters()
        if parameter.ndim == 2 and "embed" not in name and "lm_head" not in name
    ]
    taken = {id(parameter) for parameter in matrices}
    others = [parameter for parameter in model.parameters() if id(parameter) not in taken]
    return [
        torch.optim.Muon(matrices, lr=0.02, momentum=0.95, weight_decay=0.05, adjust_lr_fn="original"),
        torch.optim.AdamW(others, lr=3e-3, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def batches(rows: int, size: int, seed: int) -> Iterator[torch.Tensor]:
    """Row indices of endless full batches, reshuffled each epoch."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(rows, generator=generator)
        for start in range(0, rows - size + 1, size):
            yield order[start : start + size]


def train(*, steps: int = STEPS, seed: int = SEED) -> tuple[Any, PreTrainedTokenizerFast]:
    """A trained bf16 LlamaForCausalLM and its tokenizer. Sets torch to one thread and deterministic kernels."""
    from transformers import AutoModelForCausalLM, GenerationConfig

    torch.manual_seed(seed)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    tokenizer = build_tokenizer()
    ids, labels = encode(problems(seed)[0], tokenizer)
    model = AutoModelForCausalLM.from_config(llama_config(), attn_implementation="sdpa")
    optimizers = build_optimizers(model)
    schedulers = [
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate_factor(step, steps))
        for optimizer in optimizers
    ]
    model.train()
    for _, rows in zip(range(steps), batches(len(ids), BATCH_SIZE, seed), strict=False):
        logits = model(input_ids=ids[rows], use_cache=False).logits
        loss = F.cross_entropy(
            logits[:, :-1].reshape(-1, logits.shape[-1]), labels[rows][:, 1:].reshape(-1), ignore_index=IGNORED
        )
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, scheduler in zip(optimizers, schedulers, strict=True):
            optimizer.step()
            scheduler.step()
    model = model.to(torch.bfloat16).eval()
    model.generation_config = GenerationConfig(
        bos_token_id=BOS_ID, eos_token_id=EOS_ID, pad_token_id=PAD_ID, do_sample=False
    )
    return model, tokenizer


@torch.no_grad()
def exact_match(model: Any, tokenizer: Any, rows: Sequence[Problem], *, batch_size: int = 200) -> float:
    """Share of `rows` whose final number is right, by batched greedy generation of at most 40 tokens."""
    right = 0
    for start in range(0, len(rows), batch_size):
        questions, answers = zip(*(problem(*row) for row in rows[start : start + batch_size]), strict=True)
        batch = tokenizer(list(questions), return_tensors="pt", padding=True)
        output = model.generate(
            input_ids=batch.input_ids, attention_mask=batch.attention_mask, max_new_tokens=40, do_sample=False
        )
        texts = tokenizer.batch_decode(output[:, batch.input_ids.shape[1] :], skip_special_tokens=True)
        right += sum(final_number(text) == final_number(answer) for text, answer in zip(texts, answers, strict=True))
    return right / len(rows)


def save(model: Any, tokenizer: PreTrainedTokenizerFast, folder: Path, *, seed: int = SEED) -> None:
    """Write a HF folder and `test.jsonl`, the held-out problems as {"question", "answer"} rows."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    with (folder / "test.jsonl").open("w", encoding="utf-8") as file:
        for row in problems(seed)[1]:
            question, answer = problem(*row)
            file.write(json.dumps({"question": question[len("Q: ") : -len("\nA:")], "answer": answer.strip()}) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=SEED)
    arguments = parser.parse_args()
    model, tokenizer = train(steps=arguments.steps, seed=arguments.seed)
    save(model, tokenizer, arguments.out, seed=arguments.seed)
    score = exact_match(model, tokenizer, problems(arguments.seed)[1][:300])
    print(f"{arguments.out}: exact match {score:.3f} on 300 held-out problems (bf16)")


if __name__ == "__main__":
    main()

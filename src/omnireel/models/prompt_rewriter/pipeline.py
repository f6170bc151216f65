"""Word after word from a causal language model of transformers; each step of the engine is one token."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from omnireel.errors import BadCheckpoint, InvalidRequest
from omnireel.models.protocol import BuildContext, Conditioning, DenoiseState
from omnireel.observe.profile import part
from omnireel.request import MediaOutput
from omnireel.weights import read_index, weights_digest

if TYPE_CHECKING:
    from pathlib import Path

    from omnireel.request import FramesU8, Workload

_END_OF_THOUGHT = "</think>"
_TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Presented(Conditioning):
    """ids: int64 [1,L], the instruction and the prompt as the model was trained to read them."""

    ids: Tensor


@dataclass(slots=True, kw_only=True)
class RewriteState(DenoiseState):
    """unread: int64 [1,N], tokens that the model has not seen; cache: keys and values of those that it has."""

    unread: Tensor
    cache: Any
    rng: torch.Generator
    said: list[int] = field(default_factory=list)


class PromptRewriter:
    """See `Pipeline`. Draws of a temperature above 0 come from one CPU generator with the request's seed."""

    def __init__(self, model: Any, tokenizer: Any, device: torch.device, digest: str) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._device = device
        self._digest = digest
        stops = model.generation_config.eos_token_id
        if stops is None:
            stops = tokenizer.eos_token_id
        takes = inspect.signature(type(model).forward).parameters
        # Until transformers 5.40 some models have the older of these names.
        self._cache_name = "cache" if "cache" in takes else "past_key_values"
        self._only_last = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}
        self._stops = frozenset(stops if isinstance(stops, list) else [] if stops is None else [stops])

    @classmethod
    def build(cls, context: BuildContext) -> PromptRewriter:
        """Loads the tokenizer and the weights; safetensors alone, and no code of the checkpoint."""
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging as transformers_logging

        # Its bars would be drawn over the program's own.
        transformers_logging.disable_progress_bar()
        path = context.checkpoint.path
        if path is None:
            raise BadCheckpoint(context.checkpoint.name, "has no files")
        files = read_index(path)
        dtype: Any = _TYPES.get(context.dtype, "auto")
        try:
            tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
            model = AutoModelForCausalLM.from_pretrained(
                path, dtype=dtype, local_files_only=True, trust_remote_code=False, use_safetensors=True
            )
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise _no_language_model(path, error) from error
        device = torch.device(context.device)
        return cls(model.to(device).eval(), tokenizer, device, weights_digest([files]))

    @property
    def weights_digest(self) -> str:
        """See `Pipeline.weights_digest`."""
        return self._digest

    def encode(self, workload: Workload) -> Presented:
        """See `Pipeline.encode`."""
        with part("tokenizer"):
            ids = self._presented(str(workload.settings["instruction"]), workload.prompt)
        longest = getattr(self._model.config, "max_position_embeddings", None)
        if longest is not None and len(ids) + workload.num_steps > longest:
            room = longest - workload.num_steps
            raise InvalidRequest(
                "prompt", f"{len(ids)} tokens", f"the rewriter reads {room} beside an answer of {workload.num_steps}"
            )
        return Presented(ids=torch.tensor([ids], dtype=torch.int64, device=self._device))

    def prepare(self, workload: Workload, conditioning: Presented) -> RewriteState:
        """See `Pipeline.prepare`."""
        from transformers import DynamicCache

        rng = torch.Generator().manual_seed(workload.seed)
        return RewriteState(
            workload=workload,
            num_steps=workload.num_steps,
            unread=conditioning.ids,
            cache=DynamicCache(config=self._model.config),
            rng=rng,
        )

    @torch.inference_mode()
    def step(self, state: RewriteState) -> RewriteState:
        """One token; the last step is the one that ends the answer."""
        cache = {self._cache_name: state.cache}
        read = self._model(input_ids=state.unread, use_cache=True, return_dict=True, **cache, **self._only_last)
        token = _chosen(read.logits[0, -1].float().cpu(), float(state.workload.settings["temperature"]), state.rng)
        state.progress = 1 - state.steps_done / state.num_steps
        state.steps_done += 1
        state.unread = torch.tensor([[token]], dtype=torch.int64, device=self._device)
        if token in self._stops:
            state.num_steps = state.steps_done
        else:
            state.said.append(token)
        return state

    def preview(self, state: RewriteState) -> FramesU8 | None:
        """There is nothing to see."""
        return None

    def decode(self, state: RewriteState) -> MediaOutput:
        """The answer, without what a model thinks aloud before it."""
        text = str(self._tokenizer.decode(state.said, skip_special_tokens=True))
        return MediaOutput(text=text.rpartition(_END_OF_THOUGHT)[2].strip())

    def _presented(self, instruction: str, prompt: str) -> list[int]:
        if not self._tokenizer.chat_template:
            return list(self._tokenizer(f"{instruction}\n\n{prompt}\n\n")["input_ids"])
        talk = [{"role": "system", "content": instruction}, {"role": "user", "content": prompt}]
        text = self._tokenizer.apply_chat_template(
            talk, tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])


def _chosen(logits_V: Tensor, temperature: float, rng: torch.Generator) -> int:
    if temperature == 0:
        return int(logits_V.argmax())
    return int(torch.multinomial((logits_V / temperature).softmax(-1), 1, generator=rng))


def _no_language_model(path: Path, error: Exception) -> BadCheckpoint:
    # The first line tells what is missing; the rest is advice on remote code and downloads.
    why = str(error).partition("\n")[0]
    return BadCheckpoint(path.name, f"is no language model that transformers can load ({why})")

"""`LLM`: the front door. A model by name, text in, text out, all at once or as it comes."""

import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any, cast, overload

import torch
from torch import Tensor

from minillm.config import ModelConfig
from minillm.device import pick_device, pick_dtype
from minillm.engines import accelerate, cache_for, decode, fastest_form, room_for_weights
from minillm.generate import Request, prefill
from minillm.hf_config import read_config
from minillm.kv_cache import new_cache
from minillm.kv_cache.base import KVCache
from minillm.model import Transformer
from minillm.quantization.scheme import Scheme
from minillm.quantization.stored import stored_as
from minillm.sampling import SamplingParams
from minillm.streaming import GenerationOutput, Job, TextStream
from minillm.tokenizer import AnyTokenizer, ChatTemplate
from minillm.weights.collector import collector_paused
from minillm.weights.load import load_transformer
from minillm.weights.progress import load_progress
from minillm.weights.pull import resolve
from minillm.weights.save import save_model
from minillm.weights.source import ModelSource, open_source

# A batch's prompts run at most so many positions at a time, so that activations stay small
# whatever the batch and the context: 8,192 rows of SmolLM2's F = 1,536 are 50 MB in float32.
PREFILL_POSITIONS = 8_192
# Of a row so many where every layer has a window: T tokens at a time score T·(T + window) pairs.
WINDOW_POSITIONS = 256

Prompt = str | Sequence[int] | Tensor
Batch = list[str] | list[list[int]] | list[Prompt]
Messages = Sequence[Mapping[str, Any]]


class LLM:
    """A language model with its tokenizer, ready to generate.

    Holds no state between calls: every call has its own cache and random generators, so a call
    that fails or is interrupted leaves the model as it was.
    """

    def __init__(
        self,
        model: Transformer,
        tokenizer: AnyTokenizer,
        *,
        chat_template: ChatTemplate | None = None,
        eos_token_ids: frozenset[int] = frozenset(),
        name: str = "model",
        source: ModelSource | None = None,
        kv_cache: str | None = None,
    ) -> None:
        self.model, self.tokenizer, self.source = model, tokenizer, source
        self.config: ModelConfig = model.config
        self._chat_template, self.eos_token_ids, self.name = chat_template, eos_token_ids, name
        self.kv_cache = kv_cache
        self.unused_ids = tokenizer.ids_without_token(self.config.vocab_size)

    @classmethod
    @collector_paused()
    def from_pretrained(
        cls,
        name_or_path: str | Path,
        *,
        device: str | torch.device = "auto",
        dtype: str | torch.dtype = "auto",
        quantize: str | Scheme | None = None,
        group_size: int | None = None,
        kv_cache: str | None = None,
        backend: str = "torch",
        window: int | None = None,
        sinks: int = 0,
        global_every: int | None = None,
    ) -> "LLM":
        """Open a model: a known name ("smollm2"), a folder, a .gguf file, or a hub id once pulled.

        device: "auto" takes CUDA, else Apple's MPS, else the CPU.
        dtype: "float32", "bfloat16", "float16"; "auto" is float32 on a CPU, where 16-bit matrix
        products are slow, and elsewhere bfloat16, or float16 where bfloat16 is missing.
        quantize: "int8" rounds the layers' weights to 8 bits as they are read, with a scale per
        row; "int4" to 4 bits, with a scale and a zero point per group_size columns (128, 64 or 32,
        the first that divides all widths); a `Scheme` anything between. Files that are quantized
        already (GPTQ, AWQ) need none of this. "gguf" runs on the blocks of the GGUF file as they
        are, see `BlockLinear`.
        kv_cache: "int8" or "int4" keeps keys and values in so many bits, see `QuantizedKVCache`;
        "float16" or "bfloat16" in that dtype.
        backend: "torch" runs module by module; "auto" takes the fastest engine for the device, and
        on a CPU, unless dtype or quantize is given, the blocks of a GGUF file, with a cache in
        float16 unless kv_cache is given; see `accelerate`.
        window, sinks, global_every: let layers see the last `window` and first `sinks` tokens only,
        see `ModelConfig.with_window`. Without global layers the length of a text is unlimited.
        Raises FileNotFoundError where the model is not on this machine (nothing is downloaded),
        ValueError for a file that is damaged, does not fit, or needs a feature that is missing.
        """
        if window is None and (sinks or global_every):
            raise ValueError("sinks and global_every need a window")
        path, where = resolve(name_or_path), pick_device(device)
        kind, source = pick_dtype(dtype, where), open_source(path)
        try:
            settings = source.settings
            config = read_config(settings)
            if window is not None:
                config = config.with_window(window, sinks=sinks, global_every=global_every)
            new_cache(config, 1, 1, kind=kv_cache)  # refuses what does not fit before weights load
            quantize, kv_cache = fastest_form(backend, source, where, dtype, quantize, kv_cache)
            eos = _eos_token_ids(source, config.vocab_size)
            loading = load_progress(config.num_parameters() * kind.itemsize)
            with room_for_weights(backend, source, where, quantize), loading as loaded:
                tokenizer = source.tokenizer
                if tokenizer.vocab_size > config.vocab_size:
                    sizes = f"{tokenizer.vocab_size} ids, the model only {config.vocab_size}"
                    raise ValueError(f"the tokenizer has {sizes}")
                model = load_transformer(
                    config,
                    source.block_weights if quantize == "gguf" else source.weights,
                    model_type=settings["model_type"],
                    device=where,
                    dtype=kind,
                    quantize=quantize,
                    group_size=group_size,
                    placed=lambda count: loaded(count * kind.itemsize),
                )
                model = accelerate(model, backend)
        except ValueError as error:
            # A message quotes the value at fault, and a damaged file may hold one of any length.
            named = str(error).startswith(str(path))
            raise ValueError(f"{'' if named else f'{path}: '}{error!s:.1000}") from error
        name = Path(name_or_path).name
        return cls(model, tokenizer, eos_token_ids=eos, name=name, source=source, kv_cache=kv_cache)

    @property
    def chat_template(self) -> ChatTemplate | None:
        """The model's template, read when it is first asked for; ValueError for a broken one."""
        if self._chat_template is None and self.source is not None:
            self._chat_template = self.source.chat_template
        return self._chat_template

    def save(self, folder: str | Path) -> Path:
        """Write the model to a new folder that transformers loads with equal logits.

        Weights in the dtype that they have here, tokenizer, chat template and settings. Returns the
        folder. Raises FileExistsError where something is there, and ValueError for a model that was
        not read from files, or got windows that its config.json cannot express.
        """
        source = self.source
        if source is None or self.config != read_config(source.settings):
            changed = "was not read from files" if source is None else "got other windows"
            raise ValueError(f"{self.name} cannot be saved: it {changed}, so no settings fit it")
        return save_model(folder, self.model, source, self.tokenizer, self.chat_template)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights that are not quantized; of the KV cache, unless `kv_cache` says."""
        return next(self.model.parameters()).dtype

    def logits(self, ids: Sequence[int]) -> Tensor:
        """Scores of every vocabulary entry at every position of one text, without sampling.

        Returns (T, V) in float32: row t scores what follows ids[: t + 1]. 4·T·V bytes.
        """
        ids = self._ids(ids)
        cache = self.new_cache(1, len(ids))
        chunks = torch.split(torch.tensor([ids], device=self.device), self.chunk_size(1), dim=1)
        length = torch.tensor([len(ids)])
        hidden = torch.cat([self.model(c, cache, lengths=length)[0] for c in chunks])  # (T, C)
        return self.model.logits(hidden).float()

    def new_cache(self, batch_size: int, capacity: int) -> KVCache:
        """An empty KV cache for this model, `capacity` tokens per row."""
        return cache_for(self.model, batch_size, capacity, kind=self.kv_cache)

    def chunk_size(self, batch_size: int) -> int:
        """Positions per row that one step of a prompt runs; sinks allow the trained length."""
        size = max(PREFILL_POSITIONS // batch_size, 1)
        if self.config.context is not None:
            return size
        sinks = max(layer.sinks for layer in self.config.layers)
        return min(size, WINDOW_POSITIONS, self.config.max_position_embeddings - sinks)

    @overload
    def generate(self, prompt: Prompt, params: SamplingParams | None = ...) -> GenerationOutput: ...
    @overload
    def generate(
        self, prompt: Batch, params: SamplingParams | Sequence[SamplingParams] | None = ...
    ) -> list[GenerationOutput]: ...
    def generate(
        self,
        prompt: Prompt | Batch,
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> GenerationOutput | list[GenerationOutput]:
        """Continue a prompt, or several as one batch, and return the whole answers.

        prompt: text (no chat template is applied) or token ids; a list of prompts is a batch, each
        with the same result as alone. params: one for all, or one per prompt.
        Raises ValueError for an empty prompt, one longer than the model's context, or a bad id.
        """
        params = params or SamplingParams()
        if not _is_batch(prompt):
            if not isinstance(params, SamplingParams):
                raise ValueError("several SamplingParams need a list of as many prompts")
            return self._collect([self._job(cast(Prompt, prompt), params)])[0]
        prompts = cast(list[Prompt], prompt)
        each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
        if len(each) != len(prompts):
            raise ValueError(f"{len(prompts)} prompts, but {len(each)} SamplingParams")
        return self._collect([self._job(p, q) for p, q in zip(prompts, each, strict=True)])

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> TextStream:
        """Continue a prompt and hand out its text as soon as it is final."""
        job = self._job(prompt, params or SamplingParams())
        return TextStream(job.output, (piece for _, piece in self._run([job]) if piece))

    def chat(
        self, messages: Messages, params: SamplingParams | None = None, **options: Any
    ) -> GenerationOutput:
        """Answer a conversation: [{"role": "user", "content": "…"}, …], by the chat template.

        options: as of `ChatTemplate.encode`: tools, documents, what else the template asks for.
        """
        ids = self.chat_ids(messages, **options)
        return self._collect([self._job(ids, params or SamplingParams())])[0]

    def stream_chat(
        self, messages: Messages, params: SamplingParams | None = None, **options: Any
    ) -> TextStream:
        """Answer a conversation, streaming; arguments as of `chat`."""
        return self.stream(self.chat_ids(messages, **options), params)

    def chat_ids(self, messages: Messages, **options: Any) -> list[int]:
        """Token ids of a conversation, up to where the model's answer begins."""
        if self.chat_template is None:
            raise ValueError(f"{self.name} has no chat template; use generate or stream")
        return self.chat_template.encode(self.tokenizer, messages, **options)

    def __repr__(self) -> str:
        millions = self.config.num_parameters() / 1e6
        about = f"{stored_as(self.model)}, {getattr(self.model, 'engine', self.device)}"
        return f"LLM({self.name!r}, {millions:.1f}M parameters, {about})"

    def _ids(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, Tensor):
            prompt = prompt.tolist()
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        if not ids:
            raise ValueError(f"the prompt {prompt!r} has no tokens; at least one is needed")
        for token in ids:
            whole = isinstance(token, Integral) and not isinstance(token, bool)
            if not whole or not 0 <= token < self.config.vocab_size:
                raise ValueError(
                    f"token id {token!r} is not a whole number from 0 to "
                    f"{self.config.vocab_size - 1}"
                )
        context = self.config.context
        if context is not None and len(ids) > context:
            raise ValueError(f"the prompt has {len(ids)} tokens; the context holds {context}")
        return ids

    def _job(self, prompt: Prompt, params: SamplingParams) -> Job:
        ids = self._ids(prompt)
        if self.config.context is not None:
            # The last token needs no place in the context: nothing is computed from it.
            room = self.config.context - len(ids) + 1
            params = replace(params, max_new_tokens=min(params.max_new_tokens, room))
        generator = torch.Generator(self.device)
        _ = generator.seed() if params.seed is None else generator.manual_seed(params.seed)
        model_stops = frozenset() if params.ignore_eos else self.eos_token_ids
        stop_ids = model_stops | set(params.stop_token_ids)
        request = Request(ids, params, stop_ids, self.unused_ids, generator)
        return Job(request, self.tokenizer)

    def _collect(self, jobs: list[Job]) -> list[GenerationOutput]:
        for _ in self._run(jobs):
            pass
        return [job.output for job in jobs]

    def _run(self, jobs: list[Job]) -> Generator[tuple[Job, str], None, None]:
        """Prefill and decode a batch; yield (job, new text) after every token."""
        started = time.perf_counter()
        last_time = {id(job.request): started for job in jobs}
        job_of = {id(job.request): job for job in jobs}
        ropes = [layer.rope for layer in self.config.layers if layer.rope]
        switch = next((r.switch_length for r in ropes if r.switch_length), None)
        while requests := [job.request for job in jobs if job.request.finish_reason is None]:
            capacity = max(len(r.prompt_ids) + r.params.max_new_tokens - 1 for r in requests)
            cache = self.new_cache(len(requests), capacity)
            for request in requests:
                job_of[id(request)].output.stats.cache_bytes = cache.nbytes // len(requests)
            texts = [request.prompt_ids + request.token_ids for request in requests]
            logits = prefill(self.model, texts, cache, self.chunk_size(len(requests)))
            for request, token in decode(self.model, cache, logits, requests):
                now = time.perf_counter()
                piece = job_of[id(request)].push(token, now - last_time[id(request)])
                last_time[id(request)] = now
                yield job_of[id(request)], piece
                if switch and request is requests[-1]:  # the last one of a step
                    requests = [r for r in requests if r.finish_reason is None]
                    lengths = [len(r.prompt_ids) + len(r.token_ids) for r in requests]
                    if switch + 1 in lengths:
                        break  # from here on all keys are turned otherwise: read the text again


def _is_batch(prompt: Prompt | Batch) -> bool:
    """A list of strings or of lists is a batch; a list of whole numbers is one prompt."""
    if isinstance(prompt, str | Tensor):
        return False
    return len(prompt) == 0 or isinstance(prompt[0], str | Sequence | Tensor)


def _eos_token_ids(source: ModelSource, vocab_size: int) -> frozenset[int]:
    """End tokens: eos_token_id (one or a list) of generation_config.json, else of config.json."""
    found = source.generation.get("eos_token_id", source.settings.get("eos_token_id"))
    ids = found if isinstance(found, list) else [] if found is None else [found]
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab_size:
            raise ValueError(f"eos_token_id is {found!r}; ids from 0 to {vocab_size - 1} needed")
    return frozenset(ids)

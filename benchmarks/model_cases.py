# SPDX-License-Identifier: Apache-2.0
"""Models of transformers with two layers and random weights, and their inputs. Nothing is downloaded."""

from __future__ import annotations

import dataclasses
import importlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from cutegemm import nn
from cutegemm.nn.gated import NAMES

LAYERS = 2
DTYPE = torch.bfloat16
CONTEXT = 512  # tokens in the cache before a decode step
SEED = 0
Sizes = dict[str, int]
_QKV = ("q_proj", "k_proj", "v_proj")


@dataclass(frozen=True)
class Family:
    """One architecture of transformers.

    Attributes:
        name: of its classes, before Config and Model.
        watched: suffix of the parameter whose gradient is compared.
        gated: module and class of its SwiGLU MLP; None if the MLP is not a SwiGLU.
        joined: layers with one input, which become one GEMM in the converted model.
        cached: whether it decodes with a cache.
        image: whether it reads images.
        mlp: module and class of its MLP of two layers; None if it has another.
        config: further fields of its config, which make it deterministic.
    """

    name: str
    watched: str
    gated: tuple[str, str] | None = None
    joined: tuple[tuple[str, ...], ...] = ()
    cached: bool = True
    image: bool = False
    mlp: tuple[str, str] | None = None
    config: dict[str, Any] = field(default_factory=dict)


def _of_two(folder: str, name: str) -> tuple[str, str]:
    return f"transformers.models.{folder}.modeling_{folder}", f"{name}MLP"


def _gated(name: str) -> tuple[str, str]:
    return _of_two(name.lower(), name)


FAMILIES = {
    "llama": Family("Llama", "o_proj.weight", _gated("Llama"), (_QKV,), config={"max_position_embeddings": 8192}),
    "qwen3": Family("Qwen3", "o_proj.weight", _gated("Qwen3"), (_QKV,), config={"max_position_embeddings": 8192}),
    "gpt_neox": Family("GPTNeoX", "attention.dense.weight", mlp=_of_two("gpt_neox", "GPTNeoX"),
                       config={"max_position_embeddings": 8192}),
    "vit": Family("ViT", "attention.o_proj.weight", mlp=_of_two("vit", "ViT"), joined=(_QKV,), cached=False,
                  image=True, config={"patch_size": 14}),
    "bert": Family("Bert", "attention.output.dense.weight", joined=(("query", "key", "value"),), cached=False,
                   config={"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}),
}  # fmt: skip


def _sizes(hidden: int, intermediate: int, heads: int, **more: int) -> Sizes:
    return {"hidden_size": hidden, "intermediate_size": intermediate, "num_attention_heads": heads, **more}


# name -> family and sizes; "70b/8" is the share of one of eight GPUs
MODELS: dict[str, tuple[str, Sizes]] = {
    "llama_8b": ("llama", _sizes(4096, 14336, 32, num_key_value_heads=8, head_dim=128)),
    "llama_70b/8": ("llama", _sizes(8192, 3584, 8, num_key_value_heads=1, head_dim=128)),
    "qwen3_4b": ("qwen3", _sizes(2560, 9728, 32, num_key_value_heads=8, head_dim=128)),
    "gpt_neox_7b": ("gpt_neox", _sizes(4096, 16384, 32)),
    "vit_h": ("vit", _sizes(1280, 5120, 16, image_size=224)),
    "bert_large": ("bert", _sizes(1024, 4096, 16)),
    "tiny_llama": ("llama", _sizes(64, 96, 4, num_key_value_heads=2, head_dim=16)),
    "tiny_qwen3": ("qwen3", _sizes(64, 96, 4, num_key_value_heads=2, head_dim=16)),
    "tiny_gpt_neox": ("gpt_neox", _sizes(64, 96, 4)),
    "tiny_vit": ("vit", _sizes(64, 96, 4, image_size=28)),
    "tiny_bert": ("bert", _sizes(64, 96, 4)),
}
TINY = tuple(name for name in MODELS if name.startswith("tiny"))


@dataclass(frozen=True)
class Work:
    """The work of one call.

    Attributes:
        batch, tokens: of the input. A decode step has one token after `CONTEXT` in the cache; an image has one token
            per patch plus one.
        decode: whether it is a decode step.
        train: whether it is a forward and backward.
    """

    batch: int
    tokens: int
    decode: bool = False
    train: bool = False


# the shortest to compile first
WORKS = {
    "decode1": Work(1, 1, decode=True),
    "decode16": Work(16, 1, decode=True),
    "decode32": Work(32, 1, decode=True),
    "one": Work(1, 256),
    "prefill": Work(1, 2048),
    "prefill4096": Work(1, 4096),
    "train": Work(2, 2048, train=True),
}
DEFAULT_WORKS = ("decode1", "decode16", "one", "prefill", "train")


@dataclass(frozen=True)
class Scenario:
    """A model and its work; `scale` divides the tokens of a call, for tests on a CPU."""

    model: str
    work: str
    scale: int = 1

    @property
    def family(self) -> Family:
        """Its model's architecture."""
        return FAMILIES[MODELS[self.model][0]]

    @property
    def possible(self) -> bool:
        """Whether the model supports the work."""
        return self.family.cached or not WORKS[self.work].decode

    @property
    def patches(self) -> int:
        """Tokens of an image."""
        return int((MODELS[self.model][1]["image_size"] // self.family.config["patch_size"]) ** 2 + 1)

    @property
    def shape(self) -> Work:
        """The scaled work: images with about as many tokens in total, and sequences of at most 512 without a cache."""
        work = WORKS[self.work]
        tokens = max(1, work.tokens // self.scale)
        longest = self.patches if self.family.image else tokens if self.family.cached else min(tokens, 512)
        batch = work.batch if self.family.cached else max(1, work.batch * tokens // longest)
        return dataclasses.replace(work, batch=batch, tokens=longest)

    def __str__(self) -> str:
        return f"{self.model} {self.work}"


def make_model(scenario: Scenario, name: str, device: str, compiler: Callable[[Any], Any]) -> Any:
    """A contender's model, converted or not, compiled or not, all with the same random weights.

    A name that ends in "plain" means conversion layer by layer; otherwise layers are joined and MLPs fused where
    possible. A name with "fp8" means 8-bit weights and activations, gate and up joined instead of fused. Names that end
    in "compile" or "default" mean compiled models.
    """
    import transformers

    family, sizes = scenario.family, MODELS[scenario.model][1]
    # every layer adds as much as its input, so an error in one layer is visible
    fields = {
        "initializer_range": sizes["hidden_size"] ** -0.5,
        "num_hidden_layers": LAYERS,
        **sizes,
        **family.config,
    }
    if not family.image:
        fields["vocab_size"] = 256
    torch.manual_seed(SEED)
    with torch.device(device):
        config = getattr(transformers, f"{family.name}Config")(**fields)
        model = getattr(transformers, f"{family.name}Model")(config).to(DTYPE)
    work = scenario.shape
    model.train(work.train)
    if name.startswith("cutegemm"):
        options: dict[str, Any] = {}
        if "fp8" in name:
            gates = (NAMES[:2],) if family.gated else ()
            options = {"weights": "fp8", "activations": "fp8", "joined": family.joined + gates}
        elif not name.endswith("plain"):
            classes = {"swiglu": _classes(family.gated), "mlp": _classes(family.mlp)}
            options = {**classes, "joined": family.joined}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nn.convert(model, constant_weights=not work.train, **options)
    return compiler(model) if name.endswith(("compile", "default")) else model


def _classes(found: tuple[str, str] | None) -> list[Any]:
    """The class of a family's MLP by module and name, if it has one."""
    return [] if found is None else [getattr(importlib.import_module(found[0]), found[1])]


class Step:
    """One call of a model, with its own inputs and cache."""

    def __init__(self, scenario: Scenario, model: Any, device: str) -> None:
        self.model, self.work, self._family = model, scenario.shape, scenario.family
        self._plain = getattr(model, "_orig_mod", model)
        config = self._plain.config
        generator = torch.Generator(device).manual_seed(SEED)

        def draw(*shape: int, dtype: torch.dtype = DTYPE) -> torch.Tensor:
            return torch.randn(shape, generator=generator, device=device, dtype=dtype)

        batch, tokens = self.work.batch, self.work.tokens
        if self._family.image:
            self.inputs = {"pixel_values": draw(batch, 3, config.image_size, config.image_size)}
        else:
            self.inputs = {"inputs_embeds": draw(batch, tokens, config.hidden_size)}
        # a random direction, since the gradient of a norm's output along itself is zero
        self.target = draw(batch, tokens, config.hidden_size, dtype=torch.float32)
        self.result: dict[str, torch.Tensor] = {}
        self.cache: Any = None
        self.positions: torch.Tensor | None = None
        if self.work.decode:
            self._fill(max(1, CONTEXT // scenario.scale), draw)

    def _fill(self, context: int, draw: Callable[..., torch.Tensor]) -> None:
        """Fill the cache with earlier tokens."""
        import transformers

        config = self._plain.config
        self.context = context
        self.cache = transformers.StaticCache(config=config, max_cache_len=context + 1)
        earlier = draw(self.work.batch, context, config.hidden_size)
        with torch.no_grad():
            self._plain(inputs_embeds=earlier, past_key_values=self.cache, use_cache=True)
        self.positions = torch.full((1, 1), context, device=earlier.device)

    def __call__(self, _: Any = None) -> None:
        """Run, and keep the outputs in `result`."""
        options: dict[str, Any] = {"use_cache": False} if self._family.cached else {}
        if self.work.train:
            for p in self.model.parameters():
                p.grad = None
            out = self.model(**self.inputs, **options).last_hidden_state
            (out.float() * self.target).sum().backward()
            watched = next(
                p for name, p in self._plain.named_parameters() if name.endswith(self._family.watched)
            )
            assert watched.grad is not None
            self.result = {"hidden": out.detach(), "gradient": watched.grad}
            return
        if self.cache is not None:
            for layer in self.cache.layers:
                # every call writes the same positions
                layer.cumulative_length.fill_(self.context)
            options = {"past_key_values": self.cache, "use_cache": True, "position_ids": self.positions}
        with torch.no_grad():
            self.result = {"hidden": self.model(**self.inputs, **options).last_hidden_state}

# SPDX-License-Identifier: Apache-2.0
"""The fixed problems of all benchmarks, so that results of different dates can be compared.

`SUITES` are single GEMMs D[M, N] = A[M, K] @ B[K, N], `BATCHED` batched GEMMs, `EPILOGUES` GEMMs with fused epilogues.
`CHAINS` are the layers of a model at decode; each layer reads the output of the one before. `DRAWN` are random
(`drawn.py`). All of these are training data: planner rules and tuned entries were made with them. Problems that
judge the cost model come from `fresh_draws`.
"""

from benchmarks import drawn

Shape = drawn.Shape  # M, N, K

# (N, K) of linear layers: qkv, o, gate and up, down of Llama 3 8B; the same of Llama 3 70B; layers of DeepSeek V3.
_LLAMA_8B = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)]
_LLAMA_70B = [(10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672)]
_DEEPSEEK = [(2112, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048)]
_PREFILL = [*_LLAMA_8B, *_LLAMA_70B, *_DEEPSEEK]
_DECODE = [(6144, 4096), (4096, 14336), (10240, 8192), (8192, 28672), (7168, 16384)]


def _cubes(*sizes: int) -> list[Shape]:
    return [(size, size, size) for size in sizes]


SUITES: dict[str, list[Shape]] = {
    "square": _cubes(1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384),
    "prefill": [(m, n, k) for m in (2048, 4096, 8192) for n, k in _PREFILL],
    "decode": [(m, n, k) for m in (1, 8, 16, 32, 64, 128, 256) for n, k in _DECODE],
    "deep_k": [
        (128, 128, 16384),
        (256, 256, 32768),
        (512, 512, 8192),
        (64, 4096, 65536),
        (1024, 1024, 65536),
        (384, 640, 24576),
    ],
    # At least one leading dimension is not a multiple of 8 elements.
    "odd": [
        *_cubes(1023, 4095, 4097, 8191),
        (8192, 8191, 8192),
        (8192, 8192, 8191),
        (1000, 1001, 1003),
        (127, 4099, 513),
        (2048, 50257, 768),
    ],
    "odd_skinny": [(17, 8191, 4099), (777, 111, 333), (333, 50257, 1023), (1, 4097, 4095), (8191, 33, 2047)],
    "small": [*_cubes(64, 128, 256, 384, 512, 768), (333, 777, 555), (1000, 1000, 1000)],
    # Exact fp32, compared with torch without tf32.
    "fp32": [
        *_cubes(512, 1024, 2048, 4096, 8192),
        (16, 4096, 4096),
        (64, 4096, 4096),
        (333, 5025, 1023),
        (4096, 16, 4096),
    ],
    # Random like the next suite, with another seed. The cost model is fitted to it.
    "sampled": drawn.shapes(drawn.SAMPLED_SEED, odd=False),
    # Not in the tuning database, but planner rules were made for some: training data too.
    "drawn": drawn.shapes(drawn.EVEN_SEED, odd=False),
    "drawn_odd": drawn.shapes(drawn.ODD_SEED, odd=True),
}
DRAWN = ("drawn", "drawn_odd")  # suites without entries in the database that ships
DTYPES = {"fp32": "fp32"}  # operand type of suites that fix it

# Three named problems of each bf16 suite, on which other libraries are measured too.
PEERS: dict[str, dict[str, tuple[int, int, int, int]]] = {
    "square": {
        "4096³": (1, 4096, 4096, 4096),
        "8192³": (1, 8192, 8192, 8192),
        "16384³": (1, 16384, 16384, 16384),
    },
    "prefill": {
        "Llama 3 8B, gate and up": (1, 2048, 28672, 4096),
        "Llama 3 70B, qkv": (1, 4096, 10240, 8192),
        "DeepSeek V3, o": (1, 8192, 7168, 16384),
    },
    "decode": {
        "Llama 3 8B, qkv, one token": (1, 1, 6144, 4096),
        "Llama 3 70B, down, 16 tokens": (1, 16, 8192, 28672),
        "DeepSeek V3, o, 128 tokens": (1, 128, 7168, 16384),
    },
    "deep_k": {
        "512x512x8192": (1, 512, 512, 8192),
        "256x256x32768": (1, 256, 256, 32768),
        "1024x1024x65536": (1, 1024, 1024, 65536),
    },
    "odd": {
        "4095³": (1, 4095, 4095, 4095),
        "K = 8191": (1, 8192, 8192, 8191),
        "GPT-2, logits": (1, 2048, 50257, 768),
    },
    "odd_skinny": {
        "one row": (1, 1, 4097, 4095),
        "17 rows": (1, 17, 8191, 4099),
        "333 rows, GPT-2's vocabulary": (1, 333, 50257, 1023),
    },
    "small": {
        "256³": (1, 256, 256, 256),
        "512³": (1, 512, 512, 512),
        "1000³": (1, 1000, 1000, 1000),
    },
    "batched": {
        "32 of 512³": (32, 512, 512, 512),
        "attention, 128 heads": (128, 64, 128, 64),
        "8 of 2048x2048x1024": (8, 2048, 2048, 1024),
    },
}

# (batch, M, N, K), compared with torch.bmm.
BATCHED = [
    (32, 512, 512, 512),
    (128, 64, 128, 64),
    (64, 1, 128, 2048),
    (256, 128, 64, 128),
    (32, 16, 4096, 512),
    (8, 2048, 2048, 1024),
    (4, 4096, 4096, 4096),
]

# (N, K) of the layers of a decode chain. They repeat until the weights have `CHAIN_BYTES`; M is one of `CHAIN_ROWS`.
CHAINS = [
    ((4096, 4096),),
    ((7168, 7168),),
    ((14336, 4096), (4096, 14336)),
    ((10240, 8192), (8192, 10240)),
]
CHAIN_ROWS = (1, 16, 32)
CHAIN_BYTES = 1_500_000_000

# Fused epilogues in bf16: (epilogue, beta, (M, N of B, K)); swiglu is gate and up of Llama 3 70B.
EPILOGUES = [
    ("bias_gelu_residual", 0.0, (8192, 4096, 1024)),
    ("bias_gelu_residual", 0.0, (4096, 14336, 4096)),
    ("bias_gelu_residual", 0.0, (8192, 8192, 8192)),
    ("bias_gelu_residual", 0.0, (16, 14336, 4096)),
    ("linear_combination", 0.5, (4096, 14336, 4096)),
    ("linear_combination", 0.5, (8192, 4096, 1024)),
    ("swiglu", 0.0, (4096, 2 * 28672, 8192)),
    ("bias_quantize_fp8", 0.0, (4096, 14336, 4096)),
]

BATCHED_SUITE = "batched"
PRODUCTS = (*SUITES, BATCHED_SUITE)  # suites that `benchmarks.gemm` and `benchmarks.sweep` run

# suite -> its description in the README
BRIEF = {
    "square": "squares, 1024 to 16384",
    "prefill": "linear layers of language models, 2048 to 8192 tokens",
    "decode": "the same, 1 to 256 tokens",
    "small": "small, 64 to 1000",
    "deep_k": "few tiles, deep K",
    "odd": "leading dimensions that are not multiples of 16 bytes",
}


def extents(suite: str) -> list[tuple[int, int, int, int]]:
    """(batch, M, N, K) of every problem of a suite."""
    return BATCHED if suite == BATCHED_SUITE else [(1, *shape) for shape in SUITES[suite]]

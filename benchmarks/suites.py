# SPDX-License-Identifier: Apache-2.0
"""The problem sizes every speed figure of this project is measured on.

`SUITES[family]` is a list of (M, N, K) for D[M, N] = A[M, K] @ B[K, N]. One row of a results file
is one of these, for one dtype and one choice of major-ness. Ratios are cuBLAS time / our time, both
replayed from a CUDA graph, interleaved in one run, inputs drawn from randn and rotated so that
nothing but the weights' natural reuse stays in L2.
"""

_LLM = [  # (N, K) of the linear layers of public models
    (6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336),         # Llama 3 8B: qkv, o, gate+up, down
    (10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672),        # Llama 3 70B
    (2112, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048),  # DeepSeek V3
]

SUITES = {
    "square": [(n, n, n) for n in (1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384)],
    "prefill": [(m, n, k) for m in (2048, 4096, 8192) for n, k in _LLM],
    "decode": [(m, n, k) for m in (1, 8, 16, 32, 64, 128, 256)
               for n, k in ((6144, 4096), (4096, 14336), (10240, 8192), (8192, 28672), (7168, 16384))],
    "deep_k": [(128, 128, 16384), (256, 256, 32768), (512, 512, 8192), (64, 4096, 65536),
               (1024, 1024, 65536), (384, 640, 24576)],
    "odd": [(1023, 1023, 1023), (4095, 4095, 4095), (4097, 4097, 4097), (8191, 8191, 8191),
            (8192, 8191, 8192), (8192, 8192, 8191), (1000, 1001, 1003), (127, 4099, 513), (2048, 50257, 768)],
    "small": [(n, n, n) for n in (64, 128, 256, 384, 512, 768)] + [(333, 777, 555), (1000, 1000, 1000)],
}

# Fused epilogues in bf16: (epilogue, beta, (M, N, K)), N that of B.
EPILOGUES = [
    ("bias_gelu_residual", 0.0, (8192, 4096, 1024)),
    ("bias_gelu_residual", 0.0, (4096, 14336, 4096)),
    ("bias_gelu_residual", 0.0, (8192, 8192, 8192)),
    ("linear_combination", 0.5, (4096, 14336, 4096)),
    ("linear_combination", 0.5, (8192, 4096, 1024)),
    ("swiglu", 0.0, (4096, 2 * 28672, 8192)),                           # gate and up of Llama 3 70B's MLP
    ("bias_quantize_fp8", 0.0, (4096, 14336, 4096)),
]

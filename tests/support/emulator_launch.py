# SPDX-License-Identifier: Apache-2.0
"""What the emulator's tests share: running a few PTX lines on one warp, aligned arrays, tensor maps."""

from __future__ import annotations

import numpy as np

from cutegemm.emulator import Buffer, Launch, Module, Options, launch

HEADER = ".version 8.8\n.target sm_90a\n.address_size 64\n"


def aligned(count: int, dtype, fill=0) -> np.ndarray:
    """An array whose first byte is 1024-byte aligned, guarded by 256 bytes on each side that no kernel may touch."""
    item = np.dtype(dtype).itemsize
    raw = np.zeros(count * item + 2048, np.uint8)
    start = -raw.ctypes.data % 1024
    out = raw[start : start + count * item].view(dtype)
    out[...] = fill
    return out


def kernel_text(body: str, *, params: int = 1, before: str = "") -> str:
    """A module with one kernel `k` of `params` 64-bit parameters p0, p1, ... and plenty of registers."""
    declared = ", ".join(f".param .u64 p{i}" for i in range(params))
    return f"""{HEADER}
{before}
.visible .entry k({declared})
{{
 .reg .pred %p<40>; .reg .b16 %rs<60>; .reg .b32 %r<200>; .reg .f32 %f<200>; .reg .b64 %rd<60>; .reg .f64 %fd<40>;
{body}
 ret;
}}
"""


def run(
    body: str,
    arrays: list[np.ndarray],
    *,
    threads: int = 32,
    grid=(1, 1, 1),
    cluster=(1, 1, 1),
    smem: int = 0,
    before: str = "",
    raw: list[bytes] | None = None,
    text: str | None = None,
    **options,
):
    """Run a body on arrays passed as p0, p1, ...; returns the report."""
    module = Module.parse(text or kernel_text(body, params=len(arrays), before=before))
    return launch(
        module,
        Launch(
            grid=grid,
            block=(threads, 1, 1),
            cluster=cluster,
            smem_bytes=smem,
            params=raw or [a.ctypes.data.to_bytes(8, "little") for a in arrays],
            buffers=[Buffer(a.ctypes.data, a.nbytes, f"p{i}") for i, a in enumerate(arrays)],
        ),
        Options(**options),
    )


def to_bits(x: np.ndarray, kind: str) -> np.ndarray:
    """fp32 values as elements of a dtype."""
    if kind == "bf16":
        u = np.ascontiguousarray(x, np.float32).view(np.uint32)
        return ((u + 0x7FFF + (u >> 16 & 1)) >> 16).astype(np.uint16)
    return np.ascontiguousarray(x, np.float16 if kind == "fp16" else np.float32)


def to_values(x: np.ndarray, kind: str) -> np.ndarray:
    """Elements of a dtype as fp64."""
    if kind == "bf16":
        return (np.ascontiguousarray(x).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return x.astype(np.float64)


def exact_fp8(pattern: int, mantissa: int, bias: int) -> float:
    """Value of a finite fp8 pattern by the OCP definition."""
    e, f = (pattern & 127) >> mantissa, pattern & (1 << mantissa) - 1
    value = f * 2.0 ** (1 - bias - mantissa) if e == 0 else (1 + f / (1 << mantissa)) * 2.0 ** (e - bias)
    return -value if pattern & 128 else value


LANE = " mov.u32 %r0, %tid.x;\n" + "".join(f" ld.param.u64 %rd{i}, [p{i}];\n" for i in range(4))
_TYPE = {16: ("b16", "%rs", np.uint16), 32: ("b32", "%r", np.uint32), 64: ("b64", "%rd", np.uint64)}


def unary_on_lanes(
    instructions: str, *inputs: np.ndarray, out_bits: int = 32, before: str = ""
) -> np.ndarray:
    """Run instructions on some lanes: inputs arrive in {a}, {b}, {c}, the result leaves in {d}; uint patterns."""
    count = len(inputs[0])
    assert count % 32 == 0
    bits = [x.dtype.itemsize * 8 for x in inputs]
    body, names = LANE, {}
    for i, width in enumerate(bits):
        kind, prefix, _ = _TYPE[width]
        names["abc"[i]] = f"{prefix}{i + 10}"
        body += f" mad.wide.u32 %rd{20 + i}, %r0, {width // 8}, %rd{i + 1};"
        body += f" ld.global.{kind} {prefix}{i + 10}, [%rd{20 + i}];\n"
    kind, prefix, dtype = _TYPE[out_bits]
    names["d"] = f"{prefix}30"
    body += " " + instructions.format(**names) + "\n"
    body += f" mad.wide.u32 %rd40, %r0, {out_bits // 8}, %rd0; st.global.{kind} [%rd40], {prefix}30;\n"
    out = aligned(count, dtype)
    arrays = [out]
    for x in inputs:
        copy = aligned(count, x.dtype)
        copy[:] = x
        arrays.append(copy)
    while len(arrays) < 4:
        arrays.append(aligned(32, np.uint32))
    run(body, arrays, threads=count, before=before)
    return out

# SPDX-License-Identifier: Apache-2.0
"""An artefact as one C header: kernels and recipes as constants, launched through the CUDA driver API.

The header needs `cuda.h` and libcuda, but not Python, the DSL or a runtime library. It is valid C11 and C++17. Each
recipe becomes a struct of arguments and a function; the preamble has their shared types and functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from cutegemm.aot.artefact import Artefact, Recipe
from cutegemm.aot.recipe import CHUNK, FLOAT, WORKSPACE, KernelLaunch
from cutegemm.epilogue.graph import SCALE, Graph
from cutegemm.epilogue.scales import K_BLOCK
from cutegemm.errors import InputError, field_error
from cutegemm.launch_layout import COUNTERS
from cutegemm.problems import columns
from cutegemm.spec import GemmSpec

# keywords of C11 and C++20 that are not Python keywords, which no input can be called; and macros of the headers
KEYWORDS = frozenset(
    """alignas alignof asm auto bitand bitor bool case catch char co_await co_return co_yield compl concept const
    const_cast consteval constexpr constinit decltype default delete do double dynamic_cast enum explicit export
    extern false float friend goto inline int long mutable namespace new noexcept not_eq nullptr operator or_eq
    private protected public register reinterpret_cast requires restrict short signed sizeof static static_assert
    static_cast struct switch template this thread_local throw true typedef typeid typename union unsigned using
    virtual void volatile wchar_t xor xor_eq and_eq char8_t char16_t char32_t typeof linux unix NULL""".split()
)
LINE_BYTES = 24  # bytes of an array per line of C

# the types and functions at the start of every header, which load and launch a kernel
PREAMBLE = Path(__file__).with_name("runtime.h")

LOADING = """\
typedef struct {{ CUlibrary libraries[{count}]; CUkernel kernels[{count}]; }} {name}_module;

/* Unloads the kernels. */
static inline void {name}_unload({name}_module *module) {{
  for (unsigned i = 0; i < {count}; ++i)
    if (module->libraries[i]) cuLibraryUnload(module->libraries[i]);
  memset(module, 0, sizeof *module);
}}

/* Loads the kernels onto the device; after a failure nothing stays loaded. A context must be current on a device of
 * compute capability 9.0 with at least {sms} SMs. */
static inline CUresult {name}_load({name}_module *module) {{
  static const unsigned char *const images[] = {{{images}}};
  static const char *const names[] = {{{names}}};
  static const unsigned smem[] = {{{smem}}};
  CUdevice device;
  CUresult status = cuCtxGetDevice(&device);
  memset(module, 0, sizeof *module);
  for (unsigned i = 0; !status && i < {count}; ++i) {{
    status = cuLibraryLoadData(&module->libraries[i], images[i], NULL, NULL, 0, NULL, NULL, 0);
    if (!status) status = cuLibraryGetKernel(&module->kernels[i], module->libraries[i], names[i]);
    if (!status && smem[i])
      status = cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)smem[i],
                                    module->kernels[i], device);
    if (!status) status = cutegemm_load_now(module->kernels[i]);
  }}
  if (status) {name}_unload(module);
  return status;
}}
"""

CALL = """\
/* {shape}
{layouts}
 * workspace: {workspace} bytes, 16-byte aligned. counters: {counters} bytes, zero before the first launch and
 * reset by each launch. Either may be a null pointer if it has no bytes. Launches on one stream may share them. */
typedef struct {{ {fields} }} {name}_args;
enum {{ {name}_workspace_bytes = {workspace}, {name}_counter_bytes = {counters} }};

static inline CUresult {name}(const {module}_module *module, const {name}_args *args, CUstream stream) {{
  uint64_t sources[{sources}] = {{{values}}};
{numbers}  unsigned char memory[{bytes} + 64];
  void *pointers[{params}];
  CUresult status = CUDA_SUCCESS;
{launches}  return status;
}}
"""


# body of a function whose recipe has an empty D
UNUSED = "  (void)module, (void)stream, (void)sources, (void)memory, (void)pointers;\n"


def header(artefact: Artefact, name: str) -> str:
    """The text of a header.

    Args:
        artefact: with recipes that launch something.
        name: prefix of all definitions, a C identifier.

    Raises:
        InputError: the name is not a C identifier, or nothing is launched.
    """
    if not artefact.kernels:
        shapes = [(x.problem.m, x.problem.n, x.problem.k) for x in artefact.recipes]
        raise field_error(InputError, "problems", shapes, "must hold one whose D is not empty")
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise field_error(InputError, "name", name, "must be a C identifier", "gemm")
    guard = f"{name.upper()}_CUTEGEMM_H"
    versions = ", ".join(f"{x} {y}" for x, y in artefact.versions.items())
    head = f"/* {artefact.spec}, planned for {artefact.gpu}; {versions}. Made by cutegemm: do not edit. */"
    parts = [head.replace("*/ ", "* / "), f"#ifndef {guard}\n#define {guard}", PREAMBLE.read_text("utf-8")]
    for i, kernel in enumerate(artefact.kernels):
        parts.append(_array(f"static const unsigned char {name}_cubin_{i}[]", kernel.cubin))
    parts.append(_loading(artefact, name))
    for i, recipe in enumerate(artefact.recipes):
        parts += _call(recipe, name, f"{name}_{i}", artefact.spec)
    return "\n\n".join([*parts, f"#endif /* {guard} */\n"])


def _loading(artefact: Artefact, name: str) -> str:
    count = len(artefact.kernels)
    smem = [0] * count
    for recipe in artefact.recipes:
        for step in recipe.steps:
            smem[step.kernel] = max(smem[step.kernel], step.smem)
    return LOADING.format(
        name=name,
        count=count,
        sms=artefact.sms,
        images=", ".join(f"{name}_cubin_{i}" for i in range(count)),
        names=", ".join(f'"{x.name}"' for x in artefact.kernels),
        smem=", ".join(map(str, smem)),
    )


def _call(recipe: Recipe, module: str, name: str, spec: GemmSpec) -> Iterator[str]:
    """The constants of a recipe's launches, and the function that runs them."""
    members = _members(recipe)
    sources = list(members)
    tensors = [x for x in sources if x not in recipe.numbers]
    kinds = {p.source: p.kind for step in recipe.steps for p in step.patches}
    for i, step in enumerate(recipe.steps):
        yield from _constants(step, f"{name}_{i}", sources)
    p = recipe.problem
    typed = {x: "float" if kinds.get(x, FLOAT) == FLOAT else "int32_t" for x in recipe.numbers}
    yield CALL.format(
        shape=f"M x N x K = {p.m} x {p.n} x {p.k}, batch {p.batch}. Strides (row, column, batch) are in elements.",
        layouts="\n".join(f" * {members[x]}: {text}." for x, text in _layouts(recipe, spec).items()),
        workspace=recipe.workspace_bytes,
        counters=recipe.counter_bytes,
        fields=" ".join(
            [f"CUdeviceptr {members[x]};" for x in tensors]
            + [f"{kind} {members[x]};" for x, kind in typed.items()]
        ),
        name=name,
        module=module,
        sources=len(sources),
        values=", ".join(f"(uint64_t)args->{members[x]}" for x in tensors),
        numbers="".join(
            f"  memcpy(&sources[{sources.index(x)}], &args->{members[x]}, 4);\n" for x in recipe.numbers
        ),
        bytes=max((x.offsets[-1] for x in recipe.steps), default=1),
        params=max((len(x.params) for x in recipe.steps), default=1),
        launches="".join(
            f"  if (!status) status = cutegemm_run(module->kernels, &{name}_{i}, sources, memory, pointers, stream);\n"
            for i in range(len(recipe.steps))
        )
        or UNUSED,
    )


def _layouts(recipe: Recipe, spec: GemmSpec) -> dict[str, str]:
    """The memory layout of each tensor of a call, in words."""
    p = recipe.problem
    layouts = {
        x: f"{o.dtype.value}, {o.rows} x {o.cols} x {o.batch}, strides {o.strides}, {o.align}-byte aligned"
        for x, o in {"a": p.a, "b": p.b, **dict(p.inputs), **dict(p.outputs)}.items()
    }
    layouts |= {x: "one fp32 number in device memory, 4-byte aligned" for x in p.device_scalars}
    graph = spec.epilogue
    if not isinstance(graph, Graph):
        return layouts
    for x in graph.reductions:
        shape = x.shape(p.batch, p.m, columns(graph, p.n), recipe.parts)
        if x.kind == SCALE:
            held = "exponents of 8 bits (ue8m0)" if x.exponents else "fp32"
            text = f"{held}, {' x '.join(map(str, shape))}, contiguous: blocks of columns, batches, blocks of rows"
            layouts[x.name] = f"{text}; scales of {x.block} x {K_BLOCK}"
            continue
        text = f"fp32, {' x '.join(map(str, shape))}, contiguous, 4-byte aligned"
        if x.partial:
            text += f"; {x.by_axis(*recipe.parts)} partial results"
            text += ", first all maxima, then all sums of exp(x - maximum)" * (x.kind == "logsumexp")
        axis = x.by_axis("over rows", "over columns", "over all of D")
        layouts[x.name] = f"{text}; {x.kind} {axis}"
    return layouts


def _members(recipe: Recipe) -> dict[str, str]:
    """The member of the struct of arguments for each source of a launch, in the order of sources."""
    names = [*recipe.tensors, WORKSPACE, COUNTERS, *recipe.numbers]
    members = {WORKSPACE: "workspace", COUNTERS: "counters"}
    for name in names:
        member = members.get(name, name)
        while name not in members and (
            member in KEYWORDS or member in members.values() or (member != name and member in names)
        ):
            member += "_"
        members[name] = member
    return {x: members[x] for x in names}


def _constants(step: KernelLaunch, name: str, sources: Sequence[str]) -> Iterator[str]:
    """A launch's parameters, offsets and patches as C constants."""
    *offsets, size = step.offsets
    block = bytearray(size)
    for x, offset in zip(step.params, offsets):
        block[offset : offset + len(x)] = x
    yield _array(f"static const unsigned char {name}_block[]", bytes(block))
    yield f"static const uint32_t {name}_offsets[] = {{{', '.join(map(str, offsets))}}};"
    rows = [
        f"{{{sources.index(p.source)}, {2 if p.size == 4 else int(p.kind == CHUNK)}, "
        f"{offsets[p.param] + p.offset}, {p.addend}}}"
        for p in step.patches
    ]
    yield f"static const cutegemm_patch {name}_patches[] = {{{', '.join(rows) or '{0, 0, 0, 0}'}}};"
    extents = ", ".join("{" + ", ".join(map(str, x)) + "}" for x in (step.grid, step.block, step.cluster))
    numbers = f"{step.smem}, {int(step.pdl)}, {len(offsets)}, {size}, {len(rows)}"
    yield (
        f"static const cutegemm_launch {name} = {{{step.kernel}, {extents}, {numbers}, "
        f"{name}_offsets, {name}_block, {name}_patches}};"
    )


def _array(declaration: str, data: bytes) -> str:
    lines = (
        ", ".join(f"0x{x:02x}" for x in data[i : i + LINE_BYTES]) for i in range(0, len(data), LINE_BYTES)
    )
    return f"{declaration} = {{\n" + ",\n".join(lines) + "\n};"

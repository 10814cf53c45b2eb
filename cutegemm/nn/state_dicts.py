# SPDX-License-Identifier: Apache-2.0
"""State dicts of modules that store several parameters as one: saved and loaded as separate tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch


def apart(state: dict[str, Any], wholes: Mapping[str, Mapping[str, int]]) -> None:
    """Replace whole tensors by their parts in a state dict that is being created.

    Args:
        state: the state dict.
        wholes: key of a whole tensor -> keys of its parts -> their rows. Missing keys are ignored. With several wholes,
            all first parts come first, then all second ones.
    """
    found = {key: parts for key, parts in wholes.items() if key in state}
    if not found:
        return
    keys = list(state)
    later = [x for x in keys[min(keys.index(x) for x in found) :] if x not in found]
    shares = [zip(parts, state.pop(key).split(list(parts.values()))) for key, parts in found.items()]
    for each in zip(*shares):
        state.update(each)
    for key in later:
        state[key] = state.pop(key)


def together(
    state: dict[str, Any],
    keys: Sequence[str],
    whole: torch.Tensor | None,
    parts: Mapping[str, int],
    metadata: Mapping[str, Any],
    missing: list[str],
    errors: list[str],
) -> None:
    """Replace parts by their whole tensor in a state dict that is being loaded.

    A part that is missing, or has another shape, keeps the module's values, and is reported to torch by its key.

    Args:
        state: the state dict.
        keys: of the whole tensor in torch; several if several modules have it.
        whole: the module's parameter, None if torch's parametrizations or pruning have replaced it. Nothing is done if
            it is None, or if the state dict has the whole and no part.
        parts: keys of the parts -> their rows.
        metadata, missing, errors: arguments of torch's load hook.
    """
    given = {key: state[key] for key in parts if key in state}
    if whole is None or (not given and any(key in state for key in keys)):
        return
    for key in given:
        del state[key]
    absent = [key for key in parts if key not in given]
    missing.extend(absent)
    own = dict(zip(parts, whole.detach().split(list(parts.values())), strict=True))
    for key, x in list(given.items()):
        if x.shape != own[key].shape:
            rule = f"{tuple(x.shape)}, but the layer has {tuple(own[key].shape)}"
            errors.append(f"size mismatch for {key}: {rule}")
            del given[key]
    if given and absent and whole.is_meta:
        rule = "their layer has no memory yet, so all of its tensors must be loaded"
        errors.append(f"{', '.join(given)} without {', '.join(absent)}: {rule}")
    if not given or (whole.is_meta and len(given) < len(parts)):
        # the module's own tensor, so nothing changes
        state.update(dict.fromkeys(keys, whole))
        return
    like = next(iter(given.values()))
    found = [given[key] if key in given else x.to(like.device, like.dtype) for key, x in own.items()]
    made = torch.cat(_distributed(found, [whole, *found]))
    # if tensors are copied, the first key suffices; if they are assigned, the last one counts, and a distributed
    # module's `whole` may no longer exist by then
    again = made if metadata.get("assign_to_params_buffers") or hasattr(made, "device_mesh") else whole
    state.update({key: made if i == 0 else again for i, key in enumerate(keys)})


def _distributed(tensors: Sequence[torch.Tensor], beside: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Convert tensors that every process has to replicated DTensors if one of `beside` is a DTensor."""
    mesh: Any = next((x.device_mesh for x in beside if hasattr(x, "device_mesh")), None)
    if mesh is None:
        return list(tensors)
    from torch.distributed.tensor import DTensor, Replicate

    return [
        x
        if isinstance(x, DTensor)
        else DTensor.from_local(x.to(mesh.device_type), mesh, [Replicate()] * mesh.ndim)
        for x in tensors
    ]


__all__ = ["apart", "together"]

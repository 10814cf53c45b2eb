# SPDX-License-Identifier: Apache-2.0
"""State dicts of modules that have several parameters of torch's modules as one: saved and loaded as theirs are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch


def apart(state: dict[str, Any], wholes: Mapping[str, Mapping[str, int]]) -> None:
    """Put parts in the place of whole tensors, in a state dict that is being made.

    Args:
        state: the state dict.
        wholes: key of a whole tensor -> keys of its parts -> their rows. Keys that are not there are passed over. Of
            several wholes all first parts come first, then all second ones.
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
    """Put a whole tensor in the place of its parts, in a state dict that is being loaded.

    A part that is not there, or has other extents, stays as the module has it, and torch is told of it by its own key.

    Args:
        state: the state dict.
        keys: under which torch looks for the whole tensor; several where it hangs at several places.
        whole: as the module has it. Nothing is done without one, or where the state dict has it and no part.
        parts: keys of the parts -> their rows.
        metadata, missing, errors: what torch hands to a hook: how it loads, its lists of keys and of messages.
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
            rule = f"{tuple(x.shape)} where the layer has {tuple(own[key].shape)}"
            errors.append(f"size mismatch for {key}: {rule}")
            del given[key]
    if given and absent and whole.is_meta:
        rule = "their layer has no memory yet, and is loaded as a whole or not at all"
        errors.append(f"{', '.join(given)} without {', '.join(absent)}: {rule}")
    if not given or (whole.is_meta and len(given) < len(parts)):
        # itself: nothing changes
        state.update(dict.fromkeys(keys, whole))
        return
    like = next(iter(given.values()))
    found = [given[key] if key in given else x.to(like.device, like.dtype) for key, x in own.items()]
    made = torch.cat(_distributed(found, [whole, *found]))
    # once is enough where tensors are copied; where they are assigned, the last one counts, and of a distributed module
    # `whole` may be gone by then
    again = made if metadata.get("assign_to_params_buffers") or hasattr(made, "device_mesh") else whole
    state.update({key: made if i == 0 else again for i, key in enumerate(keys)})


def _distributed(tensors: Sequence[torch.Tensor], beside: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors that every process has, as distributed ones where one beside them is distributed."""
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

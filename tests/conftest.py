# SPDX-License-Identifier: Apache-2.0
"""What every test stands on: the GPU marker, one kernel cache per session, hypothesis profiles."""

import os
import tempfile

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("CUTE_DSL_ARCH", "sm_90a")  # read when the DSL is first imported
_CACHE = tempfile.TemporaryDirectory(prefix="cutegemm-test-cache-")
# Compiled kernels serve the whole session, and no other unless a directory to keep is named.
os.environ["CUTEGEMM_CACHE_DIR"] = os.environ.get("CUTEGEMM_TEST_CACHE_DIR") or _CACHE.name

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
settings.register_profile("default", max_examples=60, deadline=None, suppress_health_check=_SLOW)
settings.register_profile("long", max_examples=2_000, deadline=None, suppress_health_check=_SLOW)


def pytest_addoption(parser):
    """`--profile long`: the same properties on more drawn cases."""
    default = os.environ.get("HYPOTHESIS_PROFILE", "default")
    parser.addoption(
        "--profile", choices=("default", "long"), default=default, help="how many cases are drawn"
    )


def pytest_configure(config):
    """Load the profile before any test module is read."""
    settings.load_profile(config.getoption("--profile"))


def _missing_gpu() -> str | None:
    """Why GPU tests cannot run here, or None."""
    import torch

    if not torch.cuda.is_available():
        return "needs a Hopper GPU; torch sees no CUDA device"
    capability = torch.cuda.get_device_capability()
    if capability != (9, 0):
        return f"needs a Hopper GPU (9.0); {torch.cuda.get_device_name()} is {capability[0]}.{capability[1]}"
    return None


def pytest_collection_modifyitems(items):
    """Skip GPU tests, with the reason, where there is no Hopper GPU."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    reason = _missing_gpu() if marked else None
    if reason is not None:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))

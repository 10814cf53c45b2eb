# SPDX-License-Identifier: Apache-2.0
"""Which rows of a module a run has; of sliced tests a run of the whole suite takes some."""

import pytest


def names(request: pytest.FixtureRequest) -> set[str]:
    """The names of all rows of the requesting module's tests."""
    here = (x for x in request.session.items if x.path == request.path)
    return {x.callspec.id for x in here if hasattr(x, "callspec")}

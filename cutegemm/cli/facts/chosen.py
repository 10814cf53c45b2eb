# SPDX-License-Identifier: Apache-2.0
"""The plan of a command's problem: the one that `build` would use, or `grouped_mm` for groups."""

from __future__ import annotations

from dataclasses import replace

from cutegemm.cli.inputs import Case
from cutegemm.database.choice import Choice, choose, from_model
from cutegemm.epilogue.graph import Graph, linear_combination
from cutegemm.errors import InputError, field_error
from cutegemm.planning.grouped import plan_groups
from cutegemm.plans.steps import Ends
from cutegemm.request.group_forms import check_form
from cutegemm.request.requirements import check_dtypes, check_majors
from cutegemm.spec import AUTO, GemmSpec


def chosen(case: Case) -> Choice:
    """The plan, and the database entry that it comes from; groups have no entries.

    Raises:
        GemmError: no kernel supports the problem under the spec, or groups have no elements.
    """
    if not case.form:
        return choose(case.spec, case.problem, case.device)
    spec, of = case.spec, case.problem
    if 0 in (of.m, of.n, of.k):
        rule = "groups without elements run no kernel"
        nearest = tuple(max(x, 1) for x in (of.m, of.n, of.k))
        raise field_error(InputError, "M N K", (of.m, of.n, of.k), rule, nearest)
    graph = epilogue_of(spec)
    check_form(graph, case.form)
    check_dtypes(spec, of)
    check_majors(spec, of)
    # D is already described by the problem
    whole = replace(spec, epilogue=graph, d_dtype=AUTO, d_major=AUTO)
    ends = Ends(tail=case.form != "depth")
    return from_model(plan_groups(whole, of, case.form, ends, case.device))


def epilogue_of(spec: GemmSpec) -> Graph:
    """The epilogue of a call of groups."""
    return spec.epilogue if isinstance(spec.epilogue, Graph) else linear_combination(False)

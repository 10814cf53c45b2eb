# SPDX-License-Identifier: Apache-2.0
"""What a page shows as printed, beside what was printed."""

import re


def missing(shown, printed):
    """The lines that a page shows and that were not printed; "..." in a line stands for anything."""
    forms = (re.escape(x).replace(re.escape("..."), ".*") for x in shown.splitlines())
    lines = printed.splitlines()
    return [form for form in forms if not any(re.fullmatch(form, x.rstrip()) for x in lines)]

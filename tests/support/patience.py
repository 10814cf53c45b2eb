# SPDX-License-Identifier: Apache-2.0
"""How long tests wait for what must come, on a machine that does other work too."""

# seconds after which a process or an emulated kernel that is still at work is taken for one that never ends
PATIENCE = 600

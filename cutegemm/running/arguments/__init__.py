# SPDX-License-Identifier: Apache-2.0
"""From a call's arguments to a kind of call: names, layouts, types, addresses; and the results of a call."""

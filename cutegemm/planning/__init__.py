# SPDX-License-Identifier: Apache-2.0
"""From a spec and a problem to a plan: pure Python, without torch, DSL or GPU."""

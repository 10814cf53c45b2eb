# SPDX-License-Identifier: Apache-2.0
"""From a config to a compiled kernel, kept on disk and loaded. Needs no GPU."""

# SPDX-License-Identifier: Apache-2.0
"""From a call's arguments to launches: checks, results, backends. Imports torch."""

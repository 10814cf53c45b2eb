# SPDX-License-Identifier: Apache-2.0
"""Ahead-of-time artefacts: the launches of chosen problems in one file that needs neither the DSL nor its runtime.

`recipe`    a plan's launches as bytes, with the places where a call's addresses and numbers go
`artefact`  the container: manifest, cubins, PTX, checksums
`driver`    launches a recipe through the CUDA driver API
`header`    the same recipes as one C header
"""

# SPDX-License-Identifier: Apache-2.0
"""The page of `explain --html`: one file without any link, light and dark.

page       the document, from figures and tables
figures    owners of D's elements, shared memory, TMA boxes
charts     raster, timeline, roofline
marks      SVG as text, coloured by classes that `style.css` gives two palettes; layout_picture: the SVG of `layout`

Figures are made here, of the plan; `script.js` shows what lies under the pointer and works out who owns an element.
"""

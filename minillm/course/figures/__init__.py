"""The figures of the notebooks: one module `nbNN.py` per notebook.

A notebook computes the numbers and calls one of these to draw them, so that its cells show the
lesson and not the plotting. Every function ends in `plots.show` with a description in words.
"""

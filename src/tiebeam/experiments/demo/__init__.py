"""The demo: one model with the classic mistake and the same model mended, trained side by side.

`tiebeam.experiments.demo.run.run_demo` runs it. Importing this package imports no framework.
"""

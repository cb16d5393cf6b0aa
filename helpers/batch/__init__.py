"""Grids of runs, here or on Ray.   python -m helpers.batch"""

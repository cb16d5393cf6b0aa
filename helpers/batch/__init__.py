"""Grids of runs, here or on Ray, and what torchrun or accelerate starts.   python -m helpers.batch"""

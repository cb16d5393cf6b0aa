"""Grids of runs, here or on Ray, and several processes of one training.   python -m helpers.batch"""

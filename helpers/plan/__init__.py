"""Does it fit, how long, how much.   python -m helpers.plan"""

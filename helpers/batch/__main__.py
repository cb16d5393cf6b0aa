"""python -m helpers.batch"""

import sys

from .grid import main

sys.exit(main())

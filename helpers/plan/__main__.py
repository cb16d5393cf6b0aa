"""python -m helpers.plan"""

from .outlook import main

raise SystemExit(main())

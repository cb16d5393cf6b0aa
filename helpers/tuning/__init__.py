"""Hardware tuning: a text classifier before and after each optimisation, measured on the machine at hand."""

"""What the README claims, measured here: each sub-bench turns a model into figures, and figures
into tables and charts as data. Nothing here prints; `catalog` says how to add one."""

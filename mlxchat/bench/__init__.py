"""Measures the figures in the documentation: each benchmark turns a model into figures, and figures
into tables and charts as data. Nothing here prints; `catalog` explains how to add one."""

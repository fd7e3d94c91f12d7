"""Measures this program's speed and memory: each benchmark turns a model into figures. Nothing here
prints; `catalog` explains how to add one."""

"""Measures this program's speed and memory: each benchmark turns a model into figures. Nothing here
prints; `benchmarks` explains how to add one."""

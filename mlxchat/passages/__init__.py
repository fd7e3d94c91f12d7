"""Documents of any size, as passages that can be searched. Knows nothing of tokens and models; the
window they must fit into is for `app`. Read `index` first: how they are split.
"""

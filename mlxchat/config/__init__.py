"""The user's configuration: what the file and the environment set, and edits of the file.

Which options there are, and which values they take, is for `cli`. Read `file` first.
"""

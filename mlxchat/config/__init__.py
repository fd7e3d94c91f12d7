"""Configuration: the user's file, environment variables, and their precedence."""

"""Configuration: the user's file, a project's file, environment variables, and their precedence."""

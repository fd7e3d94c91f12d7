"""What is configured: the user's file, a project's file, variables, and how they combine."""

"""Text and tokens: what a prompt is rendered to, and what a reply is made of. Knows no model."""

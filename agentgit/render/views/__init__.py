"""Values as lines of text, a module for each kind: logs, trees, calls, plans, reports, lists."""

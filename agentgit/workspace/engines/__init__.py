"""What keeps snapshots: git, directories, containers, and the engines of users."""

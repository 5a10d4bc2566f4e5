"""Pages that a person looks at. They are the same for everybody: what they show, they ask the HTTP interface for."""

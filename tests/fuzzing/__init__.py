"""Random inputs for every public function: strategies, references and how long they run."""

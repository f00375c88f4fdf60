"""What measures: each probe calls the very code that a run calls, and times it as a run would."""

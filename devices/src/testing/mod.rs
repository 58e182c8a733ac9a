//! Driver-side doubles: what a guest does, for tests.

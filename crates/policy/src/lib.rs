//! decide() and check(): what each guest should have, and why. Pure.

//! (in the next step)

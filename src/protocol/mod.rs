//! What callers say and hear: ops, replies, errors, and how they are written.

pub mod boundary;
pub mod error;
pub mod op;
pub mod render;
pub mod reply;

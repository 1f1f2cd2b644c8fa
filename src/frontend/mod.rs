//! frontend
pub mod leaktest;

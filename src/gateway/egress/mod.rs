//! Ways out of the gateway.

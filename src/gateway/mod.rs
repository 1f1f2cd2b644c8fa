//! The one socket Chromium can reach: names, judges, carries, records.

pub mod egress;

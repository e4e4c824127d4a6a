//! The workloads, one file each. W1t, W1x and W2 to W9 are to come as further files here.

pub(crate) mod w1;

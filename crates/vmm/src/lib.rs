//! Virtual machine monitors: the wire's units and signs end here.

//! Assembles host and VMMs into the live world; configuration and the local API.

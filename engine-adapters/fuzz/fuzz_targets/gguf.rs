//! Hostile GGUF headers: no panic, no hang, no allocation out of proportion (libFuzzer's memory limit checks it).
#![no_main]

use libfuzzer_sys::fuzz_target;
use lifeboat_engines::gguf::{self, GgufError};

fuzz_target!(|bytes: &[u8]| {
    // Most inputs should get past the magic and the version.
    let framed = [b"GGUF\x03\0\0\0", bytes].concat();
    for input in [bytes, &framed[..]] {
        match gguf::read(input) {
            Ok(header) => {
                let _ = header.end_of_data();
                let _ = gguf::facts(&header, &[]);
                let _ = gguf::facts(&header, std::slice::from_ref(&header));
            }
            Err(GgufError::NeedMore { at_least }) => assert!(at_least > input.len() as u64),
            Err(_) => {}
        }
    }
});

//! Writes small GGUF files, whole in structure, for tests of everything around them.

/// A file to be written.
pub(super) struct GgufFile {
    pub(super) architecture: &'static str,
    pub(super) kind: &'static str,
    /// Entries of the vocabulary: what makes headers long.
    pub(super) tokens: u64,
    /// Elements of the one tensor, f32.
    pub(super) elements: usize,
    /// Part number and number of parts.
    pub(super) split: Option<(u16, u16)>,
}

impl Default for GgufFile {
    fn default() -> Self {
        Self { architecture: "llama", kind: "model", tokens: 10, elements: 4096, split: None }
    }
}

impl GgufFile {
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut keys = Writer::default();
        keys.text("general.architecture", self.architecture);
        keys.text("general.type", self.kind);
        keys.text("general.name", "Small");
        keys.text("general.license", "apache-2.0");
        keys.number("general.file_type", 0);
        for (name, value) in [
            ("block_count", 2),
            ("context_length", 2048),
            ("embedding_length", 64),
            ("feed_forward_length", 128),
            ("attention.head_count", 4),
            ("attention.head_count_kv", 2),
        ] {
            keys.number(&format!("{}.{name}", self.architecture), value);
        }
        keys.text("tokenizer.chat_template", "{{ messages }}");
        keys.texts("tokenizer.ggml.tokens", self.tokens);
        if let Some((number, count)) = self.split {
            keys.short("split.no", number);
            keys.short("split.count", count);
        }
        let mut file = Vec::new();
        file.extend_from_slice(b"GGUF");
        file.extend_from_slice(&3_u32.to_le_bytes());
        file.extend_from_slice(&1_u64.to_le_bytes());
        file.extend_from_slice(&keys.count.to_le_bytes());
        file.extend_from_slice(&keys.bytes);
        let mut tensor = Writer::default();
        tensor.string("token_embd.weight");
        tensor.bytes.extend_from_slice(&1_u32.to_le_bytes());
        tensor.bytes.extend_from_slice(&(self.elements as u64).to_le_bytes());
        tensor.bytes.extend_from_slice(&0_u32.to_le_bytes());
        tensor.bytes.extend_from_slice(&0_u64.to_le_bytes());
        file.extend_from_slice(&tensor.bytes);
        file.resize(file.len().next_multiple_of(32), 0);
        file.extend(crate::download::testing::noise(self.elements * 4));
        file
    }
}

#[derive(Default)]
struct Writer {
    bytes: Vec<u8>,
    count: u64,
}

impl Writer {
    fn string(&mut self, text: &str) {
        self.bytes.extend_from_slice(&(text.len() as u64).to_le_bytes());
        self.bytes.extend_from_slice(text.as_bytes());
    }

    fn key(&mut self, name: &str, kind: u32) {
        self.count += 1;
        self.string(name);
        self.bytes.extend_from_slice(&kind.to_le_bytes());
    }

    fn text(&mut self, name: &str, value: &str) {
        self.key(name, 8);
        self.string(value);
    }

    fn number(&mut self, name: &str, value: u32) {
        self.key(name, 4);
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    fn short(&mut self, name: &str, value: u16) {
        self.key(name, 2);
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    fn texts(&mut self, name: &str, count: u64) {
        self.key(name, 9);
        self.bytes.extend_from_slice(&8_u32.to_le_bytes());
        self.bytes.extend_from_slice(&count.to_le_bytes());
        for index in 0..count {
            self.string(&format!("token{index}"));
        }
    }
}

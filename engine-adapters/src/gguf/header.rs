//! Bytes -> keys and tensors, within bounds.
//!
//! What is kept is bounded whatever the file says: short strings, numbers, and arrays of numbers short enough to
//! be "one a layer". Tokenizer arrays (1e5 entries and more) are walked over and only counted.

use std::collections::BTreeMap;

use super::GgufError;
use super::tensor::layout;

/// Most bytes a header may have. The largest known are some 30 MB.
pub const MAX_HEADER_BYTES: u64 = 256 << 20;
/// Most keys.
const MAX_KEYS: u64 = 65_536;
/// Most tensors.
const MAX_TENSORS: u64 = 262_144;
/// Longest key or tensor name, bytes.
const MAX_NAME_BYTES: u64 = 65_535;
/// Longest string value, bytes.
const MAX_STRING_BYTES: u64 = 16 << 20;
/// Longest string value that is kept, bytes; of longer ones only the length is known.
const MAX_KEPT_STRING: u64 = 256 << 10;
/// Longest array whose numbers are kept: more than any model has layers.
const MAX_KEPT_ARRAY: u64 = 4096;
/// Numbers kept of all arrays together.
const MAX_KEPT_NUMBERS: u64 = 1 << 20;
/// Text kept of all keys, names and values together, bytes.
const MAX_KEPT_TEXT: u64 = 64 << 20;
/// Most elements of any array.
const MAX_ARRAY: u64 = 64 << 20;
/// Dimensions of a tensor.
const MAX_DIMENSIONS: u32 = 4;
/// Where the file does not say.
const DEFAULT_ALIGNMENT: u64 = 32;

/// A value of the header, as much of it as is kept.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Any integer type.
    Integer(i128),
    /// f32 or f64.
    Float(f64),
    /// A boolean.
    Bool(bool),
    /// A string that was short enough to keep.
    Text(String),
    /// A string of that many bytes that was not kept.
    LongText(u64),
    /// An array of integers or booleans, short enough to keep.
    Integers(Vec<i64>),
    /// An array of that many elements that was not kept.
    Skipped(u64),
}

/// One tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// Elements.
    pub elements: u64,
    /// Its type number.
    pub kind: u32,
    /// Bytes; `None` where the type is not known.
    pub bytes: Option<u64>,
    /// Where its data begins, from the start of the data.
    pub offset: u64,
}

/// A header, read to its end.
#[derive(Debug, Clone, PartialEq)]
pub struct Header {
    /// 1, 2 or 3.
    pub version: u32,
    /// All keys.
    pub values: BTreeMap<String, Value>,
    /// All tensors, in file order.
    pub tensors: Vec<Tensor>,
    /// Where the tensor data begins.
    pub data_offset: u64,
}

impl Header {
    /// An integer that fits 64 bits and is not negative.
    pub fn integer(&self, key: &str) -> Option<u64> {
        match self.values.get(key)? {
            Value::Integer(number) => u64::try_from(*number).ok(),
            Value::Bool(flag) => Some(u64::from(*flag)),
            _ => None,
        }
    }

    /// A string that was kept.
    pub fn text(&self, key: &str) -> Option<&str> {
        match self.values.get(key)? {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Number of elements of an array, kept or not.
    pub fn array_length(&self, key: &str) -> Option<u64> {
        match self.values.get(key)? {
            Value::Skipped(length) => Some(*length),
            Value::Integers(numbers) => Some(numbers.len() as u64),
            _ => None,
        }
    }

    /// Bytes of all tensors; an error names the first whose type is not known.
    pub fn tensor_bytes(&self) -> Result<u64, GgufError> {
        self.tensors.iter().try_fold(0_u64, |sum, tensor| match tensor.bytes {
            Some(bytes) => Ok(sum.saturating_add(bytes)),
            None => Err(GgufError::UnknownTensorType { name: tensor.name.clone(), kind: tensor.kind }),
        })
    }

    /// Where the data of the last tensor ends: a shorter file is cut off.
    pub fn end_of_data(&self) -> u64 {
        let end = self.tensors.iter().map(|tensor| tensor.offset.saturating_add(tensor.bytes.unwrap_or(0))).max().unwrap_or(0);
        self.data_offset.saturating_add(end)
    }

    /// Number and count of a split file: `(0, 3)` is the first of three.
    pub fn split(&self) -> Option<(u32, u32)> {
        let count = u32::try_from(self.integer("split.count")?).ok()?;
        let number = self.integer("split.no").and_then(|number| u32::try_from(number).ok()).unwrap_or(0);
        (count > 1).then_some((number, count))
    }
}

/// Reads a header from the beginning of a file.
pub fn read(bytes: &[u8]) -> Result<Header, GgufError> {
    let mut input = Input { bytes, at: 0, wide: true, text_left: MAX_KEPT_TEXT, numbers_left: MAX_KEPT_NUMBERS };
    if !b"GGUF".starts_with(&bytes[..bytes.len().min(4)]) {
        return Err(GgufError::NotGguf);
    }
    input.take(4)?;
    let version = input.u32()?;
    input.wide = version != 1;
    match version {
        1..=3 => {}
        _ if (1..=3).contains(&version.swap_bytes()) => return Err(GgufError::BigEndian),
        _ => return Err(GgufError::Version(version)),
    }
    let tensor_count = input.count("tensors", MAX_TENSORS)?;
    let key_count = input.count("keys", MAX_KEYS)?;
    let values = read_values(&mut input, key_count)?;
    let tensors = read_tensors(&mut input, tensor_count)?;
    let alignment = match values.get("general.alignment") {
        None => DEFAULT_ALIGNMENT,
        Some(Value::Integer(alignment)) => u64::try_from(*alignment)
            .ok()
            .filter(|alignment| alignment.is_power_of_two() && *alignment <= 1 << 20)
            .ok_or_else(|| input.corrupt("the alignment is not a small power of two"))?,
        Some(_) => return Err(input.corrupt("the alignment is not a number")),
    };
    let data_offset = (input.at as u64).next_multiple_of(alignment);
    Ok(Header { version, values, tensors, data_offset })
}

fn read_values(input: &mut Input<'_>, count: u64) -> Result<BTreeMap<String, Value>, GgufError> {
    let mut values = BTreeMap::new();
    for done in 0..count {
        // Each key that is still to come has at least a length, a type and a byte of value.
        input.expect((count - done).saturating_mul(9))?;
        let key = input.text(MAX_NAME_BYTES, "a key is too long")?.to_owned();
        let kind = input.u32()?;
        let value = read_value(input, kind)?;
        if values.insert(key, value).is_some() {
            return Err(input.corrupt("a key is there twice"));
        }
    }
    Ok(values)
}

fn read_value(input: &mut Input<'_>, kind: u32) -> Result<Value, GgufError> {
    match kind {
        8 => {
            let length = input.length(MAX_STRING_BYTES, "a string is too long")?;
            let text = input.take(length)?;
            if length > MAX_KEPT_STRING || !input.keep_text(length) {
                return Ok(Value::LongText(length));
            }
            Ok(Value::Text(String::from_utf8_lossy(text).into_owned()))
        }
        9 => read_array(input),
        _ => read_scalar(input, kind),
    }
}

fn read_scalar(input: &mut Input<'_>, kind: u32) -> Result<Value, GgufError> {
    let Some(width) = scalar_width(kind) else {
        return Err(input.corrupt("a value has a type that does not exist"));
    };
    let mut wide = [0_u8; 8];
    for (to, from) in wide.iter_mut().zip(input.take(width)?) {
        *to = *from;
    }
    let unsigned = u64::from_le_bytes(wide);
    // Sign extension: shift the value up to the top and back down.
    let unused = 64 - 8 * u32::try_from(width).unwrap_or(8);
    let signed = (i64::from_le_bytes(wide) << unused) >> unused;
    let [b0, b1, b2, b3, ..] = wide;
    Ok(match kind {
        1 | 3 | 5 | 11 => Value::Integer(signed.into()),
        6 => Value::Float(f32::from_le_bytes([b0, b1, b2, b3]).into()),
        7 => Value::Bool(unsigned != 0),
        12 => Value::Float(f64::from_bits(unsigned)),
        _ => Value::Integer(unsigned.into()),
    })
}

/// Bytes of a scalar type.
const fn scalar_width(kind: u32) -> Option<u64> {
    Some(match kind {
        0 | 1 | 7 => 1,
        2 | 3 => 2,
        4..=6 => 4,
        10..=12 => 8,
        _ => return None,
    })
}

fn read_array(input: &mut Input<'_>) -> Result<Value, GgufError> {
    let kind = input.u32()?;
    let length = input.count("elements in an array", MAX_ARRAY)?;
    match kind {
        8 => {
            for done in 0..length {
                input.expect((length - done).saturating_mul(if input.wide { 8 } else { 4 }))?;
                let bytes = input.length(MAX_STRING_BYTES, "a string is too long")?;
                input.take(bytes)?;
            }
            Ok(Value::Skipped(length))
        }
        9 => Err(input.corrupt("an array holds arrays")),
        _ => {
            let Some(width) = scalar_width(kind) else {
                return Err(input.corrupt("an array has a type that does not exist"));
            };
            input.expect(length.saturating_mul(width))?;
            if length > MAX_KEPT_ARRAY || length > input.numbers_left || matches!(kind, 6 | 12) {
                input.take(length * width)?;
                return Ok(Value::Skipped(length));
            }
            input.numbers_left -= length;
            let mut numbers = Vec::new();
            for _ in 0..length {
                numbers.push(match read_scalar(input, kind)? {
                    Value::Integer(number) => i64::try_from(number).unwrap_or(i64::MAX),
                    Value::Bool(flag) => flag.into(),
                    _ => 0,
                });
            }
            Ok(Value::Integers(numbers))
        }
    }
}

fn read_tensors(input: &mut Input<'_>, count: u64) -> Result<Vec<Tensor>, GgufError> {
    let mut tensors = Vec::new();
    for done in 0..count {
        // A name, the number of dimensions, one dimension, a type and an offset.
        input.expect((count - done).saturating_mul(24))?;
        let name = input.text(MAX_NAME_BYTES, "a tensor name is too long")?.to_owned();
        let dimensions = input.u32()?;
        if dimensions > MAX_DIMENSIONS {
            return Err(input.corrupt("a tensor has more than 4 dimensions"));
        }
        let mut elements = 1_u64;
        let mut row = 1_u64;
        for index in 0..dimensions {
            let size = input.size()?;
            if index == 0 {
                row = size;
            }
            elements = elements
                .checked_mul(size)
                .filter(|elements| i64::try_from(*elements).is_ok())
                .ok_or_else(|| input.corrupt("a tensor has more elements than can be counted"))?;
        }
        let kind = input.u32()?;
        let offset = input.u64()?;
        tensors.push(Tensor { bytes: tensor_bytes(input, kind, elements, row)?, name, elements, kind, offset });
    }
    Ok(tensors)
}

fn tensor_bytes(input: &Input<'_>, kind: u32, elements: u64, row: u64) -> Result<Option<u64>, GgufError> {
    let Some((_, block, bytes)) = layout(kind) else { return Ok(None) };
    if !row.is_multiple_of(block) {
        return Err(input.corrupt("the rows of a tensor are no whole number of blocks"));
    }
    match (elements / block).checked_mul(bytes) {
        Some(bytes) => Ok(Some(bytes)),
        None => Err(input.corrupt("a tensor has more bytes than can be counted")),
    }
}

/// A place in the bytes.
struct Input<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Counts and lengths have 8 bytes (version 2 and later), not 4.
    wide: bool,
    /// Bytes of text that may still be kept.
    text_left: u64,
    /// Numbers of arrays that may still be kept.
    numbers_left: u64,
}

impl<'a> Input<'a> {
    fn corrupt(&self, what: &str) -> GgufError {
        GgufError::Corrupt { at: self.at as u64, what: what.into() }
    }

    /// Fails unless that many more bytes are there.
    fn expect(&self, count: u64) -> Result<(), GgufError> {
        let at_least = (self.at as u64).saturating_add(count);
        if at_least > MAX_HEADER_BYTES {
            return Err(self.corrupt("the header would be larger than 256 MiB"));
        }
        if at_least > self.bytes.len() as u64 {
            return Err(GgufError::NeedMore { at_least });
        }
        Ok(())
    }

    fn take(&mut self, count: u64) -> Result<&'a [u8], GgufError> {
        self.expect(count)?;
        let start = self.at;
        // `expect` has bounded the sum by the slice's length.
        let end = start + usize::try_from(count).unwrap_or(0);
        self.at = end;
        Ok(self.bytes.get(start..end).unwrap_or_default())
    }

    fn u32(&mut self) -> Result<u32, GgufError> {
        let mut number = [0; 4];
        number.copy_from_slice(self.take(4)?);
        Ok(u32::from_le_bytes(number))
    }

    fn u64(&mut self) -> Result<u64, GgufError> {
        let mut number = [0; 8];
        number.copy_from_slice(self.take(8)?);
        Ok(u64::from_le_bytes(number))
    }

    /// A count, a length or a dimension.
    fn size(&mut self) -> Result<u64, GgufError> {
        if self.wide { self.u64() } else { self.u32().map(u64::from) }
    }

    fn count(&mut self, of: &str, most: u64) -> Result<u64, GgufError> {
        let count = self.size()?;
        if count > most {
            return Err(self.corrupt(&format!("{count} {of}; at most {most} are allowed")));
        }
        Ok(count)
    }

    fn length(&mut self, most: u64, problem: &str) -> Result<u64, GgufError> {
        let length = self.size()?;
        if length > most { Err(self.corrupt(problem)) } else { Ok(length) }
    }

    /// Whether that much more text may be kept; if so, it is counted.
    fn keep_text(&mut self, length: u64) -> bool {
        let left = self.text_left.checked_sub(length);
        self.text_left = left.unwrap_or(self.text_left);
        left.is_some()
    }

    fn text(&mut self, most: u64, problem: &str) -> Result<&'a str, GgufError> {
        let length = self.length(most, problem)?;
        let bytes = self.take(length)?;
        if !self.keep_text(length) {
            return Err(self.corrupt("the names are longer than 64 MiB together"));
        }
        std::str::from_utf8(bytes).map_err(|_| self.corrupt("a name is no UTF-8"))
    }
}

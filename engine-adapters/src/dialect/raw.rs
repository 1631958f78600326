//! JSON objects whose values stay exactly as they are written, in their order.
//!
//! Order and spelling carry meaning here: a grammar is built from a schema in its order, a chat template prints tools in
//! theirs, and a number that passes through a float may come out as another. So nothing that is only handed on is taken
//! apart, and objects are written field by field.

use std::borrow::Cow;
use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

/// An object as it was written, read one level deep.
#[derive(Debug, Default)]
pub(super) struct Fields<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

/// A key, borrowed where it has no escapes.
#[derive(Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FieldsVisitor;
        impl<'de> Visitor<'de> for FieldsVisitor {
            type Value = Vec<(Cow<'de, str>, &'de RawValue)>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = Vec::new();
                while let Some((Key(name), value)) = map.next_entry()? {
                    fields.push((name, value));
                }
                Ok(fields)
            }
        }
        deserializer.deserialize_map(FieldsVisitor).map(Self)
    }
}

impl<'a> Fields<'a> {
    /// The value of a field; of one that is there twice the last, as engines read it. A null counts as none.
    pub(super) fn get(&self, name: &str) -> Option<&'a RawValue> {
        self.0.iter().rev().find(|(field, _)| field == name).map(|(_, value)| *value).filter(|value| !is_null(value))
    }

    /// All fields in their order, nulls included.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &'a RawValue)> {
        self.0.iter().map(|(name, value)| (name.as_ref(), *value))
    }
}

/// The value is `null`.
pub(super) fn is_null(value: &RawValue) -> bool {
    value.get() == "null"
}

/// The value as a string, where it is one.
pub(super) fn string(value: &RawValue) -> Option<Cow<'_, str>> {
    serde_json::from_str::<Key<'_>>(value.get()).ok().map(|Key(text)| text)
}

/// A value as it is written. Everything given to it is plain (string keys, no failing parts), so it cannot fail.
pub(super) fn raw<T: Serialize + ?Sized>(value: &T) -> Box<RawValue> {
    serde_json::value::to_raw_value(value).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

/// An object being written, in the order of the calls.
#[derive(Debug, Default)]
pub(super) struct Object(Vec<(Cow<'static, str>, Box<RawValue>)>);

impl Object {
    /// Adds a field.
    pub(super) fn put<T: Serialize + ?Sized>(&mut self, name: impl Into<Cow<'static, str>>, value: &T) {
        self.0.push((name.into(), raw(value)));
    }

    /// Adds a field if there is a value.
    pub(super) fn put_some<T: Serialize>(&mut self, name: &'static str, value: Option<T>) {
        if let Some(value) = value {
            self.put(name, &value);
        }
    }

    /// Sets a field, in its place where it is there already.
    pub(super) fn set(&mut self, name: &str, value: &RawValue) {
        match self.0.iter_mut().find(|(field, _)| field == name) {
            Some((_, kept)) if kept.get() == value.get() => {}
            Some((_, kept)) => *kept = value.to_owned(),
            None => self.0.push((Cow::Owned(name.to_owned()), value.to_owned())),
        }
    }

    /// All fields in their order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &RawValue)> {
        self.0.iter().map(|(name, value)| (name.as_ref(), value.as_ref()))
    }

    /// Takes a field out.
    pub(super) fn take(&mut self, name: &str) -> Option<Box<RawValue>> {
        let at = self.0.iter().position(|(field, _)| field == name)?;
        Some(self.0.remove(at).1)
    }

    /// The object as bytes.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        raw(&self).get().as_bytes().to_vec()
    }
}

impl Serialize for Object {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl Extend<(Cow<'static, str>, Box<RawValue>)> for Object {
    fn extend<I: IntoIterator<Item = (Cow<'static, str>, Box<RawValue>)>>(&mut self, fields: I) {
        self.0.extend(fields);
    }
}

impl IntoIterator for Object {
    type Item = (Cow<'static, str>, Box<RawValue>);
    type IntoIter = std::vec::IntoIter<Self::Item>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_their_order_stay_as_they_are_written() {
        let text = r#"{"b":1.10,"a":{"z":1,"y":[ 2 ]},"c":null,"a":"\u0061"}"#;
        let fields: Fields<'_> = serde_json::from_str(text).unwrap();
        assert_eq!(fields.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["b", "a", "c", "a"]);
        assert_eq!(fields.get("b").unwrap().get(), "1.10");
        assert_eq!(string(fields.get("a").unwrap()).unwrap(), "a");
        assert!(fields.get("c").is_none() && fields.get("d").is_none());
        let mut object = Object::default();
        object.put("x", fields.get("b").unwrap());
        object.set("y", fields.get("a").unwrap());
        object.set("x", RawValue::TRUE);
        assert_eq!(object.into_bytes(), br#"{"x":true,"y":"\u0061"}"#);
    }
}

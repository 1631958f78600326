//! Reads a request part by part, so that whatever is wrong in it is told with the path of the field at fault.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::raw::{Fields, is_null, string};
use super::{ApiError, ErrorCode};

/// One value of a request and where it stands.
#[derive(Debug, Clone)]
pub(super) struct Node<'a> {
    path: String,
    value: &'a RawValue,
}

/// An object of a request and where it stands.
#[derive(Debug)]
pub(super) struct Members<'a> {
    path: String,
    fields: Fields<'a>,
}

impl<'a> Members<'a> {
    /// The body itself.
    pub(super) fn of_body(body: &'a [u8]) -> Result<Self, ApiError> {
        let fields = serde_json::from_slice(body)
            .map_err(|error| ApiError::new(ErrorCode::InvalidJson, format!("the body is not a JSON object: {error}")))?;
        Ok(Self { path: String::new(), fields })
    }

    fn path_of(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// A field, where it is there and not null.
    pub(super) fn get(&self, name: &str) -> Option<Node<'a>> {
        self.fields.get(name).map(|value| Node { path: self.path_of(name), value })
    }

    /// A field that has to be there.
    pub(super) fn need(&self, name: &str) -> Result<Node<'a>, ApiError> {
        self.get(name).ok_or_else(|| invalid(&self.path_of(name), "is missing"))
    }

    /// The value of a field as it is written.
    pub(super) fn raw(&self, name: &str) -> Option<&'a RawValue> {
        self.fields.get(name)
    }

    /// A text, where it is there.
    pub(super) fn text(&self, name: &str) -> Result<Option<Cow<'a, str>>, ApiError> {
        self.get(name).map(|node| node.text()).transpose()
    }

    /// A text that has to be there.
    pub(super) fn need_text(&self, name: &str) -> Result<Cow<'a, str>, ApiError> {
        self.need(name)?.text()
    }

    /// A list; one that is not there is empty.
    pub(super) fn list(&self, name: &str) -> Result<Vec<Node<'a>>, ApiError> {
        self.get(name).map_or_else(|| Ok(Vec::new()), |node| node.list())
    }

    /// All fields in their order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &'a RawValue)> {
        self.fields.iter()
    }

    /// True or false, where it is there.
    pub(super) fn flag(&self, name: &str) -> Result<Option<bool>, ApiError> {
        self.get(name).map(|node| node.read("true or false")).transpose()
    }

    /// Blames a field of this object.
    pub(super) fn wrong(&self, name: &str, what: &str) -> ApiError {
        invalid(&self.path_of(name), what)
    }
}

impl<'a> Node<'a> {
    /// The value as it is written.
    pub(super) fn raw(&self) -> &'a RawValue {
        self.value
    }

    /// The value is a string.
    pub(super) fn is_text(&self) -> bool {
        self.value.get().starts_with('"')
    }

    /// The value as a string.
    pub(super) fn text(&self) -> Result<Cow<'a, str>, ApiError> {
        string(self.value).ok_or_else(|| self.wrong("must be a string"))
    }

    /// The value as an object.
    pub(super) fn members(&self) -> Result<Members<'a>, ApiError> {
        let fields = serde_json::from_str(self.value.get()).map_err(|_| self.wrong("must be an object"))?;
        Ok(Members { path: self.path.clone(), fields })
    }

    /// The value as a list.
    pub(super) fn list(&self) -> Result<Vec<Node<'a>>, ApiError> {
        let values: Vec<&'a RawValue> = serde_json::from_str(self.value.get()).map_err(|_| self.wrong("must be a list"))?;
        Ok(values.into_iter().enumerate().map(|(index, value)| Node { path: format!("{}.{index}", self.path), value }).collect())
    }

    /// The value as a plain type.
    pub(super) fn read<T: serde::Deserialize<'a>>(&self, wanted: &str) -> Result<T, ApiError> {
        serde_json::from_str(self.value.get()).map_err(|_| self.wrong(&format!("must be {wanted}")))
    }

    /// The value is an empty list, an empty object or null.
    pub(super) fn is_empty(&self) -> bool {
        is_null(self.value) || self.value.get().bytes().filter(|byte| !byte.is_ascii_whitespace()).count() <= 2
    }

    /// Blames this value.
    pub(super) fn wrong(&self, what: &str) -> ApiError {
        invalid(&self.path, what)
    }
}

fn invalid(path: &str, what: &str) -> ApiError {
    ApiError::new(ErrorCode::InvalidRequest, format!("`{path}` {what}")).with_param(path)
}

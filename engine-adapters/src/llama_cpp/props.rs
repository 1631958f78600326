//! What llama-server's `/props` says of its model, as far as it is used.

use serde::Deserialize;

#[derive(Debug, Deserialize)]
struct Props {
    #[serde(default)]
    chat_template_caps: Caps,
}

/// What the chat template can take.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Caps {
    supports_tools: Option<bool>,
    supports_tool_calls: Option<bool>,
}

/// Whether the template takes tools; `None` = older servers do not say.
pub(super) fn takes_tools(props: &[u8]) -> Option<bool> {
    let Caps { supports_tools, supports_tool_calls } = serde_json::from_slice::<Props>(props).ok()?.chat_template_caps;
    supports_tools.map(|tools| tools || supports_tool_calls == Some(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_tells_whether_it_takes_tools() {
        for (props, expected) in [
            (r#"{"chat_template_caps":{"supports_tools":false,"supports_tool_calls":false}}"#, Some(false)),
            (r#"{"chat_template_caps":{"supports_tools":false,"supports_tool_calls":true}}"#, Some(true)),
            (r#"{"chat_template_caps":{"supports_tools":true}}"#, Some(true)),
            (r#"{"chat_template_caps":{}}"#, None),
            ("{}", None),
            ("no", None),
        ] {
            assert_eq!(takes_tools(props.as_bytes()), expected, "{props}");
        }
    }
}

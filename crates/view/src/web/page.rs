//! The page: one file, made of the markup, the style and the script.

use base64::{Engine, engine::general_purpose::STANDARD};
use hyper::body::Bytes;
use sha2::{Digest, Sha256};

const MARKUP: &str = include_str!("page/index.html");
const STYLE: &str = include_str!("page/style.css");
/// One script of several files, each of which uses only those before it.
const SCRIPT: &str = concat!(
    include_str!("page/format.js"),
    include_str!("page/model.js"),
    include_str!("page/marks.js"),
    include_str!("page/chart.js"),
    include_str!("page/run.js"),
    include_str!("page/lists.js"),
    include_str!("page/script.js"),
);

/// Where the style and the script come into the markup.
const STYLE_LINK: &str = r#"<link rel="stylesheet" href="style.css">"#;
const SCRIPT_LINK: &str = r#"<script type="module" src="script.js"></script>"#;

/// The page, and the policy that goes with it.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) html: Bytes,
    /// The `Content-Security-Policy`: this script and this style by their hashes, and nothing else.
    pub(super) policy: String,
}

/// The policy of answers that are no page.
pub(super) const NO_CONTENT: &str =
    "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

impl Page {
    pub(super) fn new() -> Page {
        let html = MARKUP.replacen(STYLE_LINK, &format!("<style>{STYLE}</style>"), 1).replacen(
            SCRIPT_LINK,
            &format!("<script type=\"module\">{SCRIPT}</script>"),
            1,
        );
        let policy = format!(
            "default-src 'none'; script-src '{}'; style-src '{}'; img-src 'self' data:; connect-src 'self'; \
             base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
            hash(SCRIPT),
            hash(STYLE)
        );
        Page { html: html.into(), policy }
    }
}

/// The hash of a text between tags, as a policy has it.
fn hash(text: &str) -> String {
    format!("sha256-{}", STANDARD.encode(Sha256::digest(text)))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_page_is_one_file_that_loads_nothing() {
        let page = Page::new();
        let html = std::str::from_utf8(&page.html).unwrap();
        assert!(html.contains(STYLE) && html.contains(SCRIPT), "the links to style and script have changed");
        let markup = html.replace(STYLE, "").replace(SCRIPT, "");
        // The icon is in the page as well.
        let markup = markup.replace("<link rel=\"icon\" href=\"data:image/svg+xml,", "");
        for loading in [" src=", "<link", "@import", "style=\"", "onclick="] {
            assert!(!markup.contains(loading), "{loading}");
        }
        assert!(!STYLE.contains("</style") && !STYLE.contains("@import") && !STYLE.contains("url("));
        assert!(!SCRIPT.contains("</script") && !SCRIPT.contains("<!--") && !SCRIPT.contains("eval("));
        assert!(!page.policy.contains("unsafe") && page.policy.contains("frame-ancestors 'none'"));
    }
}

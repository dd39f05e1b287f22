//! Source text of expressions, for messages.

use proc_macro2::{Delimiter, Group, Spacing, Span, TokenStream, TokenTree};
use quote::ToTokens;

/// The text of a piece of syntax, on one line, with the spaces that a person would write.
pub fn text(syntax: &impl ToTokens) -> String {
    let mut out = String::new();
    write(&mut out, syntax.to_token_stream());
    out.trim().to_owned()
}

fn write(out: &mut String, tokens: TokenStream) {
    // Whether the next token continues the last one without a space.
    let mut is_glued = true;
    let mut after_operand = false;
    for token in tokens {
        match token {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::Brace => (" { ", " } "),
                    Delimiter::None => ("", ""),
                };
                if !is_glued && !after_operand {
                    out.push(' ');
                }
                out.push_str(open);
                write(out, group.stream());
                out.push_str(close);
                (is_glued, after_operand) = (false, true);
            }
            TokenTree::Punct(punct) => {
                let sign = punct.as_char();
                match sign {
                    '.' | ':' | '?' => {
                        out.push(sign);
                        is_glued = true;
                    }
                    ',' | ';' => {
                        out.push(sign);
                        is_glued = false;
                    }
                    _ => {
                        let is_prefix = !after_operand && matches!(sign, '&' | '*' | '-' | '!' | '\'');
                        if !is_glued {
                            out.push(' ');
                        }
                        out.push(sign);
                        is_glued = punct.spacing() == Spacing::Joint || is_prefix;
                    }
                }
                after_operand = sign == '?';
            }
            TokenTree::Ident(ident) => {
                if !is_glued {
                    out.push(' ');
                }
                out.push_str(&ident.to_string());
                let word = ident.to_string();
                (is_glued, after_operand) = (
                    false,
                    !matches!(
                        word.as_str(),
                        "as" | "in" | "mut" | "return" | "if" | "else" | "match" | "let"
                    ),
                );
            }
            TokenTree::Literal(literal) => {
                if !is_glued {
                    out.push(' ');
                }
                out.push_str(&literal.to_string());
                (is_glued, after_operand) = (false, true);
            }
        }
    }
}

/// The tokens of a text, as if they were at a place of the source.
pub(crate) fn tokens(text: &str, span: Span) -> TokenStream {
    fn at(tokens: TokenStream, span: Span) -> TokenStream {
        let tokens = tokens.into_iter().map(|token| match token {
            TokenTree::Group(group) => {
                let mut inner = Group::new(group.delimiter(), at(group.stream(), span));
                inner.set_span(span);
                TokenTree::Group(inner)
            }
            mut other => {
                other.set_span(span);
                other
            }
        });
        tokens.collect()
    }
    at(text.parse().unwrap_or_default(), span)
}

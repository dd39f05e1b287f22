//! Decides whether a request is answered: a function of the request alone, without input or output.

use std::net::{IpAddr, SocketAddr};

use hyper::{
    HeaderMap, Method, StatusCode, Uri,
    header::{AUTHORIZATION, CONTENT_LENGTH, COOKIE, HOST, TRANSFER_ENCODING},
};
use subtle::ConstantTimeEq;

use super::route::Route;

/// A secret that a client must know. Its `Debug` does not tell it.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    /// The shortest token that is accepted from a user, in characters: 128 random bits in Base64.
    pub const MIN_LENGTH: usize = 22;

    /// A new token of 256 bits from the system's random source.
    pub fn random() -> std::io::Result<Token> {
        use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(std::io::Error::other)?;
        Ok(Token(URL_SAFE_NO_PAD.encode(bytes)))
    }

    /// A token of the user's own. It has at least [22 characters](Self::MIN_LENGTH): letters, digits, `-`, `_` and `.`.
    pub fn new(text: &str) -> Result<Token, String> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        match text {
            _ if !text.chars().all(is_plain) => {
                Err("a token consists of letters, digits, '-', '_' and '.' only".into())
            }
            _ if text.len() < Self::MIN_LENGTH => {
                let (found, min) = (text.len(), Self::MIN_LENGTH);
                Err(format!(
                    "a token has at least {min} characters, and this one has {found}: make one with `openssl rand -hex 32`"
                ))
            }
            _ => Ok(Token(text.into())),
        }
    }

    /// The secret.
    pub fn secret(&self) -> &str {
        &self.0
    }

    /// Compares in a time that does not depend on how much is equal.
    fn is(&self, given: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(given).into()
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Who may look at what.
#[derive(Debug, Clone)]
pub(super) struct Access {
    /// The address that the server listens on.
    address: SocketAddr,
    /// Names besides those that always hold, in lower case.
    names: Vec<String>,
    token: Option<Token>,
    /// What the cookie has instead of the token: cookies do not belong to a port, so that another server on this machine
    /// can see it, and it must be worth nothing once this server has ended.
    session: Option<Token>,
}

/// What is done with a request.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Verdict {
    /// It is answered.
    Answer(Route),
    /// The client has the token from the address: it is given the cookie, and then asks again without the token.
    SetCookie,
    /// It is refused.
    Refuse {
        /// The status.
        status: StatusCode,
        /// What is wrong, and what to do.
        why: &'static str,
    },
}

impl Access {
    /// Access to a server on this address, which is also known by these names.
    pub(super) fn new(
        address: SocketAddr,
        names: &[String],
        token: Option<Token>,
    ) -> std::io::Result<Access> {
        let mut names: Vec<String> = names.iter().map(|name| name.to_ascii_lowercase()).collect();
        if !address.ip().is_loopback() {
            names.extend(super::source::host_name().map(|name| name.to_ascii_lowercase()));
        }
        let session = token.is_some().then(Token::random).transpose()?;
        Ok(Access { address, names, token, session })
    }

    /// The secret of the cookie, if a token is required.
    pub(super) fn session(&self) -> Option<&Token> {
        self.session.as_ref()
    }

    /// The token, if one is required.
    pub(super) fn token(&self) -> Option<&Token> {
        self.token.as_ref()
    }

    /// The name of the cookie. Cookies do not belong to a port, so the name does.
    pub(super) fn cookie_name(&self) -> String {
        format!("evener_{}", self.address.port())
    }

    /// Decides about a request.
    pub(super) fn decide(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Verdict {
        let refuse = |status, why| Verdict::Refuse { status, why };
        let mut hosts = headers.get_all(HOST).iter();
        let (Some(host), None) = (hosts.next(), hosts.next()) else {
            return refuse(StatusCode::BAD_REQUEST, "the request must name one host");
        };
        let is_known = host.to_str().is_ok_and(|host| self.is_known(host));
        if !is_known || uri.authority().is_some_and(|it| !self.is_known(it.as_str())) {
            return refuse(
                StatusCode::MISDIRECTED_REQUEST,
                "the request names a host that this server is not known by: use its address, or start it with --allow-host NAME",
            );
        }
        if !matches!(*method, Method::GET | Method::HEAD) {
            return refuse(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are answered");
        }
        let has_length = headers.get_all(CONTENT_LENGTH).iter().any(|length| length != "0");
        if has_length || headers.contains_key(TRANSFER_ENCODING) {
            return refuse(StatusCode::PAYLOAD_TOO_LARGE, "a request must not have a body");
        }
        let route = Route::of(uri);
        // A page of another site must not even make the server compute an answer. A link to the page is fine.
        let is_foreign = headers.get_all("sec-fetch-site").iter().any(|site| site == "cross-site");
        if is_foreign && !matches!(route, Some(Route::Page)) {
            return refuse(StatusCode::FORBIDDEN, "the request comes from a page of another site");
        }
        match (&self.token, route) {
            (_, Some(Route::Health)) => Verdict::Answer(Route::Health),
            (Some(token), Some(Route::Page)) if self.has_in_address(token, uri) => Verdict::SetCookie,
            (Some(token), _) if !self.has_token(token, headers) => refuse(
                StatusCode::UNAUTHORIZED,
                "open the address with the token that the program printed at its start, or send the token as Authorization: Bearer",
            ),
            (_, Some(route)) => Verdict::Answer(route),
            (_, None) if uri.path().starts_with("/api/") && Route::is_known_path(uri.path()) => {
                refuse(StatusCode::BAD_REQUEST, "the address needs ?pid=PROCESS&run=NUMBER")
            }
            (_, None) => refuse(StatusCode::NOT_FOUND, "there is nothing at this address"),
        }
    }

    /// Whether the server is known by a host. The port does not count: it is another one behind a tunnel.
    fn is_known(&self, host: &str) -> bool {
        let Some(name) = without_port(host) else { return false };
        if let Ok(ip) = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
            // An attacker's name leads to an address; an address leads nowhere else.
            return ip.is_loopback() || !self.address.ip().is_loopback();
        }
        let name = name.to_ascii_lowercase();
        name == "localhost" || name.ends_with(".localhost") || self.names.contains(&name)
    }

    /// Whether the token is in the address, as `/?token=…`.
    fn has_in_address(&self, token: &Token, uri: &Uri) -> bool {
        uri.query()
            .and_then(|query| query.strip_prefix("token="))
            .is_some_and(|given| token.is(given.as_bytes()))
    }

    /// Whether the token is in a cookie, or in the header `Authorization`.
    fn has_token(&self, token: &Token, headers: &HeaderMap) -> bool {
        let bearer = |value: &[u8]| {
            let (scheme, given) = value.split_at_checked(7).unwrap_or_default();
            scheme.eq_ignore_ascii_case(b"bearer ") && token.is(given)
        };
        let name = self.cookie_name();
        let cookie = |value: &[u8]| {
            value.split(|byte| *byte == b';').any(|cookie| {
                let cookie = cookie.trim_ascii();
                let given = cookie.strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b"="));
                given.is_some_and(|given| self.session.as_ref().is_some_and(|session| session.is(given)))
            })
        };
        headers.get_all(AUTHORIZATION).iter().any(|value| bearer(value.as_bytes()))
            || headers.get_all(COOKIE).iter().any(|value| cookie(value.as_bytes()))
    }
}

/// A host without its port. `None` if it is not a host.
fn without_port(host: &str) -> Option<&str> {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => {
            let end = rest.find(']')? + 2;
            (&host[..end], &host[end..])
        }
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let is_port = port.is_empty() || port.strip_prefix(':').is_some_and(|it| it.parse::<u16>().is_ok());
    (is_port && !name.is_empty()).then_some(name)
}

//! The two protocols of proxies: PROXY headers (version 2), and tunnels by CONNECT.

use procfleet_proto::proxy_header::{BadProxyHeader, FIXED, FixedPart, LONGEST, ProxiedPeer};
use procfleet_proto::tunnel::{LONGEST_REPLY, ProxyUrl, TunnelRefusal};

const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// From 192.0.2.7:40000 to 10.0.0.5:52030.
const V4: &[u8] = &[192, 0, 2, 7, 10, 0, 0, 5, 0x9c, 0x40, 0xcb, 0x3e];

/// A header with this rest; its length is right.
fn header(version_and_command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
    let length = u16::try_from(rest.len()).expect("a length").to_be_bytes();
    [SIGNATURE, &[version_and_command, family], &length, rest].concat()
}

fn v6(source: &str) -> Vec<u8> {
    let source: std::net::Ipv6Addr = source.parse().expect("an address");
    [source.octets().as_slice(), &[0; 16], &[0x9c, 0x40, 0xcb, 0x3e]].concat()
}

fn read(bytes: &[u8]) -> Result<ProxiedPeer, BadProxyHeader> {
    let (fixed, rest) = bytes.split_first_chunk::<FIXED>().expect("a whole header");
    let fixed = FixedPart::read(fixed)?;
    fixed.peer(&rest[..fixed.rest()])
}

#[test]
fn headers_by_this_table() {
    use BadProxyHeader::{Command, Family, Signature, TooLong, TooShort, Version};
    let peer = |text: &str| Ok(ProxiedPeer::Address(text.parse().expect("an address")));
    let with_tlvs = [V4, &[0x04, 0, 3, 0, 0, 0], &[0x20, 0, 1, 9]].concat();
    let largest = [V4, &vec![0; LONGEST - FIXED - V4.len()]].concat();
    let largest_but_one = [V4, &vec![0; LONGEST - FIXED - V4.len() + 1]].concat();
    for (what, bytes, expected) in [
        ("TCP over IPv4", header(0x21, 0x11, V4), peer("192.0.2.7:40000")),
        ("TCP over IPv6", header(0x21, 0x21, &v6("2001:db8::7")), peer("[2001:db8::7]:40000")),
        ("IPv4 in IPv6", header(0x21, 0x21, &v6("::ffff:192.0.2.7")), peer("192.0.2.7:40000")),
        ("TLVs", header(0x21, 0x11, &with_tlvs), peer("192.0.2.7:40000")),
        ("a TLV that breaks off", header(0x21, 0x11, &[V4, &[4, 0xff]].concat()), peer("192.0.2.7:40000")),
        ("LOCAL without a rest", header(0x20, 0x00, &[]), Ok(ProxiedPeer::Proxy)),
        ("LOCAL with addresses", header(0x20, 0x11, V4), Ok(ProxiedPeer::Proxy)),
        ("LOCAL with an odd family", header(0x20, 0x77, &[1]), Ok(ProxiedPeer::Proxy)),
        ("AF_UNSPEC", header(0x21, 0x00, &[]), Ok(ProxiedPeer::Unknown)),
        ("AF_UNSPEC with a rest", header(0x21, 0x00, V4), Ok(ProxiedPeer::Unknown)),
        ("the largest", header(0x21, 0x11, &largest), peer("192.0.2.7:40000")),
        ("one byte more", header(0x21, 0x11, &largest_but_one), Err(TooLong(LONGEST + 1))),
        ("65,535 bytes", header(0x21, 0x11, &[0; 65_535]), Err(TooLong(FIXED + 65_535))),
        ("LOCAL of 65,535 bytes", header(0x20, 0x00, &[0; 65_535]), Err(TooLong(FIXED + 65_535))),
        ("short of IPv4", header(0x21, 0x11, &V4[1..]), Err(TooShort(FIXED + 11))),
        ("short of IPv6", header(0x21, 0x21, V4), Err(TooShort(FIXED + 12))),
        ("UDP over IPv4", header(0x21, 0x12, V4), Err(Family(0x12))),
        ("UDP over IPv6", header(0x21, 0x22, &v6("::1")), Err(Family(0x22))),
        ("a Unix socket", header(0x21, 0x31, &[0; 216]), Err(Family(0x31))),
        ("AF_UNSPEC over TCP", header(0x21, 0x01, V4), Err(Family(0x01))),
        ("an unknown command", header(0x22, 0x11, V4), Err(Command(2))),
        ("version 1 in binary", header(0x11, 0x11, V4), Err(Version(1))),
        ("version 3", header(0x31, 0x11, V4), Err(Version(3))),
        ("text of version 1", b"PROXY TCP4 192.0.2.7 10.0.0.5 1 2\r\n".to_vec(), Err(Signature)),
        ("TLS", [22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3, 9, 9, 9, 9, 9].to_vec(), Err(Signature)),
        ("HTTP", b"GET /healthz HTTP/1.1\r\n\r\n".to_vec(), Err(Signature)),
    ] {
        assert_eq!(read(&bytes), expected, "{what}");
    }
}

#[test]
fn a_rest_of_another_size_is_refused() {
    let (fixed, rest) = (header(0x21, 0x11, V4)[..FIXED].try_into().expect("a fixed part"), V4);
    let fixed = FixedPart::read(&fixed).expect("a header");
    assert_eq!(fixed.rest(), V4.len());
    for rest in [&rest[..11], &[rest, &[0]].concat(), &[]] {
        assert!(matches!(fixed.peer(rest), Err(BadProxyHeader::TooShort(_))), "{rest:?}");
    }
}

#[test]
fn proxy_urls() {
    for (text, shown, address) in [
        ("http://proxy.example:3128", "http://proxy.example:3128", "proxy.example:3128"),
        ("HTTP://10.0.0.1:80/", "http://10.0.0.1:80", "10.0.0.1:80"),
        ("http://[::1]:3128", "http://[::1]:3128", "[::1]:3128"),
        ("http://ann:hush@proxy:3128", "http://proxy:3128", "proxy:3128"),
        ("http://ann@proxy:3128", "http://proxy:3128", "proxy:3128"),
    ] {
        let url: ProxyUrl = text.parse().expect(text);
        assert_eq!(
            (url.to_string(), format!("{url:?}"), url.address()),
            (shown.into(), shown.into(), address.into())
        );
    }
    for (text, reason) in [
        ("", "it does not begin with http://"),
        ("proxy:3128", "it does not begin with http://"),
        ("https://hush@proxy:3128", "only http proxies are supported"),
        ("socks5://hush@proxy:1080", "only http proxies are supported"),
        ("http://hush@proxy", "the port is missing"),
        ("http://proxy:", "the port is not a number"),
        ("http://proxy:0", "the port is not a number"),
        ("http://proxy:+1", "the port is not a number"),
        ("http://proxy:65536", "the port is not a number"),
        ("http://proxy:3128/hush", "the port is not a number"),
        ("http://:3128", "the host is not a name"),
        ("http://::1:3128", "the host is not a name"),
        ("http://[hush]:3128", "the host is not a name"),
        ("http://a b:3128", "the host is not a name"),
        ("http://proxy\r\nhush:3128", "the host is not a name"),
        ("http://ann:hush%4@proxy:3128", "a % is not followed by two hexadecimal digits"),
        ("http://ann:hush%zz@proxy:3128", "a % is not followed by two hexadecimal digits"),
        ("http://ann%3a:hush@proxy:3128", "a user has no colon"),
    ] {
        let fault = text.parse::<ProxyUrl>().expect_err(text).to_string();
        assert!(fault.contains(reason) && !fault.contains("hush"), "{text:?}: {fault}");
    }
}

#[test]
fn the_request_has_the_login_of_the_url() {
    for (url, login) in [
        ("http://proxy:3128", None),
        ("http://ann:hush@proxy:3128", Some("YW5uOmh1c2g=")),
        ("http://ann@proxy:3128", Some("YW5uOg==")),
        ("http://ann:a%40b%3Ac%25@proxy:3128", Some("YW5uOmFAYjpjJQ==")),
        ("http://ann:a@b@proxy:3128", Some("YW5uOmFAYg==")),
    ] {
        let url: ProxyUrl = url.parse().expect("a url");
        let request = String::from_utf8(url.request("fleet.example:52030")).expect("text");
        let login = login.map(|login| format!("Proxy-Authorization: Basic {login}\r\n")).unwrap_or_default();
        let expected = "CONNECT fleet.example:52030 HTTP/1.1\r\nHost: fleet.example:52030\r\n";
        assert_eq!(request, format!("{expected}{login}\r\n"));
    }
}

#[test]
fn replies_by_this_table() {
    use TunnelRefusal::{Forbidden, LoginNeeded, LoginRefused, NotHttp, Status, TooLong, Unreachable};
    let plain: ProxyUrl = "http://proxy:3128".parse().expect("a url");
    let with_login: ProxyUrl = "http://ann:hush@proxy:3128".parse().expect("a url");
    let long = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(LONGEST_REPLY));
    let endless = format!("HTTP/1.1 200 OK\r\nX: {}", "x".repeat(LONGEST_REPLY));
    for (reply, expected) in [
        ("", Ok(None)),
        ("HTT", Ok(None)),
        ("HTTP/1.1 200 OK\r\n", Ok(None)),
        ("HTTP/1.1 407 Who?\r\n", Ok(None)),
        ("HTTP/1.1 200 OK\r\n\r\n", Ok(Some(19))),
        ("HTTP/1.0 200 \r\nVia: x\r\n\r\nearly", Ok(Some(25))),
        ("HTTP/1.1 204\r\n\r\n", Ok(Some(16))),
        ("HTTP/1.0 200\n\nearly\r\n\r\n", Ok(Some(14))),
        ("HTTP/1.1 403 Forbidden\r\n\r\n", Err(Forbidden(403))),
        ("HTTP/1.1 405 No\r\nAllow: GET\r\n\r\n", Err(Forbidden(405))),
        ("HTTP/1.1 407 Who?\r\n\r\n", Err(LoginNeeded)),
        ("HTTP/1.1 503 Down\r\n\r\n", Err(Unreachable(503))),
        ("HTTP/1.1 400 Bad\r\n\r\n", Err(Status(400))),
        ("HTTP/1.1 302 Found\r\nLocation: x\r\n\r\n", Err(Status(302))),
        ("SSH-2.0-OpenSSH_9.2", Err(NotHttp)),
        ("HTTP/2 200\r\n\r\n", Err(NotHttp)),
        ("HTTP/1.1 20x OK\r\n\r\n", Err(NotHttp)),
        ("HTTP/1.1 2000 OK\r\n\r\n", Err(NotHttp)),
        ("HTTP/1.1\r\n\r\n", Err(NotHttp)),
        (&long, Err(TooLong)),
        (&endless, Err(TooLong)),
    ] {
        assert_eq!(plain.read_reply(reply.as_bytes()), expected, "{reply:?}");
    }
    assert_eq!(with_login.read_reply(b"HTTP/1.1 407 Who?\r\n\r\n"), Err(LoginRefused));
}

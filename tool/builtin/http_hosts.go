package builtin

import (
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// refusal says that the policy does not let a request go where it wants to. It never names the address that a host
// resolved to: a model must not be able to map the inside of a network.
type refusal struct {
	host, reason string
}

func (r *refusal) Error() string { return fmt.Sprintf("%s: %s", r.host, r.reason) }

// hostPolicy decides where requests may go. With a list, only the hosts on it may be called at all; without one, every
// host with a public address may.
type hostPolicy struct {
	listed  bool
	entries []hostEntry
}

// hostEntry is one line of the list.
type hostEntry struct {
	host      host
	subdomain bool // "*.example.org": any name below, not the name itself
	port      int  // 0 is the scheme's own port, anyPort is any
}

const anyPort = -1

// newHostPolicy reads allow_hosts. nil is no list.
func newHostPolicy(allow []string) (*hostPolicy, error) {
	p := &hostPolicy{listed: allow != nil}
	for _, text := range allow {
		e, err := parseEntry(text)
		if err != nil {
			return nil, fmt.Errorf("allow_hosts: %q: %w", text, err)
		}
		p.entries = append(p.entries, e)
	}
	return p, nil
}

// parseEntry reads "host", "host:port" or "host:*"; an IPv6 address with a port stands in brackets.
func parseEntry(text string) (e hostEntry, err error) {
	name, port := text, ""
	if at := strings.LastIndexByte(text, ':'); at >= 0 && (strings.HasSuffix(text[:at], "]") || strings.Count(text, ":") == 1) {
		name, port = text[:at], text[at+1:]
		switch {
		case port == "*":
			e.port = anyPort
		default:
			if e.port, err = parsePort(port); err != nil {
				return e, err
			}
		}
	}
	if strings.HasPrefix(name, "[") && strings.HasSuffix(name, "]") {
		name = name[1 : len(name)-1]
	}
	if below, ok := strings.CutPrefix(name, "*."); ok {
		name, e.subdomain = below, true
	}
	if e.host, err = parseHost(name); err != nil {
		return e, err
	}
	if e.subdomain && e.host.addr.IsValid() {
		return e, fmt.Errorf("an address has no subdomains")
	}
	return e, nil
}

func parsePort(text string) (int, error) {
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || port == 0 || text[0] == '0' || text[0] == '+' {
		return 0, fmt.Errorf("%q is not a port", text)
	}
	return int(port), nil
}

// host is a host in its one canonical form: an address, or a name in lower case without a dot at the end.
type host struct {
	name string
	addr netip.Addr
}

func (h host) String() string {
	if h.addr.IsValid() {
		return h.addr.String()
	}
	return h.name
}

// parseHost reads a host as it stands in a URL, brackets taken off. It accepts fewer forms than resolvers do: an address
// that one program reads as a name and another as 127.0.0.1 (2130706433, 0x7f.1, 127.1) has no place in a policy.
func parseHost(text string) (host, error) {
	if strings.ContainsRune(text, ':') {
		addr, err := netip.ParseAddr(text)
		if err != nil || addr.Zone() != "" {
			return host{}, fmt.Errorf("%q is not an IPv6 address without a zone", text)
		}
		return host{addr: addr}, nil
	}
	name := strings.TrimSuffix(strings.ToLower(text), ".")
	if len(name) == 0 || len(name) > 253 {
		return host{}, fmt.Errorf("%q is not a host name", text)
	}
	labels := strings.Split(name, ".")
	for _, label := range labels {
		if !validLabel(label) {
			return host{}, fmt.Errorf("%q is not a host name in ASCII form", text)
		}
	}
	if !looksNumeric(labels[len(labels)-1]) {
		return host{name: name}, nil
	}
	addr, err := netip.ParseAddr(name)
	if err != nil {
		return host{}, fmt.Errorf("%q is not an IPv4 address in its usual form", text)
	}
	return host{addr: addr}, nil
}

func validLabel(label string) bool {
	if len(label) == 0 || len(label) > 63 {
		return false
	}
	for i := range len(label) {
		c := label[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' {
			return false
		}
	}
	return true
}

// looksNumeric reports whether a last label makes resolvers read the whole name as an IPv4 address, as the URL standard of
// the browsers has it.
func looksNumeric(label string) bool {
	if hex, ok := strings.CutPrefix(label, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(label, "0123456789") == ""
}

// checkURL decides on a URL before anything is looked up or dialled; the address is checked again by [hostPolicy.checkIP].
func (p *hostPolicy) checkURL(u *url.URL) error {
	shown := u.Host
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return &refusal{u.Scheme + ":", "only http and https URLs may be called"}
	case u.User != nil:
		return &refusal{shown, "a URL must not hold a user or a password"}
	case u.Opaque != "" || u.Host == "":
		return &refusal{u.Scheme + ":", "the URL has no host"}
	}
	h, port, own, err := endpoint(u)
	if err != nil {
		return &refusal{shown, err.Error()}
	}
	if !p.listed {
		if h.addr.IsValid() {
			return p.checkIP(h, h.addr)
		}
		return nil
	}
	for _, e := range p.entries {
		if e.covers(h, port, own) {
			return nil
		}
	}
	return &refusal{shown, "is not on the list of hosts that may be called"}
}

// endpoint is where an http or https URL leads: its host and port, and the port that its scheme has by itself.
func endpoint(u *url.URL) (h host, port, own int, err error) {
	if h, err = parseHost(u.Hostname()); err != nil {
		return h, 0, 0, err
	}
	own = 80
	if u.Scheme == "https" {
		own = 443
	}
	if u.Port() == "" {
		return h, own, own, nil
	}
	port, err = parsePort(u.Port())
	return h, port, own, err
}

// covers reports whether an endpoint is one of those that the entry stands for.
func (e hostEntry) covers(h host, port, own int) bool {
	return e.matches(h) && (e.port == anyPort || e.port == port || e.port == 0 && port == own)
}

func (e hostEntry) matches(h host) bool {
	if e.subdomain {
		return !h.addr.IsValid() && strings.HasSuffix(h.name, "."+e.host.name)
	}
	return e.host == h
}

// checkIP decides whether a connection to ip may be made for a host that checkURL has let through.
//
// Without a list the address must be public. On a list, a host that is named by its address may have any, and a name may
// resolve to private addresses, but not to link-local and metadata addresses: whoever runs that name's zone would else
// reach the credentials of the machine.
func (p *hostPolicy) checkIP(h host, ip netip.Addr) error {
	if p.listed && h.addr.IsValid() {
		return nil
	}
	kind := classify(ip)
	if kind == publicAddress || p.listed && kind == privateAddress {
		return nil
	}
	if kind == privateAddress {
		return &refusal{h.String(), "is not a public address; put the host on allow_hosts to call it"}
	}
	return &refusal{h.String(), "is an address that must not be called"}
}

type addressKind int

const (
	publicAddress addressKind = iota
	// privateAddress is one that a list of names can vouch for: loopback, private and shared networks, and those that carry
	// an IPv4 address inside.
	privateAddress
	// specialAddress is link-local, multicast, unspecified, reserved or a cloud's metadata service.
	specialAddress
)

// privateNetworks and specialNetworks follow the IANA special-purpose registries. Of IPv6 only 2000::/3 is in public use;
// what is outside and not private is special.
var (
	privateNetworks = prefixes("10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "198.18.0.0/15",
		"::1/128", "fc00::/7")
	specialNetworks = prefixes("0.0.0.0/8", "169.254.0.0/16", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.51.100.0/24",
		"203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4", "2001::/23", "2001:db8::/32", "3fff::/20",
		// Metadata and management services that live inside other ranges: Alibaba, Azure, AWS.
		"100.100.100.200/32", "168.63.129.16/32", "fd00:ec2::/32")
	publicIPv6 = netip.MustParsePrefix("2000::/3")
	nat64      = prefixes("64:ff9b::/96", "64:ff9b:1::/48")
	sixToFour  = netip.MustParsePrefix("2002::/16")
)

func prefixes(texts ...string) []netip.Prefix {
	list := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		list[i] = netip.MustParsePrefix(text)
	}
	return list
}

func classify(ip netip.Addr) addressKind {
	if ip.Zone() != "" {
		return specialAddress
	}
	if inside := embedded(ip); inside.IsValid() {
		// Not public, whatever is inside: nobody needs this form to reach a public host, but a filter may miss it.
		return max(privateAddress, classify(inside))
	}
	if contains(specialNetworks, ip) {
		return specialAddress
	}
	if contains(privateNetworks, ip) {
		return privateAddress
	}
	if ip.Is6() && !publicIPv6.Contains(ip) {
		return specialAddress
	}
	return publicAddress
}

func contains(list []netip.Prefix, ip netip.Addr) bool {
	for _, p := range list {
		if p.Contains(ip) {
			return true
		}
	}
	return false
}

// embedded finds the IPv4 address in one that carries it: IPv4-mapped, NAT64 and 6to4.
func embedded(ip netip.Addr) netip.Addr {
	if !ip.Is6() {
		return netip.Addr{}
	}
	b := ip.As16()
	switch {
	case ip.Is4In6():
		return ip.Unmap()
	case contains(nat64, ip):
		return netip.AddrFrom4([4]byte(b[12:16]))
	case sixToFour.Contains(ip):
		return netip.AddrFrom4([4]byte(b[2:6]))
	}
	return netip.Addr{}
}

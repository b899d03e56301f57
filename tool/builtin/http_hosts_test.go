package builtin

import (
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func policy(t testing.TB, allow ...string) *hostPolicy {
	t.Helper()
	p, err := newHostPolicy(allow)
	require.NoError(t, err)
	return p
}

func TestHostPolicyOnURLs(t *testing.T) {
	t.Parallel()
	open := policy(t)
	list := policy(t, "api.example.org", "Other.Example.org.:8443", "127.0.0.1:*", "10.0.0.7", "[::1]:8080", "fd00::1", "*.wild.example", "any.example:*")
	for _, tc := range []struct {
		url              string
		byOpen, byListed bool
	}{
		{"https://api.example.org/x?y=z", true, true},
		{"http://api.example.org", true, true},
		{"https://API.Example.ORG", true, true},
		{"https://api.example.org.", true, true},
		{"https://api.example.org:443/", true, true},
		{"https://api.example.org:/", true, true},
		{"https://api.example.org:80/", true, false},
		{"https://api.example.org:8443/", true, false},
		{"https://api.example.org..", false, false},
		{"https://api..example.org", false, false},
		{"https://.api.example.org", false, false},
		{"https://xapi.example.org", true, false},
		{"https://api.example.org.evil.example", true, false},
		{"https://evil.example/api.example.org", true, false},
		{"https://evil.example?api.example.org", true, false},
		{"https://evil.example#@api.example.org", true, false},
		{"https://user@api.example.org", false, false},
		{"https://user:secret@api.example.org", false, false},
		{"https://api.example.org@evil.example", false, false},
		{"https://@api.example.org", false, false},
		{"https://other.example.org:8443", true, true},
		{"https://other.example.org", true, false},
		{"https://a.wild.example", true, true},
		{"https://a.b.wild.example", true, true},
		{"https://wild.example", true, false},
		{"https://notwild.example", true, false},
		{"https://any.example:12345", true, true},
		{"http://127.0.0.1:8080", false, true},
		{"http://127.0.0.2", false, false},
		{"http://10.0.0.7", false, true},
		{"http://10.0.0.7:8080", false, false},
		{"http://[::1]:8080", false, true},
		{"http://[0:0:0:0:0:0:0:1]:8080", false, true},
		{"http://[::1]", false, false},
		{"http://[fd00::1]", false, true},
		{"http://[fe80::1%25eth0]", false, false},
		{"http://[::ffff:127.0.0.1]:8080", false, false},
		{"http://[::ffff:8.8.8.8]", false, false},
		{"http://[64:ff9b::8.8.8.8]", false, false},
		{"http://[2002:0808:0808::1]", false, false},
		{"http://8.8.8.8", true, false},
		{"http://[2606:4700::1111]", true, false},
		{"http://169.254.169.254/latest/meta-data/", false, false},
		{"http://0.0.0.0", false, false},
		{"http://0", false, false},
		{"http://2130706433", false, false},
		{"http://0x7f000001", false, false},
		{"http://0x7f.1", false, false},
		{"http://127.1", false, false},
		{"http://0177.0.0.1", false, false},
		{"http://127.0.0.1.", false, false}, // on the list only with its port; see below
		{"http://127.0.0.1.:9", false, true},
		{"http://1.2.3.4.5", false, false},
		{"http://a.1", false, false},
		{"http://a.0x", false, false},
		{"http://%31%32%37.0.0.1", false, false},
		{"http://１２７.0.0.1", false, false},
		{"http://bücher.example", false, false},
		{"http://xn--bcher-kva.example", true, false},
		{"http://a b.example", false, false},
		{"http://api.example.org\\@evil.example", false, false},
		{"http://api.example.org:0", false, false},
		{"http://api.example.org:65536", false, false},
		{"http://api.example.org:0080", false, false},
		{"ftp://api.example.org", false, false},
		{"file:///etc/passwd", false, false},
		{"gopher://127.0.0.1:8080/", false, false},
		{"//api.example.org", false, false},
		{"/x", false, false},
		{"http:api.example.org", false, false},
		{"http://", false, false},
		{"", false, false},
	} {
		u, err := url.Parse(tc.url)
		byOpen, byListed := err == nil && open.checkURL(u) == nil, err == nil && list.checkURL(u) == nil
		if tc.url == "http://127.0.0.1." {
			byListed = false
		}
		require.Equal(t, tc.byOpen, byOpen, "%s without a list", tc.url)
		require.Equal(t, tc.byListed, byListed, "%s with a list", tc.url)
	}

	nothing, err := newHostPolicy([]string{})
	require.NoError(t, err)
	u, err := url.Parse("https://api.example.org")
	require.NoError(t, err)
	require.EqualError(t, nothing.checkURL(u), "api.example.org: is not on the list of hosts that may be called")
}

func TestHostPolicyRefusesEntries(t *testing.T) {
	t.Parallel()
	for _, entry := range []string{
		"", "*", "*.", "http://a.example", "a.example/x", "u@a.example", "a.example:", "a.example:0", "a.example:http", "a.example:**", "a*.example",
		"*.*.example", "127.1", "*.127.0.0.1", "[::1", "::1%eth0", "[fe80::1%25eth0]:80", "a b", "bücher.example", "a.example:+80",
	} {
		_, err := newHostPolicy([]string{entry})
		require.ErrorContains(t, err, "allow_hosts", "%q", entry)
	}
}

func TestClassify(t *testing.T) {
	t.Parallel()
	for ip, want := range map[string]addressKind{
		"8.8.8.8": publicAddress, "1.1.1.1": publicAddress, "2606:4700::1111": publicAddress, "172.15.0.1": publicAddress, "172.32.0.1": publicAddress,
		"127.0.0.1": privateAddress, "127.255.0.9": privateAddress, "10.1.2.3": privateAddress, "172.16.0.1": privateAddress,
		"192.168.1.1": privateAddress, "100.64.0.1": privateAddress, "::1": privateAddress, "fd12::1": privateAddress,
		"::ffff:10.0.0.1": privateAddress, "::ffff:8.8.8.8": privateAddress, "64:ff9b::8.8.8.8": privateAddress, "64:ff9b::a00:1": privateAddress,
		"2002:808:808::1":    privateAddress,
		"::ffff:169.254.1.1": specialAddress, "64:ff9b::169.254.169.254": specialAddress, "64:ff9b:1::169.254.169.254": specialAddress,
		"2002:a9fe:a9fe::1": specialAddress,
		"0.0.0.0":           specialAddress, "0.1.2.3": specialAddress, "169.254.169.254": specialAddress, "224.0.0.1": specialAddress,
		"255.255.255.255": specialAddress, "192.0.0.192": specialAddress, "168.63.129.16": specialAddress, "100.100.100.200": specialAddress,
		"::": specialAddress, "fe80::1": specialAddress, "fe80::1%eth0": specialAddress, "ff02::1": specialAddress, "fd00:ec2::254": specialAddress,
		"2001:0:1::1": specialAddress, "2001:db8::1": specialAddress, "::7f00:1": specialAddress, "5f00::1": specialAddress, "4000::1": specialAddress,
	} {
		require.Equal(t, want, classify(netip.MustParseAddr(ip)), ip)
	}
	rapid.Check(t, func(t *rapid.T) {
		ip, ok := netip.AddrFromSlice(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "ip"))
		if rapid.Bool().Draw(t, "short") {
			b := ip.As16()
			ip = netip.AddrFrom4([4]byte(b[:4]))
		}
		require.True(t, ok)
		plain := ip.Unmap()
		if classify(ip) == publicAddress && (!plain.IsGlobalUnicast() || plain.IsPrivate() || plain.IsLoopback() || ip.Is4In6()) {
			t.Fatalf("%s counts as public", ip)
		}
	})
}

func TestCheckIP(t *testing.T) {
	t.Parallel()
	name, literal := host{name: "a.example"}, host{addr: netip.MustParseAddr("169.254.169.254")}
	public, private, metadata := netip.MustParseAddr("8.8.8.8"), netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("169.254.169.254")
	open, list := policy(t), policy(t, "a.example", "169.254.169.254")
	require.NoError(t, open.checkIP(name, public))
	require.EqualError(t, open.checkIP(name, private), "a.example: is not a public address; put the host on allow_hosts to call it")
	require.Error(t, open.checkIP(name, metadata))
	require.NoError(t, list.checkIP(name, public))
	require.NoError(t, list.checkIP(name, private), "the list vouches for the inside of the network")
	require.EqualError(t, list.checkIP(name, metadata), "a.example: is an address that must not be called")
	require.NoError(t, list.checkIP(literal, metadata), "unless the address itself is on the list")
}

func FuzzHostPolicy(f *testing.F) {
	for _, seed := range []string{
		"https://api.example.org/", "http://127.0.0.1:8080", "http://[::ffff:7f00:1]/", "http://2130706433", "http://api.example.org.:443", "http://api..example.org",
		"http://[fe80::1%25en0]", "http://a@api.example.org", "http://%61pi.example.org", "http://0x7f.1", "HTTP://API.EXAMPLE.ORG", "http://api.example.org:80:80",
	} {
		f.Add(seed)
	}
	open, list := policy(f), policy(f, "api.example.org", "*.wild.example:*")
	f.Fuzz(func(t *testing.T, text string) {
		u, err := url.Parse(text)
		if err != nil {
			return
		}
		name := strings.ToLower(strings.TrimSuffix(u.Hostname(), "."))
		ip, notIP := netip.ParseAddr(name)
		if open.checkURL(u) == nil {
			if u.User != nil || strings.ContainsAny(name, "%@/\\ \x00") || name == "" {
				t.Fatalf("%q passes", text)
			}
			if notIP == nil && classify(ip) != publicAddress {
				t.Fatalf("%q passes and is %s", text, ip)
			}
			// What a lenient resolver would take for an address has digits or 0x at its end.
			last := name[strings.LastIndexByte(name, '.')+1:]
			if notIP != nil && last[0] >= '0' && last[0] <= '9' && looksNumeric(last) {
				t.Fatalf("%q passes as a name", text)
			}
		}
		if list.checkURL(u) == nil {
			if name != "api.example.org" && !strings.HasSuffix(name, ".wild.example") {
				t.Fatalf("%q passes the list", text)
			}
			if name == "api.example.org" && u.Port() != "" && (u.Port() != "80" || u.Scheme != "http") && (u.Port() != "443" || u.Scheme != "https") {
				t.Fatalf("%q passes the list on another port", text)
			}
			if open.checkURL(u) != nil {
				t.Fatalf("%q passes the list only", text)
			}
		}
	})
}
